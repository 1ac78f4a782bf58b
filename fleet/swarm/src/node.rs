//! The node: one owner of all state, moved by events.
//!
//! # The life of a chunk
//!
//! ```text
//!                advert, and little enough is unread
//!     Remote ──────────────────────────────────────────► Prefetch
//!      │  ▲ ▲                                             │  │  │
//!      │  │ └───────────── nobody sends it ───────────────┘  │  │ it comes
//!   it │  │ evicted                     somebody wants it:   │  ▼
//!   comes │                             Remote, on its way ◄─┘ Local ── a disk reads it ──► Read
//!      ▼  │                                                                                  ▲
//!     Kept, or Read where a disk waited ─────────────────────────────────────────────────────┘
//! ```
//!
//! The states are the content-exchange paper's, with two differences. `Written` is missing: blobs never change, and
//! what a guest writes goes to a layer of its own, of which nobody hears. And what is here because a plan asked for
//! it, or another host did, is `Kept`: it says nothing about whether this host reads as its neighbours do, so it does
//! not count as unmatched. What is on its way has an entry in the blob's `coming`, whatever its state.
//!
//! # Where a chunk is got
//!
//! In this order, each only if it was not tried before for this chunk (`getting`):
//!
//! 1. whoever was named by who was asked before;
//! 2. of those who advertised it, the one with the fewest requests outstanding;
//! 3. the *upstream*: with homes the one host that fetches this stripe from the store for all; an agent's root, or,
//!    while it sees none, a home; a tree's parent; of a pinned blob those who keep the stripe. What is prefetched
//!    because it was advertised goes no further than 2;
//! 4. the store: the disk itself where disks alone wait for it and for nothing beside it, else the agent
//!    ([`Action::Fetch`]), for a disk that waited for an answer first would begin too late.
//!
//! A host that is its own upstream goes to the store, and others' requests for the chunk wait until it is here. So
//! the store is asked once, and not because hosts agree about anything, but because they ask the same one.
//!
//! # Who waits for what
//!
//! A want waits for chunks, a chunk on its way knows the wants and the requests of others that wait for it, and the
//! request (to a peer, or to the store) that will bring it. *Promotion* is the first who waits with urgency: the
//! request is made again under its number, all the way up (`hurry`). Chunks that others wait for are *promised* to
//! them ([`Message::Coming`]): from then on they are patient as the store is slow, not as a peer is silent. While it
//! is fetched the promise is said again and again, and passed on by those who wait and have others waiting: where
//! nobody fetches it is not, so hosts that wait for each other do not keep each other's hopes alive.
//!
//! *Chains.* Who is asked for one chunk by more than its link can serve in two milliseconds names to each later
//! asker an earlier one, who has the chunk or will have it before him (`chain`): a tree grows in the order of asking,
//! and a copy to each of a thousand hosts costs none of them more than a few. Who is sent on waits longer than the
//! one before him does, so that not all of a chain give up at the same moment, and does not blame him at once. Who
//! only knows strangers among the named asks the same host again, and insists.
//!
//! *No circles.* Hosts that wait for each other would wait until their patience ends. Five rules keep them from it:
//! upstreams ascend in an order that is the same for all (weights of homes, places in the tree, roots above agents),
//! so they never lead back, whatever hosts each knows of; only who is asked as the upstream names others; it names
//! nobody to who is part of the chain himself already (he *insists* if it was in vain, and is served, or waits, where
//! he is); who loses his source lets go those whom another sent to him; and of two that ask each other one is
//! refused.
//!
//! # When something fails
//!
//! A peer that is silent is given up after the time that peers take lately (`patience`), one that promised after the
//! time that the store takes, but not on its bare word (`overdue`). It is avoided for twelve times as long as it was
//! waited for, twice as long each time; so is who delivers later than the store would. The chunk is got from the
//! next, at most `TRIES` times, then from the store; where that does not answer, from whoever has it (`resort`).
//! Any want is answered after a time that is the same for all, but where this host's own fetches show that the
//! store takes longer: what is not here then is left to the disk, and nobody else is asked. Losing a message,
//! hearing it twice or late, a peer that lies, promises everything, sends rubbish or dies: all of it ends in one of
//! these. Bytes that are wrong never become a chunk (the driver verifies), who sent them is dropped at once; who
//! has not what it says it has, or is silent all the time, when that was often.
//!
//! # Prefetching
//!
//! What others advertise is asked for while little enough is unread (`throttle`), in the order in which it was
//! advertised; what is withheld is remembered in that order and made up for when there is room: so who reads the same
//! as a neighbour, only later, is a threshold ahead of his reads all the time. While a disk follows a plan adverts
//! are only taken note of. What counts is how much of all that a disk reads is unread ([`Event::ReadBy`]), whatever
//! layers its image has; what no disk reads, such as a hash tree, is not prefetched. The order in which chunks came
//! here is kept, and told to who becomes a neighbour later, in bulk: what it prefetches first is what was read
//! first.
//!
//! # Invariants
//!
//! 1. Every want is answered once, unless it is forgotten or its blob is closed; one that waits for nothing is
//!    answered.
//! 2. What is here is not on its way. What is on its way is asked of one peer, or fetched, or left to a disk: never
//!    two, but for what is given up and comes all the same.
//! 3. A request is known as long as one of its chunks waits for it, and is cancelled when that ends before it is
//!    answered.
//! 4. A chunk is in state `Prefetch` if and only if it is on its way for no other reason. Unmatched bytes and those
//!    on their way never exceed the threshold when something is prefetched.
//! 5. Everything is bounded: what peers wait for here, each (`WAITING`), and all, where others have it as well
//!    (`serve_window`); what is prefetched (`prefetch_window`); adverts that are remembered, chains, the log,
//!    given-up requests (constants beside each).
//!
//! Within one event everything that follows from it happens; nothing is left for the next but timers. The same events
//! and seed give the same actions.

use crate::counters::Counters;
use crate::event::{Action, BlobId, BlobKey, Chunks, Event, FetchId, PeerId, PeerKey, Role, WantId};
use crate::message::{Message, RequestId};
use crate::patience::Patience;
use crate::recent::Recent;
use crate::settings::{Settings, Topology};
use crate::similarity::Ranking;
use crate::throttle::Accounts;
use crate::{Time, Urgency};
use blob::Blob;
use coming::By;
use headstart_block::random::Random;
use links::Root;
use peers::Peer;
use pinned::Pinned;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;
use uplink::Uplink;

mod adverts;
mod ahead;
mod blob;
mod coming;
mod crossing;
mod getting;
mod links;
mod log;
mod overdue;
mod peers;
mod pinned;
mod resort;
mod serving;
mod uplink;

#[cfg(test)]
mod tests;

/// Requests that a root remembers, to tell what comes next.
const RECENT: usize = 1 << 16;

/// How long others wait for what a disk fetches from the store.
const DISK: Duration = Duration::from_secs(20);

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
    /// Who waits for what is fetched here is to be told that it still is.
    Signs,
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
    since: Time,
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
    /// When it was sent, or somebody began to wait for it.
    asked: Time,
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
    /// When bytes came last, or it was sent or promised: a sign of life alone is no progress.
    moved: Time,
    /// How often promises had been kept when this was promised.
    kept: u64,
    /// How often others were asked whether they have it, while this was promised and did not come.
    around: u8,
}

/// What the agent fetches from the store.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    blob: BlobId,
    chunks: Chunks,
    /// When it began, or somebody began to wait for it.
    since: Time,
    urgency: Urgency,
    /// Whether another host brought some of it meanwhile: then it shows nothing of the store.
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
    /// What was prefetched for each reader.
    accounts: Accounts,
    wants: BTreeMap<WantId, Want>,
    requests: BTreeMap<RequestId, Request>,
    next_request: u32,
    /// Those that were given up, the latest last: their bytes may come all the same.
    late: VecDeque<(RequestId, PeerId, BlobId, Time)>,
    fetches: BTreeMap<FetchId, Fetch>,
    next_fetch: u64,
    /// A chunk that a disk fetches from the store, and since when: it shows what the store takes.
    probe: Option<(BlobId, u32, Time)>,
    /// When the store failed last, if it has not answered since.
    store_failed: Option<Time>,
    timers: BinaryHeap<Reverse<(Time, Timer)>>,
    /// The tick asked for last.
    wake: Option<Time>,
    /// Whether the timer of adverts is set.
    telling: bool,
    /// Whether the timer of signs of life is set.
    signing: bool,
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

    /// Takes note of `event`, which happened at `now`, and appends to `actions` what is to be done, in order.
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

    /// Bytes that were prefetched and not read yet, and not forgiven.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        self.accounts.unmatched()
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
            Message::Read { blob, runs } => self.heard_read(peer, blob, &runs, actions),
            Message::Lost { blob, runs } => self.heard_lost(peer, blob, &runs),
            Message::Ask { request, blob, chunks, urgency, hops, insist } => {
                let ask = serving::Ask { peer, request, urgency, hops, insist };
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
