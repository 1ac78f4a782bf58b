//! The disks of images, in the hands of the agent of this host: each has a process of its own, which goes on when the
//! snapshotter or the agent ends.

use super::attach_by::{Fallback, next_way};
use headstart_agentd::client::AgentClient;
use headstart_agentd::disks::{DiskHolder, DiskSpec};
use headstart_block::{ComplaintLevel, Complaints, Error, ErrorKind, Result};
use headstart_diskd::control::clone_disk;
use headstart_diskd::starts::tell_start;
use headstart_export::attach_way::AttachWay;
use headstart_export::loop_device::set_up_next_device;
use headstart_image_trees::{AttachOutcome, AttachedTree, ContainerPrograms, DiskOrder, TreeDisks};
use headstart_lsmt::writable::Limits;
use headstart_snapshotter::container_service::{ContainerId, program_of};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// The longest time for an answer of the agent: a disk may take its time to open, and to end.
const ANSWERS: Duration = Duration::from_secs(150);
/// The time between two looks at a disk that is being started.
const LOOK: Duration = Duration::from_millis(100);

/// The longest wait of a read of an nbd device for its store. A read whose process died waits ten seconds longer.
const NBD_DEADLINE: Duration = Duration::from_secs(30);

/// The agent, as the holder of images' disks.
pub(super) struct AgentDisks {
    agent: AgentClient,
    runtime: Handle,
    /// Arguments of every disk: for reaching stores, and for its pages in memory.
    words: Vec<String>,
    /// The snapshotter in words.
    program: String,
    /// The way in which disks that are only read become block devices, and what is done where it does not work.
    way: (AttachWay, Fallback),
    /// For warnings of disks that are attached in another way: the image and the cause.
    complaints: Complaints<(String, String)>,
}

impl AgentDisks {
    /// Asks `agent` on `runtime`, for the snapshotter in the directory `root`; disks are attached with the arguments
    /// `words`, too, in this way.
    pub(super) fn new(
        agent: AgentClient,
        runtime: Handle,
        words: Vec<String>,
        root: &Path,
        way: (AttachWay, Fallback),
    ) -> Self {
        let program = format!("the snapshotter of {}", root.display());
        Self { agent, runtime, words, program, way, complaints: Complaints::default() }
    }

    /// The outcome of a request to the agent.
    fn ask<T>(&self, name: &str, request: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = self.runtime.block_on(async { timeout(ANSWERS, request).await });
        answer.unwrap_or_else(|_| {
            let text = format!("the agent has not answered for {} s", ANSWERS.as_secs());
            Err(Error::new(ErrorKind::Unavailable, text).about(format_args!("disk {name}")))
        })
    }

    /// A disk in the agent's words; `None` if there is none of that name.
    async fn status(&self, name: &str) -> Result<Option<Value>> {
        let disks = self.agent.list().await?;
        Ok(disks.as_array().into_iter().flatten().find(|disk| disk["name"] == name).cloned())
    }

    /// Waits until a disk that is there is served.
    async fn until_served(&self, name: &str) -> Result<AttachedTree> {
        loop {
            let status = self.status(name).await?;
            match status.as_ref().and_then(|status| status["state"].as_str()) {
                Some("serving") => {
                    let device = status.as_ref().and_then(device_of);
                    return Ok(AttachedTree { outcome: AttachOutcome::Existing, device });
                }
                Some("starting" | "restarting") => sleep(LOOK).await,
                state => {
                    let text = format!("is {}", state.unwrap_or("not there any more"));
                    return Err(Error::new(ErrorKind::Unavailable, text).about(format_args!("disk {name}")));
                }
            }
        }
    }

    async fn attach_or_wait(&self, spec: &DiskSpec) -> Result<AttachedTree> {
        match self.agent.attach(spec).await {
            Ok(status) => Ok(AttachedTree { outcome: AttachOutcome::New, device: device_of(&status) }),
            // An earlier process of the snapshotter has attached it.
            Err(error) if error.kind() == ErrorKind::Conflict && self.status(&spec.name).await?.is_some() => {
                self.until_served(&spec.name).await
            }
            Err(error) => Err(error),
        }
    }

    /// The arguments of a disk that is served in this way.
    fn arguments(&self, order: &DiskOrder<'_>, way: AttachWay) -> Result<Vec<String>> {
        let tree = order.tree;
        let mut arguments = vec![tree.image.to_string()];
        match way {
            AttachWay::Loop => arguments.extend(["--fuse".to_owned(), text_of(order.file)?]),
            AttachWay::Ublk => arguments.push("--ublk".to_owned()),
            AttachWay::Nbd => {
                let deadline = format!("--deadline={}s", NBD_DEADLINE.as_secs());
                arguments.extend(["--device".to_owned(), "auto".to_owned(), deadline]);
            }
        }
        if let Some(lowest) = tree.lowest {
            arguments.extend(["--lowest-layers".to_owned(), lowest.to_string()]);
        }
        for file in &tree.above {
            arguments.extend(["--upper-layer".to_owned(), text_of(file)?]);
        }
        if let Some(writable) = order.writable {
            arguments.extend(["--writable".to_owned(), text_of(writable)?]);
        }
        if let Some(most) = order.most {
            arguments.extend(["--writable-max".to_owned(), most.max(Limits::MAX_LEAST).to_string()]);
        }
        arguments.extend(["--starts".to_owned(), text_of(order.starts)?]);
        if !order.entrypoint.is_empty() {
            arguments.push(format!("--expected-entrypoint={}", order.entrypoint));
        }
        arguments.extend(self.words.iter().cloned());
        Ok(arguments)
    }

    /// Says, once for an image and a cause, that a disk is attached in another way than the best one.
    fn tell_of_way(&self, disk: &str, image: &str, (way, next): (AttachWay, AttachWay), why: &str) {
        let remedy = format!("take the cause away, or start the snapshotter with --attach-by {next}");
        let line = format!("the disk of an image is no {way} device, and is attached by {next}");
        match self.complaints.next((image.to_owned(), why.to_owned())) {
            ComplaintLevel::Warning { .. } => tracing::warn!(image, disk, why, remedy, "{line}"),
            ComplaintLevel::Debug => tracing::debug!(image, disk, why, remedy, "{line}"),
        }
    }

    fn attach_by(&self, name: &str, order: &DiskOrder<'_>, way: AttachWay) -> Result<AttachedTree> {
        let arguments = self.arguments(order, way)?;
        let holder = Some(DiskHolder { program: self.program.clone(), image: order.image.to_owned() });
        let spec = DiskSpec { name: name.to_owned(), arguments, directory: None, holder };
        self.ask(name, self.attach_or_wait(&spec))
    }
}

/// The block device that a disk is, by its status; `None` for a disk that is a file.
fn device_of(status: &Value) -> Option<PathBuf> {
    let ways = status["ready"]["ways"].as_array()?;
    let uris = ways.iter().filter_map(|way| way["uri"].as_str());
    uris.map(PathBuf::from).find(|uri| uri.starts_with("/dev"))
}

/// containerd, which knows the programs of its containers.
pub(super) struct ContainerdPrograms {
    /// Its socket.
    pub(super) socket: PathBuf,
    /// Requests run on it.
    pub(super) runtime: Handle,
}

impl ContainerPrograms for ContainerdPrograms {
    fn arguments(&self, container: &ContainerId) -> Result<Option<Vec<String>>> {
        self.runtime.block_on(program_of(&self.socket, container))
    }
}

/// A path as text.
fn text_of(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::invalid("is not text, which the agent needs").about(path.display()))
}

impl TreeDisks for AgentDisks {
    fn attach(&self, name: &str, order: &DiskOrder<'_>) -> Result<AttachedTree> {
        // The loop device of a disk that is written to shows its users, also after a restart of this program.
        let way = if order.writable.is_some() { AttachWay::Loop } else { self.way.0 };
        let attached = std::thread::scope(|scope| {
            if way == AttachWay::Loop {
                // The device is needed next, and is ready before the disk is.
                let thread = std::thread::Builder::new().name("loop".to_owned());
                // Without it, the mount takes longer.
                let _ = thread.spawn_scoped(scope, set_up_next_device);
            }
            self.attach_by(name, order, way)
        });
        let Err(error) = attached else { return attached };
        let Some(next) = next_way((way, self.way.1), error.kind()) else { return Err(error) };
        self.tell_of_way(name, order.image, (way, next), &error.to_string());
        self.attach_by(name, order, next)
    }

    fn tell_start(&self, starts: &Path, entrypoint: &str) -> Result<bool> {
        tell_start(starts, entrypoint)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_disk_of_an_earlier_snapshotter_is_taken_in_its_own_way() {
        let way = |uri: &str| {
            device_of(&json!({"name": "tree-1", "ready": {"ways": [{"uri": uri, "qemu": null}]}}))
        };
        assert_eq!(way("/var/lib/headstart/snapshotter/trees/1/disk"), None);
        assert_eq!(way("/dev/nbd3"), Some(PathBuf::from("/dev/nbd3")));
        assert_eq!(way("/dev/ublkb0"), Some(PathBuf::from("/dev/ublkb0")));
        assert_eq!(device_of(&json!({"name": "tree-1", "ready": null})), None);
    }
}
