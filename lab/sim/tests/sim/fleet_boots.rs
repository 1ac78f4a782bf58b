//! The gain of a fleet on recorded boots: hints, plans and a swarm when many disks of an image are created at once
//! (Euro-Par paper, section 3.2), and roots that send ahead where the links are slow (DADI, section 4.5).
//!
//! They run on the small data set, on generated starts of applications, and on the shared data set; without the shared
//! data set its test shows nothing, and says so.

#![expect(clippy::print_stderr, reason = "says what it finds")]
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use headstart_block::random::Random;
use headstart_block::{ByteRange, Plan};
use headstart_replay::boot::with_strays;
use headstart_replay::{Boot, Nanos};
use headstart_sim::fleet::{
    FleetModel, FleetOutcome, HintsModel, Links, Shape, SwarmModel, Warm, Way, Workload, simulate,
};
use headstart_swarm::{NodeSettings, Topology};
use headstart_testkit::soak;
use headstart_trace::data_set::{DataSet, DataSetLimits};
use headstart_trace::{Op, Record, Trace};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

type Boots = Vec<Arc<Boot>>;

/// Boots of an image of a data set, in the order of their creation.
fn boots(set: &str, image: &str) -> Option<Vec<Trace>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(set);
    let Ok(set) = DataSet::open(&path, &DataSetLimits::default()) else {
        eprintln!("SKIPPED: there is no data set at {}", path.display());
        return None;
    };
    let mut boots = Vec::new();
    set.filter(|_, creation| creation.image_id() == image)
        .for_each(1, |_, trace| {
            boots.push(trace?);
            Ok(())
        })
        .unwrap();
    Some(boots)
}

const SMALL: &str = "../../tests/data/traces";
const SHARED: &str = "../../../shared/data/traces";

// Many at once.

/// One disk of an image on each of `hosts` hosts; the disks are created within a second.
fn deployment(hosts: u32, boots: &[Arc<Boot>], seed: u64) -> Workload {
    let shape = Shape::Plain(boots.iter().map(|boot| boot.disk_size()).max().unwrap());
    Workload::boots(hosts, 1, shape, boots.to_vec(), Nanos(1_000_000_000), seed)
}

/// Gigabit Ethernet; an image striped over as many disks as there are hosts, 55 MB/s each, which seek.
fn of_the_paper(hosts: u32) -> Links {
    Links {
        up: 117_500_000,
        down: 117_500_000,
        round_trip: Duration::from_micros(100),
        store: 55_000_000 * u64::from(hosts),
        store_round_trip: Duration::from_micros(100),
        store_latency: Duration::from_millis(20),
        racks: None,
    }
}

/// Hosts of 1 Gbit/s before a store of as much, 5 ms away.
fn quick(_: u32) -> Links {
    Links {
        up: 125_000_000,
        down: 125_000_000,
        round_trip: Duration::from_micros(200),
        store: 125_000_000,
        store_round_trip: Duration::from_millis(5),
        store_latency: Duration::ZERO,
        racks: None,
    }
}

/// The waits of the reads of a disk, in all, in each way.
#[derive(Debug)]
struct Waited {
    lazy: f64,
    first: f64,
    second: f64,
    plan: f64,
    swarm: f64,
    both: f64,
}

fn waited(hosts: u32, links: &Links, mut boots: Boots) -> Waited {
    // The plan is the blocks that another boot read.
    let plan = Plan::List(boots.remove(0).recorded_order(usize::MAX).into());
    let (now, before) = (deployment(hosts, &boots, 1), deployment(hosts, &boots, 2));
    let planned = Workload { plan, ..now.clone() };
    let swarm = || Way::Swarm(Box::<SwarmModel>::default());
    let run = |way: Way, hints: Option<HintsModel>, workload: &Workload| -> FleetOutcome {
        let outcome = simulate(&FleetModel { hints, ..FleetModel::new(hosts, links.clone(), way) }, workload);
        let summary = outcome.summary();
        assert_eq!((summary.incomplete, summary.failed, summary.wrong_answers), (0, 0, 0), "{summary:?}");
        outcome
    };
    let hints = |known| Some(HintsModel { known, ..HintsModel::default() });
    let of = |outcome: FleetOutcome| outcome.summary().waited;
    let taught = run(Way::Independent, hints(None), &before).counts;
    Waited {
        lazy: of(run(Way::Independent, None, &now)),
        first: of(run(Way::Independent, hints(None), &now)),
        second: of(run(Way::Independent, hints(taught), &now)),
        plan: of(run(Way::Independent, None, &planned)),
        swarm: of(run(swarm(), None, &now)),
        both: of(run(swarm(), None, &planned)),
    }
}

fn check(waited: &Waited, what: &str) {
    eprintln!("{what}: {waited:.2?}");
    assert!(waited.first < 0.75 * waited.lazy, "{what}: {waited:?}");
    assert!(waited.second < 0.5 * waited.lazy, "{what}: {waited:?}");
    assert!(waited.both < waited.plan.min(waited.swarm), "{what}: {waited:?}");
}

/// An image without a history; the same once more; and the gain of plans and a swarm beside that.
#[test]
fn many_disks_of_an_image_gain_by_hints_plans_and_a_swarm() {
    let traces = boots(SMALL, "p-deb12min").unwrap();
    let boots: Boots = traces.iter().map(|trace| Arc::new(Boot::of(trace))).collect();
    let disks = if soak::is_on() { 40 } else { 24 };
    check(&waited(disks, &of_the_paper(disks), boots.clone()), &format!("{disks} disks, the paper's links"));
    check(&waited(disks, &quick(disks), boots), &format!("{disks} disks, quick links"));
}

/// The paper's number of instances, on every image of the data set: minutes.
#[test]
fn deployments_of_all_images_gain_by_hints_plans_and_a_swarm() {
    if !soak::is_on() {
        eprintln!("SKIPPED: set HEADSTART_SOAK to deploy every image of the shared data set");
        return;
    }
    let images = [
        "p-deb12min",
        "p-deb11srv",
        "p-deb13",
        "m-nginx",
        "m-redis",
        "m-postgres",
        "m-java",
        "m-mariadb",
        "m-node",
        "m-flaskredis",
    ];
    for image in images {
        let Some(traces) = boots(SHARED, image) else { return };
        let boots: Boots = traces.iter().map(|trace| Arc::new(Boot::of(trace))).collect();
        check(&waited(120, &of_the_paper(120), boots.clone()), &format!("{image}, the paper's links"));
        check(&waited(120, &quick(120), boots), &format!("{image}, quick links"));
    }
}

// Sending ahead.

/// 25 Mbit/s, everywhere, and another region: 40 ms.
fn slow() -> Links {
    Links {
        up: 3_125_000,
        down: 3_125_000,
        round_trip: Duration::from_millis(40),
        store: 3_125_000,
        store_round_trip: Duration::from_millis(40),
        store_latency: Duration::ZERO,
        racks: None,
    }
}

/// The stored bytes of 32 KiB of an image.
const STORED: u64 = 14_900;

/// The number of deployments before the one that is measured.
const BEFORE: u64 = 2;

/// Agents that have nothing, each with disks of some of the images, and as many roots, which have everything: each
/// agent has a root of its own.
struct Push<'a> {
    agents: u32,
    disks: u32,
    images: &'a [Boots],
}

/// Seconds from a disk's creation to its last read, and the wait of its reads: means.
type Took = (f64, f64);

#[expect(clippy::cast_precision_loss, reason = "a few disks")]
fn took(outcome: &FleetOutcome) -> Took {
    let summary = outcome.summary();
    assert_eq!((summary.incomplete, summary.failed, summary.wrong_answers), (0, 0, 0), "{summary:?}");
    let sum: f64 = outcome.disks.iter().map(|disk| disk.took().as_secs()).sum();
    (sum / outcome.disks.len() as f64, summary.waited)
}

impl Push<'_> {
    fn workload(&self, images: &[Boots], seed: u64) -> Workload {
        Workload::several((self.agents, self.disks), images, STORED, Nanos(0), seed).beside(self.agents)
    }

    fn run(&self, way: Way, workload: &Workload) -> FleetOutcome {
        simulate(&FleetModel::new(2 * self.agents, slow(), way), workload)
    }

    fn swarm(&self, push: u32, recent: &[headstart_swarm::recent::Saved]) -> Way {
        let settings =
            NodeSettings { topology: Topology::Roots, agents_max: Some(1), push, ..NodeSettings::default() };
        let (roots, warm, recent) = (self.agents, Warm::Roots, recent.to_vec());
        Way::Swarm(Box::new(SwarmModel { settings, roots, warm, recent, ..SwarmModel::default() }))
    }

    fn cold(&self) -> Took {
        took(&self.run(self.swarm(0, &[]), &self.workload(self.images, 1)))
    }

    /// With roots that send ahead, after deployments of these.
    fn pushed(&self, before: &[Vec<Boots>]) -> Took {
        let mut recent = Vec::new();
        for (seed, images) in (2..).zip(before) {
            recent = self.run(self.swarm(512, &recent), &self.workload(images, seed)).recent;
        }
        took(&self.run(self.swarm(512, &recent), &self.workload(self.images, 1)))
    }

    /// The least time that the link to each agent needs for the chunks that its disks read; the mean, in seconds.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn least(&self) -> f64 {
        let workload = self.workload(self.images, 1);
        let chunks_of = |range: ByteRange| {
            let place = |at: u64| at * STORED / (32 << 10);
            place(range.offset()) >> 16..=place(range.end() - 1) >> 16
        };
        let disks = workload.disks.iter();
        let chunks: BTreeSet<(u32, u64)> = disks
            .flat_map(|disk| {
                let reads = workload.boots[disk.boot as usize].reads().iter();
                reads.flat_map(|read| chunks_of(read.range)).map(|chunk| (disk.host, chunk))
            })
            .collect();
        let bytes = chunks.len() as u64 * (64 << 10) / u64::from(self.agents);
        bytes as f64 / slow().down as f64
    }

    fn warm(&self) -> Took {
        took(&self.run(Way::Local, &self.workload(self.images, 1)))
    }
}

/// Starts of an application: the same reads nearly in one order, one after the other, with a moment of work after each;
/// and the same with strays of a tenth, others in each deployment.
fn application(seed: u64) -> (Boots, Vec<Boots>) {
    const SIZE: u64 = 1 << 30;
    let mut random = Random::new(seed);
    let places: Vec<u64> = (0..300).map(|_| (random.bits() % (SIZE >> 16)) << 16).collect();
    let start = |n: u64| {
        let mut random = Random::new(seed ^ n << 32);
        let mut order = places.clone();
        for at in 4..order.len() {
            order.swap(at, at - random.below(4));
        }
        let mut t_us = 0;
        let record = |place: &u64| {
            t_us += 2000 + random.bits() % 8000;
            let range = ByteRange::between(*place, place + 16_384);
            Record { t_us, op: Op::Read, range, service_us: Some(100) }
        };
        order.iter().map(record).collect::<Vec<_>>()
    };
    let plain = (0..6).map(|n| Arc::new(Boot::of_records(SIZE, &start(n), 1))).collect();
    let stray = |seed| move |n| Boot::of_records(SIZE, &with_strays(&start(n), SIZE, 100_000, n ^ seed), 1);
    let strayed = |deployment: u64| (0..6).map(stray(deployment << 32)).map(Arc::new).collect();
    (plain, (0..BEFORE).map(strayed).collect())
}

/// Boots of all images, plain, and with strays by deployment.
type WithStrays = (Vec<Boots>, Vec<Vec<Boots>>);

fn turned(images: Vec<(Boots, Vec<Boots>)>) -> WithStrays {
    let (plain, strayed): (Vec<_>, Vec<_>) = images.into_iter().unzip();
    let of = |deployment: usize| strayed.iter().map(|image: &Vec<Boots>| image[deployment].clone()).collect();
    (plain, (0..usize::try_from(BEFORE).unwrap()).map(of).collect())
}

/// The first `count` images.
fn first(count: usize, (plain, strayed): &WithStrays) -> WithStrays {
    (plain[..count].to_vec(), strayed.iter().map(|images| images[..count].to_vec()).collect())
}

/// One application on one host, and several on as many: sending ahead takes three fifths off the start, and is nearly
/// as quick as the link allows; so it is after strays.
#[test]
fn applications_start_faster_with_pushed_chunks() {
    let all = turned([3, 5, 7].map(application).into_iter().collect());
    for (what, agents, disks) in [("one", 1, 1), ("three on three hosts", 3, 1), ("three on one host", 1, 3)]
    {
        let (plain, strayed) = first((agents * disks) as usize, &all);
        let push = Push { agents, disks, images: &plain };
        let (cold, warm, least) = (push.cold(), push.warm(), push.least());
        let pushed = push.pushed(&vec![plain.clone(); usize::try_from(BEFORE).unwrap()]);
        let after_strays = push.pushed(&strayed);
        eprintln!(
            "{what}: {cold:.2?}; {pushed:.2?}, {after_strays:.2?}, at least {least:.2}; warm {warm:.2?}"
        );
        assert!(warm.0 < 0.43 * cold.0, "{what}: {warm:?} of {cold:?}");
        // Three on one host fill its link from the beginning: the transfer of their reads is most of a cold start.
        let most = if disks == 1 { 0.4 * cold.0 } else { 1.2 * least };
        assert!(pushed.0 < most && pushed.0 < 0.85 * cold.0, "{what}: {pushed:?} of {cold:?}, {least}");
        assert!(after_strays.0 < most, "{what}: {after_strays:?} of {cold:?}, {least}");
    }
}

/// Real machines, at the recorded speed and several times as fast. They think: only the difference between a cold start
/// and a warm one can be saved, and three fifths of it are; two fifths with three on one host. If the transfer of their
/// reads takes longer than that, the start takes little longer than the transfer.
#[test]
fn machines_boot_faster_with_pushed_chunks() {
    let images = ["p-deb12min", "m-nginx", "m-redis"].map(|image| boots(SMALL, image).unwrap());
    // Some of the speeds, and in `make soak` all.
    for faster in [1, 2, 4, 8].into_iter().step_by(if soak::is_on() { 1 } else { 2 }) {
        let of = |trace: &Trace, strays, seed| {
            let seed = trace.creation.created_us ^ seed << 32;
            let records = with_strays(&trace.records, trace.creation.size, strays, seed);
            Arc::new(Boot::of_records(trace.creation.size, &records, faster).with_grace(Nanos(0)))
        };
        let of_image = |traces: &Vec<Trace>| {
            let plain = traces.iter().map(|trace| of(trace, 0, 0)).collect();
            let strayed = |n| traces.iter().map(|trace| of(trace, 100_000, n)).collect();
            (plain, (0..BEFORE).map(strayed).collect())
        };
        let all = turned(images.iter().map(of_image).collect());
        for (what, agents, disks) in [("one", 1, 1), ("three on three hosts", 3, 1), ("three on one", 1, 3)] {
            let (plain, strayed) = first((agents * disks) as usize, &all);
            let push = Push { agents, disks, images: &plain };
            let (cold, warm, least) = (push.cold(), push.warm(), push.least());
            let pushed = push.pushed(&vec![plain.clone(); usize::try_from(BEFORE).unwrap()]);
            let after_strays = push.pushed(&strayed);
            eprintln!(
                "{what}, {faster} times as fast: {cold:.2?}; {pushed:.2?}, {after_strays:.2?}, at least {least:.2}; \
                 warm {warm:.2?}"
            );
            assert!(faster < 4 || warm.0 < 0.43 * cold.0, "{warm:?} of {cold:?}");
            for pushed in [pushed, after_strays] {
                let most = if disks == 1 { 0.4 } else { 0.6 };
                let is_quick = pushed.1 < most * cold.1 || pushed.0 < 1.1 * least;
                assert!(is_quick && pushed.1 < 0.8 * cold.1, "{pushed:?} of {cold:?}, {least}");
            }
        }
    }
}
