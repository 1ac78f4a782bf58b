//! The agent's swarm, connected once the cache of the disks is open.

use headstart_agentd::local::AgentSwarm;
use headstart_block::Result;
use headstart_cache::Cache;
use headstart_disk::Swarm;
use headstart_diskd::SwarmConnector;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;

/// The connection to the agent at a socket; it is kept for the figures of the disks.
pub(super) struct Connector<'a> {
    socket: &'a Path,
    connected: OnceLock<Arc<AgentSwarm>>,
}

impl<'a> Connector<'a> {
    pub(super) fn new(socket: &'a Path) -> Self {
        Self { socket, connected: OnceLock::new() }
    }

    /// The client, if there is a cache whose missing bytes it can ask for.
    pub(super) fn connected(&self) -> Option<Arc<AgentSwarm>> {
        self.connected.get().cloned()
    }
}

impl SwarmConnector for Connector<'_> {
    fn connect(&self, cache: &Cache, runtime: &Handle) -> Result<Arc<dyn Swarm>> {
        let swarm = runtime.block_on(AgentSwarm::start(self.socket, cache, runtime))?;
        Ok(Arc::clone(self.connected.get_or_init(|| swarm)) as Arc<dyn Swarm>)
    }
}
