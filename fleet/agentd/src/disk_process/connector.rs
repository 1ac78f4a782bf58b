//! The agent's swarm, connected once the cache of the disks is open.

use crate::local::AgentSwarm;
use headstart_block::Result;
use headstart_cache::Cache;
use headstart_disk::SwarmClient;
use headstart_diskd::SwarmConnector;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Connects a disk's process to the swarm, by way of the agent at a socket.
#[derive(Clone, Copy, Debug)]
pub struct AgentConnector<'a>(&'a Path);

impl<'a> AgentConnector<'a> {
    /// Returns the connector for the agent's socket for disks (`swarm.sock`). It connects when the process has opened
    /// its cache, not before.
    #[must_use]
    pub fn new(socket: &'a Path) -> Self {
        Self(socket)
    }
}

impl SwarmConnector for AgentConnector<'_> {
    fn connect(&self, cache: &Cache, runtime: &Handle) -> Result<Arc<dyn SwarmClient>> {
        let swarm = runtime.block_on(AgentSwarm::start(self.0, cache, runtime))?;
        Ok(swarm)
    }
}
