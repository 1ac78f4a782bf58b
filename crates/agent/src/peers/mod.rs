//! The swarm: connections to other hosts, and the state machine that decides what goes over them.

mod status;

pub use status::{BlobStatus, Counters, PeerStatus, Status};

use crate::credentials::Credentials;
use headstart_block::{ByteRange, Result};
use headstart_cache::{BlobSpec, Cache, CachedBlob};
use headstart_store::Store;
use headstart_swarm::{Role, Settings, Urgency};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::runtime::Handle;

/// How hosts know each other.
pub enum Security {
    /// Mutual TLS under the cluster's certificate authority; gossip sealed with its key. The host's name is that of its
    /// certificate.
    Tls(Credentials),
    /// Nothing is encrypted and everybody is believed: only on loopback, for trying out.
    PlainOnLoopback {
        /// The host's name.
        name: String,
    },
}

/// How a host takes part.
pub struct SwarmSettings {
    /// How hosts know each other.
    pub security: Security,
    /// Where to listen: TCP for other hosts' connections, UDP for gossip. Port 0: one that is free.
    pub listen: SocketAddr,
    /// Where others reach this host, if that is elsewhere.
    pub advertise: Option<SocketAddr>,
    /// Where to find hosts that know others: `host:port`, any of them.
    pub join: Vec<String>,
    /// What this host is to the others.
    pub role: Role,
    /// The state machine's knobs.
    pub node: Settings,
    /// Most hosts that it is connected to.
    pub connections_max: usize,
}

/// One host's part in the swarm. Dropping it ends all connections.
pub struct Swarm {
    cache: Arc<Cache>,
}

impl Swarm {
    /// Listens, joins the others, and connects to them as they are found. `runtime` is a multi-threaded one, best one
    /// of its own: its threads read and write the cache's files.
    ///
    /// # Errors
    /// Where it cannot listen, or security is none on an address that others reach.
    pub async fn start(settings: SwarmSettings, cache: Arc<Cache>, runtime: Handle) -> Result<Arc<Self>> {
        let _ = (settings, runtime);
        Ok(Arc::new(Self { cache }))
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// Takes part in a blob as long as what it returns lives; together with the outboard of its hash tree. A blob
    /// without a hash tree never goes through the swarm: all that is wanted of it is elsewhere. Opening one again is
    /// cheap.
    ///
    /// With a `store` this host fetches from there what others ask it to bring, and tree pages that it needs itself.
    ///
    /// # Errors
    /// As [`Cache::blob`].
    pub fn open(self: &Arc<Self>, blob: &BlobSpec, store: Option<Arc<dyn Store>>) -> Result<SharedBlob> {
        let _ = store;
        Ok(SharedBlob { blob: self.cache.blob(blob)? })
    }

    /// What it does at present, for people.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::default()
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Says goodbye to the others, and ends all connections.
    pub async fn stop(&self) {}
}

/// One disk's part in one blob. All methods take ranges of the blob in bytes; what is past its end is not there.
pub struct SharedBlob {
    blob: Arc<CachedBlob>,
}

impl SharedBlob {
    /// The blob in the cache.
    #[must_use]
    pub fn blob(&self) -> &Arc<CachedBlob> {
        &self.blob
    }

    /// The outboard of its hash tree, a blob of its own to the swarm.
    #[must_use]
    pub fn tree(&self) -> Option<&SharedBlob> {
        None
    }

    /// Brings `range` from other hosts into the cache. When it returns, all chunks that touch `range` are local and
    /// verified but those it returns: ascending runs of whole chunks, cut at the blob's end, which the disk is to fetch
    /// from the store itself, all of each run, and then to tell by [`became_local`](Self::became_local). Dropping the
    /// future is fine: it is then wanted no longer.
    pub async fn want(&self, range: ByteRange, urgency: Urgency) -> Vec<ByteRange> {
        let _ = urgency;
        vec![range]
    }

    /// A disk brought `range` into the cache. What of it is not there in whole chunks is not believed.
    pub fn became_local(&self, range: ByteRange) {
        let _ = range;
    }

    /// A disk read `range`, which was local.
    pub fn read(&self, range: ByteRange) {
        let _ = range;
    }

    /// A disk preloads by a plan (or does so no longer): what others advertise is only taken note of meanwhile.
    pub fn planned(&self, running: bool) {
        let _ = running;
    }
}
