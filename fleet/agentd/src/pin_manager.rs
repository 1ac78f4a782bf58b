//! The content that this host fetches because of an order, and not because a disk read it. There are two kinds: *warm*
//! images, which are fetched before a disk needs them, and *pinned* images, of which several hosts keep a part each.
//!
//! The blobs of an order are fetched in parts of 1 MiB, several at a time and at low priority. A part comes from other
//! hosts if they have it, otherwise from the blob's store; so all hosts with the same order together mostly ask the
//! store once. From the beginning of the order on, this host exchanges the blob with other hosts as if one of its disks
//! read it. Warm content can be evicted like anything else in the cache; pinned content is not evicted.
//!
//! # Orders of other hosts
//!
//! Of other hosts, only operators may give orders (an operator is a host whose certificate has that role). Such an
//! order makes this host fetch only from stores that are permitted for other hosts ([`crate::stores`]). An order is
//! refused if it would exceed the limits for its sender. The parts of several orders take turns: an order of a terabyte
//! does not hold up one of a megabyte.

use crate::stores::Stores;
use futures::stream::{self, StreamExt};
use headstart_block::{ByteRange, ByteSize, Digest, Error, ErrorKind, Result};
use headstart_disk::RangeFetcher;
use headstart_peer_net::complain;
use headstart_peer_net::order::Order;
use headstart_peer_net::remote_commands::{CommandOutcome, ReceivedCommand, RemoteCommand};
use headstart_peer_net::{SharedBlob, Swarm};
use headstart_store::Store;
use headstart_swarm::{Chunks, Role, Urgency};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use utoipa::ToSchema;

mod budget;
mod pinned;

pub(crate) use pinned::FILE as PINS;
pub use pinned::PinStatus;

use budget::{Budget, DESCRIBED_MAX};
use pinned::Keeping;

/// Bytes that are fetched at a time, and the number of such fetches at once.
const PART: u64 = 1 << 20;
const AT_ONCE: usize = 8;

/// The number of attempts to fetch missing bytes, and the pause between them.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2000 });

/// The most blobs that are kept open; the oldest are let go.
const KEPT_MAX: usize = 4096;

/// The least time for which this host takes part in a blob because of another host: the swarm's state of it takes
/// memory for a while after it was let go.
const LET_GO_AFTER: Duration = Duration::from_secs(660);

/// The most stores of the blobs that this host takes part in because of one other host.
const STORES_OF_HOST_MAX: usize = 128;

/// Parts that are fetched at once for all orders of other hosts, which take turns.
const TURNS: usize = 32;

/// The number of successive parts without any bytes after which the rest is not requested any more.
const IN_VAIN: u32 = 64;

/// A request to fetch blobs into the caches of hosts before a disk needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmSpec {
    /// The blobs to fetch, each wholly or in parts.
    pub blobs: Vec<Order>,
    /// The names of the hosts that fetch the blobs. If it is empty and `roots` is false, only this host
    /// fetches them.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// If true, all roots that this host is connected to fetch the blobs as well, and this host if it is a
    /// root.
    #[serde(default)]
    pub roots: bool,
}

/// The result of a request to fetch blobs, on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Warmed {
    /// The name of the host.
    pub host: String,
    /// Bytes that the host was asked to have, rounded up to whole chunks of 64 KiB.
    pub bytes: u64,
    /// Bytes of these that the host could not fetch; 0 if it has all.
    pub lacking_bytes: u64,
    /// The cause of a failure: the host could not be reached, refused, or could not fetch everything. Absent
    /// if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The manager of content that this host fetches because of an order, or keeps because of a pin (an image
/// that several hosts keep together). Content is kept as long as this value lives.
pub struct PinManager {
    swarm: Arc<Swarm>,
    stores: Arc<Stores>,
    kept: Mutex<VecDeque<Kept>>,
    keeping: Keeping,
    budget: Arc<Budget>,
    turns: Arc<Semaphore>,
}

/// A blob that this host takes part in because of an order.
struct Kept {
    digest: Digest,
    shared: Arc<SharedBlob>,
    /// The name of its store.
    store: String,
    /// The other host that gave the order; `None` if it came from this host.
    by: Option<String>,
    since: Instant,
}

impl Kept {
    /// `true` if it may be replaced by another.
    fn is_old(&self) -> bool {
        self.since.elapsed() >= LET_GO_AFTER
    }
}

/// The tasks that carry out the commands of other hosts and maintain pinned content. Dropping this value ends
/// them.
pub struct CommandLoop([AbortHandle; 2]);

impl Drop for CommandLoop {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl PinManager {
    /// Creates a manager. It loads the pins that an earlier agent saved in the state directory `dir`; `cache`
    /// is the cache's directory. A file of pins that cannot be read is logged and ignored. Requires a
    /// multi-threaded runtime.
    #[must_use]
    pub fn new(swarm: Arc<Swarm>, stores: Arc<Stores>, dir: &Path, cache: &Path) -> Arc<Self> {
        let keeping = Keeping::load(dir, cache);
        let turns = Arc::new(Semaphore::new(TURNS));
        let pin_manager =
            Self { swarm, stores, kept: Mutex::default(), keeping, budget: Arc::default(), turns };
        pin_manager.allow_own_pins();
        Arc::new(pin_manager)
    }

    /// Starts to carry out the commands of other hosts and to maintain pinned content, until the returned value is
    /// dropped. Only the first call for a swarm receives commands.
    #[must_use]
    pub fn follow_commands(self: &Arc<Self>) -> CommandLoop {
        let commands = self.swarm.take_commands();
        let command_loop = tokio::spawn(follow_commands(Arc::clone(self), commands)).abort_handle();
        let looking = tokio::spawn(Self::look_after(Arc::downgrade(self))).abort_handle();
        CommandLoop([command_loop, looking])
    }

    /// Makes hosts fetch blobs, and returns one result for each host when all have finished. A failure on a host is
    /// part of its result.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if a named host is not connected, or if only roots are requested and there is none; an
    /// error if the description of a blob is not valid.
    pub async fn warm(&self, spec: &WarmSpec) -> Result<Vec<Warmed>> {
        for order in &spec.blobs {
            order.spec()?;
        }
        let hosts = self.hosts(&spec.hosts, spec.roots)?;
        let commands: Vec<_> = spec.blobs.iter().cloned().map(RemoteCommand::Bring).collect();
        Ok(self.send_commands(hosts, &commands).await)
    }

    /// Sends orders to hosts, and waits until they are done.
    async fn send_commands(&self, hosts: Vec<String>, commands: &[RemoteCommand]) -> Vec<Warmed> {
        let sending = hosts.into_iter().map(async |host| {
            let (CommandOutcome { bytes, lacking, why }, error) =
                match self.send_commands_to(&host, commands).await {
                    Ok(done) => (done, None),
                    Err(error) => (CommandOutcome::default(), Some(error.to_string())),
                };
            // If all of it came from other hosts, it does not matter that a store was refused.
            let why = why.filter(|_| lacking > 0);
            Warmed { host, bytes, lacking_bytes: lacking, error: error.or(why) }
        });
        futures::future::join_all(sending).await
    }

    async fn send_commands_to(&self, host: &str, commands: &[RemoteCommand]) -> Result<CommandOutcome> {
        let mut all = CommandOutcome::default();
        for command in commands {
            let done = match command {
                RemoteCommand::Bring(order) if host == self.swarm.name() => {
                    self.bring(order, || self.stores.get(&order.store), None).await?
                }
                RemoteCommand::Pin(pin) if host == self.swarm.name() => self.carry_out_pin(pin).await?,
                command => self.swarm.order(host, command).await?,
            };
            all = all.and(done);
        }
        Ok(all)
    }

    /// This host, and all hosts that it is connected to, by name.
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

    /// Follows an order of another host.
    async fn carry_out(&self, received: &ReceivedCommand) -> Result<CommandOutcome> {
        match &received.command {
            RemoteCommand::Bring(order) => {
                let mut why = None;
                let store = || {
                    let (store, refused) = self.store_of_others(order);
                    why = refused;
                    store
                };
                let done = self.bring(order, store, Some(&received.host)).await?;
                Ok(CommandOutcome { why: done.why.or(why), ..done })
            }
            RemoteCommand::Pin(pin) => {
                let described = self.described_by(pin)?;
                let _share = self.budget.take(&received.host, described, 0, self.swarm.room())?;
                self.carry_out_pin(pin).await
            }
            // Neither of these waits its turn.
            RemoteCommand::Known(_) | RemoteCommand::Open(_) => Ok(CommandOutcome::default()),
        }
    }

    /// A host that has this one as a root has a blob: this one takes part in it from now on. A host that is not an
    /// operator has to name a store that was named here, too.
    fn take_part(&self, order: &Order, received: &ReceivedCommand) -> Result<()> {
        if self.swarm.role() != Role::Root {
            return Ok(());
        }
        let spec = order.spec()?;
        if !received.is_operator {
            self.stores.check_for_others(&order.store)?;
        }
        // This comes before the store is opened: an order that is not admitted uses no resources.
        self.admit(&received.host, order, spec.len)?;
        let store = match self.stores.get_for_others(&order.store) {
            Ok(store) => Some(store),
            Err(_) if received.is_operator => None,
            Err(error) => return Err(error),
        };
        // Opening reads the cache's directory.
        let shared = tokio::task::block_in_place(|| self.swarm.open(&spec, store))?;
        self.keep(order, &Arc::new(shared), Some(&received.host));
        Ok(())
    }

    /// The store that another host names, or the cause why this one does not use it.
    fn store_of_others(&self, order: &Order) -> (Option<Arc<dyn Store>>, Option<String>) {
        match self.stores.get_for_others(&order.store) {
            Ok(store) => (Some(store), None),
            Err(error) => (None, Some(error.to_string())),
        }
    }

    /// Fetches the content of an order to this host, and takes part in the blob from now on. An order of another host
    /// has to fit into that host's budget, before the store is opened.
    async fn bring(
        &self,
        order: &Order,
        open_store: impl FnOnce() -> Option<Arc<dyn Store>>,
        by: Option<&str>,
    ) -> Result<CommandOutcome> {
        let spec = order.spec()?;
        let whole = |range: ByteRange| Chunks::touched(range).bytes(spec.len);
        let ranges: Vec<ByteRange> = order.ranges().into_iter().map(whole).collect();
        let bytes = ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.len()));
        let take = |by| self.budget.take(by, spec.len, bytes, self.swarm.room());
        let _share = by.map(take).transpose()?;
        by.map_or(Ok(()), |by| self.admit(by, order, spec.len))?;
        let store = open_store();
        let range_fetcher = store.clone().map(RangeFetcher::new);
        // Opening reads the cache's directory.
        let shared = tokio::task::block_in_place(|| self.swarm.open(&spec, store))?;
        let shared = Arc::new(shared);
        self.keep(order, &shared, by);
        let turns = by.map(|_| &*self.turns);
        Ok(bring_all(&shared, range_fetcher.as_ref(), &ranges, turns).await)
    }

    fn keep(&self, order: &Order, shared: &Arc<SharedBlob>, by: Option<&str>) {
        let digest = shared.blob().spec().digest;
        let mut kept = self.kept.lock();
        kept.retain(|known| known.digest != digest || known.by.as_deref() != by);
        kept.push_back(Kept {
            digest,
            shared: Arc::clone(shared),
            store: order.store.clone(),
            by: by.map(str::to_owned),
            since: Instant::now(),
        });
        if kept.len() > KEPT_MAX {
            kept.pop_front();
        }
    }

    /// Bounds the blobs that another host describes, their stores and their state: at the limit, that host's oldest
    /// blobs are let go first, but not those that are so new that their state may still be there when more come.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if there are too many new ones.
    fn admit(&self, by: &str, order: &Order, len: u64) -> Result<()> {
        let digest = order.spec()?.digest;
        let mut kept = self.kept.lock();
        let described = |kept: &VecDeque<Kept>, host: Option<&str>| {
            let is_of = |by: &str| host.is_none_or(|host| host == by);
            // A new order for a blob replaces the one before.
            let is_other = |known: &&Kept| known.digest != digest || known.by.as_deref() != Some(by);
            let of_host = |known: &&Kept| known.by.as_deref().is_some_and(is_of);
            let lens =
                kept.iter().filter(of_host).filter(is_other).map(|known| known.shared.blob().spec().len);
            lens.fold(len, u64::saturating_add)
        };
        for (host, max) in [(Some(by), DESCRIBED_MAX / 2), (None, DESCRIBED_MAX)] {
            while described(&kept, host) > max {
                let is_its =
                    |known: &Kept| known.by.is_some() && (host.is_none() || known.by.as_deref() == host);
                let oldest = kept.iter().position(is_its);
                let Some(oldest) = oldest.filter(|at| kept.get(*at).is_some_and(Kept::is_old)) else {
                    let cause =
                        format!("describes {} more than this host takes note of at a time", ByteSize(len));
                    let error = Error::new(ErrorKind::NoSpace, cause);
                    return Err(error.remedy("order less at a time, or again in some minutes"));
                };
                kept.remove(oldest);
            }
        }
        // A store that another blob uses, too, takes no second place.
        let stores = |kept: &VecDeque<Kept>| {
            let of_host =
                kept.iter().filter(|known| known.by.as_deref() == Some(by) && known.digest != digest);
            of_host
                .map(|known| known.store.clone())
                .chain([order.store.clone()])
                .collect::<HashSet<_>>()
                .len()
        };
        while stores(&kept) > STORES_OF_HOST_MAX {
            let oldest = kept.iter().position(|known| known.by.as_deref() == Some(by));
            let Some(oldest) = oldest.filter(|at| kept.get(*at).is_some_and(Kept::is_old)) else {
                let cause = format!("names more than {STORES_OF_HOST_MAX} stores at a time");
                return Err(Error::new(ErrorKind::NoSpace, cause)
                    .remedy("order from fewer stores at a time, or again in some minutes"));
            };
            kept.remove(oldest);
        }
        Ok(())
    }
}

/// Fetches ranges of whole chunks, in order, and tries missing ones again. Their parts take `turns` with others.
async fn bring_all(
    shared: &SharedBlob,
    range_fetcher: Option<&RangeFetcher>,
    ranges: &[ByteRange],
    turns: Option<&Semaphore>,
) -> CommandOutcome {
    let mut done =
        CommandOutcome { bytes: ranges.iter().map(|range| range.len()).sum(), ..CommandOutcome::default() };
    let first = OnceLock::new();
    for attempt in 1..=TRIES {
        let in_vain = AtomicU32::new(0);
        let parts = ranges.iter().copied().flat_map(|range| range.parts(PART));
        let fetches = parts.take_while(|_| in_vain.load(Ordering::Relaxed) < IN_VAIN).map(async |part| {
            let turn = match turns {
                // The semaphore is never closed.
                Some(turns) => turns.acquire().await.ok(),
                None => None,
            };
            if let Err(error) = bring_part(shared, range_fetcher, part).await {
                let _ = first.set(error.to_string());
            }
            drop(turn);
            let came = missing(shared, &[part]) < part.len();
            let _ = in_vain.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
                Some(if came { 0 } else { before.saturating_add(1) })
            });
        });
        stream::iter(fetches).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
        done.lacking = missing(shared, ranges);
        // Another host may be about to open it, but that does not take long.
        let is_hopeless = range_fetcher.is_none() && attempt > 1 && !shared.has_peers();
        if done.lacking == 0 || attempt == TRIES || is_hopeless {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    done.why = first.into_inner().filter(|_| done.lacking > 0);
    done
}

/// The number of bytes of these ranges that are not here.
fn missing(shared: &SharedBlob, ranges: &[ByteRange]) -> u64 {
    let mut missing = 0;
    for range in ranges {
        shared.blob().missing(*range, &mut |run| missing += run.len());
    }
    missing
}

/// Fetches a part, and the pages of the hash tree that prove it, as far as possible; returns the first error of the
/// store.
async fn bring_part(
    shared: &SharedBlob,
    range_fetcher: Option<&RangeFetcher>,
    part: ByteRange,
) -> Result<()> {
    let mut done = Ok(());
    if let Some(tree) = shared.tree() {
        let mut pages = Vec::new();
        shared.blob().tree_missing(part, &mut |run| pages.push(run));
        for run in pages {
            let brought = bring_run(tree, range_fetcher, run).await;
            done = done.and(brought);
        }
    }
    let brought = bring_run(shared, range_fetcher, part).await;
    done.and(brought)
}

async fn bring_run(shared: &SharedBlob, range_fetcher: Option<&RangeFetcher>, run: ByteRange) -> Result<()> {
    let mut done = Ok(());
    for range in shared.want(run, Urgency::Background).await {
        let Some(range_fetcher) = range_fetcher else { continue };
        match range_fetcher.bring(shared.blob(), range, Urgency::Background).await {
            Ok(()) => shared.became_local(range),
            Err(error) => {
                tracing::debug!(%error, blob = %shared.blob().spec().digest, "cannot be brought ahead of need");
                done = done.and(Err(error));
            }
        }
    }
    done
}

async fn follow_commands(pin_manager: Arc<PinManager>, mut commands: mpsc::Receiver<ReceivedCommand>) {
    let mut tasks = tokio::task::JoinSet::new();
    while let Some(received) = commands.recv().await {
        while tasks.try_join_next().is_some() {}
        match &received.command {
            RemoteCommand::Known(known) => {
                pin_manager.send_unknown(&received, known);
                continue;
            }
            RemoteCommand::Open(order) => {
                match pin_manager.take_part(order, &received) {
                    Ok(()) => pin_manager.swarm.took_part(&received),
                    Err(error) => {
                        let (said, host) = (pin_manager.swarm.complaints(), &received.host);
                        complain!(said, TakesNoPart, host, %error, "a root does not take part in a blob of an agent");
                        pin_manager.swarm.report_outcome(&received, &CommandOutcome::refused(0, &error));
                    }
                }
                continue;
            }
            RemoteCommand::Bring(_) | RemoteCommand::Pin(_) => {}
        }
        let pin_manager = Arc::clone(&pin_manager);
        tasks.spawn(async move {
            let done = pin_manager.carry_out(&received).await.unwrap_or_else(|error| {
                let (said, host) = (pin_manager.swarm.complaints(), &received.host);
                complain!(said, NotDone, host, %error, "what another host ordered cannot be done");
                CommandOutcome::refused(received.command.ordered_bytes(), &error)
            });
            pin_manager.swarm.report_outcome(&received, &done);
        });
    }
}

#[cfg(test)]
mod tests;
