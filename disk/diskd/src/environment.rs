//! The surroundings of a session, which the program that opens it has.

use crate::copies::Copies;
use headstart_block::Result;
use headstart_cache::Cache;
use headstart_disk::Swarm;
use headstart_image::progress::Progress;
use headstart_store::StoreSettings;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The connection to the other hosts of this host's swarm, which is made once the cache is open.
pub trait SwarmConnector: Sync {
    /// Connects the cache to the swarm.
    ///
    /// # Errors
    /// If this cannot be the swarm of the cache.
    fn connect(&self, cache: &Cache, runtime: &Handle) -> Result<Arc<dyn Swarm>>;
}

/// The surroundings of a session, which its caller has.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// The settings of the stores.
    pub stores: &'a StoreSettings,
    /// The copies of images that the process makes.
    pub copies: &'a Copies,
    /// The runtime that fetches run on.
    pub runtime: &'a Handle,
    /// The swarm of this host, if it is asked for missing bytes.
    pub swarm: Option<&'a dyn SwarmConnector>,
    /// The progress of copies, and the signal to stop.
    pub progress: &'a dyn Progress,
    /// Shows the user a line while the disks are opened.
    pub tell: &'a (dyn Fn(&str) + Sync),
}
