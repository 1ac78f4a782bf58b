//! The agent's swarm, connected once the cache of the disks is open.

use crate::local::AgentSwarm;
use headstart_block::Result;
use headstart_cache::Cache;
use headstart_disk::SwarmClient;
use headstart_diskd::SwarmConnector;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The way to the agent at a socket.
#[derive(Clone, Copy, Debug)]
pub struct AgentConnector<'a>(&'a Path);

impl<'a> AgentConnector<'a> {
    /// The way to the agent at this socket. It is connected when a cache is open.
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
