//! The node: one owner of all state, driven by events.
//!
//! # The life of a chunk
//!
//! ```text
//!                advert, and little enough is unread
//!     Remote ──────────────────────────────────────────► Prefetch
//!      │  ▲ ▲                                             │  │  │
//!      │  │ └───────────── no peer sends it ──────────────┘  │  │ it comes
//!   it │  │ evicted                     it is wanted:        │  ▼
//!   comes │                             Remote, on its way ◄─┘ Local ── a disk reads it ──► Read
//!      ▼  │                                                                                  ▲
//!     Kept, or Read where a disk waited ─────────────────────────────────────────────────────┘
//! ```
//!
//! The states are those of the content-exchange paper, with two differences. `Written` is missing: blobs never change,
//! and a guest's writes go to a layer of their own, which no other host learns of. And a chunk that is local because a
//! plan or another host requested it is `Kept`: it says nothing about whether this host reads as its neighbours do, so
//! it does not count as unmatched. A chunk that is on its way has an entry in the blob's `coming`, whatever its state.
//!
//! # The sources of a chunk
//!
//! The sources are tried in this order, each only if it was not tried before for this chunk (`getting`):
//!
//! 1. a host that was named by the host asked before;
//! 2. of the hosts that advertised it, the one with the fewest requests outstanding;
//! 3. the *upstream*: with homes, the one host that fetches this stripe from the store for all; an agent's root, or,
//!    while it sees none, a home; a tree's parent; of a pinned blob, the hosts that keep the stripe. A chunk that is
//!    prefetched because it was advertised goes no further than 2;
//! 4. the store: fetched by the disk itself if only disks wait for the chunk, and for nothing beside it; otherwise by
//!    the agent ([`Action::Fetch`]), because a disk that waited for an answer first would begin too late.
//!
//! A host that is its own upstream goes to the store, and other hosts' requests for the chunk wait until it is local.
//! So the store is asked once, and not because hosts agree about anything, but because they ask the same one.
//!
//! # Waiting
//!
//! A want waits for chunks. A chunk on its way knows the wants and the requests of other hosts that wait for it, and
//! the request (to a peer, or to the store) that will bring it. *Promotion* happens when the first read begins to wait
//! for it: the request is repeated with urgency under its number, all the way up (`hurry`). Chunks that other hosts
//! wait for are *promised* to them ([`Message::Coming`]): from then on these wait as long as a slow store takes, not
//! only as long as a peer may be silent. While the chunk is fetched, the promise is repeated, and passed on by hosts
//! that wait and have others waiting. If no host fetches the chunk, the promise is not repeated, so hosts that wait for
//! each other do not keep each other waiting.
//!
//! *Chains.* A host that is asked for one chunk by more peers than its link can serve in two milliseconds names to each
//! later asker an earlier one, which has the chunk or will have it before (`chain`): a tree grows in the order of
//! asking, and a copy to each of a thousand hosts costs none of them more than a few. A host that is sent on waits
//! longer than the one before it does, so that not all of a chain give up at the same moment, and does not blame that
//! one at once. A host to which all named hosts are strangers asks the same host again, and insists.
//!
//! *No circles.* Hosts that wait for each other would wait until their timeouts end. Five rules prevent it: (1)
//! upstreams ascend in an order that is the same for all (weights of homes, places in the tree, roots above agents), so
//! they never lead back, whatever hosts each knows of. (2) Only a host that is asked as the upstream names others. (3)
//! It names no host to an asker that is part of the chain already: such an asker *insists* if its attempt was in vain,
//! and is served, or waits, where it is. (4) A host that loses its source releases those that another host sent to it.
//! (5) Of two hosts that ask each other, one is refused.
//!
//! # Failures
//!
//! A peer that is silent is given up after the time that peers took lately (`patience`); one that promised, after the
//! time that the store takes, but not on its bare word (`overdue`). It is avoided for twelve times as long as it was
//! waited for, twice as long each time; so is a peer that delivers later than the store would. The chunk is requested
//! from the next source, at most `TRIES` times, then from the store; if that does not answer, from any host that has it
//! (`resort`). Any want is answered after a time that is the same for all, unless this host's own fetches show that the
//! store takes longer: chunks that are not local by then are left to the disk, and no other host is asked. A message
//! that is lost, or heard twice or late, a peer that lies, promises everything, sends rubbish or dies: all of it ends
//! in one of these cases. Wrong bytes never become a chunk (the driver verifies), and their sender is dropped at once;
//! a peer that does not have what it advertised, or is silent all the time, is dropped after several such failures.
//!
//! # Prefetching
//!
//! Chunks that other hosts advertise are requested while few enough bytes are unread (`throttle`), in the order of the
//! adverts. Withheld chunks are remembered in that order and requested when there is room: so a host that reads the
//! same as a neighbour, only later, is a threshold ahead of its reads all the time. While a disk follows a plan,
//! adverts are only noted. The limit is on the unread bytes of all that a disk reads ([`Event::ReadBy`]), whatever
//! layers its image has; a blob that no disk reads, such as a hash tree, is not prefetched. The order in which chunks
//! came to this host is kept, and told in bulk to a host that becomes a neighbour later: it prefetches first the chunks
//! that were read first.
//!
//! # Invariants
//!
//! 1. Every want is answered once, unless it is forgotten or its blob is closed; a want that waits for nothing is
//!    answered.
//! 2. A local chunk is not on its way. A chunk on its way is requested from one peer, or fetched, or left to a disk:
//!    never two of these, except for a request that was given up and whose bytes come anyway.
//! 3. A request is remembered as long as one of its chunks waits for it, and is cancelled when that ends before it is
//!    answered.
//! 4. A chunk is in state `Prefetch` if and only if it is on its way for no other reason. Unmatched bytes and those on
//!    their way never exceed the threshold when a chunk is prefetched.
//! 5. Everything is bounded: the chunks that peers wait for on this host, for each peer (`WAITING`), and for all, if
//!    other hosts have them as well (`serve_window`); prefetches (`prefetch_window`); remembered adverts, chains, the
//!    log, given-up requests (constants beside each).
//!
//! All consequences of an event happen within it; only timers are left for later. The same events and seed give the
//! same actions.

use crate::counters::Counters;
use crate::event::{Action, BlobId, BlobKey, Chunks, Event, FetchId, PeerId, PeerKey, Role, WantId};
use crate::message::{Message, RequestId};
use crate::recent::Recent;
use crate::retransmit_timer::Patience;
use crate::settings::{Settings, Topology};
use crate::similarity::Ranking;
use crate::throttle::Accounts;
use crate::{Time, Urgency};
use arrivals::By;
use blob::Blob;
use connections::Root;
use headstart_block::random::Random;
use peers::Peer;
use pinned::Pinned;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;
use uplink::Uplink;

mod adverts;
mod answers;
mod arrivals;
mod blob;
mod connections;
mod crossing;
mod fallback;
mod log;
mod peers;
mod pinned;
mod predictions;
mod sources;
mod timeouts;
mod uplink;

#[cfg(test)]
mod tests;

/// The number of requests that a root remembers, to predict the next ones.
const RECENT: usize = 1 << 16;

/// The time for which other hosts wait for a chunk that a disk fetches from the store.
const DISK: Duration = Duration::from_secs(20);

/// The number of hosts whose similarity is remembered.
const RANKED: usize = 256;

/// The interval at which neighbours are chosen again by their reads.
const CHOOSE_EVERY: Duration = Duration::from_secs(5);

/// An entry of the timer queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A request may be late.
    Request(RequestId),
    /// A want must be answered.
    Want(WantId),
    /// A disk has had the time to fetch these chunks.
    Disk(BlobId, Chunks),
    /// Adverts of new chunks are to be sent.
    Adverts,
    /// Hosts that wait for chunks that are fetched here are to be told that they still are.
    Signs,
    /// A root is to be asked, or asked again.
    Join,
    /// Neighbours are to be chosen again.
    Choose,
}

/// The want of a disk.
#[derive(Debug)]
struct Want {
    blob: BlobId,
    urgency: Urgency,
    since: Time,
    /// The number of chunks that it waits for.
    left: u32,
    /// The chunks that are left to the disk.
    elsewhere: Vec<u32>,
}

/// A request to a peer.
#[derive(Debug)]
struct Request {
    peer: PeerId,
    blob: BlobId,
    chunks: Chunks,
    /// The number of chunks that have not come.
    left: u32,
    urgency: Urgency,
    hops: u8,
    insist: bool,
    /// The time at which it was sent, or promised.
    since: Time,
    /// The time at which it was sent, or at which a read began to wait for it.
    asked: Time,
    /// `true` after any sign of life.
    heard: bool,
    /// `true` after bytes have come.
    began: bool,
    /// `true` if it was promised: then it may take as long as the store.
    promised: bool,
    /// `true` while its peer's answer is processed: a peer that answers gets no cancellation of the rest.
    answering: bool,
    /// The time of its last sign of life, or at which it was sent.
    lively: Time,
    /// The time at which bytes came last, or at which it was sent or promised: a sign of life alone is no progress.
    moved: Time,
    /// The number of promises that had been kept when this one was made.
    kept: u64,
    /// The number of times that other hosts were asked for the chunks while they were promised and did not come.
    around: u8,
}

/// A fetch of the agent from the store.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    blob: BlobId,
    chunks: Chunks,
    /// The time at which it began, or at which a read began to wait for it.
    since: Time,
    urgency: Urgency,
    /// `true` if another host delivered some of it meanwhile: then it tells nothing of the store.
    helped: bool,
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
    /// The prefetched bytes of each reader.
    accounts: Accounts,
    wants: BTreeMap<WantId, Want>,
    requests: BTreeMap<RequestId, Request>,
    next_request: u32,
    /// Requests that were given up, the latest last: their bytes may come anyway.
    late: VecDeque<(RequestId, PeerId, BlobId, Time)>,
    fetches: BTreeMap<FetchId, Fetch>,
    next_fetch: u64,
    /// A chunk that a disk fetches from the store, and the time since when: it shows how long the store takes.
    probe: Option<(BlobId, u32, Time)>,
    /// The time of the store's last failure, if it has not answered since.
    store_failed: Option<Time>,
    timers: BinaryHeap<Reverse<(Time, Timer)>>,
    /// The last requested tick.
    wake: Option<Time>,
    /// `true` if the timer of adverts is set.
    telling: bool,
    /// `true` if the timer of signs of life is set.
    signing: bool,
    patience: Patience,
    uplink: Uplink,
    /// Bytes on their way to this host ahead of need.
    prefetching: u64,
    root: Root,
    ranking: Ranking,
    recent: Recent,
    counters: Counters,
}

impl Node {
    /// A host that knows no other host yet and takes part in no blob.
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
            accounts: Accounts::default(),
            wants: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            late: VecDeque::new(),
            fetches: BTreeMap::new(),
            next_fetch: 0,
            probe: None,
            store_failed: None,
            timers: BinaryHeap::new(),
            wake: None,
            telling: false,
            signing: false,
            patience: Patience::new(settings.patience),
            uplink: Uplink::default(),
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

    /// Takes `event`, which happened at `now`, and appends the resulting actions to `actions`, in order.
    pub fn on_event(&mut self, now: Time, event: Event<'_>, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        match event {
            Event::Opened { blob, key, len, local, fetchable } => {
                self.opened(blob, key, len, local, fetchable);
            }
            Event::ReadBy { blob, reader } => self.read_by(blob, reader, actions),
            Event::Closed { blob } => self.closed(blob, actions),
            Event::Want { want, blob, chunks, urgency } => self.want(want, blob, chunks, urgency, actions),
            Event::Forget { want } => self.forget(want),
            Event::Read { blob, chunks } => self.read(blob, chunks, actions),
            Event::BecameLocal { blob, chunks } => {
                self.store_answered(blob, chunks);
                self.counters.from_store += self.arrived(blob, chunks, By::Order, actions).0;
            }
            Event::Lost { blob, chunks } => self.lost(blob, chunks, actions),
            Event::Planned { blob, running } => self.planned(blob, running, actions),
            Event::Warm { blob, chunks } => self.warm(blob, chunks, actions),
            Event::Pinned { blob, holders, copies } => {
                if let Some(blob) = self.blobs.get_mut(&blob) {
                    blob.pinned = Pinned::new(self.key, holders, copies);
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
            Event::Served { peer, request, blob, chunks, outcome } => {
                self.served(peer, request, blob, chunks, outcome, actions);
            }
            Event::Fetched { fetch, ok } => self.fetched(fetch, ok, actions),
            Event::Tick => {}
        }
        self.run_timers(actions);
        self.ask_for_tick(actions);
    }

    /// The counts of its work so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The host's name on all hosts.
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// The host's role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The host's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The root of which this host is an agent.
    #[must_use]
    pub fn root(&self) -> Option<PeerId> {
        self.root.of()
    }

    /// Bytes that were prefetched and not read yet, and not forgiven.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        self.accounts.unmatched()
    }

    /// The recent requests of agents, to be kept across a restart.
    #[must_use]
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Sets the recent requests to those that were kept.
    pub fn set_recent(&mut self, recent: Recent) {
        self.recent = recent;
    }

    fn received(&mut self, peer: PeerId, message: Message, actions: &mut Vec<Action>) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        match message {
            Message::Have { blob, runs } => self.heard_have(peer, blob, &runs, actions),
            Message::Read { blob, runs } => self.heard_read(peer, blob, &runs, actions),
            Message::Lost { blob, runs } => self.heard_lost(peer, blob, &runs),
            Message::Ask { request, blob, chunks, urgency, hops, insist } => {
                let ask = answers::Ask { peer, request, urgency, hops, insist };
                self.asked(ask, blob, chunks, actions);
            }
            Message::Coming { request, chunks } => self.heard_coming(peer, request, chunks, actions),
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
                Timer::Signs => self.say_again(actions),
                Timer::Join => self.join_due(actions),
                Timer::Choose => self.choose(actions),
            }
        }
    }

    /// Requests a tick for the next timer; timers of finished requests and wants are thrown away.
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
