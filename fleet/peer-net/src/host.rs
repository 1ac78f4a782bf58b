//! The state that all tasks of the swarm share: the state machine, and the meaning of its numbers.
//!
//! The state machine has no task of its own. A task that has an event (a reader whose chunk is stored, or a disk that
//! wants a range) takes the lock, moves the machine, and executes its actions: an action always puts an item into a
//! bounded queue, or starts a task, and never waits. So an event costs no hop from thread to thread, and no queue of
//! events can grow.
//!
//! Locks are taken in this order: the machine, then a connection's requests or its outbox.
//!
//! | module | content |
//! |---|---|
//! | `core` | the state machine with the meaning of its numbers, and the execution of its actions |
//! | `link` | one connection: its two tasks, and the open requests over it |
//! | `fetches` | the agent's own fetches from stores |
//! | `verification_queue` | chunks that came before the pages of the tree that they are checked by |
//! | `hints` | the first reads of an image's disks, sent and received |
//! | `pinning` | the hosts that keep each part of a blob |
//! | `remote_commands` | the orders between hosts to fetch ahead of need |
//! | `renewals` | certificates renewed over connections |
//! | `trust` | hosts that are members no longer, and the gossip key |
//! | `whereabouts` | the addresses of hosts, even if two have one name |
//! | `status` | the state as plain data |

mod core;
mod fetches;
pub(crate) mod hints;
pub(crate) mod link;
pub mod pinning;
pub mod remote_commands;
pub(crate) mod renewals;
pub(crate) mod status;
pub(crate) mod trust;
pub(crate) mod verification_queue;
pub(crate) mod whereabouts;

use self::core::{Core, Entry, Peer, blob_of};
use self::fetches::Fetches;
use self::hints::HintsSide;
use self::link::{Link, served_event};
use self::remote_commands::RemoteCommands;
use self::renewals::Renewals;
use self::status::Counts;
use self::trust::Trust;
use self::verification_queue::{Unverified, VerificationQueue};
use self::whereabouts::Whereabouts;
use crate::blob::{Blob, Identity, Kept, Late};
use crate::frame::{self, FrameKind, PROOF};
use crate::gossip::{Member, Members};
use crate::outbox::{SendGate, Sending};
use crate::peer_key::key_of;
use crate::proof;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result, saturating};
use headstart_cache::{BlobSpec, Cache, CachedBlob};
use headstart_image::manifest::Tree;
use headstart_swarm::event::{Came, Served};
use headstart_swarm::{
    BlobId, Chunks, Event, Message, Node, Offence, PeerId, PeerKey, ReaderId, RejectReason, RequestId,
    StoreFetchId, Time, Urgency, WantId,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

/// Blobs that one host may prove that it may read, at a time.
const PROOFS_MAX: usize = 16_384;

/// The state that all tasks share.
pub(crate) struct Host {
    pub(crate) cache: Arc<Cache>,
    pub(crate) runtime: Handle,
    pub(crate) counts: Counts,
    pub(crate) send_gate: SendGate,
    pub(crate) verification_queue: VerificationQueue,
    pub(crate) fetches: Fetches,
    pub(crate) hints: HintsSide,
    /// Notifies of an earlier time at which the machine wants to be woken.
    pub(crate) earlier: Notify,
    /// Notifies of another blob.
    pub(crate) opened: Notify,
    /// The other hosts according to the gossip, by name.
    members: Mutex<Vec<Member>>,
    /// Their addresses.
    known_addresses: Mutex<HashSet<IpAddr>>,
    /// The causes, from the last attempt, why some of them cannot be connected to.
    unreached: Mutex<HashMap<PeerKey, String>>,
    /// The addresses at which other hosts with this host's name answered.
    namesakes: Mutex<BTreeSet<SocketAddr>>,
    whereabouts: Mutex<Whereabouts>,
    pub(crate) remote_commands: RemoteCommands,
    pub(crate) trust: Trust,
    pub(crate) renewals: Renewals,
    /// Changes when another host begins to share a blob, or stops.
    pub(crate) peers_changed: watch::Sender<()>,
    core: Mutex<Core>,
    started: Instant,
}

/// The receiver of a want's answer.
pub(crate) type Answer = oneshot::Receiver<Vec<Chunks>>;

impl Host {
    #[expect(clippy::disallowed_methods, reason = "the clock that the state machine goes by")]
    pub(crate) fn new(
        cache: Arc<Cache>,
        runtime: Handle,
        node: Node,
        hints: HintsSide,
        trust: Trust,
        renewals: Renewals,
    ) -> Arc<Self> {
        Arc::new(Self {
            cache,
            runtime,
            counts: Counts::default(),
            send_gate: SendGate::default(),
            verification_queue: VerificationQueue::default(),
            fetches: Fetches::new(node.settings().longest()),
            hints,
            earlier: Notify::new(),
            opened: Notify::new(),
            members: Mutex::default(),
            known_addresses: Mutex::default(),
            unreached: Mutex::default(),
            namesakes: Mutex::default(),
            whereabouts: Mutex::default(),
            remote_commands: RemoteCommands::default(),
            trust,
            renewals,
            peers_changed: watch::channel(()).0,
            core: Mutex::new(Core::new(node)),
            started: Instant::now(),
        })
    }

    pub(crate) fn now(&self) -> Time {
        Time(saturating::<u64>(self.started.elapsed().as_micros()))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now().0 / 1000
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // A panic in the machine leaves its state as it is; wants have their time limits.
        self.core.lock()
    }

    pub(crate) fn event(self: &Arc<Self>, event: Event<'_>) {
        self.core().drive(self, event);
    }

    /// Wakes the machine at the times that it asks for, and does the periodic work.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            let earlier = self.earlier.notified();
            let now = self.now();
            let wake_at = {
                let mut core = self.core();
                if core.stopped {
                    return;
                }
                if core.wake_at.is_some_and(|at| at <= now) {
                    core.wake_at = None;
                    core.drive(&self, Event::Tick);
                }
                core.wake_at
            };
            let pause =
                wake_at.map_or(Duration::from_secs(1), |at| at.since(now).min(Duration::from_secs(1)));
            // After a timeout or a call, the loop checks again.
            let _ = tokio::time::timeout(pause, earlier).await;
        }
    }

    // Calls of disks.

    /// Takes part in a blob and in its tree's outboard, or adds a user to it.
    pub(crate) fn open(
        self: &Arc<Self>,
        cached: &Arc<CachedBlob>,
        tree: Tree,
        range_fetcher: Option<&Arc<headstart_disk::RangeFetcher>>,
        is_disks: bool,
    ) -> Arc<Blob> {
        let identity =
            Identity { digest: cached.spec().digest, len: cached.spec().len, root: *tree.root.as_bytes() };
        let mut core = self.core();
        if let Some(entry) = core.by_identity.get(&identity).copied().and_then(|id| core.blobs.get_mut(&id)) {
            entry.users += 1;
            let blob = Arc::clone(&entry.blob);
            // The store of an order does not replace the one that a disk was attached from.
            if let Some(range_fetcher) = range_fetcher.filter(|_| is_disks || blob.range_fetcher().is_none())
            {
                blob.set_range_fetcher(range_fetcher);
            }
            return blob;
        }
        let outboard = cached.tree().map(|outboard| {
            let blob = Blob::outboard(core.next_blob(), Arc::clone(outboard), identity.len, tree);
            core.add(self, Arc::new(blob), range_fetcher)
        });
        let blob = Blob::data(core.next_blob(), Arc::clone(cached), identity.root, outboard);
        core.add(self, Arc::new(blob), range_fetcher)
    }

    /// An id for a disk that reads.
    pub(crate) fn new_reader(&self) -> ReaderId {
        let mut core = self.core();
        core.last_reader += 1;
        ReaderId(core.last_reader)
    }

    /// Removes a user from a blob.
    pub(crate) fn close(&self, id: BlobId) {
        let now = self.now();
        let mut core = self.core();
        if let Some(entry) = core.blobs.get_mut(&id) {
            entry.users = entry.users.saturating_sub(1);
            entry.idle_since = now;
        }
    }

    /// Leaves the blobs that had no user for the time `after`.
    pub(crate) fn leave_unused(self: &Arc<Self>, after: Duration) {
        let now = self.now();
        let mut core = self.core();
        let is_unused = |entry: &Entry| entry.users == 0 && now.since(entry.idle_since) >= after;
        let unused: Vec<_> =
            core.blobs.values().filter(|entry| is_unused(entry)).map(|e| Arc::clone(&e.blob)).collect();
        for blob in unused.into_iter().filter(|blob| !blob.is_outboard()) {
            for blob in [Some(&blob), blob.tree.as_ref()].into_iter().flatten() {
                core.remove(self, blob);
            }
        }
    }

    pub(crate) fn want(self: &Arc<Self>, blob: &Blob, chunks: Chunks, urgency: Urgency) -> (WantId, Answer) {
        let (answer, answered) = oneshot::channel();
        let mut core = self.core();
        core.last_want += 1;
        let want = WantId(core.last_want);
        if !core.stopped && core.blobs.contains_key(&blob.id) {
            core.wants.insert(want, answer);
            core.drive(self, Event::Want { want, blob: blob.id, chunks, urgency });
        } else {
            // The receiver is gone only if the caller is gone.
            let _ = answer.send(vec![chunks]);
        }
        (want, answered)
    }

    /// The chunks that a disk has to fetch itself: those that the machine returned, and those that are missing although
    /// the machine takes them to be here; the machine is notified of the latter.
    pub(crate) fn checked(
        self: &Arc<Self>,
        blob: &Blob,
        wanted: Chunks,
        from_store: &[Chunks],
    ) -> Vec<ByteRange> {
        let missing = blob.missing_chunks(wanted.bytes(blob.len()));
        let is_said = |chunk: u32| from_store.iter().any(|run| run.numbers().contains(&chunk));
        for chunk in missing.iter().flat_map(|run| run.numbers()).filter(|chunk| !is_said(*chunk)) {
            self.event(Event::Lost { blob: blob.id, chunks: Chunks::one(chunk) });
        }
        missing.into_iter().map(|run| run.bytes(blob.len())).collect()
    }

    pub(crate) fn forget(self: &Arc<Self>, want: WantId) {
        let mut core = self.core();
        if core.wants.remove(&want).is_some() {
            core.drive(self, Event::Forget { want });
        }
    }

    pub(crate) fn planned(self: &Arc<Self>, id: BlobId, running: bool) {
        let mut core = self.core();
        let Some(entry) = core.blobs.get_mut(&id) else { return };
        let was = entry.planned > 0;
        entry.planned = if running { entry.planned + 1 } else { entry.planned.saturating_sub(1) };
        let is = entry.planned > 0;
        if was != is {
            core.drive(self, Event::Planned { blob: id, running: is });
        }
    }

    // Events of other hosts.

    /// Adds a connected host. `None` if it is not to be connected.
    pub(crate) fn connected(
        self: &Arc<Self>,
        key: PeerKey,
        connections_max: usize,
        make: impl FnOnce(PeerId, u64) -> Link,
    ) -> Option<Arc<Link>> {
        let now = self.now();
        let mut core = self.core();
        core.shunned.retain(|_, until| *until > now);
        if core.stopped || core.shunned.contains_key(&key) || key == core.node.key() {
            return None;
        }
        if let Some(before) = core.by_key.get(&key).copied() {
            // The host has restarted: its old connection is dead, although that was not noticed yet.
            core.disconnect(self, before);
            core.drain_deferred(self);
        }
        core.last_peer += 1;
        let peer = PeerId(core.last_peer);
        let link = Arc::new(make(peer, now.0 / 1000));
        // Without a tracker a host gets no hints, and without an authority its certificate ends.
        let is_extra = |link: &Link| link.is_tracker || link.is_authority();
        let connected = core.peers.values().filter(|peer| !is_extra(&peer.link)).count();
        if connected >= connections_max && !is_extra(&link) {
            return None;
        }
        let theirs = link.side.other();
        let mut expected = HashMap::new();
        for entry in core.blobs.values() {
            expected.insert(entry.blob.proof(&link.binding, theirs), entry.blob.id);
            let ours = entry.blob.proof(&link.binding, link.side);
            // A link that is this new has room.
            let _ = link.outbox.control(FrameKind::Proof, entry.blob.id.0, &ours);
        }
        let new = Peer {
            link: Arc::clone(&link),
            expected,
            proofs: HashMap::new(),
            numbers: HashMap::new(),
            shared: HashMap::new(),
            shared_blobs: HashSet::new(),
            announced_at: HashMap::new(),
        };
        core.peers.insert(peer, new);
        core.by_key.insert(key, peer);
        self.send_trust_list(&link);
        // This host has accepted the other one: the other host knows that from the first ping on.
        let _ = link.outbox.control(FrameKind::Ping, 0, &[]);
        self.counts.connections.fetch_add(1, Ordering::Relaxed);
        self.unreached().remove(&key);
        core.drive(self, Event::PeerUp { peer, key, role: link.role });
        Some(link)
    }

    /// Removes a host that is not connected any more.
    pub(crate) fn disconnected(self: &Arc<Self>, peer: PeerId) {
        let mut core = self.core();
        core.disconnect(self, peer);
        core.drain_deferred(self);
    }

    /// Drops a host that has broken the rules, and leaves it alone for a while.
    pub(crate) fn shun(self: &Arc<Self>, peer: PeerId, offence: Offence, what: &str) {
        let mut core = self.core();
        core.shun(self, peer, offence, what);
        core.drain_deferred(self);
    }

    /// `true` if this host is connected to `key`, or leaves it alone.
    pub(crate) fn needs_no_connection(&self, key: PeerKey) -> bool {
        let now = self.now();
        let core = self.core();
        core.by_key.contains_key(&key) || core.shunned.get(&key).is_some_and(|until| *until > now)
    }

    /// Handles a host's proof that it may read a blob.
    pub(crate) fn proved(self: &Arc<Self>, link: &Link, number: u32, body: &[u8]) -> Result<()> {
        let mut mac = [0; PROOF];
        mac.copy_from_slice(body.get(..PROOF).ok_or_else(|| Error::corrupt("a short proof"))?);
        let mut core = self.core();
        let Some(peer) = core.peers.get_mut(&link.peer) else { return Ok(()) };
        if peer.proofs.len() >= PROOFS_MAX {
            return Err(Error::corrupt("it shares more blobs than anybody has"));
        }
        if peer.proofs.insert(number, mac).is_some() || peer.numbers.insert(mac, number).is_some() {
            return Err(Error::corrupt("a second proof for the same"));
        }
        if let Some(blob) = peer.expected.get(&mac).copied() {
            peer.shared.insert(number, blob);
            peer.shared_blobs.insert(blob);
            core.drive(self, Event::PeerShares { peer: link.peer, blob });
            core.notify_of_peers(self, blob);
        }
        Ok(())
    }

    /// Handles a host's notice that it does not share a blob any more.
    pub(crate) fn withdrawn(self: &Arc<Self>, link: &Link, number: u32) {
        let mut core = self.core();
        let Some(peer) = core.peers.get_mut(&link.peer) else { return };
        if let Some(mac) = peer.proofs.remove(&number) {
            peer.numbers.remove(&mac);
        }
        if let Some(blob) = peer.shared.remove(&number) {
            peer.shared_blobs.remove(&blob);
            core.notify_of_peers(self, blob);
            // Otherwise the host would be asked for it, and taken for a liar.
            let runs = vec![Chunks { first: 0, count: u32::MAX }];
            core.drive(self, Event::Received { peer: link.peer, message: Message::Lost { blob, runs } });
        }
    }

    /// The blob to which a host gave this number, if both share it.
    pub(crate) fn shared_blob(&self, link: &Link, number: u32) -> Option<Arc<Blob>> {
        let core = self.core();
        let id = core.peers.get(&link.peer)?.shared.get(&number)?;
        core.blobs.get(id).map(|entry| Arc::clone(&entry.blob))
    }

    /// Handles a message of a host to the machine.
    pub(crate) fn received(self: &Arc<Self>, link: &Link, mut message: Message) -> Result<()> {
        let mut core = self.core();
        if let Some(theirs) = blob_of(&mut message) {
            let shared = core.peers.get(&link.peer).and_then(|peer| peer.shared.get(&theirs.0)).copied();
            let blob = shared.and_then(|id| core.blobs.get(&id)).map(|entry| Arc::clone(&entry.blob));
            let Some(blob) = blob else {
                // The blob was closed here meanwhile, or never proved: the answer is the same for both.
                if let Message::Ask { request, chunks, .. } = message {
                    let sorry =
                        Message::Reject { request, chunks, why: RejectReason::Missing, others: Vec::new() };
                    core.send(self, link.peer, sorry);
                    core.drain_deferred(self);
                }
                return Ok(());
            };
            *theirs = blob.id;
            check_numbers(&message, blob.len())?;
        }
        match &message {
            Message::Reject { request, chunks, .. } => link.refused(*request, *chunks),
            Message::Cancel { request } => {
                for serve in link.outbox.cancel(*request, &self.send_gate) {
                    let (peer, request, blob) = (link.peer, serve.request, serve.blob.id);
                    let (chunks, outcome) = (serve.chunks, Served::Well);
                    core.drive(self, Event::Served { peer, request, blob, chunks, outcome });
                }
            }
            _ => {}
        }
        core.drive(self, Event::Received { peer: link.peer, message });
        Ok(())
    }

    /// Handles the bytes of a chunk: the first `len` of `body`, which may be taken.
    pub(crate) fn arrived(
        self: &Arc<Self>,
        peer: PeerId,
        request: Option<RequestId>,
        blob: &Arc<Blob>,
        chunk: u32,
        body: &mut Vec<u8>,
        len: usize,
    ) {
        match blob.keep(chunk, body.get(..len).unwrap_or_default(), peer) {
            Ok(Kept::TreeMissing) => {
                self.park(Unverified { peer, request, blob: Arc::clone(blob), chunk }, body, len);
            }
            Ok(Kept::Whole(late)) => {
                self.report_arrival(peer, request, blob, chunk, &Ok(()));
                self.checked_late(blob, &late);
            }
            Err(error) => self.report_arrival(peer, request, blob, chunk, &Err(error)),
        }
    }

    /// Chunks of an outboard could be checked after a delay: others may have the right ones, and the senders of wrong
    /// ones are liars.
    pub(crate) fn checked_late(self: &Arc<Self>, blob: &Blob, late: &Late) {
        for chunk in &late.right {
            self.report_local(blob, blob.bytes_of(*chunk));
        }
        for liar in &late.liars {
            let what = "it sent a chunk of a hash tree that is not what it should be";
            self.shun(*liar, Offence::Corrupt, what);
        }
    }

    pub(crate) fn report_arrival(
        self: &Arc<Self>,
        peer: PeerId,
        request: Option<RequestId>,
        blob: &Blob,
        chunk: u32,
        kept: &Result<()>,
    ) {
        let chunks = Chunks::one(chunk);
        let outcome = match kept {
            Ok(()) => Came::Kept,
            Err(error) if error.kind() == ErrorKind::Corrupt => Came::Corrupt,
            Err(error) => {
                tracing::debug!(%error, "a chunk from another host cannot be kept");
                Came::Failed
            }
        };
        match request {
            Some(request) => self.event(Event::Came { peer, request, chunks, outcome }),
            None if outcome == Came::Kept => self.event(Event::Pushed { peer, blob: blob.id, chunks }),
            None if outcome == Came::Corrupt => {
                self.shun(peer, Offence::Corrupt, "it pushed a chunk that is not what it should be");
            }
            None => {}
        }
    }

    /// Handles the end of sending a chunk, successful or not.
    pub(crate) fn served(self: &Arc<Self>, link: &Link, sending: &Sending, outcome: Served) {
        let mut core = self.core();
        let (blob, chunks) = (sending.serve.blob.id, Chunks::one(sending.chunk));
        if outcome != Served::Well && core.blobs.contains_key(&blob) {
            core.drive(self, Event::Lost { blob, chunks });
        }
        if core.peers.contains_key(&link.peer) {
            core.drive(self, served_event(link, sending, outcome));
        }
    }

    /// Handles the end of a fetch.
    pub(crate) fn fetched(self: &Arc<Self>, fetch: StoreFetchId, ok: bool) {
        let mut core = self.core();
        if core.fetching.remove(&fetch) {
            core.drive(self, Event::Fetched { fetch, ok });
        }
    }

    pub(crate) fn stop(self: &Arc<Self>) {
        let mut core = self.core();
        core.stopped = true;
        let peers: Vec<_> = core.peers.keys().copied().collect();
        for peer in peers {
            core.disconnect(self, peer);
        }
        core.deferred.clear();
        core.wants.clear();
        drop(core);
        self.earlier.notify_waiters();
    }

    /// The blob of that digest that this host takes part in; `None` for outboards.
    pub(crate) fn data_blob(&self, digest: &Digest) -> Option<Arc<Blob>> {
        let core = self.core();
        let is_it = |blob: &Blob| blob.identity.digest == *digest && !blob.is_outboard();
        core.blobs.values().map(|entry| &entry.blob).find(|blob| is_it(blob)).cloned()
    }

    // Status for people.

    /// The other hosts according to the gossip, by name.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.members.lock().clone()
    }

    /// Records the other hosts, and those that have this host's own name.
    pub(crate) fn set_members(&self, members: &Members) {
        let Members { others: members, namesakes, processes } = members;
        let all = members.iter().chain(namesakes);
        let keys: HashSet<PeerKey> = all.map(|member| key_of(&member.name)).collect();
        let are_there: HashSet<SocketAddr> = namesakes.iter().map(|member| member.address).collect();
        self.namesakes().retain(|address| are_there.contains(address));
        *self.known_addresses.lock() =
            members.iter().map(|member| member.address.ip().to_canonical()).collect();
        self.unreached().retain(|key, _| keys.contains(key));
        self.whereabouts().update(processes.clone(), &keys);
        *self.members.lock() = members.clone();
    }

    /// `true` if a host of the swarm is at this address, according to gossip and connections.
    pub(crate) fn is_known_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.known_addresses.lock().contains(&address)
            || self.core().peers.values().any(|peer| peer.link.address.ip().to_canonical() == address)
    }

    /// The addresses of other hosts that have this host's name.
    pub(crate) fn namesakes(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        self.namesakes.lock()
    }

    /// Records that a host with this host's name answers at `address`.
    pub(crate) fn met_namesake(&self, address: SocketAddr) {
        self.namesakes().insert(address);
    }

    /// The addresses at which hosts listen.
    pub(crate) fn whereabouts(&self) -> MutexGuard<'_, Whereabouts> {
        self.whereabouts.lock()
    }

    fn unreached(&self) -> MutexGuard<'_, HashMap<PeerKey, String>> {
        self.unreached.lock()
    }

    /// Records why a host cannot be connected to; returns `true` if the cause is new.
    pub(crate) fn cannot_reach(&self, key: PeerKey, error: &Error) -> bool {
        let why = error.to_string();
        self.unreached().insert(key, why.clone()).is_none_or(|before| before != why)
    }

    /// The cause why a host could not be connected to at the last attempt.
    pub(crate) fn why_unreached(&self, key: PeerKey) -> Option<String> {
        self.unreached().get(&key).cloned()
    }

    /// The hosts that count disks' reads; this one without a connection.
    pub(crate) fn trackers(&self) -> Vec<(PeerKey, Option<Arc<Link>>)> {
        let core = self.core();
        let own = self.hints.counting.is_some().then(|| (core.node.key(), None));
        let others = core.peers.values().map(|peer| &peer.link).filter(|link| link.is_tracker);
        own.into_iter().chain(others.map(|link| (link.key, Some(Arc::clone(link))))).collect()
    }

    /// `true` if this host is connected to any other.
    pub(crate) fn is_connected(&self) -> bool {
        !self.core().peers.is_empty()
    }

    /// The connection to a host, by the number of its name.
    pub(crate) fn link_of(&self, key: PeerKey) -> Option<Arc<Link>> {
        let core = self.core();
        let peer = core.by_key.get(&key).and_then(|peer| core.peers.get(peer));
        peer.map(|peer| Arc::clone(&peer.link))
    }

    /// The connection to a host.
    pub(crate) fn link_to(&self, name: &str) -> Option<Arc<Link>> {
        self.core().peers.values().map(|peer| &peer.link).find(|link| link.name == name).cloned()
    }

    /// `true` if a host has shown that it may read all of these blobs.
    pub(crate) fn has_shown(&self, peer: PeerId, blobs: &[BlobSpec]) -> bool {
        let core = self.core();
        let Some(peer) = core.peers.get(&peer) else { return false };
        let is_shown = |spec: &BlobSpec| {
            let Some(tree) = &spec.tree else { return false };
            let (link, root) = (&peer.link, tree.root.as_bytes());
            let expected = proof::proof(root, &link.binding, link.side.other(), &spec.digest);
            peer.numbers.contains_key(expected.as_bytes())
        };
        !blobs.is_empty() && blobs.iter().all(is_shown)
    }

    /// The connections, and the numbers of blobs that both ends share, without outboards.
    pub(crate) fn links(&self) -> Vec<(Arc<Link>, usize)> {
        let core = self.core();
        // An outboard is counted with its blob.
        let is_data = |id: &&BlobId| core.blobs.get(id).is_some_and(|entry| !entry.blob.is_outboard());
        let shared = |peer: &Peer| peer.shared_blobs.iter().filter(is_data).count();
        core.peers.values().map(|peer| (Arc::clone(&peer.link), shared(peer))).collect()
    }

    /// `true` if another host shares a blob.
    pub(crate) fn has_peers(&self, id: BlobId) -> bool {
        self.core().peers.values().any(|peer| peer.shared_blobs.contains(&id))
    }

    /// The blobs with their numbers of users, and of hosts that share each.
    pub(crate) fn blobs(&self) -> Vec<(Arc<Blob>, usize, usize)> {
        let core = self.core();
        let sharers = |id| core.peers.values().filter(|peer| peer.shared_blobs.contains(&id)).count();
        core.blobs
            .values()
            .map(|entry| (Arc::clone(&entry.blob), entry.users, sharers(entry.blob.id)))
            .collect()
    }

    pub(crate) fn node_counters(&self) -> headstart_swarm::NodeCounters {
        self.core().node.counters()
    }
}

/// Checks that a message names only chunks that exist.
fn check_numbers(message: &Message, len: u64) -> Result<()> {
    let within = match message {
        Message::Have { runs, .. } | Message::Lost { runs, .. } | Message::Read { runs, .. } => {
            runs.iter().all(|run| frame::is_within(*run, len))
        }
        Message::Ask { chunks, .. } => frame::is_within(*chunks, len),
        _ => true,
    };
    if within { Ok(()) } else { Err(Error::corrupt("it speaks of chunks that there are not")) }
}
