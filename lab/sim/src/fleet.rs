//! Many hosts that boot at once: the event loop.
//!
//! Each host runs the product's own code: a node of the swarm (`headstart_swarm::Node`), and disks, each with a pull
//! engine (`headstart_pull::Engine`). All disks of a host share its local bytes, as they share its cache directory.
//! Guests read as in recorded boots, in the closed loop ([`headstart_replay::boot::Guest`]): a late read delays the
//! reads that follow it. The model covers the rest: links, the store, and their faults.
//!
//! # The way of a chunk
//!
//! ```text
//!   guest reads ── miss ──► engine: Fetch ──► bring ──► node: Want ──► Send(Ask) ... peer: Serve ──► Came
//!                                               │                 └──► Answer: from_store ┐            │
//!                                               │ (without a swarm)                       ▼            ▼
//!                                               └───────────────► claim ──► store ──► local on the host
//! ```
//!
//! A *delivery* is a range that is awaited: the fetch of a disk, or a range that a node asked its agent for. A delivery
//! ends when all units of the range are local, from whatever source. A unit that is fetched from the store is
//! *claimed*: no other request of the host fetches it meanwhile, as in the product's cache. Units are chunks with a
//! swarm; without one, they are the units that the cache verifies.
//!
//! Events of one moment happen in the order in which they were scheduled; all random draws come from the seed. So the
//! same model and workload give the same outcome to the last bit.
//!
//! | module | content |
//! |---|---|
//! | [`model`] | the input of a simulation |
//! | `net` | links, as ports at which parcels (messages and data) queue |
//! | `deliveries` | the awaited ranges of a host; claims; the store |
//! | `disks` | guests and engines |
//! | `hints` | a tracker, and plans made of its answers |
//! | `peers` | nodes and their messages |
//! | `content` | the contents of parcels |
//! | `identity` | the key and the role of each host |
//! | `restarts` | agents that end, and others that begin in their places |
//! | `outbox` | chunks that hosts have yet to send: promoted, cancelled, sent once |
//! | `faults` | hosts that die, cannot reach each other, or do harm |
//! | `broadcast` | the image sent to all beforehand, to compare with |
//! | [`outcome`] | the results |

mod broadcast;
mod content;
mod deliveries;
mod disks;
mod faults;
mod hints;
mod identity;
mod keyed;
pub mod model;
mod net;
mod outbox;
pub mod outcome;
mod peers;
mod queue;
mod restarts;
#[cfg(test)]
mod tests;

use crate::slab::{NONE, Slab};
use broadcast::Tree;
use content::What;
use deliveries::{Delivery, PendingUnit, StoreRequest};
use disks::Disk;
use faults::{Conduct, FaultState};
use headstart_block::random::Random;
use headstart_block::saturating;
use headstart_replay::time::Nanos;
use headstart_replay::waits::ReadWaits;
use headstart_replay::world::Local;
use headstart_swarm::{self as swarm, CHUNK_SIZE, Node};
use keyed::Keyed;
use net::Net;
use outbox::Outbox;
use peers::Serving;
use queue::{Agenda, Happening};
use std::collections::{BTreeMap, VecDeque};

pub use model::{
    Death, DiskModel, FleetFaults, FleetModel, HintsModel, Links, Pattern, Racks, Region, Restart, Shape,
    SwarmModel, Warm, Way, Workload,
};
pub use outcome::{DiskOutcome, FleetOutcome, FleetSummary, HostOutcome};

/// Simulates the fleet `model` with the reads of `workload`, until all reads are complete or
/// [`FleetModel::until`] has passed. The same inputs give the same results.
#[must_use]
pub fn simulate(model: &FleetModel, workload: &Workload) -> FleetOutcome {
    let mut fleet = Fleet::new(model, workload);
    fleet.begin();
    fleet.play();
    fleet.finish()
}

/// A host.
#[derive(Debug)]
struct Host {
    local: Local,
    node: Option<Box<Node>>,
    up: u32,
    down: u32,
    rack: u32,
    alive: bool,
    /// `true` if its agent runs.
    is_up: bool,
    /// The number of restarts of its agent, and the counts of the agents before.
    restarts: u32,
    before: swarm::NodeCounters,
    conduct: Conduct,
    /// Its place in the order in which hosts opened the image; [`NONE`] before it opens the image.
    opened: u32,
    /// The time at which its node is to be woken, and the time of the entry in the queue for that.
    wake: Nanos,
    wake_entered: Nanos,
    /// By chunk of all blobs, one blob after the other: a bit that is set once a disk read it.
    read: Vec<u64>,
    /// By chunk as above: a bit that is set once a peer sent it.
    from_peers: Vec<u64>,
    on_demand: u64,
    prefetched: u64,
    /// Chunks that were read and not yet told to the node.
    news: Vec<(u32, swarm::Chunks)>,
    is_reporting: bool,
    /// Peers with a broken connection: this host dropped the peer, or was dropped by it.
    strangers: Vec<u32>,
    from_store: u64,
    sent: u64,
    talk: u64,
    died: bool,
}

impl Host {
    fn new(model: &FleetModel, shape: &Shape, n: u32, conduct: Conduct, net: &mut Net<What>) -> Self {
        let unit = matches!(model.way, Way::Swarm(_)).then_some(CHUNK_SIZE);
        let slower = if conduct == Conduct::Slow { 100 } else { 1 };
        Self {
            local: Local::of_host(shape, unit, model.way == Way::Local),
            node: peers::node(model, n),
            up: net.port((model.links.up / slower).max(1)),
            down: net.port((model.links.down / slower).max(1)),
            rack: n / model.links.racks.map_or(u32::MAX, |racks| racks.hosts.max(1)),
            alive: true,
            is_up: true,
            restarts: 0,
            before: swarm::NodeCounters::default(),
            conduct,
            opened: NONE,
            wake: Nanos::NEVER,
            wake_entered: Nanos::NEVER,
            read: Vec::new(),
            from_peers: Vec::new(),
            on_demand: 0,
            prefetched: 0,
            news: Vec::new(),
            is_reporting: false,
            strangers: Vec::new(),
            from_store: 0,
            sent: 0,
            talk: 0,
            died: false,
        }
    }

    /// Bytes that peers sent and no disk read; a blob's last chunk counts as a whole one.
    fn unread(&self) -> u64 {
        let both = self.from_peers.iter().zip(&self.read);
        both.map(|(came, read)| u64::from((came & !read).count_ones()) * CHUNK_SIZE).sum()
    }
}

/// The ports of a rack: from it, and to it.
#[derive(Clone, Copy, Debug)]
struct RackPorts {
    up: u32,
    down: u32,
}

/// A run.
struct Fleet<'a> {
    model: &'a FleetModel,
    workload: &'a Workload,
    now: Nanos,
    agenda: Agenda,
    net: Net<What>,
    store: u32,
    /// The port that all traffic between hosts goes through; [`NONE`] if there is no fabric.
    fabric: u32,
    racks: Vec<RackPorts>,
    hosts: Vec<Host>,
    disks: Vec<Disk>,
    /// Disks whose reads are not complete, on hosts that are alive.
    reading: usize,
    deliveries: Slab<Delivery>,
    /// By host, blob and unit: the deliveries that wait for it, and `true` if it is claimed.
    pending_units: Keyed<(u32, u32, u32), PendingUnit>,
    requests: Slab<StoreRequest>,
    servings: Slab<Serving>,
    /// Hosts whose agent has ended, with the memory of a root.
    resting: BTreeMap<u32, Option<swarm::recent::Saved>>,
    outbox: Outbox,
    wants: Keyed<u64, u32>,
    /// Wants of deliveries whose urgency was raised: the range that is wanted once more, with more urgency.
    promoted: Keyed<u64, (u32, headstart_pull::BlobRange)>,
    /// Fetches of agents for their nodes.
    agents: Keyed<(u32, u64), u32>,
    next_want: u64,
    /// Deliveries that are over, with `true` for success; their owners are still to be told.
    over: VecDeque<(u32, bool)>,
    /// The first chunk of each blob among those of all.
    first_chunk: Vec<u32>,
    opened: u32,
    fault_state: FaultState,
    tree: Option<Tree>,
    hinting: Option<hints::Hinting>,
    random: Random,
    waits: ReadWaits,
    store_bytes: u64,
    /// By chunk of all blobs: a bit that is set once the store sent it, and the bytes that it sent once more.
    stored: Vec<u64>,
    store_again: u64,
    wrong_answers: u64,
    dropped: u64,
    node_actions: Vec<Vec<swarm::Action>>,
    engine_actions: Vec<headstart_pull::EngineAction>,
}

impl<'a> Fleet<'a> {
    fn new(model: &'a FleetModel, workload: &'a Workload) -> Self {
        let mut net = Net::new();
        let store = net.port(model.links.store);
        let fabric = model.fabric.map_or(NONE, |rate| net.port(rate.max(1)));
        let mut random = Random::new(model.seed);
        let mut racks = Vec::new();
        let in_rack = model.links.racks.map_or(u32::MAX, |racks| racks.hosts.max(1));
        if let Some(model_of) = model.links.racks {
            for _ in 0..model.hosts.div_ceil(in_rack) {
                racks.push(RackPorts { up: net.port(model_of.rate), down: net.port(model_of.rate) });
            }
        }
        let conducts = Conduct::draw(model, &mut random);
        let hosts = (0..model.hosts).zip(conducts);
        let hosts: Vec<_> =
            hosts.map(|(n, conduct)| Host::new(model, &workload.shape, n, conduct, &mut net)).collect();
        let mut first_chunk = vec![0_u32];
        for (len, _) in hosts.first().into_iter().flat_map(|host| host.local.blobs()) {
            let last = first_chunk.last().copied().unwrap_or(0);
            first_chunk.push(last.saturating_add(saturating(len.div_ceil(CHUNK_SIZE))));
        }
        let chunks = first_chunk.last().copied().unwrap_or(0);
        let disks: Vec<_> = workload
            .disks
            .iter()
            .filter(|disk| disk.host < model.hosts)
            .map(|disk| Disk::new(disk, workload.opened_before))
            .collect();
        Self {
            reading: disks.len(),
            model,
            workload,
            now: Nanos(0),
            agenda: Agenda::default(),
            net,
            store,
            fabric,
            racks,
            hosts,
            disks,
            deliveries: Slab::default(),
            pending_units: Keyed::default(),
            requests: Slab::default(),
            servings: Slab::default(),
            resting: BTreeMap::new(),
            outbox: Outbox::default(),
            wants: Keyed::default(),
            promoted: Keyed::default(),
            agents: Keyed::default(),
            next_want: 0,
            over: VecDeque::new(),
            first_chunk,
            opened: 0,
            fault_state: FaultState::default(),
            tree: None,
            hinting: model
                .hints
                .as_ref()
                .map(|hints| hints::Hinting::new(hints, model.hosts, workload.disks.len())),
            random,
            waits: ReadWaits::default(),
            store_bytes: 0,
            stored: vec![0; (chunks as usize).div_ceil(64)],
            store_again: 0,
            wrong_answers: 0,
            dropped: 0,
            node_actions: Vec::new(),
            engine_actions: Vec::new(),
        }
    }

    /// Begins the fleet.
    fn begin(&mut self) {
        self.foresee_faults();
        self.meet();
        match self.model.way {
            Way::Broadcast(arity) => {
                // It is requested at the same time as the disks.
                self.now = self.workload.opened_before;
                self.broadcast(arity);
            }
            Way::Independent | Way::Local | Way::Swarm(_) => self.attach_all(),
        }
        self.complete_deliveries();
    }

    /// Attaches disks from now on; those whose time has passed at once.
    fn attach_all(&mut self) {
        for (n, disk) in (0..).zip(&self.disks) {
            let opens = Nanos(disk.at.0 - self.workload.opened_before.0.min(disk.at.0));
            self.agenda.enter(self.now.max(opens), Happening::Attach(n));
        }
    }

    /// Runs until every read is complete, or the time limit.
    fn play(&mut self) {
        let until = Nanos::from_duration(self.model.until);
        while self.reading > 0
            && let Some((at, happening)) = self.agenda.next()
            && at <= until
        {
            self.now = at;
            self.happen(happening);
            self.complete_deliveries();
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive(number) => {
                if let Some(what) = self.net.arrive(self.now, number, &mut self.agenda) {
                    self.receive(what);
                }
            }
            Happening::Free(port) => self.net.free(self.now, port, &mut self.agenda),
            Happening::Answer(request) => self.store_answers(request),
            Happening::TimeOut(request) => self.store_fails(request),
            Happening::Wake(host) => self.wake(host),
            Happening::ReportReads(host) => self.report_reads(host),
            Happening::Report(host) => self.report(host),
            Happening::Hint(number) => self.hint(number),
            Happening::Tick(disk) => self.tick(disk),
            Happening::Read(disk) => self.read(disk),
            Happening::Attach(disk) => self.attach(disk),
            Happening::Proved(host) => self.proved(host),
            Happening::Fault(fault) => self.fault(fault),
        }
    }

    /// Notifies each owner of the outcome of its delivery.
    fn complete_deliveries(&mut self) {
        loop {
            if let Some(serving) = self.net.left() {
                self.served(serving);
            } else if let Some((delivery, well)) = self.over.pop_front() {
                self.complete_delivery(delivery, well);
            } else {
                return;
            }
        }
    }

    fn receive(&mut self, what: What) {
        match what {
            What::Message { from, to, connection, message } => {
                if connection == self.connection(from, to) {
                    self.on_message(from, to, message);
                }
            }
            What::Chunk(sent) => self.chunk_came(&sent),
            What::Junk(sent) => self.junk_came(sent),
            What::StoreRequest(request) => self.on_store_request(request),
            What::Stored { request, bytes } => self.stored(request, bytes),
            What::Spread { to, number } => self.spread(to, number),
        }
    }

    /// The requests that the roots remember.
    fn recent(&self) -> Vec<swarm::recent::Saved> {
        let Way::Swarm(swarm) = &self.model.way else { return Vec::new() };
        let roots = if swarm.settings.push == 0 { 0 } else { swarm.roots as usize };
        let roots = self.hosts.iter().take(roots).filter_map(|host| host.node.as_ref());
        roots.map(|node| node.recent().save()).collect()
    }

    fn finish(self) -> FleetOutcome {
        let mut counters = swarm::NodeCounters::default();
        let hosts = self.hosts.iter().map(|host| {
            let of_node = host.node.as_ref().map(|node| node.counters()).unwrap_or_default();
            peers::add(&mut counters, &of_node);
            peers::add(&mut counters, &host.before);
            HostOutcome {
                from_store: host.from_store,
                on_demand: host.on_demand,
                prefetched: host.prefetched,
                unread: host.unread(),
                unmatched: of_node.prefetched.saturating_sub(of_node.prefetched_read) * CHUNK_SIZE,
                sent: host.sent,
                up: self.net.carried(host.up),
                down: self.net.carried(host.down),
                talk: host.talk,
                died: host.died,
                bad: host.conduct != Conduct::Honest,
            }
        });
        let hosts = hosts.collect();
        let (counts, hints) = self.hinting.as_ref().map(hints::Hinting::outcome).unwrap_or_default();
        FleetOutcome {
            counts,
            hints,
            recent: self.recent(),
            disks: self.disks.iter().map(Disk::outcome).collect(),
            hosts,
            waits: self.waits,
            store_bytes: self.store_bytes,
            store_again: self.store_again,
            wrong_answers: self.wrong_answers,
            dropped: self.dropped,
            happenings: self.agenda.entered(),
            counters,
        }
    }
}
