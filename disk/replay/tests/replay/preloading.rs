//! Preloading as the product does it: the harm that it must never do, on boots of the small data set that no plan was
//! made from.
//!
//! On virtual time, closed loop: links from 2 to 100 MB/s and 1 to 50 ms away, guests at recorded speed and five times
//! as fast, with and without a grace period; plans that are right, of another image, and wrong on purpose; boots that
//! differ from the others; links that change, and a store that is away.

use headstart_block::random::Random;
use headstart_block::{BLOCK_SIZE, ByteRange, PlanItem};
use headstart_plan::knowledge::{Knowledge, RecordedImage};
use headstart_plan::train::{self, TrainConfig};
use headstart_plan::{ImagePlans, RatedPlan};
use headstart_preload::PilotReport;
use headstart_pull::{Engine, Plan};
use headstart_replay::link::LinkBandwidth;
use headstart_replay::{Boot, BootOutcome, Guide, Model, Nanos, Piloting, Simulator};
use headstart_testkit::soak;
use headstart_trace::Trace;
use headstart_trace::data_set::{DataSet, DataSetLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const RATES: [u64; 5] = [2, 5, 10, 30, 100];
const ROUND_TRIPS: [u64; 3] = [1, 20, 50];

/// An image: the plans from five of its boots (of one, four), and two others.
struct Image {
    name: &'static str,
    plans: Arc<ImagePlans>,
    boots: Vec<Trace>,
}

static IMAGES: LazyLock<Vec<Image>> =
    LazyLock::new(|| ["p-deb12min", "m-nginx", "m-redis"].map(image).into_iter().collect());

fn image(name: &'static str) -> Image {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/traces");
    let key = RecordedImage { image: name.to_owned(), size: 4 << 30 };
    let all = DataSet::open(&path, &DataSetLimits::default()).unwrap();
    let all = all.filter(|_, creation| RecordedImage::of(creation) == key);
    let mut boots = Vec::new();
    all.for_each(1, |_, trace| {
        boots.push(trace?);
        Ok(())
    })
    .unwrap();
    // Without those that were cut off, or went on reading something else.
    boots.retain(|boot| (1500..4000).contains(&boot.records.len()));
    boots.truncate(2);
    let tested: BTreeSet<_> = boots.iter().map(|boot| boot.creation.volume.clone()).collect();
    let mut knowledge = Knowledge::default();
    let train = all.filter(|_, creation| !tested.contains(&creation.volume));
    knowledge.learn(&train, 1, &mut |_| Ok(())).unwrap();
    let plans = train::image(knowledge.image(&key).unwrap(), &TrainConfig::default()).unwrap();
    assert_eq!(boots.len(), 2, "{name}");
    Image { name, plans: Arc::new(plans), boots }
}

fn model(rate: u64, round_trip: u64) -> Model {
    Model::real(rate * 1_000_000, Duration::from_millis(round_trip))
}

fn seconds(seconds: u64) -> Nanos {
    Nanos::from_micros(seconds * 1_000_000)
}

/// The plans, with the items of each changed.
fn changed(plans: &ImagePlans, change: impl Fn(&RatedPlan) -> Vec<PlanItem>) -> Arc<ImagePlans> {
    let mut plans = plans.clone();
    for plan in plans.groups.iter_mut().flat_map(|group| &mut group.plans) {
        plan.items = change(plan).into();
    }
    Arc::new(plans)
}

fn piloted(
    simulator: &mut Simulator,
    boot: &Boot,
    plans: &Arc<ImagePlans>,
    model: &Model,
) -> (f64, PilotReport) {
    let mut guide = Piloting::new(Arc::clone(plans), None);
    let outcome = simulator.run_guided(boot, &mut guide, model);
    (outcome.waited.as_secs(), guide.report())
}

/// Calls `each` with every third setting of the grid, other ones for each image, and a boot in it; in `make soak` with
/// all of them.
fn grid(mut each: impl FnMut(&Image, &Boot, &Model, &str)) {
    let step = if soak::is_on() { 1 } else { 3 };
    for (first, image) in IMAGES.iter().enumerate() {
        let mut number = first;
        for (rate, round_trip) in RATES.iter().flat_map(|rate| ROUND_TRIPS.map(|away| (*rate, away))) {
            for (faster, grace) in [(1, 0), (5, 3)] {
                let model = model(rate, round_trip);
                let setting =
                    format!("{} {rate} MB/s {round_trip} ms {faster}x, {grace} s of grace", image.name);
                for boot in &image.boots {
                    number += 1;
                    if number % step != 0 {
                        continue;
                    }
                    let boot = Boot::faster(boot, faster).with_grace(seconds(grace));
                    each(image, &boot, &model, &setting);
                }
            }
        }
    }
}

#[test]
fn preloading_is_never_worse_than_lazy() {
    let mut simulator = Simulator::new();
    grid(|image, boot, model, setting| {
        let lazy = simulator.run(boot, &Plan::Lazy, model).waited.as_secs();
        let (planned, report) = piloted(&mut simulator, boot, &image.plans, model);
        assert_eq!(report.stopped, None, "{setting}");
        assert!(planned <= lazy * 1.02, "{setting}: {lazy} s, planned {planned} s");
    });
}

/// A plan for another disk: as much, elsewhere.
fn stranger(plan: &RatedPlan, disk: u64) -> Vec<PlanItem> {
    let blocks = disk / BLOCK_SIZE;
    plan.items.iter().map(|item| PlanItem { block: (item.block * 7 + 3) % blocks, ..*item }).collect()
}

/// A plan of all blocks that no boot reads.
fn never(plan: &RatedPlan, disk: u64) -> Vec<PlanItem> {
    let read: BTreeSet<_> = plan.items.iter().map(|item| item.block).collect();
    (0..disk / BLOCK_SIZE).filter(|block| !read.contains(block)).map(PlanItem::whole).collect()
}

/// Makes a plan for a disk of this size from a plan that is right.
type Wrong = fn(&RatedPlan, u64) -> Vec<PlanItem>;

/// The ratios of a boot's time to that of a lazy boot, by setting, for each kind of wrong plans: the median, and the
/// worst.
fn costs<const N: usize>(wrong: [(&str, Wrong); N]) -> [[f64; 2]; N] {
    let mut simulator = Simulator::new();
    let mut costs: [Vec<(f64, String)>; N] = std::array::from_fn(|_| Vec::new());
    let mut plans = BTreeMap::new();
    grid(|image, boot, model, setting| {
        let disk = boot.disk_size();
        let plans = plans
            .entry((image.name, disk))
            .or_insert_with(|| wrong.map(|(_, wrong)| changed(&image.plans, |plan| wrong(plan, disk))));
        let lazy = simulator.run(boot, &Plan::Lazy, model).waited.as_secs();
        for (costs, plans) in costs.iter_mut().zip(plans) {
            let (planned, _) = piloted(&mut simulator, boot, plans, model);
            costs.push((planned / lazy, setting.to_owned()));
        }
    });
    let mut names = wrong.iter().map(|(name, _)| name);
    costs.map(|mut costs| {
        costs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (median, worst) = (costs[costs.len() / 2].0, costs.last().unwrap());
        let name = names.next().unwrap();
        eprintln!("{name}: {median:.3} times lazy in the median, {:.3} at worst ({})", worst.0, worst.1);
        [median, worst.0]
    })
}

#[test]
fn wrong_plans_cost_little() {
    let costs = costs([
        ("another image's plan", stranger as Wrong),
        ("what is never read", never),
        ("what is never read, then what is", |plan, disk| [&never(plan, disk)[..], &plan.items].concat()),
        ("the plan from its end", |plan, _| plan.items.iter().rev().copied().collect()),
    ]);
    // One boot is late or early by a tenth for reasons of its own, whatever comes first.
    for [median, worst] in costs {
        assert!(median <= 1.02 && worst <= 1.15, "{median} {worst}");
    }
}

/// A boot that differs from the others.
fn perturbed(boot: &Trace, how: &str) -> Trace {
    let mut boot = boot.clone();
    let began = boot.records[0].t_us;
    let records = &mut boot.records;
    let parts = |order: &[usize]| {
        let (mut out, mut now, len) = (Vec::new(), began, records.len());
        for part in order {
            let part = &records[part * len / order.len()..(part + 1) * len / order.len()];
            out.extend(part.iter().map(|record| {
                let mut record = *record;
                record.t_us = now + (record.t_us - part[0].t_us);
                record
            }));
            now = out.last().unwrap().t_us + 1000;
        }
        out
    };
    match how {
        "a third of its reads gone" => {
            let mut random = Random::new(3);
            records.retain(|_| random.below(3) > 0);
        }
        "half of it" => records.truncate(records.len() / 2),
        "its parts in another order" => *records = parts(&[0, 4, 2, 6, 1, 7, 3, 5]),
        "its end first" => *records = parts(&[0, 1, 2, 5, 4, 3]),
        "a guest ten times slower" => {
            records.iter_mut().for_each(|record| record.t_us = began + (record.t_us - began) * 10);
        }
        "a pause" => {
            let middle = records[records.len() / 4].t_us;
            let after = records.iter_mut().filter(|record| record.t_us > middle);
            after.for_each(|record| record.t_us += 120_000_000);
        }
        _ => {}
    }
    boot
}

#[test]
fn good_plans_are_never_stopped() {
    let mut simulator = Simulator::new();
    let ways = [
        "a third of its reads gone",
        "half of it",
        "its parts in another order",
        "its end first",
        "a guest ten times slower",
        "a pause",
    ];
    for how in ways {
        let (mut lazily, mut planned) = (0.0, 0.0);
        let links = IMAGES.iter().flat_map(|image| [2, 10, 100].map(|rate| (image, rate)));
        for (number, (image, rate)) in links.enumerate() {
            let guests = [(1, 3), (5, 0)];
            // One of the guests in turn, and in `make soak` each of them.
            let guests = if soak::is_on() { &guests[..] } else { &guests[number % 2..][..1] };
            for &(faster, grace) in guests {
                let boot = Boot::faster(&perturbed(&image.boots[0], how), faster);
                let boot = boot.with_grace(seconds(grace));
                let model = model(rate, 20);
                lazily += simulator.run(&boot, &Plan::Lazy, &model).waited.as_secs();
                let (waited, report) = piloted(&mut simulator, &boot, &image.plans, &model);
                planned += waited;
                let setting = format!("{how}: {} at {rate} MB/s, {faster}x", image.name);
                assert_eq!(report.stopped, None, "{setting}");
            }
        }
        eprintln!("{how}: {planned:.1} s of waits planned, {lazily:.1} s lazily");
        assert!(planned < lazily * 0.7, "{how}: {planned} {lazily}");
    }
}

/// The pilot, and the engine's estimates of the link meanwhile.
struct Watched {
    pilot: Piloting,
    estimates: Vec<(Nanos, u64)>,
}

impl Watched {
    fn note(&mut self, now: Nanos, engine: &Engine) {
        self.estimates.extend(engine.estimate().bandwidth.map(|bandwidth| (now, bandwidth)));
    }
}

impl Guide for Watched {
    fn at_creation(&mut self) -> Plan {
        self.pilot.at_creation()
    }

    fn on_read(&mut self, now: Nanos, range: ByteRange, engine: &Engine) -> Option<Plan> {
        self.note(now, engine);
        self.pilot.on_read(now, range, engine)
    }

    fn on_answer(&mut self, now: Nanos, engine: &Engine) -> Option<Plan> {
        self.note(now, engine);
        self.pilot.on_answer(now, engine)
    }
}

/// A boot over a link of `before` MB/s at first, and from the second `changes` on of `after` MB/s.
fn over_a_link_that_changes(before: u64, after: u64, changes: u64) -> (BootOutcome, Watched) {
    let image = &IMAGES[2];
    let mut model = model(before, 20);
    let steps = [(Nanos(0), before * 1_000_000), (seconds(changes), after * 1_000_000)];
    model.link.bandwidth = LinkBandwidth::Series(Arc::new(steps));
    let pilot = Piloting::new(Arc::clone(&image.plans), Some(before * 1_000_000));
    let mut watched = Watched { pilot, estimates: Vec::new() };
    let boot = Boot::faster(&image.boots[0], 5).with_grace(Nanos(0));
    let outcome = Simulator::new().run_guided(&boot, &mut watched, &model);
    (outcome, watched)
}

#[test]
fn the_estimator_and_the_plan_follow_a_link_that_changes() {
    for (before, after, bins) in [(20, 10, 0), (40, 20, 1), (40, 4, 1), (20, 2, 1), (4, 40, 1)] {
        let (outcome, watched) = over_a_link_that_changes(before, after, 2);
        let target = after * 1_000_000;
        let known = |bandwidth: u64| bandwidth.abs_diff(target) <= target / 4;
        let (changed, late) = (seconds(2), seconds(3));
        let found = watched.estimates.iter().find(|(at, bandwidth)| *at > changed && known(*bandwidth));
        let report = watched.pilot.report();
        eprintln!("{before} then {after} MB/s: known at {found:?}, {report:?}");
        assert!(found.is_some_and(|(at, _)| *at <= late), "{before} then {after}: {found:?}");
        assert!(report.switches.bins >= bins && report.stopped.is_none(), "{report:?}");
        assert!(outcome.failures == 0);
    }
}

#[test]
fn a_store_that_is_away_stops_nothing() {
    let image = &IMAGES[0];
    let boot = Boot::of(&image.boots[0]).with_grace(seconds(0));
    let run = |away: Vec<(Nanos, Nanos)>| {
        let mut model = model(5, 20);
        model.link.failures.away = away;
        let mut guide = Piloting::new(Arc::clone(&image.plans), None);
        let outcome = Simulator::new().run_guided(&boot, &mut guide, &model);
        (outcome, guide.report())
    };
    let ((well, _), (away, report)) = (run(Vec::new()), run(vec![(seconds(3), seconds(13))]));
    let later = away.last_read.as_secs() - well.last_read.as_secs();
    eprintln!("away for 10 s: last read {later:.1} s later, {:?}", away.slow);
    assert_eq!(report.stopped, None);
    assert!((0.0..14.0).contains(&later), "{later}");
    assert_eq!(away.reads, well.reads);
}
