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

/// Everything about a fleet except its reads.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetModel {
    /// The number of hosts, at least one.
    pub hosts: u32,
    /// The links of hosts and store.
    pub links: Links,
    /// The rate at which all hosts together can send to each other, in bytes a second, if that is less than the sum of
    /// their links: of an oversubscribed core, or of one machine's processors where the hosts are namespaces of it. The
    /// store's traffic does not count.
    pub fabric: Option<u64>,
    /// The source of the disks' bytes.
    pub way: Way,
    /// `Some` if disks without a plan follow hints.
    pub hints: Option<HintsModel>,
    /// The faults.
    pub faults: FleetFaults,
    /// The disks' pull engines. Streams are not modelled: their requests are no longer than others.
    pub engine: headstart_pull::EngineSettings,
    /// The duration of a read that has all its bytes.
    pub local_read: Duration,
    /// The time at which the run ends, even if reads are not complete.
    pub until: Duration,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

impl FleetModel {
    /// A fleet without faults: the product's defaults over `links`.
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

/// A tracker, and the settings of its agents.
#[derive(Clone, Debug, PartialEq)]
pub struct HintsModel {
    /// The number of disks that must have read a slice before others are told.
    pub threshold: swarm::tracker::Threshold,
    /// The least interval between reports of an agent.
    pub every: Duration,
    /// The counts of the tracker beforehand.
    pub known: Option<swarm::tracker::ImageCounts>,
}

impl Default for HintsModel {
    fn default() -> Self {
        let threshold = swarm::tracker::TrackerSettings::default().threshold;
        Self { threshold, every: Duration::from_millis(100), known: None }
    }
}

/// Rates in bytes a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// From each host.
    pub up: u64,
    /// To each host.
    pub down: u64,
    /// From host to host and back, without anything to send.
    pub round_trip: Duration,
    /// From the store, for all hosts together.
    pub store: u64,
    /// To the store and back.
    pub store_round_trip: Duration,
    /// The most that is added to the latency of the store, drawn for each request.
    pub store_latency: Duration,
    /// The racks of the hosts; `None` if all are in one.
    pub racks: Option<Racks>,
}

/// Hosts whose links to all others are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Racks {
    /// Hosts of a rack, at least one.
    pub hosts: u32,
    /// From a rack, and to it: bytes a second.
    pub rate: u64,
}

/// The source of the disks' bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// From the store, each host for itself.
    Independent,
    /// All of the image is on each host beforehand.
    Local,
    /// All of the image is sent to all hosts before their disks are attached, chunk by chunk over a tree: each host
    /// sends a chunk on as soon as it has it, to this number of others.
    Broadcast(u32),
    /// From each other.
    Swarm(Box<SwarmModel>),
}

/// The model of a swarm.
#[derive(Clone, Debug, PartialEq)]
pub struct SwarmModel {
    /// The nodes' knobs.
    pub settings: swarm::NodeSettings,
    /// The number of roots: the first hosts.
    pub roots: u32,
    /// The number of hosts of a cell: hosts that are no roots are parted into cells. They know the others of their cell
    /// and one root, which cells have in turn; roots know each other. 0: all hosts know each other, which takes memory
    /// with the square of the fleet.
    pub cell: u32,
    /// The time for which disks gather reads before they tell their agent.
    pub tell_every: Duration,
    /// The hosts that have all of the image beforehand.
    pub warm: Warm,
    /// The number of copies of the image that all hosts keep, striped; then the store is not asked. 0: none.
    pub pinned: u32,
    /// The recent requests of each root, from an earlier run: see
    /// [`FleetOutcome::recent`](super::FleetOutcome::recent).
    pub recent: Vec<swarm::recent::Saved>,
}

impl Default for SwarmModel {
    fn default() -> Self {
        Self {
            settings: swarm::NodeSettings::default(),
            roots: 0,
            cell: 0,
            tell_every: Duration::from_millis(50),
            warm: Warm::None,
            pinned: 0,
            recent: Vec::new(),
        }
    }
}

/// The hosts that have all of the image beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warm {
    /// None.
    None,
    /// The roots.
    Roots,
    /// All.
    All,
}

/// The faults of a run. Spans are from the first moment to before the second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetFaults {
    /// The number of messages of a million between hosts that are lost: adverts for good; others arrive late, as after
    /// a retransmission of TCP.
    pub loss_per_million: u32,
    /// Hosts that die.
    pub deaths: Vec<Death>,
    /// Agents that are restarted.
    pub restarts: Vec<Restart>,
    /// The second half of the fleet and the first do not reach each other.
    pub partitions: Vec<(Nanos, Nanos)>,
    /// The store does not answer.
    pub store_away: Vec<(Nanos, Nanos)>,
    /// The number of hosts, drawn, that send wrong bytes.
    pub corrupt: u32,
    /// The number of hosts that announce that they have everything, and send nothing.
    pub liars: u32,
    /// The number of hosts with links of a hundredth of the rate.
    pub slow: u32,
    /// The number of hosts that send the requested chunks, and go on sending them without end.
    pub endless: u32,
    /// The number of hosts that promise all requested chunks, again and again, and send nothing.
    pub promisers: u32,
    /// The number of hosts that do not answer.
    pub mutes: u32,
    /// The spans in which the tracker is lost: messages to it and from it do not arrive.
    pub tracker_away: Vec<(Nanos, Nanos)>,
}

/// Hosts that die at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The moment.
    pub at: Nanos,
    /// The number of hosts that die, of a million, drawn; roots are among them.
    pub per_million: u32,
    /// `true` if the roots die instead.
    pub roots: bool,
}

/// The agents of some hosts end, and others begin in their places: local bytes stay, and so do the disks, which do
/// without an agent meanwhile. The agent's knowledge of others is lost, except a root's memory of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The moment.
    pub at: Nanos,
    /// The number of hosts, of a million, drawn; roots are among them.
    pub per_million: u32,
    /// The time without an agent.
    pub away: Duration,
}

/// The time to open a disk: a few round trips for its manifest and the ends of its layers.
const OPENING: Nanos = Nanos(50_000_000);

/// The time until others know that a host is gone.
pub(crate) const NOTICED: Nanos = Nanos(1_000_000_000);

/// The delay of a message that is sent again.
pub(crate) const SENT_AGAIN: Nanos = Nanos(200_000_000);

/// A disk of the workload.
#[derive(Clone, Debug)]
pub struct DiskModel {
    /// The host of its attachment.
    pub host: u32,
    /// The time of its attachment.
    pub at: Nanos,
    /// Its reads, by their place in [`Workload::boots`].
    pub boot: u32,
}

/// The reads of the fleet.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The image.
    pub shape: Shape,
    /// The boots of disks.
    pub boots: Vec<Arc<Boot>>,
    /// The disks, in any order.
    pub disks: Vec<DiskModel>,
    /// The plan of each disk.
    pub plan: Plan,
    /// The time to open the image, from the beginning of an attachment until a disk can be read or preloads.
    pub opened_before: Nanos,
}

/// The part of the image that each disk reads, and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All the same, all at once.
    SyncSame,
    /// All the same, each this long after the one before.
    ShiftedSame(Nanos),
    /// All at once, each another part, one behind the other.
    SyncDisjoint,
}

/// A region that is read from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The start of the first disk's region.
    pub start: u64,
    /// The length of each disk's region.
    pub len: u64,
    /// Bytes of a read.
    pub read: u64,
    /// The number of reads that wait at a time, at least one: the next begins when the first of them is complete.
    pub ahead: u32,
    /// The length of a part that all disks read first, from the start of the image on.
    pub shared: u64,
}

impl Workload {
    /// A workload of one disk a host, each of which reads a region of an image of `size` bytes; disjoint regions that
    /// do not fit begin again at the first one.
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

    /// A workload of `each` disks on each host, which boot in turn as `boots` say, each up to `jitter` after the
    /// creation of the fleet, drawn.
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

    /// The same workload with several images, each of which has these boots, and takes `stored` bytes of a blob for
    /// each 32 KiB: the disks of a host, and the first disks of all hosts, are of one image after the other.
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

    /// The same workload with nothing on the first `roots` hosts: a disk of host `n` moves to host `n + roots`.
    #[must_use]
    pub fn beside(mut self, roots: u32) -> Self {
        self.disks.iter_mut().for_each(|disk| disk.host = disk.host.saturating_add(roots));
        self
    }
}
