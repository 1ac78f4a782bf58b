//! The disks of images, in the hands of the agent of this host: each has a process of its own, which goes on when the
//! snapshotter or the agent ends.

use headstart_agentd::client::AgentClient;
use headstart_agentd::disks::DiskSpec;
use headstart_block::{Error, ErrorKind, Result};
use headstart_image_trees::{TreeDisks, TreeName};
use std::path::Path;
use tokio::runtime::Handle;

/// The agent, as the holder of images' disks.
pub(super) struct AgentDisks {
    agent: AgentClient,
    runtime: Handle,
    /// Arguments for reaching stores.
    store: Vec<String>,
}

impl AgentDisks {
    /// Asks `agent` on `runtime`; disks reach their stores with the arguments `store`.
    pub(super) fn new(agent: AgentClient, runtime: Handle, store: Vec<String>) -> Self {
        Self { agent, runtime, store }
    }

    /// `true` if the agent has a disk of that name.
    fn has(&self, name: &str) -> Result<bool> {
        let disks = self.runtime.block_on(self.agent.list())?;
        Ok(disks.as_array().is_some_and(|disks| disks.iter().any(|disk| disk["name"] == name)))
    }
}

impl TreeDisks for AgentDisks {
    fn attach(&self, name: &str, tree: &TreeName, file: &Path) -> Result<()> {
        let file = file
            .to_str()
            .ok_or_else(|| Error::invalid("is not text, which the agent needs").about(file.display()))?;
        let mut arguments = vec![tree.image.to_string(), "--fuse".to_owned(), file.to_owned()];
        if let Some(lowest) = tree.lowest {
            arguments.extend(["--lowest-layers".to_owned(), lowest.to_string()]);
        }
        arguments.extend(self.store.iter().cloned());
        let spec = DiskSpec { name: name.to_owned(), arguments, directory: None };
        match self.runtime.block_on(self.agent.attach(&spec)) {
            // An earlier process of the snapshotter has attached it.
            Err(error) if error.kind() == ErrorKind::Conflict && self.has(name)? => Ok(()),
            attached => attached.map(|_| ()),
        }
    }

    fn detach(&self, name: &str) -> Result<()> {
        match self.runtime.block_on(self.agent.detach(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            detached => detached.map(|_| ()),
        }
    }
}
