//! The node: one host of the swarm, put together from machines that own their state.
//!
//! # Machines
//!
//! ```text
//!        events                                                                          actions
//!  ───────────────────►  Node: routes each event to the machines below  ────────────────────────►
//!                          │
//!      hosts               │  requests of this host        bytes and time
//!   ┌──────────────┐       │  ┌───────────────────────┐    ┌──────────────────────────────────┐
//!   │ Membership   │◄──────┼─►│ Wants    of disks     │    │ Serving    bytes for peers       │
//!   │  Peer …      │       │  │ Requests to peers     │    │ Prefetch   bytes ahead of need   │
//!   └──────────────┘       │  │ Fetches  of the store │    │ Timers     alarms, and one tick  │
//!      blobs               │  └───────────────────────┘    └──────────────────────────────────┘
//!   ┌──────────────────────▼──────────────────────────────────────────────────────────────────┐
//!   │ Blob …   ChunkTable (PendingChunk … Search)   Sharing   PrefetchQueue   Announcer        │
//!   │          Redirects (RedirectTree …)                                                      │
//!   └───────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! | machine | states, in an enum | file |
//! |---|---|---|
//! | `Membership` | an agent's root: unattached, asking, joined | `membership` |
//! | `Peer` | reliable, or silent: how many times, and since when | `peers` |
//! | `Wants` | waiting for so many chunks, complete | `wants` |
//! | `Requests` | sent, answered, receiving, promised, delivering | `requests` |
//! | `Fetches` | a fetch: timed, overtaken; the store: answers, failed | `fetches` |
//! | `Serving` | a chunk for a peer: ahead, later, with the driver | `serving` |
//! | `Prefetch` | | `prefetch` |
//! | `ChunkTable` | a chunk: remote, pending for an aim, unread, kept, read | `chunks` |
//! | `PendingChunk` | its source: undecided, peer, fetch, disk | `pending` |
//! | `Search` | usual, fallback, probe | `pending` |
//! | `Sharing` | | `sharing` |
//! | `Announcer` | the choice of neighbours: made, due | `announcer` |
//! | `Timers` | an alarm: idle, set | `timers` |
//! | `RetransmitTimer` | the times to wait for peers and the store, as they are learned | `retransmit_timer` |
//!
//! An empty cell of the second column means that the machine's state is no enum. No machine knows another, so each is
//! tested alone; the only exception is `Blob`, which consists of the machines in its box above. These files have the
//! node's methods, which process the events and see the machines only through the machines' methods:
//!
//! | file | events |
//! |---|---|
//! | `sources` | a disk wants chunks; the choice of a chunk's source |
//! | `arrivals` | bytes, promises and rejections come; the store answers; wants and disks are late |
//! | `timeouts`, `fallback` | requests are late; chunks are fetched without the store while it does not answer |
//! | `answers` | other hosts request chunks; the driver has sent them |
//! | `adverts` | chunks are advertised, prefetched, read and lost |
//! | `predictions` | a root sends its agents what they will request |
//! | `connections` | blobs and hosts come and go; roots and neighbours are chosen |
//!
//! # The sources of a chunk
//!
//! The sources are tried in this order, each only if it was not tried before for this chunk (`sources`, `pending`):
//!
//! 1. a host that the previously asked host has named;
//! 2. of the hosts that advertised the chunk, the one with the fewest requests outstanding;
//! 3. the *upstream* (`sharing`), which depends on the topology: the *designated fetcher*, one host that fetches this
//!    stripe from the store for all; for an agent its root, or a designated fetcher while it sees no root; in a tree
//!    the parent; for a pinned blob the hosts that keep the stripe. A chunk that is prefetched because it was
//!    advertised is requested only from the hosts of 1 and 2;
//! 4. the store. The disk fetches the chunk itself if only disks wait for the chunk, and their wants wait for no other
//!    one, or if the agent has no access to the store. Otherwise the agent fetches the chunk ([`Action::Fetch`]): a
//!    disk begins to fetch only when its want is answered, which would be too late.
//!
//! A host that is its own upstream goes to the store, and other hosts' requests for the chunk wait until it is local.
//! So the store is asked once. No agreement between hosts is needed for that: they all ask the same host.
//!
//! # Waiting
//!
//! A want waits for chunks. For a chunk on its way, the node records the wants and the other hosts' requests that wait
//! for the chunk, and the request (to a peer, or to the store) that will bring it. When the first read begins to wait
//! for the chunk, that request is *promoted*: it is repeated as urgent, under its number, and so are the requests of
//! the hosts above (`promote`). Chunks that other hosts wait for are *promised* to them ([`Message::Pending`]): those
//! hosts wait as long as a slow store takes, not only as long as a peer may be silent. While the chunk is fetched, the
//! promise is repeated, and a waiting host passes it on to the hosts that wait for itself. If no host fetches the
//! chunk, the promise is not repeated, so hosts that wait for each other do not keep each other waiting.
//!
//! *Redirects.* A host is busy while the bytes that wait to be sent are more than two chunks, and more than its link
//! sends in two milliseconds. A busy host names to each later asker of a chunk an earlier asker, which has the chunk or
//! will have it before (`redirect_tree`). So a tree grows in the order of asking: each of a thousand hosts gets a copy,
//! and none of them sends more than a few copies. A host that is redirected waits longer than the host above it in the
//! tree, so that not all hosts of a branch give up at the same moment. It does not at once count the silence of the
//! host above as a failure of that host. A host that is connected to none of the named hosts asks the same host again,
//! and accepts no redirect.
//!
//! *No circles.* Hosts that wait for each other would wait until their timeouts end. Five rules prevent that: (1)
//! Upstreams ascend in an order that is the same for all hosts (weights of designated fetchers, places in the tree,
//! roots above agents), so they never lead back, whatever hosts each host knows of. (2) Only a host that is asked as
//! the upstream names others. (3) An upstream names no host to an asker that is part of the redirect tree already: an
//! asker that was redirected in vain comes back, accepts no redirect, and is served or waits at the upstream. (4) A
//! host that loses its source rejects the requests of hosts that were redirected to it. (5) Of two hosts that ask each
//! other, one is refused.
//!
//! # Failures
//!
//! A silent peer is waited for as long as peers took lately (`retransmit_timer`); a peer that has promised the chunk,
//! as long as the store takes, if there are signs beside the promise that it comes (`timeouts`). After that the peer is
//! avoided for twelve times as long as it was waited for, at least three seconds, and twice as long each further time;
//! so is a peer that delivers later than the store would. The chunk is then requested from the next source, at most
//! `TRIES` times, then from the store; if the store does not answer, from any host that has the chunk (`fallback`).
//! There is a limit to the time until a want is answered. It is the same for all wants, but longer if this host's own
//! fetches show that the store takes longer. Chunks that are not local by then are left to the disk, and no other host
//! is asked. That covers all faults: messages that are lost, late or received twice, and peers that lie, promise
//! everything, send rubbish or die. Wrong bytes never become a chunk, because the driver verifies them; their sender is
//! dropped at once. A peer that does not have what it advertised, or is silent all the time, is dropped after several
//! such failures.
//!
//! # Prefetching
//!
//! Chunks that other hosts advertise are requested in the order of the adverts, while the prefetched bytes that are
//! unread are fewer than a threshold (`throttle`). Chunks beyond it are remembered in that order and requested when
//! there is room: so a host that reads the same as a neighbour, only later, has a threshold's worth of chunks ahead of
//! its reads all the time. While a disk follows a plan, adverts are only recorded. The threshold is for all blobs that
//! a disk reads together ([`Event::ReadBy`]), whatever layers its image has; a blob that no disk reads, such as a hash
//! tree, is not prefetched. The order in which chunks came to this host is kept, and sent in bulk to a host that
//! becomes a neighbour later, so that the neighbour prefetches first the chunks that were read first.
//!
//! # Invariants
//!
//! 1. Every want is answered once, unless it is forgotten or its blob is closed. A want that waits for no chunk is
//!    answered at once.
//! 2. A local chunk is not on its way. A chunk on its way is requested from one peer, or fetched, or left to a disk:
//!    never two of these, except for a request that was given up and whose bytes come anyway.
//! 3. A request is remembered as long as one of its chunks waits for it. If no chunk waits for it any more before it is
//!    answered, it is cancelled.
//! 4. A chunk is pending with the aim `Prefetch` if and only if it is on its way for no other reason. Unmatched bytes
//!    and those on their way never exceed the threshold when a chunk is prefetched.
//! 5. Everything is bounded: the chunks that peers wait for on this host, for each peer (`WAITING`), and for all, if
//!    other hosts have them as well (`serve_window`); prefetches (`prefetch_window`); remembered adverts, redirect
//!    trees, the log, given-up requests (constants beside each).
//!
//! All consequences of an event happen within it; only timers are left for later. The same events and seed give the
//! same actions.

use crate::Time;
use crate::counters::NodeCounters;
use crate::event::{Action, BlobId, BlobKey, Event, PeerId, PeerKey, Role};
use crate::message::Message;
use crate::recent::Recent;
use crate::retransmit_timer::RetransmitTimer;
use crate::settings::{NodeSettings, Topology};
use crate::similarity::Ranking;
use blob::Blob;
use fetches::Fetches;
use headstart_block::random::Random;
use membership::Membership;
use pinned::Pinned;
use prefetch::Prefetch;
use requests::Requests;
use serving::Serving;
use std::collections::BTreeMap;
use std::time::Duration;
use timers::{Alarm, Timer, Timers};
use wants::Wants;

mod adverts;
mod announcer;
mod answers;
mod arrival_log;
mod arrivals;
mod blob;
mod chunks;
mod connections;
mod crossing;
mod fallback;
mod fetches;
mod membership;
mod peers;
mod pending;
mod pinned;
mod predictions;
mod prefetch;
mod redirects;
mod requests;
mod serving;
mod sharing;
mod sources;
mod timeouts;
mod timers;
mod uplink;
mod wants;

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

/// The state machine of one host, which decides where chunks come from and which chunks are sent to other
/// hosts.
#[derive(Debug)]
pub struct Node {
    settings: NodeSettings,
    now: Time,
    random: Random,
    timers: Timers,
    membership: Membership,
    blobs: BTreeMap<BlobId, Blob>,
    blob_keys: BTreeMap<BlobKey, BlobId>,
    wants: Wants,
    requests: Requests,
    fetches: Fetches,
    serving: Serving,
    prefetch: Prefetch,
    retransmit: RetransmitTimer,
    advert_alarm: Alarm,
    ranking: Ranking,
    recent: Recent,
    counters: NodeCounters,
}

impl Node {
    /// Creates the state machine of the host `key`. It knows no other host and takes part in no blob yet.
    /// Settings out of range are replaced by the nearest valid ones.
    #[must_use]
    pub fn new(key: PeerKey, role: Role, settings: NodeSettings) -> Self {
        let settings = settings.clamped();
        let mut node = Self {
            now: Time(0),
            random: Random::new(settings.seed ^ key.0),
            timers: Timers::default(),
            membership: Membership::new(key, role, &settings),
            blobs: BTreeMap::new(),
            blob_keys: BTreeMap::new(),
            wants: Wants::default(),
            requests: Requests::default(),
            fetches: Fetches::default(),
            serving: Serving::new(&settings),
            prefetch: Prefetch::new(&settings),
            retransmit: RetransmitTimer::new(settings.timeout_range),
            advert_alarm: Alarm::Idle,
            ranking: Ranking::new(RANKED),
            recent: Recent::new(RECENT),
            counters: NodeCounters::default(),
            settings,
        };
        if matches!(node.settings.topology, Topology::Similar(_)) {
            node.timers.set(node.now + CHOOSE_EVERY, Timer::Choose);
        }
        node
    }

    /// Processes `event`, which happened at `now`, and appends the resulting actions to `actions` in the
    /// order in which the driver must carry them out.
    pub fn on_event(&mut self, now: Time, event: Event<'_>, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        match event {
            Event::Opened { blob, key, len, local, fetchable } => {
                self.on_opened((blob, key), len, local, fetchable);
            }
            Event::ReadBy { blob, reader } => self.on_read_by(blob, reader, actions),
            Event::Closed { blob } => self.on_closed(blob, actions),
            Event::Want { want, blob, chunks, urgency } => self.on_want(want, blob, chunks, urgency, actions),
            Event::Forget { want } => self.on_forget(want),
            Event::Read { blob, chunks } => self.on_read(blob, chunks, actions),
            Event::BecameLocal { blob, chunks } => self.on_local(blob, chunks, actions),
            Event::Lost { blob, chunks } => self.on_lost(blob, chunks, actions),
            Event::Planned { blob, running } => self.on_planned(blob, running, actions),
            Event::Warm { blob, chunks } => self.on_warm(blob, chunks, actions),
            Event::Pinned { blob, holders, copies } => {
                if let Some(blob) = self.blobs.get_mut(&blob) {
                    blob.sharing.pinned = Pinned::new(self.membership.me(), holders, copies);
                }
            }
            Event::PeerUp { peer, key, role } => self.on_peer_up(peer, key, role),
            Event::PeerDown { peer } => self.on_peer_down(peer, actions),
            Event::PeerShares { peer, blob } => self.on_peer_shares(peer, blob),
            Event::Received { peer, message } => self.on_message(peer, message, actions),
            Event::Came { peer, request, chunks, outcome } => {
                self.on_came(peer, request, chunks, outcome, actions);
            }
            Event::Pushed { peer, blob, chunks } => self.on_pushed(peer, blob, chunks, actions),
            Event::Served { peer, request, blob, chunks, outcome } => {
                self.on_served((peer, request), blob, chunks, outcome, actions);
            }
            Event::Fetched { fetch, ok } => self.on_fetched(fetch, ok, actions),
            Event::Tick => {}
        }
        self.run_timers(actions);
        self.ask_for_tick(actions);
    }

    /// The counters of this node's work since it was created.
    #[must_use]
    pub fn counters(&self) -> NodeCounters {
        self.counters
    }

    /// The hash of this host's name, by which all hosts identify this one.
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.membership.me()
    }

    /// The role of this host: root or agent.
    #[must_use]
    pub fn role(&self) -> Role {
        self.membership.role()
    }

    /// The settings in force: those given to [`new`](Self::new), with values out of range replaced.
    #[must_use]
    pub fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// The root that has accepted this host as its agent; `None` if there is none yet, or if the topology has
    /// no roots.
    #[must_use]
    pub fn root(&self) -> Option<PeerId> {
        self.membership.root()
    }

    /// The number of prefetched bytes that no disk of this host has read yet, summed over its disks. Bytes that were
    /// unread when the count was reset to zero are left out; see [`NodeCounters::resets`].
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        self.prefetch.unmatched()
    }

    /// The list of recent requests of this root's agents, by which the root predicts their next requests. A
    /// driver can save it and load it again after a restart.
    #[must_use]
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Replaces the list of recent requests, such as by one that was saved before a restart.
    pub fn set_recent(&mut self, recent: Recent) {
        self.recent = recent;
    }

    fn on_message(&mut self, peer: PeerId, message: Message, actions: &mut Vec<Action>) {
        if self.membership.get(peer).is_none() {
            return;
        }
        match message {
            Message::Have { blob, runs } => self.on_have(peer, blob, &runs, actions),
            Message::Read { blob, runs } => self.on_peer_read(peer, blob, &runs, actions),
            Message::Lost { blob, runs } => self.on_peer_lost(peer, blob, &runs),
            Message::Ask { request, blob, chunks, urgency, hops, no_redirect } => {
                let ask = answers::Ask { peer, request, urgency, hops, no_redirect };
                self.on_ask(ask, blob, chunks, actions);
            }
            Message::Pending { request, chunks } => self.on_promise(peer, request, chunks, actions),
            Message::Reject { request, chunks, why, others } => {
                self.on_rejection((peer, request), chunks, why, &others, actions);
            }
            Message::Cancel { request } => self.on_cancel(peer, request),
            Message::Join => self.on_join(peer, actions),
            Message::JoinAccepted => self.on_join_accepted(peer),
            Message::JoinRefused => self.on_join_refused(peer, actions),
            Message::Sketch { blob, least } => self.on_sketch(peer, blob, &least),
        }
    }

    fn run_timers(&mut self, actions: &mut Vec<Action>) {
        while let Some(timer) = self.timers.next_due(self.now) {
            match timer {
                Timer::Request(request) => self.request_due(request, actions),
                Timer::Want(want) => self.want_due(want, actions),
                Timer::Disk(blob, chunks) => self.disk_due(blob, chunks, actions),
                Timer::Adverts => self.adverts_due(actions),
                Timer::Promises => self.promises_due(actions),
                Timer::Join => self.join_due(actions),
                Timer::Choose => self.choice_due(actions),
            }
        }
    }

    /// Requests a tick for the next timer; timers of finished requests and wants are thrown away.
    fn ask_for_tick(&mut self, actions: &mut Vec<Action>) {
        let (requests, wants) = (&self.requests, &self.wants);
        let over = |timer| match timer {
            Timer::Request(request) => requests.get(request).is_none(),
            Timer::Want(want) => wants.get(want).is_none(),
            _ => false,
        };
        actions.extend(self.timers.next_tick(self.now, over).map(Action::WakeAt));
    }
}
