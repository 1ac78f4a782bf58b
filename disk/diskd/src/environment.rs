//! The resources that a program provides to the session that it opens.

use crate::copies::Copies;
use headstart_block::Result;
use headstart_cache::Cache;
use headstart_disk::SwarmClient;
use headstart_image::progress::Progress;
use headstart_store::StoreSettings;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Connects a session to the swarm, which is the other hosts that have the same images. A session calls the connector
/// after it has opened the cache.
pub trait SwarmConnector: Sync {
    /// Connects the cache to the swarm, with tasks on `runtime`, and returns the swarm's client for the disks.
    ///
    /// # Errors
    /// An error if this swarm cannot serve the cache.
    fn connect(&self, cache: &Cache, runtime: &Handle) -> Result<Arc<dyn SwarmClient>>;
}

/// The resources that the caller provides to a session.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// The settings with which stores are opened.
    pub stores: &'a StoreSettings,
    /// The tracker of the image copies that the process makes.
    pub copies: &'a Copies,
    /// The runtime on which fetches run.
    pub runtime: &'a Handle,
    /// The connector to the swarm that is asked for missing bytes; `None`: only stores are asked.
    pub swarm: Option<&'a dyn SwarmConnector>,
    /// The receiver of the progress of copies, which also tells whether the user wants to stop.
    pub progress: &'a dyn Progress,
    /// The function that shows the user a line of text while the disks are opened.
    pub notify: &'a (dyn Fn(&str) + Sync),
}
