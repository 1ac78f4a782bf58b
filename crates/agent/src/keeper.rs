//! What is on this host because somebody said so, and not because a disk read it: images that are to be warm, and
//! parts of images that hosts keep together (`pinned`).
//!
//! What is ordered is brought in parts, in order and without hurry, each from other hosts if they have it (so that
//! the store is asked once for all who are told the same) and else from its store. From then on this host takes
//! part in the blob as if a disk had it: others find it here. What is warm is as evictable as anything else in the
//! cache; what is pinned is not.

use crate::peers::orders::{Asked, Done, Order, Word};
use crate::peers::{SharedBlob, Swarm};
use crate::stores::Stores;
use futures::stream::{self, StreamExt};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_disk::Carrier;
use headstart_store::{Location, Store};
use headstart_swarm::{Chunks, Role, Urgency};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use utoipa::ToSchema;

mod pinned;

pub use pinned::PinStatus;

use pinned::Keeping;

/// Bytes that are brought at a time, and how many times that at once.
const PART: u64 = 1 << 20;
const AT_ONCE: usize = 8;

/// How often what could not be had is tried again, and when.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_secs(2);

/// Blobs that are kept open; the oldest are let go.
const KEPT_MAX: usize = 4096;

/// Orders of other hosts that are obeyed at once.
const OBEYED_AT_ONCE: usize = 4;

/// And those that wait for that; more are refused.
const OBEYED_MAX: usize = 1024;

/// What is to be warm, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmSpec {
    /// The blobs.
    pub blobs: Vec<Order>,
    /// Hosts, by name. Neither these nor roots: this host.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// All roots that this host is connected to, and itself where it is one.
    #[serde(default)]
    pub roots: bool,
}

/// How it went on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Warmed {
    /// The host.
    pub host: String,
    /// Bytes that were asked for, in whole chunks.
    pub bytes: u64,
    /// Bytes of these that could not be had.
    pub lacking_bytes: u64,
    /// What went wrong, where the host could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Looks after what is kept, as long as it lives.
pub struct Keeper {
    swarm: Arc<Swarm>,
    stores: Arc<Stores>,
    kept: Mutex<VecDeque<(Digest, Arc<SharedBlob>)>>,
    keeping: Keeping,
}

/// Obeys other hosts until it is dropped.
pub struct Obeying([AbortHandle; 2]);

impl Drop for Obeying {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Keeper {
    /// What the agent before this one kept, as is written in its directory `dir`; `cache` is the cache's. For a
    /// runtime of several threads.
    #[must_use]
    pub fn new(swarm: Arc<Swarm>, stores: Arc<Stores>, dir: &Path, cache: &Path) -> Arc<Self> {
        let keeping = Keeping::load(dir, cache);
        Arc::new(Self { swarm, stores, kept: Mutex::default(), keeping })
    }

    /// Does what other hosts order from now on, and looks after what is pinned.
    #[must_use]
    pub fn obey(self: &Arc<Self>) -> Obeying {
        let orders = self.swarm.take_orders();
        let obeying = tokio::spawn(obey(Arc::clone(self), orders)).abort_handle();
        let looking = tokio::spawn(Self::look_after(Arc::downgrade(self))).abort_handle();
        Obeying([obeying, looking])
    }

    /// Brings blobs to hosts, and returns when that is done.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where a host is not connected, [`ErrorKind::Invalid`] where a blob is none. What
    /// fails on a host is in its part of the answer.
    pub async fn warm(&self, spec: &WarmSpec) -> Result<Vec<Warmed>> {
        for order in &spec.blobs {
            order.spec()?;
        }
        let hosts = self.hosts(&spec.hosts, spec.roots)?;
        let words: Vec<_> = spec.blobs.iter().cloned().map(Word::Bring).collect();
        Ok(self.tell(hosts, &words).await)
    }

    /// Has hosts do something, and waits until it is done.
    async fn tell(&self, hosts: Vec<String>, words: &[Word]) -> Vec<Warmed> {
        let telling = hosts.into_iter().map(async |host| {
            let (Done { bytes, lacking }, error) = match self.tell_host(&host, words).await {
                Ok(done) => (done, None),
                Err(error) => (Done::default(), Some(error.to_string())),
            };
            Warmed { host, bytes, lacking_bytes: lacking, error }
        });
        futures::future::join_all(telling).await
    }

    async fn tell_host(&self, host: &str, words: &[Word]) -> Result<Done> {
        let mut all = Done::default();
        for word in words {
            let done = match word {
                Word::Bring(order) if host == self.swarm.name() => {
                    self.bring(order, self.stores.get(&order.store)).await?
                }
                Word::Pin(pin) if host == self.swarm.name() => self.obey_pin(pin).await?,
                word => self.swarm.order(host, word).await?,
            };
            all = all.and(done);
        }
        Ok(all)
    }

    /// This host, and all that it is connected to by name.
    fn known_hosts(&self) -> Vec<(String, Role)> {
        let own = (self.swarm.name().to_owned(), self.swarm.role());
        std::iter::once(own).chain(self.swarm.connected_hosts()).collect()
    }

    /// Hosts by name, each once, this one first.
    fn hosts(&self, names: &[String], roots: bool) -> Result<Vec<String>> {
        let known = self.known_hosts();
        if let Some(name) = names.iter().find(|name| !known.iter().any(|(host, _)| host == *name)) {
            return Err(Error::new(ErrorKind::NotFound, "this host is not connected to it")
                .about(name)
                .remedy("`headstart swarm status` lists the hosts"));
        }
        if names.is_empty() && !roots {
            return Ok(vec![self.swarm.name().to_owned()]);
        }
        let is_meant = |host: &String, role: Role| names.contains(host) || (roots && role == Role::Root);
        let meant: Vec<_> =
            known.into_iter().filter(|(host, role)| is_meant(host, *role)).map(|(host, _)| host).collect();
        if meant.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "this host is connected to no root")
                .remedy("start agents with --root, or name hosts"));
        }
        Ok(meant)
    }

    /// Does what another host orders.
    async fn obey_word(&self, word: &Word) -> Result<Done> {
        match word {
            Word::Bring(order) => self.bring(order, self.store_of_others(order)).await,
            Word::Pin(pin) => self.obey_pin(pin).await,
            // Neither waits its turn.
            Word::Known(_) | Word::Open(_) => Ok(Done::default()),
        }
    }

    /// A host of which this one is a root has a blob: this one takes part in it from now on. It has no say in what is
    /// read of this host's directories.
    fn take_part(&self, order: &Order) -> Result<()> {
        if self.swarm.role() != Role::Root {
            return Ok(());
        }
        let spec = order.spec()?;
        let location = order.store.parse::<Location>().ok().filter(Location::is_remote);
        let store = location.and_then(|_| self.stores.get(&order.store));
        // It looks into the cache's directory.
        let shared = tokio::task::block_in_place(|| self.swarm.open(&spec, store))?;
        self.keep(spec.digest, &Arc::new(shared));
        Ok(())
    }

    /// The store that another host names: it has no say in what is read of this one's directories.
    fn store_of_others(&self, order: &Order) -> Option<Arc<dyn Store>> {
        let location = order.store.parse::<Location>().ok().filter(Location::is_remote);
        location.and_then(|_| self.stores.get(&order.store))
    }

    /// Brings what an order says to this host, and takes part in the blob from now on.
    async fn bring(&self, order: &Order, store: Option<Arc<dyn Store>>) -> Result<Done> {
        let spec = order.spec()?;
        let carrier = store.clone().map(Carrier::new);
        // It looks into the cache's directory.
        let shared = tokio::task::block_in_place(|| self.swarm.open(&spec, store))?;
        let shared = Arc::new(shared);
        self.keep(spec.digest, &shared);
        let whole = |range: ByteRange| Chunks::touched(range).bytes(spec.len);
        let ranges: Vec<ByteRange> = order.ranges().into_iter().map(whole).collect();
        Ok(bring_all(&shared, carrier.as_ref(), &ranges).await)
    }

    fn keep(&self, digest: Digest, shared: &Arc<SharedBlob>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(known, _)| *known != digest);
        kept.push_back((digest, Arc::clone(shared)));
        if kept.len() > KEPT_MAX {
            kept.pop_front();
        }
    }
}

/// Brings ranges of whole chunks, in order, and tries again what cannot be had at once.
async fn bring_all(shared: &SharedBlob, carrier: Option<&Carrier>, ranges: &[ByteRange]) -> Done {
    let mut done = Done { bytes: ranges.iter().map(|range| range.len()).sum(), lacking: 0 };
    for attempt in 1..=TRIES {
        let parts = ranges.iter().copied().flat_map(|range| range.parts(PART));
        let bringing = parts.map(|part| bring_part(shared, carrier, part));
        stream::iter(bringing).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
        done.lacking = missing(shared, ranges);
        if done.lacking == 0 || attempt == TRIES {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    done
}

/// Bytes of these that are not here.
fn missing(shared: &SharedBlob, ranges: &[ByteRange]) -> u64 {
    let mut missing = 0;
    for range in ranges {
        shared.blob().missing(*range, &mut |run| missing += run.len());
    }
    missing
}

/// Brings a part, and the pages of the hash tree that prove it, as far as it can be had.
async fn bring_part(shared: &SharedBlob, carrier: Option<&Carrier>, part: ByteRange) {
    if let Some(tree) = shared.tree() {
        let mut pages = Vec::new();
        shared.blob().tree_missing(part, &mut |run| pages.push(run));
        for run in pages {
            bring_run(tree, carrier, run).await;
        }
    }
    bring_run(shared, carrier, part).await;
}

async fn bring_run(shared: &SharedBlob, carrier: Option<&Carrier>, run: ByteRange) {
    for range in shared.want(run, Urgency::Background).await {
        let Some(carrier) = carrier else { continue };
        match carrier.bring(shared.blob(), range, headstart_store::Urgency::Background).await {
            Ok(()) => shared.became_local(range),
            Err(error) => {
                tracing::debug!(%error, blob = %shared.blob().spec().digest, "cannot be brought ahead of need");
            }
        }
    }
}

async fn obey(keeper: Arc<Keeper>, mut orders: mpsc::Receiver<Asked>) {
    let room = Arc::new(Semaphore::new(OBEYED_AT_ONCE));
    let mut tasks = tokio::task::JoinSet::new();
    while let Some(asked) = orders.recv().await {
        while tasks.try_join_next().is_some() {}
        match &asked.word {
            Word::Known(known) => {
                keeper.tell_unknown(&asked, known);
                continue;
            }
            Word::Open(order) => {
                if let Err(error) = keeper.take_part(order) {
                    tracing::warn!(%error, host = %asked.host, "a root cannot take part in a blob of an agent");
                }
                continue;
            }
            word if tasks.len() >= OBEYED_MAX => {
                keeper.swarm.obeyed(&asked, Done { bytes: word.len(), lacking: word.len() });
                continue;
            }
            Word::Bring(_) | Word::Pin(_) => {}
        }
        let (keeper, room) = (Arc::clone(&keeper), Arc::clone(&room));
        tasks.spawn(async move {
            // It is never closed.
            let Ok(permit) = room.acquire_owned().await else { return };
            let done = keeper.obey_word(&asked.word).await.unwrap_or_else(|error| {
                tracing::warn!(%error, host = %asked.host, "what another host ordered cannot be done");
                Done { bytes: asked.word.len(), lacking: asked.word.len() }
            });
            keeper.swarm.obeyed(&asked, done);
            drop(permit);
        });
    }
}
