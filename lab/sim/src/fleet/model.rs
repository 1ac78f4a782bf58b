//! The model of a fleet: its hosts and links, the reads of its disks and their times, their source, and the faults.

use headstart_block::random::Random;
use headstart_block::{BLOCK_SIZE, ByteRange, Plan, exact, to_usize};
use headstart_replay::boot::Boot;
use headstart_replay::time::Nanos;
pub use headstart_replay::world::Shape;
use headstart_swarm as swarm;
use headstart_trace::{Op, Record};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a simulated fleet: hosts, links, source of the disks' bytes, and faults. The reads are in
/// [`Workload`].
#[derive(Clone, Debug, PartialEq)]
pub struct FleetModel {
    /// The number of hosts, at least one.
    pub hosts: u32,
    /// Rates and latencies of the links between hosts, and between hosts and the store.
    pub links: Links,
    /// Limit for the sum of all traffic between hosts, in bytes a second, as from an oversubscribed core
    /// network or from one machine that runs all hosts as network namespaces. `None`: only the hosts' own
    /// links limit it. Traffic of the store does not count.
    pub fabric: Option<u64>,
    /// The source from which disks get bytes that are not local: the store, a broadcast or a swarm.
    pub way: Way,
    /// The model of hints (slices of 64 KiB that a tracker saw other disks of the image read), which disks
    /// without a plan preload. `None`: no tracker, no hints.
    pub hints: Option<HintsModel>,
    /// The faults that the run injects; none by default.
    pub faults: FleetFaults,
    /// Settings of the engine that fetches and preloads for each disk. Streams (long sequential reads) are
    /// not modelled: their requests are no longer than others.
    pub engine: headstart_pull::EngineSettings,
    /// Duration of a read that finds all its bytes on the host; it is also added to the wait of every other
    /// read.
    pub local_read: Duration,
    /// Virtual time at which the run ends, even if reads are not complete.
    pub until: Duration,
    /// Seed of everything that is drawn: the faults, the latencies of the store, and the random choices of
    /// nodes.
    pub seed: u64,
}

impl FleetModel {
    /// Returns a model without faults or hints, with the product's default engine, for at least one host. The
    /// run ends after 24 h of virtual time at the latest.
    #[must_use]
    pub fn new(hosts: u32, links: Links, way: Way) -> Self {
        let engine = headstart_pull::EngineSettings::default();
        let engine = headstart_pull::EngineSettings { stream_max: engine.background_max, ..engine };
        Self {
            hosts: hosts.max(1),
            links,
            fabric: None,
            way,
            hints: None,
            faults: FleetFaults::default(),
            engine,
            local_read: Duration::ZERO,
            until: Duration::from_secs(24 * 3600),
            seed: 0,
        }
    }
}

/// The model of hints: a tracker that counts which slices (64 KiB) disks read, and agents that report reads
/// to it and preload the slices that it names.
#[derive(Clone, Debug, PartialEq)]
pub struct HintsModel {
    /// The number of disks, absolute or as a share of all, that must have read a slice before the tracker
    /// names it to other agents.
    pub threshold: swarm::tracker::Threshold,
    /// The shortest interval between two reports of one agent.
    pub every: Duration,
    /// Counts that the tracker has before the run, such as those of an earlier deployment. `None`: it begins
    /// with nothing.
    pub known: Option<swarm::tracker::ImageCounts>,
}

impl Default for HintsModel {
    fn default() -> Self {
        let threshold = swarm::tracker::TrackerSettings::default().threshold;
        Self { threshold, every: Duration::from_millis(100), known: None }
    }
}

/// Rates, in bytes a second, and latencies of the links of all hosts and of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// Rate at which each host can send, in bytes a second.
    pub up: u64,
    /// Rate at which each host can receive, in bytes a second.
    pub down: u64,
    /// Round trip of an empty message between two hosts, without queues.
    pub round_trip: Duration,
    /// Rate at which the store can send to all hosts together, in bytes a second.
    pub store: u64,
    /// Round trip of an empty message between a host and the store, without queues.
    pub store_round_trip: Duration,
    /// Upper bound of the latency that is drawn for each request to the store, and added to the round trip.
    pub store_latency: Duration,
    /// Racks with shared uplinks. `None`: all hosts are in one rack, and only their own links limit them.
    pub racks: Option<Racks>,
}

/// Racks: groups of hosts that share one link to all other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Racks {
    /// The number of hosts in each rack, at least one; consecutive hosts share a rack.
    pub hosts: u32,
    /// Rate of a rack's link in each direction, in bytes a second.
    pub rate: u64,
}

/// The source from which disks get the bytes of the image.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// Each host fetches from the store on its own.
    Independent,
    /// All of the image is on each host before the run.
    Local,
    /// All of the image is sent to all hosts before their disks are attached, chunk by chunk along a tree. Each host
    /// forwards a chunk to this number of other hosts (0 counts as 1) as soon as the chunk has arrived.
    Broadcast(u32),
    /// Hosts fetch from each other and from the store, with the nodes of the product's swarm.
    Swarm(Box<SwarmModel>),
}

/// The swarm: its nodes, and the data that they have before the run.
#[derive(Clone, Debug, PartialEq)]
pub struct SwarmModel {
    /// Settings of the product's node on each host. The seed is replaced by that of the fleet.
    pub settings: swarm::NodeSettings,
    /// The number of roots, the nodes that fetch from the store for others: the first hosts of the fleet.
    pub roots: u32,
    /// The number of hosts in a cell. The hosts that are not roots are divided into cells, and the cells are assigned
    /// to the roots in turn. A host knows the other hosts of its cell and the root of its cell. A root knows the other
    /// roots and the hosts of its cells. 0: all hosts know each other, which takes memory quadratic in the number of
    /// hosts.
    pub cell: u32,
    /// The interval at which disks report their reads to the agent (the product's process on their host).
    pub report_every: Duration,
    /// The hosts that have all of the image before the run.
    pub warm: Warm,
    /// The number of complete copies of the image that are striped over all hosts before the run. With one copy or
    /// more, nodes do not fetch from the store, and requests of disks to the store fail after 15 seconds. 0: no copies.
    pub pinned: u32,
    /// The recent requests that each root remembers from an earlier run, by host: see
    /// [`FleetOutcome::recent`](super::FleetOutcome::recent). Empty: roots remember nothing.
    pub recent: Vec<swarm::recent::Saved>,
}

impl Default for SwarmModel {
    fn default() -> Self {
        Self {
            settings: swarm::NodeSettings::default(),
            roots: 0,
            cell: 0,
            report_every: Duration::from_millis(50),
            warm: Warm::None,
            pinned: 0,
            recent: Vec::new(),
        }
    }
}

/// The hosts that have all of the image before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warm {
    /// No host.
    None,
    /// The roots: the first [`SwarmModel::roots`] hosts.
    Roots,
    /// All hosts.
    All,
}

/// The faults that a run injects. Each pair of times is a span that begins at the first and ends just before the
/// second. No host is drawn for more than one kind of bad behaviour (`corrupt` to `mutes`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetFaults {
    /// The number of messages between hosts that are lost, in a million messages. Lost adverts (announcements of
    /// chunks) never arrive; other lost messages arrive late, as after a retransmission by TCP.
    pub loss_per_million: u32,
    /// Groups of hosts that die, each with its time.
    pub deaths: Vec<Death>,
    /// Groups of agents (one to a host) that end and are started again, each with its time.
    pub restarts: Vec<Restart>,
    /// Spans in which no message passes between the first half of the hosts and the second.
    pub partitions: Vec<(Nanos, Nanos)>,
    /// Spans in which the store does not answer. A request that reaches the store then is answered after the span if
    /// the rest of the span is at most 15 seconds; otherwise it fails after 15 seconds.
    pub store_away: Vec<(Nanos, Nanos)>,
    /// The number of hosts, drawn at random, that send wrong bytes.
    pub corrupt: u32,
    /// The number of hosts, drawn at random, that announce that they have all chunks and send none.
    pub liars: u32,
    /// The number of hosts, drawn at random, whose links have a hundredth of the rate.
    pub slow: u32,
    /// The number of hosts, drawn at random, that send the requested chunks and then unrequested data without
    /// end.
    pub endless: u32,
    /// The number of hosts, drawn at random, that answer each request with repeated promises and send no
    /// chunk.
    pub promisers: u32,
    /// The number of hosts, drawn at random, that do not answer requests for chunks.
    pub mutes: u32,
    /// Spans in which no message reaches or leaves the tracker.
    pub tracker_away: Vec<(Nanos, Nanos)>,
}

/// Hosts that die at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Virtual time at which the hosts die.
    pub at: Nanos,
    /// The share of the hosts that die, in millionths. They are drawn from all hosts, including roots. Ignored if
    /// [`Death::roots`] is set.
    pub per_million: u32,
    /// `true` if all roots die and no other host does; without a swarm, nothing happens then.
    pub roots: bool,
}

/// A restart of the agents of some hosts. Disks go on without an agent meanwhile, and the bytes on the host stay. The
/// new agent knows nothing of the other hosts; only a root keeps its memory of recent requests. Without a swarm,
/// nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Virtual time at which the agents end.
    pub at: Nanos,
    /// The share of the hosts whose agents restart, in millionths. They are drawn from all hosts, including roots.
    pub per_million: u32,
    /// Time from the end of the old agent to the start of the new one.
    pub away: Duration,
}

/// The time to open a disk: a few round trips for its manifest and the ends of its layers.
const OPENING: Nanos = Nanos(50_000_000);

/// The time until others know that a host is gone.
pub(crate) const NOTICED: Nanos = Nanos(1_000_000_000);

/// The delay of a message that is sent again.
pub(crate) const SENT_AGAIN: Nanos = Nanos(200_000_000);

/// A disk of the workload: its host, the time of its attachment, and its reads.
#[derive(Clone, Debug)]
pub struct DiskModel {
    /// The number of the host that the disk is attached to, from 0. A disk whose host number is not below
    /// [`FleetModel::hosts`] is ignored.
    pub host: u32,
    /// Virtual time at which the attachment of the disk begins; the disk can be read [`Workload::opened_before`]
    /// later.
    pub at: Nanos,
    /// Index in [`Workload::boots`] of the recorded boot that the disk replays.
    pub boot: u32,
}

/// The disks of a fleet, and the reads that each replays.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The size of the image, or of several, and the layout of its blobs in the store.
    pub shape: Shape,
    /// Recorded boots; [`DiskModel::boot`] selects one for each disk.
    pub boots: Vec<Arc<Boot>>,
    /// The disks in any order; a host may have several.
    pub disks: Vec<DiskModel>,
    /// The plan (the ordered ranges to preload) that every disk follows; [`Plan::Lazy`]: none.
    pub plan: Plan,
    /// Time that opening the image takes: from the beginning of an attachment ([`DiskModel::at`]) until the
    /// disk can be read and preloads.
    pub opened_before: Nanos,
}

/// The assignment of regions of the image, and of start times, to disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All disks read the same region and start together.
    SyncSame,
    /// All disks read the same region; each starts this duration after the one before.
    ShiftedSame(Nanos),
    /// All disks start together, and each reads another region, one behind the other in the image.
    SyncDisjoint,
}

/// The region of the image that a disk reads in order, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Offset of the first disk's region, in bytes.
    pub start: u64,
    /// Length of each disk's region, in bytes.
    pub len: u64,
    /// Length of a read, in bytes; 0 counts as 1.
    pub read: u64,
    /// The number of reads that are in flight together, at least one: a new read begins as soon as the
    /// earliest of the reads in flight is complete.
    pub ahead: u32,
    /// Length, in bytes, of a part at the start of the image that every disk reads before its region. 0:
    /// none.
    pub shared: u64,
}

impl Workload {
    /// Returns a workload with one disk on each host, each of which reads a region of an image of `size`
    /// bytes. If the image has no room for as many disjoint regions as hosts, further disks begin again with
    /// the first region.
    #[must_use]
    pub fn pattern(hosts: u32, size: u64, region: Region, pattern: Pattern) -> Self {
        let fitting = (size.saturating_sub(region.start) / region.len.max(1)).max(1);
        let regions = if pattern == Pattern::SyncDisjoint { fitting.min(u64::from(hosts)) } else { 1 };
        let boot = |n: u64| {
            let start = region.start + n * region.len;
            let parts = [(0, region.shared), (start, start + region.len)];
            let reads = parts
                .iter()
                .flat_map(|(from, to)| ByteRange::between(*from, (*to).min(size)).parts(region.read.max(1)));
            // A read follows those that were answered before it came.
            let service_us = Some(region.ahead.saturating_sub(1));
            let record = |(t_us, range)| Record { t_us, op: Op::Read, range, service_us };
            let records: Vec<_> = (0..).zip(reads).map(record).collect();
            Arc::new(Boot::of_records(size, &records, 1))
        };
        let boots: Vec<_> = (0..regions).map(boot).collect();
        let disk = |host: u32| DiskModel {
            host,
            at: match pattern {
                Pattern::ShiftedSame(step) => Nanos(step.0.saturating_mul(u64::from(host))),
                Pattern::SyncSame | Pattern::SyncDisjoint => Nanos(0),
            },
            boot: exact(u64::from(host) % regions, "it is at most the host's number"),
        };
        let (disks, opened_before) = ((0..hosts).map(disk).collect(), Nanos(1_000_000_000));
        Self { shape: Shape::Plain(size), boots, disks, plan: Plan::Lazy, opened_before }
    }

    /// Returns a workload with `each` disks on each of `hosts` hosts. Each disk replays one of `boots`, drawn
    /// with `seed`, and its attachment begins at a random time from 0 to `jitter`. `shape` is the size of the image
    /// and the layout of its blobs.
    #[must_use]
    pub fn boots(
        hosts: u32,
        each: u32,
        shape: Shape,
        boots: Vec<Arc<Boot>>,
        jitter: Nanos,
        seed: u64,
    ) -> Self {
        let disks = Self::disks(hosts, each, std::slice::from_ref(&(0..boots.len())), jitter, seed);
        Self { shape, boots, disks, plan: Plan::Lazy, opened_before: OPENING }
    }

    /// Returns a workload like that of [`Workload::boots()`], but with several images, each compressed in a blob of its
    /// own. `images` holds the boots of each image. `stored` is the length, in bytes, of each 32 KiB of an image as
    /// stored in its blob. Disk number `d` of host number `h` uses the image with the number `d + h`, modulo the number
    /// of images; all numbers begin at 0.
    #[must_use]
    pub fn several(
        (hosts, each): (u32, u32),
        images: &[Vec<Arc<Boot>>],
        stored: u64,
        jitter: Nanos,
        seed: u64,
    ) -> Self {
        let sizes = images.iter().flatten().map(|boot| boot.disk_size());
        let size = sizes.max().unwrap_or(0).div_ceil(BLOCK_SIZE) * BLOCK_SIZE;
        let all = size.saturating_mul(images.len() as u64);
        let (mut boots, mut parts) = (Vec::new(), Vec::new());
        for (n, of_image) in (0..).zip(images) {
            let first = boots.len();
            boots.extend(of_image.iter().map(|boot| Arc::new(boot.as_ref().clone().moved(n * size, all))));
            parts.push(first..boots.len());
        }
        let disks = Self::disks(hosts, each, &parts, jitter, seed);
        let images = exact(images.len(), "images have numbers of 32 bits");
        let shape = Shape::Several { images, size, stored };
        Self { shape, boots, disks, plan: Plan::Lazy, opened_before: OPENING }
    }

    /// Draws disks: the first of the first host boots from the first part of the boots; its second one boots from the
    /// second part, as does the first of the second host, and so on.
    fn disks(hosts: u32, each: u32, parts: &[Range<usize>], jitter: Nanos, seed: u64) -> Vec<DiskModel> {
        let mut random = Random::new(seed);
        let mut disks = Vec::new();
        for n in 0..u64::from(hosts) * u64::from(each) {
            let host = exact(n % u64::from(hosts.max(1)), "it is less than the number of hosts");
            let before = u64::from(host) + n / u64::from(hosts.max(1));
            let part = to_usize(before) % parts.len().max(1);
            let part = parts.get(part).cloned().unwrap_or_default();
            let at = Nanos(random.bits() % jitter.0.saturating_add(1).max(1));
            let boot = exact(part.start + random.below(part.len()), "boots have numbers of 32 bits");
            disks.push(DiskModel { host, at, boot });
        }
        disks
    }

    /// Moves each disk from host `n` to host `n + roots`, which leaves the first `roots` hosts without disks.
    #[must_use]
    pub fn beside(mut self, roots: u32) -> Self {
        self.disks.iter_mut().for_each(|disk| disk.host = disk.host.saturating_add(roots));
        self
    }
}
