//! The node: one owner of all state, moved by events.

use crate::counters::Counters;
use crate::event::{Action, BlobId, BlobKey, Chunks, Event, FetchId, PeerId, PeerKey, Role, WantId};
use crate::message::{Message, RequestId};
use crate::patience::Patience;
use crate::recent::Recent;
use crate::settings::{Settings, Topology};
use crate::similarity::Ranking;
use crate::{Time, Urgency};
use blob::Blob;
use headstart_block::random::Random;
use links::Root;
use peers::Peer;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;
use uplink::Uplink;

mod adverts;
mod blob;
mod coming;
mod getting;
mod links;
mod log;
mod peers;
mod serving;
mod uplink;

#[cfg(test)]
mod tests;

/// Requests that a root remembers, to tell what comes next.
const RECENT: usize = 1 << 16;

/// Hosts whose likeness is remembered.
const RANKED: usize = 256;

/// How often neighbours are chosen anew by what they read.
const CHOOSE_EVERY: Duration = Duration::from_secs(5);

/// Something that is due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A request may be late.
    Request(RequestId),
    /// A want must be answered.
    Want(WantId),
    /// A disk has had the time to fetch this.
    Disk(BlobId, Chunks),
    /// What came here is to be told.
    Adverts,
    /// A root is to be asked, or asked again.
    Join,
    /// Neighbours are to be chosen anew.
    Choose,
}

/// What a disk waits for.
#[derive(Debug)]
struct Want {
    blob: BlobId,
    urgency: Urgency,
    /// Chunks that it waits for.
    left: u32,
    /// What is left to the disk.
    elsewhere: Vec<u32>,
}

/// What a peer was asked for.
#[derive(Debug)]
struct Request {
    peer: PeerId,
    blob: BlobId,
    chunks: Chunks,
    /// Chunks that have not come.
    left: u32,
    urgency: Urgency,
    hops: u8,
    insist: bool,
    /// When it was sent, or promised.
    since: Time,
    /// Whether there was any sign of life.
    heard: bool,
    /// Whether bytes have come.
    began: bool,
    /// Whether it was promised: then it may take as long as the store.
    promised: bool,
    /// While what its peer answered is taken in: who answers is not told that the rest is not wanted.
    answering: bool,
    /// Its last sign of life, or when it was sent.
    lively: Time,
}

/// What the agent fetches from the store.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    blob: BlobId,
    chunks: Chunks,
    /// When it began, or somebody began to wait for it.
    since: Time,
    urgency: Urgency,
}

/// The state machine of one host.
#[derive(Debug)]
pub struct Node {
    key: PeerKey,
    role: Role,
    settings: Settings,
    now: Time,
    random: Random,
    peers: BTreeMap<PeerId, Peer>,
    keys: BTreeMap<PeerKey, PeerId>,
    blobs: BTreeMap<BlobId, Blob>,
    blob_keys: BTreeMap<BlobKey, BlobId>,
    wants: BTreeMap<WantId, Want>,
    requests: BTreeMap<RequestId, Request>,
    next_request: u32,
    /// Those that were given up, the latest last: their bytes may come all the same.
    late: VecDeque<(RequestId, PeerId, BlobId, Time)>,
    fetches: BTreeMap<FetchId, Fetch>,
    next_fetch: u64,
    timers: BinaryHeap<Reverse<(Time, Timer)>>,
    /// The tick asked for last.
    wake: Option<Time>,
    /// Whether the timer of adverts is set.
    telling: bool,
    patience: Patience,
    uplink: Uplink,
    /// Bytes on their way here ahead of need.
    prefetching: u64,
    root: Root,
    ranking: Ranking,
    recent: Recent,
    counters: Counters,
}

impl Node {
    /// A host that knows nobody yet and takes part in no blob.
    #[must_use]
    pub fn new(key: PeerKey, role: Role, settings: Settings) -> Self {
        let settings = settings.sane();
        let mut node = Self {
            key,
            role,
            now: Time(0),
            random: Random::new(settings.seed ^ key.0),
            peers: BTreeMap::new(),
            keys: BTreeMap::new(),
            blobs: BTreeMap::new(),
            blob_keys: BTreeMap::new(),
            wants: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            late: VecDeque::new(),
            fetches: BTreeMap::new(),
            next_fetch: 0,
            timers: BinaryHeap::new(),
            wake: None,
            telling: false,
            patience: Patience::new(settings.patience),
            uplink: Uplink::new(u64::from(settings.stripe)),
            prefetching: 0,
            root: Root::default(),
            ranking: Ranking::new(RANKED),
            recent: Recent::new(RECENT),
            counters: Counters::default(),
            settings,
        };
        if matches!(node.settings.topology, Topology::Similar(_)) {
            node.timers.push(Reverse((node.now + CHOOSE_EVERY, Timer::Choose)));
        }
        node
    }

    /// Takes note of `event`, which happened at `now`, and appends to `actions` what is to be done, in order.
    pub fn on_event(&mut self, now: Time, event: Event<'_>, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        match event {
            Event::Opened { blob, key, len, local, fetchable } => {
                self.opened(blob, key, len, local, fetchable);
            }
            Event::Closed { blob } => self.closed(blob, actions),
            Event::Want { want, blob, chunks, urgency } => self.want(want, blob, chunks, urgency, actions),
            Event::Forget { want } => self.forget(want),
            Event::Read { blob, chunks } => self.read(blob, chunks, actions),
            Event::BecameLocal { blob, chunks } => {
                self.counters.from_store += self.arrived(blob, chunks, false, actions);
            }
            Event::Lost { blob, chunks } => self.lost(blob, chunks, actions),
            Event::Planned { blob, running } => self.planned(blob, running, actions),
            Event::Warm { blob, chunks } => self.warm(blob, chunks, actions),
            Event::Pinned { blob, holders, copies } => {
                if let Some(blob) = self.blobs.get_mut(&blob) {
                    blob.pinned = (!holders.is_empty()).then(|| (holders.to_vec(), copies));
                }
            }
            Event::PeerUp { peer, key, role } => self.peer_up(peer, key, role),
            Event::PeerDown { peer } => self.peer_down(peer, actions),
            Event::PeerShares { peer, blob } => self.peer_shares(peer, blob),
            Event::Received { peer, message } => self.received(peer, message, actions),
            Event::Came { peer, request, chunks, outcome } => {
                self.came(peer, request, chunks, outcome, actions);
            }
            Event::Pushed { peer, blob, chunks } => self.pushed(peer, blob, chunks, actions),
            Event::Served { peer, request, blob, chunks, missing } => {
                self.served(peer, request, blob, chunks, missing, actions);
            }
            Event::Fetched { fetch, ok } => self.fetched(fetch, ok, actions),
            Event::Tick => {}
        }
        self.run_timers(actions);
        self.ask_for_tick(actions);
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Its name everywhere.
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// What it is to the others.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// How it is set.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The root that it is an agent of.
    #[must_use]
    pub fn root(&self) -> Option<PeerId> {
        self.root.of()
    }

    /// Bytes of a blob that were prefetched and not read yet.
    #[must_use]
    pub fn unmatched(&self, blob: BlobId) -> u64 {
        self.blobs.get(&blob).map_or(0, |blob| blob.throttle.unmatched())
    }

    /// What agents asked for lately, to be kept over a restart.
    #[must_use]
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Begins with what was kept.
    pub fn set_recent(&mut self, recent: Recent) {
        self.recent = recent;
    }

    fn received(&mut self, peer: PeerId, message: Message, actions: &mut Vec<Action>) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        match message {
            Message::Have { blob, runs } => self.heard_have(peer, blob, &runs, actions),
            Message::Lost { blob, runs } => self.heard_lost(peer, blob, &runs),
            Message::Ask { request, blob, chunks, urgency, hops, insist } => {
                let ask = serving::Ask { peer, request, urgency, hops, insist };
                self.asked(ask, blob, chunks, actions);
            }
            Message::Coming { request, chunks } => self.heard_coming(peer, request, chunks),
            Message::Sorry { request, chunks, why, others } => {
                self.heard_sorry(peer, request, chunks, why, &others, actions);
            }
            Message::Cancel { request } => self.cancelled(peer, request),
            Message::Join => self.heard_join(peer, actions),
            Message::Welcome => self.heard_welcome(peer),
            Message::Full => self.heard_full(peer, actions),
            Message::Sketch { blob, least } => self.heard_sketch(peer, blob, &least),
        }
    }

    fn set_timer(&mut self, at: Time, timer: Timer) {
        self.timers.push(Reverse((at, timer)));
    }

    fn run_timers(&mut self, actions: &mut Vec<Action>) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > self.now {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Request(request) => self.request_due(request, actions),
                Timer::Want(want) => self.want_due(want, actions),
                Timer::Disk(blob, chunks) => self.disk_due(blob, chunks, actions),
                Timer::Adverts => self.tell(actions),
                Timer::Join => self.join_due(actions),
                Timer::Choose => self.choose(actions),
            }
        }
    }

    /// Asks for a tick when the next timer is due; those of what is over are thrown away.
    fn ask_for_tick(&mut self, actions: &mut Vec<Action>) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            let over = match timer {
                Timer::Request(request) => !self.requests.contains_key(&request),
                Timer::Want(want) => !self.wants.contains_key(&want),
                _ => false,
            };
            if over {
                self.timers.pop();
                continue;
            }
            if self.wake.is_none_or(|wake| at < wake || wake <= self.now) {
                self.wake = Some(at);
                actions.push(Action::WakeAt(at));
            }
            break;
        }
    }
}
