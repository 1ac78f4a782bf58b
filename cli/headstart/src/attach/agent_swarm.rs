//! The agent's swarm, connected once the cache of the disks is open.

use headstart_agentd::local::AgentSwarm;
use headstart_block::Result;
use headstart_cache::Cache;
use headstart_disk::Swarm;
use headstart_diskd::SwarmConnector;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The way to the agent at a socket.
pub(super) struct Connector<'a>(pub(super) &'a Path);

impl SwarmConnector for Connector<'_> {
    fn connect(&self, cache: &Cache, runtime: &Handle) -> Result<Arc<dyn Swarm>> {
        let swarm = runtime.block_on(AgentSwarm::start(self.0, cache, runtime))?;
        Ok(swarm)
    }
}
