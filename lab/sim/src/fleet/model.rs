//! What a fleet is: its hosts and links, what its disks read and when, how they get it, and what goes wrong.

use crate::boot::Boot;
use crate::time::Nanos;
pub use crate::world::Shape;
use headstart_block::random::Random;
use headstart_block::{BLOCK_SIZE, ByteRange, Plan};
use headstart_swarm as swarm;
use headstart_trace::{Op, Record};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Everything about a fleet but what it reads.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetModel {
    /// How many hosts there are, at least one.
    pub hosts: u32,
    /// What connects them.
    pub links: Links,
    /// What all hosts together can send each other, in bytes a second, where that is less than what their links
    /// carry: of an oversubscribed core, or of one machine's processors where the hosts are namespaces of it. What
    /// the store sends does not count.
    pub fabric: Option<u64>,
    /// How disks get what they read.
    pub way: Way,
    /// Whether disks without a plan follow hints.
    pub hints: Option<HintsModel>,
    /// What goes wrong.
    pub faults: Faults,
    /// The disks' pull engines. Streams are not modelled: their requests are no longer than others.
    pub engine: headstart_pull::Settings,
    /// What a read takes that has all its bytes.
    pub local_read: Duration,
    /// When it is given up, whatever is not complete.
    pub until: Duration,
    /// Of everything that is drawn.
    pub seed: u64,
}

impl FleetModel {
    /// A fleet without faults: the product's defaults over `links`.
    #[must_use]
    pub fn new(hosts: u32, links: Links, way: Way) -> Self {
        let engine = headstart_pull::Settings::default();
        let engine = headstart_pull::Settings { stream_max: engine.background_max, ..engine };
        Self {
            hosts: hosts.max(1),
            links,
            fabric: None,
            way,
            hints: None,
            faults: Faults::default(),
            engine,
            local_read: Duration::ZERO,
            until: Duration::from_secs(24 * 3600),
            seed: 0,
        }
    }
}

/// A tracker, and how its agents use it.
#[derive(Clone, Debug, PartialEq)]
pub struct HintsModel {
    /// How many disks must have read a slice before others are told.
    pub threshold: swarm::tracker::Threshold,
    /// How often agents report, at most.
    pub every: Duration,
    /// What the tracker knows beforehand.
    pub known: Option<swarm::tracker::Counts>,
}

impl Default for HintsModel {
    fn default() -> Self {
        let threshold = swarm::tracker::Settings::default().threshold;
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
    /// Up to so much more, drawn for each request.
    pub store_latency: Duration,
    /// Hosts in racks; all in one without.
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

/// How disks get what they read.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// From the store, each host for itself.
    Independent,
    /// All of the image is on each host beforehand.
    Local,
    /// All of the image is sent to all hosts before their disks are attached, chunk by chunk over a tree: each host
    /// sends on at once what it gets, to so many others.
    Broadcast(u32),
    /// From each other.
    Swarm(Box<SwarmModel>),
}

/// What a swarm is.
#[derive(Clone, Debug, PartialEq)]
pub struct SwarmModel {
    /// The nodes' knobs.
    pub settings: swarm::Settings,
    /// The first so many hosts are roots.
    pub roots: u32,
    /// Hosts that are no roots are parted into cells of so many. They know the others of their cell and one root,
    /// which cells have in turn; roots know each other. 0: everybody knows everybody, which takes memory with the
    /// square of the fleet.
    pub cell: u32,
    /// How long disks gather what was read before they tell their agent.
    pub tell_every: Duration,
    /// Which hosts have all of the image beforehand.
    pub warm: Warm,
    /// The image is kept by all hosts, striped, in so many copies, and the store is not asked; 0: it is not.
    pub pinned: u32,
    /// What each root was asked for before: see [`FleetOutcome::recent`](super::FleetOutcome::recent).
    pub recent: Vec<swarm::recent::Saved>,
}

impl Default for SwarmModel {
    fn default() -> Self {
        Self {
            settings: swarm::Settings::default(),
            roots: 0,
            cell: 0,
            tell_every: Duration::from_millis(50),
            warm: Warm::None,
            pinned: 0,
            recent: Vec::new(),
        }
    }
}

/// Which hosts have all of the image beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warm {
    /// None.
    None,
    /// The roots.
    Roots,
    /// All.
    All,
}

/// What goes wrong. Spans are from the first moment to before the second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Of a million messages between hosts so many are lost: adverts for good; others come late, as what TCP sends
    /// again does.
    pub loss_per_million: u32,
    /// Hosts that die.
    pub deaths: Vec<Death>,
    /// Agents that are restarted.
    pub restarts: Vec<Restart>,
    /// The second half of the fleet and the first do not reach each other.
    pub partitions: Vec<(Nanos, Nanos)>,
    /// The store does not answer.
    pub store_away: Vec<(Nanos, Nanos)>,
    /// So many hosts, drawn, send bytes that are not what they should be.
    pub corrupt: u32,
    /// So many say that they have everything, and send nothing.
    pub liars: u32,
    /// So many have links of a hundredth of the rate.
    pub slow: u32,
    /// So many send what is asked for, and go on sending it without end.
    pub endless: u32,
    /// So many promise all that is asked for, again and again, and send nothing.
    pub promisers: u32,
    /// So many do not answer.
    pub mutes: u32,
    /// The tracker is lost: what it is told, and what it says, does not come.
    pub tracker_away: Vec<(Nanos, Nanos)>,
}

/// Some hosts die at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// When.
    pub at: Nanos,
    /// So many of a million hosts, drawn; roots among them.
    pub per_million: u32,
    /// Whether it is the roots that die instead.
    pub roots: bool,
}

/// The agents of some hosts end, and others begin in their places: what is local stays, and so do the disks, which do
/// without an agent meanwhile. What an agent knew of others is lost, but for what a root remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// When.
    pub at: Nanos,
    /// So many of a million hosts, drawn; roots among them.
    pub per_million: u32,
    /// How long there is none.
    pub away: Duration,
}

/// What opening a disk takes: a few round trips for its manifest and the ends of its layers.
const OPENING: Nanos = Nanos(50_000_000);

/// How long it takes until others know that a host is gone.
pub(crate) const NOTICED: Nanos = Nanos(1_000_000_000);

/// How long what is sent again comes late.
pub(crate) const SENT_AGAIN: Nanos = Nanos(200_000_000);

/// A disk, as it is to be.
#[derive(Clone, Debug)]
pub struct DiskModel {
    /// Where it is attached.
    pub host: u32,
    /// When.
    pub at: Nanos,
    /// What it reads, by its place in [`Workload::boots`].
    pub boot: u32,
}

/// What the fleet reads.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The image.
    pub shape: Shape,
    /// What disks may read.
    pub boots: Vec<Arc<Boot>>,
    /// The disks, in any order.
    pub disks: Vec<DiskModel>,
    /// What each preloads.
    pub plan: Plan,
    /// How long it takes to open the image, from the beginning of an attachment until a disk can be read or preloads.
    pub opened_before: Nanos,
}

/// Which part of the image each disk reads, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All the same, all at once.
    SyncSame,
    /// All the same, each so long after the one before.
    ShiftedSame(Nanos),
    /// All at once, each another part, one behind the other.
    SyncDisjoint,
}

/// A region that is read from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where the first disk's begins.
    pub start: u64,
    /// Of each disk.
    pub len: u64,
    /// Bytes of a read.
    pub read: u64,
    /// How many reads wait at a time, at least one: the next begins when the first of them is complete.
    pub ahead: u32,
    /// A part that all disks read first, of this length, from the start of the image on.
    pub shared: u64,
}

impl Workload {
    /// One disk a host, each of which reads a region of an image of `size` bytes; disjoint regions that do not fit
    /// begin again at the first one.
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
            boot: u32::try_from(u64::from(host) % regions).unwrap_or(0),
        };
        let (disks, opened_before) = ((0..hosts).map(disk).collect(), Nanos(1_000_000_000));
        Self { shape: Shape::Plain(size), boots, disks, plan: Plan::Lazy, opened_before }
    }

    /// So many disks on each host, which boot in turn as `boots` say, each up to `jitter` after the creation of the
    /// fleet, drawn.
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

    /// The same of several images, each of which has these boots, and takes `stored` bytes of a blob for each 32 KiB:
    /// the disks of a host, and the first disks of all hosts, are of one image after the other.
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
        let images = u32::try_from(images.len()).unwrap_or(u32::MAX);
        let shape = Shape::Several { images, size, stored };
        Self { shape, boots, disks, plan: Plan::Lazy, opened_before: OPENING }
    }

    /// Draws disks: the first of the first host boots as the first part of the boots says, its second one as the
    /// second part, as does the first of the second host, and so on.
    fn disks(hosts: u32, each: u32, parts: &[Range<usize>], jitter: Nanos, seed: u64) -> Vec<DiskModel> {
        let mut random = Random::new(seed);
        let mut disks = Vec::new();
        for n in 0..u64::from(hosts) * u64::from(each) {
            let host = u32::try_from(n % u64::from(hosts.max(1))).unwrap_or(0);
            let before = u64::from(host) + n / u64::from(hosts.max(1));
            let part = usize::try_from(before).unwrap_or(0) % parts.len().max(1);
            let part = parts.get(part).cloned().unwrap_or_default();
            let at = Nanos(random.bits() % jitter.0.saturating_add(1).max(1));
            let boot = u32::try_from(part.start + random.below(part.len())).unwrap_or(0);
            disks.push(DiskModel { host, at, boot });
        }
        disks
    }

    /// The same with nothing on the first `roots` hosts: what was on the first is on the one behind them.
    #[must_use]
    pub fn beside(mut self, roots: u32) -> Self {
        self.disks.iter_mut().for_each(|disk| disk.host = disk.host.saturating_add(roots));
        self
    }
}
