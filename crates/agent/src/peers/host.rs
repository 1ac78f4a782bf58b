//! What all tasks of the swarm share: the state machine, and what its numbers mean.
//!
//! The state machine has no task of its own. Whoever has an event, a reader whose chunk is kept or a disk that wants
//! something, takes the lock, moves the machine, and does what it says: to do is always to put something into a queue
//! that is bounded, or to start a task, and never waits. So an event costs no hop from thread to thread, and no queue of
//! events can grow.
//!
//! Locks are taken in this order: the machine, then a connection's requests or its outbox.

use crate::peers::blob::{Blob, Identity, Kept};
use crate::peers::fetching::Fetches;
use crate::peers::frame::{self, Kind, PROOF};
use crate::peers::link::{Link, served_event};
use crate::peers::outbox::{Lanes, Overflow, Sending, Serve};
use crate::peers::parking::{Parked, Parking};
use crate::peers::status::Counts;
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use headstart_cache::{Cache, CachedBlob};
use headstart_image::manifest::Tree;
use headstart_swarm::event::Came;
use headstart_swarm::{
    Action, BlobId, Chunks, Event, FetchId, Message, Node, Offence, PeerId, PeerKey, RequestId, Time,
    Urgency, WantId, Why,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

/// How long a host is left alone that was dropped.
const SHUNNED: Duration = Duration::from_secs(600);

/// Blobs that one host may prove that it may read, at a time.
const PROOFS_MAX: usize = 16_384;

/// What all tasks share.
pub(super) struct Host {
    pub(super) cache: Arc<Cache>,
    pub(super) runtime: Handle,
    pub(super) counts: Counts,
    pub(super) lanes: Lanes,
    pub(super) parking: Parking,
    pub(super) fetches: Fetches,
    /// The machine wants to be woken earlier than it did.
    pub(super) earlier: Notify,
    core: Mutex<Core>,
    started: Instant,
}

/// The machine and what its numbers mean.
pub(super) struct Core {
    node: Node,
    actions: Vec<Action>,
    blobs: HashMap<BlobId, Entry>,
    by_identity: HashMap<Identity, BlobId>,
    peers: HashMap<PeerId, Peer>,
    by_key: HashMap<PeerKey, PeerId>,
    shunned: HashMap<PeerKey, Time>,
    wants: HashMap<WantId, oneshot::Sender<Vec<Chunks>>>,
    wake_at: Option<Time>,
    last_blob: u32,
    last_peer: u32,
    last_want: u64,
    /// Wants of the agent's own: parts of trees. Where the swarm does not bring them, the agent fetches them.
    own_wants: HashMap<WantId, (Arc<Blob>, Chunks)>,
    own_wanted: HashSet<(BlobId, Chunks)>,
    fetching: HashSet<FetchId>,
    /// What actions have led to: the machine hears of it when it is done with what it said.
    deferred: VecDeque<Deferred>,
    stopped: bool,
}

/// An event that an action has led to.
enum Deferred {
    PeerDown(PeerId),
    Want(WantId, BlobId, Chunks, Urgency),
    /// An ask cannot be sent: it is as if the other host had refused it.
    NotAsked(PeerId, RequestId, Chunks),
    /// Chunks are not sent.
    NotServed(PeerId, Option<RequestId>, BlobId, Chunks),
}

struct Entry {
    blob: Arc<Blob>,
    users: usize,
    /// Disks that preload by a plan.
    planned: usize,
    /// When the last user went.
    idle_since: Time,
}

struct Peer {
    link: Arc<Link>,
    /// What it has to send to prove that it may read a blob.
    expected: HashMap<[u8; PROOF], BlobId>,
    /// What it has sent, by its numbers, and the other way round.
    proofs: HashMap<u32, [u8; PROOF]>,
    numbers: HashMap<[u8; PROOF], u32>,
    /// What both share, by its numbers and by ours.
    shared: HashMap<u32, BlobId>,
    shared_blobs: HashSet<BlobId>,
}

/// Where a want's answer comes from.
pub(super) type Answer = oneshot::Receiver<Vec<Chunks>>;

impl Host {
    #[expect(clippy::disallowed_methods, reason = "the clock that the state machine goes by")]
    pub(super) fn new(cache: Arc<Cache>, runtime: Handle, node: Node) -> Arc<Self> {
        Arc::new(Self {
            cache,
            runtime,
            counts: Counts::default(),
            lanes: Lanes::default(),
            parking: Parking::default(),
            fetches: Fetches::default(),
            earlier: Notify::new(),
            core: Mutex::new(Core {
                node,
                actions: Vec::new(),
                blobs: HashMap::new(),
                by_identity: HashMap::new(),
                peers: HashMap::new(),
                by_key: HashMap::new(),
                shunned: HashMap::new(),
                wants: HashMap::new(),
                wake_at: None,
                last_blob: 0,
                last_peer: 0,
                last_want: 0,
                own_wants: HashMap::new(),
                own_wanted: HashSet::new(),
                fetching: HashSet::new(),
                deferred: VecDeque::new(),
                stopped: false,
            }),
            started: Instant::now(),
        })
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now().0 / 1000
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        // A panic in the machine leaves it as it is; wants have their time limits.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn event(self: &Arc<Self>, event: Event<'_>) {
        self.core().drive(self, event);
    }

    /// Wakes the machine whenever it wants to be, and looks after what nobody else does.
    pub(super) async fn keep_time(self: Arc<Self>) {
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
            // Timed out or called: look again.
            let _ = tokio::time::timeout(pause, earlier).await;
        }
    }

    // What disks say.

    /// Takes part in a blob and in its tree's outboard, once more.
    pub(super) fn open(
        self: &Arc<Self>,
        cached: &Arc<CachedBlob>,
        tree: Tree,
        carrier: Option<&Arc<headstart_disk::Carrier>>,
    ) -> Arc<Blob> {
        let identity =
            Identity { digest: cached.spec().digest, len: cached.spec().len, root: *tree.root.as_bytes() };
        let mut core = self.core();
        if let Some(entry) = core.by_identity.get(&identity).copied().and_then(|id| core.blobs.get_mut(&id)) {
            entry.users += 1;
            let blob = Arc::clone(&entry.blob);
            if let Some(carrier) = carrier {
                blob.set_carrier(carrier);
            }
            return blob;
        }
        let outboard = cached.tree().map(|outboard| {
            let blob = Blob::outboard(core.next_blob(), Arc::clone(outboard), identity.len, tree);
            core.add(self, Arc::new(blob), carrier)
        });
        let blob = Blob::data(core.next_blob(), Arc::clone(cached), identity.root, outboard);
        core.add(self, Arc::new(blob), carrier)
    }

    /// One user less.
    pub(super) fn close(&self, id: BlobId) {
        let now = self.now();
        let mut core = self.core();
        if let Some(entry) = core.blobs.get_mut(&id) {
            entry.users = entry.users.saturating_sub(1);
            entry.idle_since = now;
        }
    }

    /// Leaves the blobs that nobody has used for so long.
    pub(super) fn leave_unused(self: &Arc<Self>, after: Duration) {
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

    pub(super) fn want(self: &Arc<Self>, blob: &Blob, chunks: Chunks, urgency: Urgency) -> (WantId, Answer) {
        let (answer, answered) = oneshot::channel();
        let mut core = self.core();
        core.last_want += 1;
        let want = WantId(core.last_want);
        if !core.stopped && core.blobs.contains_key(&blob.id) {
            core.wants.insert(want, answer);
            core.drive(self, Event::Want { want, blob: blob.id, chunks, urgency });
        } else {
            // Nobody listens only where the caller is gone.
            let _ = answer.send(vec![chunks]);
        }
        (want, answered)
    }

    /// What a disk has to fetch itself: what the machine says, and what is not here against its belief, which it hears
    /// of.
    pub(super) fn checked(
        self: &Arc<Self>,
        blob: &Blob,
        wanted: Chunks,
        elsewhere: &[Chunks],
    ) -> Vec<ByteRange> {
        let mut missing: Vec<Chunks> = Vec::new();
        blob.cached.missing(wanted.bytes(blob.len()), &mut |run| {
            let chunks = Chunks::touched(run);
            match missing.last_mut() {
                Some(last) if last.numbers().end >= chunks.first => {
                    last.count = chunks.numbers().end.max(last.numbers().end) - last.first;
                }
                _ => missing.push(chunks),
            }
        });
        let is_said = |chunk: u32| elsewhere.iter().any(|run| run.numbers().contains(&chunk));
        for chunk in missing.iter().flat_map(|run| run.numbers()).filter(|chunk| !is_said(*chunk)) {
            self.event(Event::Lost { blob: blob.id, chunks: Chunks::one(chunk) });
        }
        missing.into_iter().map(|run| run.bytes(blob.len())).collect()
    }

    pub(super) fn forget(self: &Arc<Self>, want: WantId) {
        let mut core = self.core();
        if core.wants.remove(&want).is_some() {
            core.drive(self, Event::Forget { want });
        }
    }

    pub(super) fn planned(self: &Arc<Self>, id: BlobId, running: bool) {
        let mut core = self.core();
        let Some(entry) = core.blobs.get_mut(&id) else { return };
        let was = entry.planned > 0;
        entry.planned = if running { entry.planned + 1 } else { entry.planned.saturating_sub(1) };
        let is = entry.planned > 0;
        if was != is {
            core.drive(self, Event::Planned { blob: id, running: is });
        }
    }

    // What other hosts say.

    /// A host is connected. `None` where it is not to be.
    pub(super) fn connected(
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
            // It has begun anew: its old connection is dead, though nobody has noticed yet.
            core.disconnect(self, before);
            core.settle(self);
        }
        if core.peers.len() >= connections_max {
            return None;
        }
        core.last_peer += 1;
        let peer = PeerId(core.last_peer);
        let link = Arc::new(make(peer, now.0 / 1000));
        let theirs = link.side.other();
        let mut expected = HashMap::new();
        for entry in core.blobs.values() {
            expected.insert(entry.blob.proof(&link.binding, theirs), entry.blob.id);
            let ours = entry.blob.proof(&link.binding, link.side);
            // A link that is this new has room.
            let _ = link.outbox.control(Kind::Proof, entry.blob.id.0, &ours);
        }
        let new = Peer {
            link: Arc::clone(&link),
            expected,
            proofs: HashMap::new(),
            numbers: HashMap::new(),
            shared: HashMap::new(),
            shared_blobs: HashSet::new(),
        };
        core.peers.insert(peer, new);
        core.by_key.insert(key, peer);
        self.counts.connections.fetch_add(1, Ordering::Relaxed);
        core.drive(self, Event::PeerUp { peer, key, role: link.role });
        Some(link)
    }

    /// It is not any more.
    pub(super) fn disconnected(self: &Arc<Self>, peer: PeerId) {
        let mut core = self.core();
        core.disconnect(self, peer);
        core.settle(self);
    }

    /// It has broken the rules: it is left alone for a while.
    pub(super) fn shun(self: &Arc<Self>, peer: PeerId, offence: Offence, what: &str) {
        let mut core = self.core();
        core.shun(self, peer, offence, what);
        core.settle(self);
    }

    /// Whether this host is connected to `key`, or leaves it alone.
    pub(super) fn needs_no_connection(&self, key: PeerKey) -> bool {
        let now = self.now();
        let core = self.core();
        core.by_key.contains_key(&key) || core.shunned.get(&key).is_some_and(|until| *until > now)
    }

    /// A host sends what proves that it may read a blob.
    pub(super) fn proved(self: &Arc<Self>, link: &Link, number: u32, body: &[u8]) -> Result<()> {
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
        }
        Ok(())
    }

    /// It does not share it any more.
    pub(super) fn withdrawn(&self, link: &Link, number: u32) {
        let mut core = self.core();
        let Some(peer) = core.peers.get_mut(&link.peer) else { return };
        if let Some(mac) = peer.proofs.remove(&number) {
            peer.numbers.remove(&mac);
        }
        if let Some(blob) = peer.shared.remove(&number) {
            peer.shared_blobs.remove(&blob);
        }
    }

    /// The blob that a host calls so, if both share it.
    pub(super) fn shared_blob(&self, link: &Link, number: u32) -> Option<Arc<Blob>> {
        let core = self.core();
        let id = core.peers.get(&link.peer)?.shared.get(&number)?;
        core.blobs.get(id).map(|entry| Arc::clone(&entry.blob))
    }

    /// A host says something to the machine.
    pub(super) fn received(self: &Arc<Self>, link: &Link, mut message: Message) -> Result<()> {
        let mut core = self.core();
        if let Some(theirs) = blob_of(&mut message) {
            let shared = core.peers.get(&link.peer).and_then(|peer| peer.shared.get(&theirs.0)).copied();
            let blob = shared.and_then(|id| core.blobs.get(&id)).map(|entry| Arc::clone(&entry.blob));
            let Some(blob) = blob else {
                // It was closed here meanwhile, or never proved: the same answer for both.
                if let Message::Ask { request, chunks, .. } = message {
                    let sorry = Message::Sorry { request, chunks, why: Why::Missing, others: Vec::new() };
                    core.send(self, link.peer, sorry);
                    core.settle(self);
                }
                return Ok(());
            };
            *theirs = blob.id;
            check_numbers(&message, blob.len())?;
        }
        match &message {
            Message::Sorry { request, chunks, .. } => link.refused(*request, *chunks),
            Message::Cancel { request } => {
                for serve in link.outbox.cancel(*request, &self.lanes) {
                    let (peer, request, blob) = (link.peer, serve.request, serve.blob.id);
                    let chunks = serve.chunks;
                    core.drive(self, Event::Served { peer, request, blob, chunks, missing: false });
                }
            }
            _ => {}
        }
        core.drive(self, Event::Received { peer: link.peer, message });
        Ok(())
    }

    /// The bytes of a chunk are here: the first `len` of `body`, which may be taken.
    pub(super) fn arrived(
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
                self.park(Parked { peer, request, blob: Arc::clone(blob), chunk }, body, len)
            }
            Ok(Kept::Whole(liars)) => {
                self.tell_arrival(peer, request, blob, chunk, Ok(()));
                for liar in liars {
                    self.shun(
                        liar,
                        Offence::Corrupt,
                        "it sent a chunk of a hash tree that is not what it should be",
                    );
                }
            }
            Err(error) => self.tell_arrival(peer, request, blob, chunk, Err(error)),
        }
    }

    pub(super) fn tell_arrival(
        self: &Arc<Self>,
        peer: PeerId,
        request: Option<RequestId>,
        blob: &Blob,
        chunk: u32,
        kept: Result<()>,
    ) {
        let chunks = Chunks::one(chunk);
        let outcome = match &kept {
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

    /// A chunk is sent, or was not there.
    pub(super) fn served(self: &Arc<Self>, link: &Link, sending: &Sending, missing: bool) {
        let mut core = self.core();
        let (blob, chunks) = (sending.serve.blob.id, Chunks::one(sending.chunk));
        if missing && core.blobs.contains_key(&blob) {
            core.drive(self, Event::Lost { blob, chunks });
        }
        if core.peers.contains_key(&link.peer) {
            core.drive(self, served_event(link, sending, missing));
        }
    }

    /// A fetch has ended.
    pub(super) fn fetched(self: &Arc<Self>, fetch: FetchId, ok: bool) {
        let mut core = self.core();
        if core.fetching.remove(&fetch) {
            core.drive(self, Event::Fetched { fetch, ok });
        }
    }

    pub(super) fn stop(self: &Arc<Self>) {
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

    // For people.

    pub(super) fn links(&self) -> Vec<(Arc<Link>, usize)> {
        self.core().peers.values().map(|peer| (Arc::clone(&peer.link), peer.shared.len())).collect()
    }

    /// The blobs with their users, and how many hosts share each.
    pub(super) fn blobs(&self) -> Vec<(Arc<Blob>, usize, usize)> {
        let core = self.core();
        let sharers = |id| core.peers.values().filter(|peer| peer.shared_blobs.contains(&id)).count();
        core.blobs
            .values()
            .map(|entry| (Arc::clone(&entry.blob), entry.users, sharers(entry.blob.id)))
            .collect()
    }

    pub(super) fn node_counters(&self) -> headstart_swarm::Counters {
        self.core().node.counters()
    }
}

/// Where a message says which blob it is about.
fn blob_of(message: &mut Message) -> Option<&mut BlobId> {
    match message {
        Message::Have { blob, .. }
        | Message::Lost { blob, .. }
        | Message::Ask { blob, .. }
        | Message::Sketch { blob, .. } => Some(blob),
        _ => None,
    }
}

/// Whether a message speaks only of chunks that there are.
fn check_numbers(message: &Message, len: u64) -> Result<()> {
    let within = match message {
        Message::Have { runs, .. } | Message::Lost { runs, .. } => {
            runs.iter().all(|run| frame::is_within(*run, len))
        }
        Message::Ask { chunks, .. } => frame::is_within(*chunks, len),
        _ => true,
    };
    if within { Ok(()) } else { Err(Error::corrupt("it speaks of chunks that there are not")) }
}

impl Core {
    fn next_blob(&mut self) -> BlobId {
        self.last_blob += 1;
        BlobId(self.last_blob)
    }

    fn add(
        &mut self,
        host: &Arc<Host>,
        blob: Arc<Blob>,
        carrier: Option<&Arc<headstart_disk::Carrier>>,
    ) -> Arc<Blob> {
        if let Some(carrier) = carrier {
            blob.set_carrier(carrier);
        }
        let id = blob.id;
        let users = usize::from(!blob.is_outboard());
        self.by_identity.insert(blob.identity, id);
        let entry = Entry { blob: Arc::clone(&blob), users, planned: 0, idle_since: host.now() };
        self.blobs.insert(id, entry);
        let local = blob.local_chunks(ByteRange::between(0, blob.len()));
        let (key, len) = (blob.key(), blob.len());
        self.drive(host, Event::Opened { blob: id, key, len, local: &local, fetchable: carrier.is_some() });
        let mut sharing = Vec::new();
        let mut full = Vec::new();
        for (name, peer) in &mut self.peers {
            let theirs = blob.proof(&peer.link.binding, peer.link.side.other());
            peer.expected.insert(theirs, id);
            if let Some(number) = peer.numbers.get(&theirs) {
                peer.shared.insert(*number, id);
                peer.shared_blobs.insert(id);
                sharing.push(*name);
            }
            let ours = blob.proof(&peer.link.binding, peer.link.side);
            if peer.link.outbox.control(Kind::Proof, id.0, &ours).is_err() {
                full.push(*name);
            }
        }
        for peer in sharing {
            self.drive(host, Event::PeerShares { peer, blob: id });
        }
        full.into_iter().for_each(|peer| self.disconnect(host, peer));
        self.settle(host);
        blob
    }

    fn remove(&mut self, host: &Arc<Host>, blob: &Blob) {
        self.blobs.remove(&blob.id);
        self.by_identity.remove(&blob.identity);
        let mut full = Vec::new();
        for (name, peer) in &mut self.peers {
            peer.expected.retain(|_, id| *id != blob.id);
            peer.shared.retain(|_, id| *id != blob.id);
            peer.shared_blobs.remove(&blob.id);
            if peer.link.outbox.control(Kind::Withdrawn, blob.id.0, &[]).is_err() {
                full.push(*name);
            }
        }
        self.drive(host, Event::Closed { blob: blob.id });
        full.into_iter().for_each(|peer| self.disconnect(host, peer));
        self.settle(host);
    }

    /// Moves the machine, does what it says, and tells it what came of that.
    fn drive(&mut self, host: &Arc<Host>, event: Event<'_>) {
        self.step(host, event);
        self.settle(host);
    }

    fn settle(&mut self, host: &Arc<Host>) {
        while let Some(deferred) = self.deferred.pop_front() {
            match deferred {
                Deferred::PeerDown(peer) => self.step(host, Event::PeerDown { peer }),
                Deferred::Want(want, blob, chunks, urgency) if self.blobs.contains_key(&blob) => {
                    self.step(host, Event::Want { want, blob, chunks, urgency });
                }
                Deferred::Want(want, _, chunks, _) => self.answer(host, want, vec![chunks]),
                Deferred::NotAsked(peer, request, chunks) => {
                    let message = Message::Sorry { request, chunks, why: Why::Missing, others: Vec::new() };
                    self.step(host, Event::Received { peer, message });
                }
                Deferred::NotServed(peer, request, blob, chunks) => {
                    self.step(host, Event::Served { peer, request, blob, chunks, missing: false });
                }
            }
        }
    }

    fn step(&mut self, host: &Arc<Host>, event: Event<'_>) {
        let mut actions = std::mem::take(&mut self.actions);
        let now = host.now();
        tracing::trace!(at = now.0, ?event, "in");
        self.node.on_event(now, event, &mut actions);
        for action in actions.drain(..) {
            tracing::trace!(at = now.0, ?action, "out");
            self.act(host, action);
        }
        self.actions = actions;
    }

    fn act(&mut self, host: &Arc<Host>, action: Action) {
        match action {
            Action::Send { peer, message } => self.say(host, peer, message),
            Action::Serve { peer, request, blob, chunks, urgency } => {
                self.serve(host, peer, request, blob, chunks, urgency);
            }
            Action::Fetch { fetch, blob, chunks, urgency } => {
                let blob = self.blobs.get(&blob).map(|entry| Arc::clone(&entry.blob));
                let again = !self.fetching.insert(fetch);
                host.fetch(fetch, blob, chunks, urgency, again);
            }
            Action::Answer { want, elsewhere } => self.answer(host, want, elsewhere),
            Action::Drop { peer, offence } => self.shun(host, peer, offence, "the state machine says so"),
            Action::WakeAt(at) => {
                let earlier = self.wake_at.is_none_or(|before| at < before);
                self.wake_at = Some(at);
                if earlier {
                    host.earlier.notify_one();
                }
            }
        }
    }

    /// Sends what the machine says, if it is about nothing that the host has not proved.
    fn say(&mut self, host: &Arc<Host>, name: PeerId, mut message: Message) {
        let Some(peer) = self.peers.get(&name) else { return };
        if let Some(blob) = blob_of(&mut message).map(|blob| *blob) {
            if !peer.shared_blobs.contains(&blob) {
                if let Message::Ask { request, chunks, .. } = message {
                    self.deferred.push_back(Deferred::NotAsked(name, request, chunks));
                }
                return;
            }
            if let (Message::Ask { request, chunks, .. }, Some(entry)) = (&message, self.blobs.get(&blob)) {
                peer.link.expect(*request, &entry.blob, *chunks);
            }
        }
        let asked = match &message {
            Message::Ask { blob, chunks, urgency, .. } => {
                let entry = self.blobs.get(blob);
                entry.map(|entry| (Arc::clone(&entry.blob), *chunks, *urgency))
            }
            _ => None,
        };
        self.send(host, name, message);
        if let Some((blob, chunks, urgency)) = asked {
            self.want_tree_of(&blob, chunks, urgency);
        }
    }

    /// What is asked for is no use without the pages of the tree: they are brought at the same time.
    fn want_tree_of(&mut self, blob: &Blob, chunks: Chunks, urgency: Urgency) {
        let Some(tree) = &blob.tree else { return };
        for chunks in blob.missing_tree_chunks(chunks.bytes(blob.len())) {
            if self.own_wanted.insert((tree.id, chunks)) {
                self.last_want += 1;
                let want = WantId(self.last_want);
                self.own_wants.insert(want, (Arc::clone(tree), chunks));
                self.deferred.push_back(Deferred::Want(want, tree.id, chunks, urgency));
            }
        }
    }

    fn answer(&mut self, host: &Arc<Host>, want: WantId, elsewhere: Vec<Chunks>) {
        if let Some(answer) = self.wants.remove(&want) {
            // Nobody listens only where the disk has gone.
            let _ = answer.send(elsewhere);
        } else if let Some((tree, wanted)) = self.own_wants.remove(&want) {
            self.own_wanted.remove(&(tree.id, wanted));
            host.fetch_own(&tree, elsewhere);
        }
    }

    fn send(&mut self, host: &Arc<Host>, name: PeerId, message: Message) {
        let Some(peer) = self.peers.get(&name) else { return };
        if split(message).into_iter().any(|message| peer.link.outbox.send(message).is_err()) {
            self.cut_off(host, name);
        }
    }

    fn serve(
        &mut self,
        host: &Arc<Host>,
        name: PeerId,
        request: Option<RequestId>,
        blob: BlobId,
        chunks: Chunks,
        urgency: Urgency,
    ) {
        let Some(peer) = self.peers.get(&name) else { return };
        let entry = self.blobs.get(&blob).filter(|_| peer.shared_blobs.contains(&blob) && chunks.count > 0);
        let Some(entry) = entry else {
            self.deferred.push_back(Deferred::NotServed(name, request, blob, chunks));
            return;
        };
        let serve = Serve { request, blob: Arc::clone(&entry.blob), chunks, urgency };
        if let Err(Overflow) = peer.link.outbox.serve(serve, &host.lanes, host.now_ms()) {
            self.cut_off(host, name);
        }
    }

    /// It does not read what it is sent.
    fn cut_off(&mut self, host: &Arc<Host>, name: PeerId) {
        self.shun(host, name, Offence::Slow, "it does not read what it is sent");
    }

    fn shun(&mut self, host: &Arc<Host>, name: PeerId, offence: Offence, what: &str) {
        let Some(peer) = self.peers.get(&name) else { return };
        let (link, until) = (Arc::clone(&peer.link), host.now() + SHUNNED);
        self.shunned.insert(link.key, until);
        let count = match offence {
            Offence::Corrupt => &host.counts.dropped_corrupt,
            _ => &host.counts.dropped_other,
        };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(host = %link.name, ?offence, what, "a host is left alone for ten minutes");
        self.disconnect(host, name);
    }

    fn disconnect(&mut self, host: &Arc<Host>, name: PeerId) {
        let Some(peer) = self.peers.remove(&name) else { return };
        if self.by_key.get(&peer.link.key) == Some(&name) {
            self.by_key.remove(&peer.link.key);
        }
        peer.link.outbox.close(&host.lanes);
        peer.link.close();
        // Not at once: this may be in the middle of what the machine has just said.
        self.deferred.push_back(Deferred::PeerDown(name));
    }
}

/// Adverts that are too long for one message as several.
fn split(message: Message) -> Vec<Message> {
    let parts =
        |runs: Vec<Chunks>| -> Vec<Vec<Chunks>> { runs.chunks(frame::RUNS_MAX).map(<[_]>::to_vec).collect() };
    match message {
        Message::Have { blob, runs } if runs.len() > frame::RUNS_MAX => {
            parts(runs).into_iter().map(|runs| Message::Have { blob, runs }).collect()
        }
        Message::Lost { blob, runs } if runs.len() > frame::RUNS_MAX => {
            parts(runs).into_iter().map(|runs| Message::Lost { blob, runs }).collect()
        }
        Message::Sketch { blob, mut least } => {
            least.truncate(frame::SKETCH_MAX);
            vec![Message::Sketch { blob, least }]
        }
        Message::Sorry { request, chunks, why, mut others } => {
            others.truncate(frame::OTHERS_MAX);
            vec![Message::Sorry { request, chunks, why, others }]
        }
        other => vec![other],
    }
}
