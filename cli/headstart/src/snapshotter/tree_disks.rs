//! The disks of images, in the hands of the agent of this host: each has a process of its own, which goes on when the
//! snapshotter or the agent ends.

use headstart_agentd::client::AgentClient;
use headstart_agentd::disks::{DiskHolder, DiskSpec};
use headstart_block::{Error, ErrorKind, Result};
use headstart_diskd::control::clone_disk;
use headstart_image_trees::{AttachOutcome, DiskOrder, TreeDisks};
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// The longest time for an answer of the agent: a disk may take its time to open, and to end.
const ANSWERS: Duration = Duration::from_secs(150);
/// The time between two looks at a disk that is being started.
const LOOK: Duration = Duration::from_millis(100);

/// The agent, as the holder of images' disks.
pub(super) struct AgentDisks {
    agent: AgentClient,
    runtime: Handle,
    /// Arguments of every disk: for reaching stores, and for its pages in memory.
    words: Vec<String>,
    /// The snapshotter in words.
    program: String,
}

impl AgentDisks {
    /// Asks `agent` on `runtime`, for the snapshotter in the directory `root`; disks are attached with the arguments
    /// `words`, too.
    pub(super) fn new(agent: AgentClient, runtime: Handle, words: Vec<String>, root: &Path) -> Self {
        let program = format!("the snapshotter of {}", root.display());
        Self { agent, runtime, words, program }
    }

    /// The outcome of a request to the agent.
    fn ask<T>(&self, name: &str, request: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = self.runtime.block_on(async { timeout(ANSWERS, request).await });
        answer.unwrap_or_else(|_| {
            let text = format!("the agent has not answered for {} s", ANSWERS.as_secs());
            Err(Error::new(ErrorKind::Unavailable, text).about(format_args!("disk {name}")))
        })
    }

    /// The state of a disk in the agent's words; `None` if there is none of that name.
    async fn state(&self, name: &str) -> Result<Option<String>> {
        let disks = self.agent.list().await?;
        let disk = disks.as_array().into_iter().flatten().find(|disk| disk["name"] == name);
        Ok(disk.and_then(|disk| disk["state"].as_str()).map(str::to_owned))
    }

    /// Waits until a disk that is there is served.
    async fn until_served(&self, name: &str) -> Result<AttachOutcome> {
        loop {
            match self.state(name).await?.as_deref() {
                Some("serving") => return Ok(AttachOutcome::Existing),
                Some("starting" | "restarting") => sleep(LOOK).await,
                state => {
                    let text = format!("is {}", state.unwrap_or("not there any more"));
                    return Err(Error::new(ErrorKind::Unavailable, text).about(format_args!("disk {name}")));
                }
            }
        }
    }

    async fn attach_or_wait(&self, spec: &DiskSpec) -> Result<AttachOutcome> {
        match self.agent.attach(spec).await {
            Ok(_) => Ok(AttachOutcome::New),
            // An earlier process of the snapshotter has attached it.
            Err(error) if error.kind() == ErrorKind::Conflict && self.state(&spec.name).await?.is_some() => {
                self.until_served(&spec.name).await
            }
            Err(error) => Err(error),
        }
    }
}

/// A path as text.
fn text_of(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::invalid("is not text, which the agent needs").about(path.display()))
}

impl TreeDisks for AgentDisks {
    fn attach(&self, name: &str, order: &DiskOrder<'_>) -> Result<AttachOutcome> {
        let tree = order.tree;
        let mut arguments = vec![tree.image.to_string(), "--fuse".to_owned(), text_of(order.file)?];
        if let Some(lowest) = tree.lowest {
            arguments.extend(["--lowest-layers".to_owned(), lowest.to_string()]);
        }
        for file in &tree.above {
            arguments.extend(["--upper-layer".to_owned(), text_of(file)?]);
        }
        if let Some(writable) = order.writable {
            arguments.extend(["--writable".to_owned(), text_of(writable)?]);
        }
        arguments.extend(self.words.iter().cloned());
        let holder = Some(DiskHolder { program: self.program.clone(), image: order.image.to_owned() });
        let spec = DiskSpec { name: name.to_owned(), arguments, directory: None, holder };
        self.ask(name, self.attach_or_wait(&spec))
    }

    fn clone_written(&self, written: &Path, to: &Path) -> Result<()> {
        clone_disk(written, to, Uuid::new_v4()).map(|_| ())
    }

    fn detach(&self, name: &str) -> Result<()> {
        match self.ask(name, self.agent.detach(name, true)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            detached => detached.map(|_| ()),
        }
    }
}
