//! The part of pinned images that this host keeps ([`crate::pins`]): fetched, locked in the cache so that it is not
//! evicted, and fetched again if it was lost.
//!
//! The parts of hosts that could not be reached for long are kept by the next hosts, until those can be reached again.

use super::{AT_ONCE, PinManager, Warmed, bring_all, missing};
use crate::pins::Pins;
use futures::stream::{self, StreamExt};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_cache::{BlobSpec, CachedBlob};
use headstart_disk::{PinnedImages, RangeFetcher};
use headstart_peer_net::SharedBlob;
use headstart_peer_net::order::Order;
use headstart_peer_net::pin::{KnownPin, Pin};
use headstart_peer_net::pinning::Holding;
use headstart_peer_net::remote_commands::{CommandOutcome, ReceivedCommand, RemoteCommand};
use headstart_store::{Location, Reference, Selector};
use headstart_swarm::PeerKey;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;
use utoipa::ToSchema;

/// The file of an agent's directory in which pins are.
pub(crate) const FILE: &str = "pins";

/// The interval at which one other host is asked for pins that this one does not know; and the shorter interval at the
/// start, and after an answer with new pins.
const COMPARED_EVERY: Duration = Duration::from_secs(10);
const COMPARED_FIRST: Duration = Duration::from_secs(1);

/// Bytes of pins in one answer to a host, after which one more pin is sent: if more waited for it, it would be cut off
/// as a host that does not read.
const SENT_MAX: usize = 128 << 10;

/// The number of comparisons between two checks that the whole part of this host is here.
const LOOKED_EVERY: u32 = 3;

/// The time that a host may be away before others keep its part.
const AWAY: Duration = Duration::from_secs(600);

/// The time in which all hosts that receive a pin at once open its blobs: they fetch parts of it from each other.
const OPENING: Duration = Duration::from_millis(300);

/// The pins, and the state of this host's parts.
pub(super) struct Keeping {
    pins: Mutex<Pins>,
    images: PinnedImages,
    /// The lock serializes changes.
    held: tokio::sync::Mutex<BTreeMap<Digest, Arc<Held>>>,
    /// Hosts that are to keep a part and are away, and the time at which others replace them.
    away: Mutex<HashMap<String, Instant>>,
    /// `true` if another host sent a pin that was new.
    has_news: AtomicBool,
    /// The number of answers to hosts that lack pins.
    answers: AtomicUsize,
}

/// The cases in which the digest of a tag is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Renewed {
    Always,
    WhereUnknown,
}

/// This host's part of a blob.
struct Held {
    order: Order,
    holding: Arc<Holding>,
    gone: HashSet<PeerKey>,
    /// The blob's open state; while these live, this host takes part in it, and its part cannot be evicted.
    shared: Arc<SharedBlob>,
    range_fetcher: Option<RangeFetcher>,
    /// The cause, if it is not fetched from its store.
    refused: Option<String>,
    own: Vec<ByteRange>,
    of_tree: Vec<ByteRange>,
    _locks: Vec<headstart_cache::CachePin>,
}

impl Held {
    /// The length of this part in bytes, and the number of its bytes that are not here.
    fn done(&self) -> CommandOutcome {
        let lens = self.own.iter().chain(&self.of_tree).map(|range| range.len());
        let of_tree = self.shared.tree().map_or(0, |tree| missing(tree, &self.of_tree));
        let lacking = missing(&self.shared, &self.own) + of_tree;
        let why = self.refused.clone().filter(|_| lacking > 0);
        CommandOutcome { bytes: lens.sum(), lacking, why }
    }
}

/// The status of a pinned image on this host. Several hosts keep a pinned image together, and each of them keeps a
/// part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct PinStatus {
    /// The reference of the image, as it was given when the image was pinned.
    pub image: String,
    /// The digest of the image's manifest.
    pub digest: String,
    /// The number of hosts that keep each byte of the image.
    pub copies: u32,
    /// The names of the hosts that keep the image.
    pub hosts: Vec<String>,
    /// The names of those hosts that keep the image, but to which this host is not connected at present.
    pub away: Vec<String>,
    /// Bytes of the image, hash trees included, that this host has to keep.
    pub bytes: u64,
    /// Bytes that this host has to keep and that are not in its cache yet.
    pub lacking_bytes: u64,
}

impl Keeping {
    /// The state that the previous agent stored; `cache` is the cache's directory.
    pub(super) fn load(dir: &Path, cache: &Path) -> Self {
        let path: PathBuf = dir.join(FILE);
        let pins = Pins::load(path.clone()).unwrap_or_else(|error| {
            tracing::warn!(%error, "the pinned images are not known; other hosts will send them");
            Pins::empty(path)
        });
        let images = PinnedImages::of(cache);
        Self {
            pins: Mutex::new(pins),
            images,
            held: tokio::sync::Mutex::default(),
            away: Mutex::default(),
            has_news: AtomicBool::new(false),
            answers: AtomicUsize::new(0),
        }
    }

    fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock()
    }

    fn away(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.away.lock()
    }
}

impl PinManager {
    /// Makes hosts keep an image together, and returns one result for each of them when all have fetched
    /// their parts. The hosts are those that the pin names; if it names none, this host and all that it is
    /// connected to. The pin is also sent to operators, and to hosts that have proved that they may read the
    /// image. A failure on a host is part of its result.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if this host is not an operator; [`ErrorKind::Invalid`] if the number of copies
    /// is 0 or above the number of hosts, or the pin is too long; [`ErrorKind::Unsupported`] if the store is
    /// a local directory or a layer has no hash tree; [`ErrorKind::NotFound`] if a named host is not
    /// connected; an error if the manifest is malformed or does not match its digest.
    pub async fn pin(&self, pin: &Pin) -> Result<Vec<Warmed>> {
        self.check_operator()?;
        let location: Location = pin.store.parse()?;
        if !location.is_remote() {
            return Err(Error::unsupported("is in a directory, where other hosts do not find it")
                .about(&pin.image)
                .remedy("push it to a store, and pin it there"));
        }
        let all: Vec<String> = self.known_hosts().into_iter().map(|(host, _)| host).collect();
        let mut hosts = if pin.hosts.is_empty() { all.clone() } else { self.hosts(&pin.hosts, false)? };
        hosts.sort_unstable();
        hosts.dedup();
        let since = self.keeping.pins().next_since(&pin.digest);
        let pin = Pin { hosts, since, ..pin.clone() };
        let specs = specs(&pin)?;
        self.own_pins(&pin.digest);
        let entitled = self.swarm.entitled_hosts(&specs);
        let mut receivers: Vec<String> =
            all.into_iter().filter(|host| pin.hosts.contains(host) || entitled.contains(host)).collect();
        // This host is the first, whether it keeps a part of it or not.
        receivers.retain(|host| host != self.swarm.name());
        receivers.insert(0, self.swarm.name().to_owned());
        let outcomes = self.say(receivers, pin.clone()).await?;
        Ok(outcomes.into_iter().filter(|host| pin.hosts.contains(&host.host)).collect())
    }

    /// Ends all pins of images with this reference or digest, and notifies all connected hosts. Returns the
    /// digests of the images' manifests.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no such image is pinned, [`ErrorKind::Denied`] if this host is not an
    /// operator.
    pub async fn unpin(&self, image: &str) -> Result<Vec<String>> {
        self.check_operator()?;
        let pins = self.keeping.pins().named(image);
        if pins.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "is not pinned").about(image).remedy(
                "`headstart swarm status` lists the pinned images; name it as there, or by its digest",
            ));
        }
        let mut unpinned = Vec::new();
        for pin in pins {
            let since = self.keeping.pins().next_since(&pin.digest);
            let (image, digest) = (pin.image, pin.digest);
            unpinned.push(digest.clone());
            let all = self.known_hosts().into_iter().map(|(host, _)| host).collect();
            self.say(all, Pin { image, digest, since, ..Pin::default() }).await?;
        }
        Ok(unpinned)
    }

    /// Checks that this host is an operator: otherwise other hosts would ignore its pins.
    fn check_operator(&self) -> Result<()> {
        if self.swarm.roles().operator {
            return Ok(());
        }
        let name = self.swarm.name();
        let cause =
            format!("`{name}` is not an operator, as its certificate says: other hosts would not heed it");
        Err(Error::new(ErrorKind::Denied, cause).remedy(format!(
            "order it at an operator's host, or give this one the role: `headstart swarm init DIR --operator {name}` \
             where the authority is"
        )))
    }

    /// Records that an image is pinned at this host.
    fn own_pins(&self, digest: &str) {
        self.keeping.pins().is_own(digest);
    }

    /// Lets other hosts name the stores of images that were pinned at this host.
    pub(super) fn allow_own_pins(&self) {
        let pins = self.keeping.pins();
        self.stores.set_pinned(pins.own_stores());
    }

    /// Bytes of the blobs that a pin describes, if this host is to keep a part; otherwise 0.
    pub(super) fn described_by(&self, pin: &Pin) -> Result<u64> {
        if !pin.hosts.iter().any(|host| host == self.swarm.name()) {
            return Ok(0);
        }
        Ok(pin.orders()?.iter().fold(0, |sum: u64, order| sum.saturating_add(order.len)))
    }

    /// Sends a pin to hosts, this one first.
    async fn say(&self, hosts: Vec<String>, pin: Pin) -> Result<Vec<Warmed>> {
        let command = RemoteCommand::Pin(Box::new(pin));
        command.check()?;
        if let RemoteCommand::Pin(pin) = &command {
            self.adopt(pin)?;
        }
        Ok(self.send_commands(hosts, &[command]).await)
    }

    /// The status of each pinned image that this host knows of.
    pub async fn pinned(&self) -> Vec<PinStatus> {
        let held = self.keeping.held.lock().await;
        let here: HashSet<String> = self.known_hosts().into_iter().map(|(host, _)| host).collect();
        let pins: Vec<Pin> = self.keeping.pins().kept().cloned().collect();
        let status = |pin: Pin| {
            let orders = pin.orders().unwrap_or_default();
            let parts = orders.iter().filter_map(|order| held.get(&order.digest.parse().ok()?));
            let CommandOutcome { bytes, lacking, .. } =
                parts.map(|held| held.done()).fold(CommandOutcome::default(), CommandOutcome::and);
            let away = pin.hosts.iter().filter(|host| !here.contains(*host)).cloned().collect();
            let Pin { image, digest, copies, hosts, .. } = pin;
            PinStatus { image, digest, copies, hosts, away, bytes, lacking_bytes: lacking }
        };
        pins.into_iter().map(status).collect()
    }

    /// Handles a pin of another host: records it and keeps its part, if the pin is new.
    pub(super) async fn carry_out_pin(&self, pin: &Pin) -> Result<CommandOutcome> {
        if self.adopt(pin)? {
            self.keeping.has_news.store(true, Ordering::Relaxed);
        }
        let held = self.keep_up().await;
        if !pin.hosts.iter().any(|host| host == self.swarm.name()) {
            return Ok(CommandOutcome::default());
        }
        let digests: HashSet<String> = pin.orders()?.into_iter().map(|order| order.digest).collect();
        let parts: Vec<_> = held.into_iter().filter(|held| digests.contains(&held.order.digest)).collect();
        if pin.hosts.len() > 1 {
            tokio::time::sleep(OPENING).await;
        }
        Ok(Self::bring_held(&parts).await)
    }

    /// Handles the list of pins that another host knows: sends it the others, if it would accept them from this one,
    /// and may read the pinned images: it keeps a part, is an operator, or has shown that it knows the image. The end
    /// of a pin is sent to any host.
    pub(super) fn send_unknown(&self, received: &ReceivedCommand, known: &[KnownPin]) {
        if !self.swarm.roles().operator {
            return;
        }
        let mut unknown = self.keeping.pins().unknown_to(known);
        unknown.retain(|pin| {
            let is_entitled = received.is_operator || !pin.is_kept() || pin.hosts.contains(&received.host);
            is_entitled || specs(pin).is_ok_and(|specs| self.swarm.has_shown(received, &specs))
        });
        if unknown.is_empty() {
            return;
        }
        // Each answer begins with another pin, so that one that the host does not accept does not block the others for
        // ever.
        let begin = self.keeping.answers.fetch_add(1, Ordering::Relaxed) % unknown.len();
        unknown.rotate_left(begin);
        let mut sent = 0;
        for pin in unknown {
            if sent > SENT_MAX {
                // The host asks again soon.
                break;
            }
            sent += self.swarm.send_command(&received.host, &RemoteCommand::Pin(Box::new(pin)));
        }
    }

    /// Records a pin that is new, and passes it to the state machine; returns `true` if it is new.
    fn adopt(&self, pin: &Pin) -> Result<bool> {
        tokio::task::block_in_place(|| {
            let mut pins = self.keeping.pins();
            let is_news = pins.insert(pin)?;
            if is_news {
                let kept = if pin.is_kept() {
                    self.keeping.images.insert(pin.manifest.as_bytes())
                } else {
                    self.keeping.images.remove(&pin.digest()?)
                };
                let resolved = kept.and_then(|()| self.resolve_tag(pin, Renewed::Always));
                if let Err(error) = resolved {
                    tracing::warn!(%error, "a pinned image will not attach while its store is away");
                }
                self.update_holdings(&pins);
                self.stores.set_pinned(pins.own_stores());
            }
            Ok(is_news)
        })
    }

    /// Records the digest of the tag that an image was pinned by, so that disks can be attached by the tag while the
    /// store is away.
    fn resolve_tag(&self, pin: &Pin, renewed: Renewed) -> Result<()> {
        let reference = pin.image.parse::<Reference>().ok().filter(|_| pin.is_kept());
        let reference = reference.filter(|reference| reference.location.to_string() == pin.store);
        let Some(reference) = reference.filter(|reference| matches!(reference.selector, Selector::Tag(_)))
        else {
            return Ok(());
        };
        // The store object has the rest of its identity; no request is sent to it.
        let Some(store) = self.stores.get(&pin.store) else { return Ok(()) };
        let images = &self.keeping.images;
        let store = store.location();
        if renewed == Renewed::WhereUnknown && images.is_resolved(&store, &reference.selector) {
            return Ok(());
        }
        images.resolve(&store, &reference.selector, pin.manifest.as_bytes())
    }

    /// Records the pinned images again, because the cache's directory may have been lost.
    fn remember_pinned(&self) {
        let mut pins: Vec<Pin> = self.keeping.pins().kept().cloned().collect();
        // The newest pin decides on a tag, and a recorded digest is not replaced.
        pins.sort_unstable_by_key(|pin| std::cmp::Reverse(pin.since));
        for pin in pins {
            let kept = self.keeping.images.insert(pin.manifest.as_bytes());
            if let Err(error) = kept.and_then(|()| self.resolve_tag(&pin, Renewed::WhereUnknown)) {
                tracing::warn!(%error, "a pinned image will not attach while its store is away");
            }
        }
    }

    fn update_holdings(&self, pins: &Pins) {
        let holdings = pins.holdings();
        let specs: Vec<(BlobSpec, &Arc<Holding>)> =
            holdings.values().filter_map(|(order, holding)| Some((order.spec().ok()?, holding))).collect();
        self.swarm.set_holdings(specs.iter().map(|(spec, holding)| (spec, *holding)));
    }

    /// Locks the parts that this host is to keep, and lets go the others; returns all of the former.
    async fn keep_up(&self) -> Vec<Arc<Held>> {
        let mut held = self.keeping.held.lock().await;
        let gone = self.gone();
        let holdings = self.keeping.pins().holdings();
        // This reads the cache's directory, and waits for an eviction in progress.
        tokio::task::block_in_place(|| {
            let mut now = BTreeMap::new();
            for (digest, (order, holding)) in holdings {
                let may_fetch = self.stores.check_for_others(&order.store).is_ok();
                let is_same = |known: &&Arc<Held>| {
                    let is_as_allowed = known.refused.is_none() == may_fetch;
                    is_as_allowed && known.holding == holding && known.gone == gone && known.order == order
                };
                if let Some(same) = held.get(&digest).filter(is_same) {
                    now.insert(digest, Arc::clone(same));
                } else if holding.has(self.swarm.key()) {
                    match self.hold(order, holding, gone.clone()) {
                        Ok(part) => _ = now.insert(digest, Arc::new(part)),
                        Err(error) => {
                            tracing::warn!(%error, blob = %digest, "a part of a pinned image cannot be kept");
                        }
                    }
                }
            }
            let all = now.values().cloned().collect();
            *held = now;
            all
        })
    }

    fn hold(&self, order: Order, holding: Arc<Holding>, gone: HashSet<PeerKey>) -> Result<Held> {
        let (store, refused) = self.store_of_others(&order);
        let range_fetcher = store.clone().map(RangeFetcher::new);
        let shared = Arc::new(self.swarm.open(&order.spec()?, store)?);
        let part = |blob: &SharedBlob| blob.kept(&holding, &gone);
        let (own, of_tree) = (part(&shared), shared.tree().map(part).unwrap_or_default());
        let mut locks = lock(shared.blob(), &own)?;
        if let Some(tree) = shared.tree() {
            locks.extend(lock(tree.blob(), &of_tree)?);
        }
        Ok(Held { order, holding, gone, shared, range_fetcher, refused, own, of_tree, _locks: locks })
    }

    /// Fetches the missing bytes of these; returns the sum of their lengths and of the bytes that are still missing.
    async fn bring_held(parts: &[Arc<Held>]) -> CommandOutcome {
        let mut lacking = Vec::new();
        for held in parts {
            if held.done().lacking > 0 {
                lacking.push(bring(Arc::clone(held)));
            }
        }
        let mut fetches = stream::iter(lacking).buffer_unordered(AT_ONCE);
        let mut why = None;
        while let Some(failed) = fetches.next().await {
            why = why.or(failed);
        }
        let done = parts.iter().map(|held| held.done()).fold(CommandOutcome::default(), CommandOutcome::and);
        let why = why.filter(|_| done.lacking > 0);
        CommandOutcome { why: done.why.or(why), ..done }
    }

    /// The hosts that are to keep a part and have been away for long.
    fn gone(&self) -> HashSet<PeerKey> {
        let away = self.keeping.away();
        let gone = away.iter().filter(|(_, until)| **until <= Instant::now());
        gone.map(|(host, _)| headstart_peer_net::key_of(host)).collect()
    }

    fn look_who_is_away(&self) {
        let here: HashSet<String> = self.known_hosts().into_iter().map(|(host, _)| host).collect();
        let missing: HashSet<String> = self
            .keeping
            .pins()
            .kept()
            .flat_map(|pin| &pin.hosts)
            .filter(|host| !here.contains(*host))
            .cloned()
            .collect();
        let (mut away, until) = (self.keeping.away(), Instant::now() + AWAY);
        away.retain(|host, _| missing.contains(host));
        for host in missing {
            away.entry(host).or_insert(until);
        }
    }

    /// Keeps the parts that the previous agent kept, as long as the manager lives.
    pub(super) async fn look_after(pin_manager: Weak<Self>) {
        let first = |pin_manager: Arc<Self>| {
            tokio::task::block_in_place(|| {
                pin_manager.remember_pinned();
                pin_manager.update_holdings(&pin_manager.keeping.pins());
            });
        };
        let Some(()) = pin_manager.upgrade().map(first) else { return };
        let (mut pause, mut said) = (COMPARED_FIRST, false);
        for n in 0_u32.. {
            {
                let Some(pin_manager) = pin_manager.upgrade() else { return };
                if pin_manager.keeping.has_news.swap(false, Ordering::Relaxed) {
                    // There may be more new pins.
                    pause = COMPARED_FIRST;
                    pin_manager.compare(n);
                } else if pin_manager.compare(n) {
                    pause = COMPARED_EVERY;
                }
                pin_manager.look_who_is_away();
                if n % LOOKED_EVERY == 0 {
                    let held = pin_manager.keep_up().await;
                    let CommandOutcome { lacking, why, .. } = Self::bring_held(&held).await;
                    if lacking > 0 && !said {
                        let why = why.as_deref().unwrap_or("no host has them");
                        tracing::warn!(
                            lacking,
                            why,
                            "bytes of pinned images that this host keeps cannot be had"
                        );
                    }
                    said = lacking > 0;
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Asks one of the other hosts, each in turn, for pins that this one does not know; returns `true` if there is one.
    fn compare(&self, n: u32) -> bool {
        // Pins of other hosts are not accepted.
        let hosts = self.swarm.connected_operators();
        // The key spreads the hosts, so that not all ask the same one.
        let place = self.swarm.key().0.wrapping_add(u64::from(n)).checked_rem(hosts.len() as u64);
        let place = place.and_then(|place| usize::try_from(place).ok());
        let Some(host) = place.and_then(|place| hosts.get(place)) else { return false };
        self.swarm.send_command(host, &RemoteCommand::Known(self.keeping.pins().known()));
        true
    }
}

/// Fetches the missing bytes of a part; returns the cause if some cannot be had.
async fn bring(held: Arc<Held>) -> Option<String> {
    let range_fetcher = held.range_fetcher.as_ref();
    let tree = match held.shared.tree() {
        Some(tree) => bring_all(tree, range_fetcher, &held.of_tree, None).await,
        None => CommandOutcome::default(),
    };
    tree.and(bring_all(&held.shared, range_fetcher, &held.own, None).await).why
}

/// The blobs of a pinned image.
fn specs(pin: &Pin) -> Result<Vec<BlobSpec>> {
    pin.orders()?.iter().map(Order::spec).collect()
}

fn lock(blob: &Arc<CachedBlob>, ranges: &[ByteRange]) -> Result<Vec<headstart_cache::CachePin>> {
    ranges.iter().map(|range| blob.pin(*range)).collect()
}

#[cfg(test)]
mod tests;
