//! A deployment that trains its own hints, and those of the next one.

use crate::fleet::{FleetModel, FleetOutcome, HintsModel, Links, Shape, SwarmModel, Way, Workload, simulate};
use headstart_block::random::Random;
use headstart_block::{ByteRange, Plan, SLICE_SIZE};
use headstart_replay::boot::Boot;
use headstart_replay::time::Nanos;
use headstart_trace::{Op, Record};
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 2 << 30;
const HOSTS: u32 = 16;

/// Boots of one image: the same reads nearly in one order, each guest at a pace of its own.
fn boots(count: u64) -> Vec<Arc<Boot>> {
    let mut random = Random::new(11);
    let slices: Vec<u64> = (0..500).map(|_| random.bits() % (SIZE / SLICE_SIZE)).collect();
    let boot = |seed| {
        let mut random = Random::new(seed);
        let pace = 700 + random.bits() % 600;
        let mut order = slices.clone();
        for n in 4..order.len() {
            order.swap(n, n - random.below(4));
        }
        let mut t_us = 100_000;
        let record = |slice: &u64| {
            t_us += (2000 + random.bits() % 12_000) * pace / 1000
                + if random.below(40) == 0 { 300_000 } else { 0 };
            let range = ByteRange::between(slice * SLICE_SIZE, slice * SLICE_SIZE + 16_384);
            Record { t_us, op: Op::Read, range, service_us: Some(100) }
        };
        Arc::new(Boot::of_records(SIZE, &order.iter().map(record).collect::<Vec<_>>(), 1))
    };
    (0..count).map(boot).collect()
}

fn workload(seed: u64) -> Workload {
    Workload::boots(HOSTS, 1, Shape::Plain(SIZE), boots(12), Nanos(1_000_000_000), seed)
}

fn run(way: &Way, hints: impl Into<Option<HintsModel>>, workload: &Workload) -> FleetOutcome {
    let links = Links {
        up: 117_000_000,
        down: 117_000_000,
        round_trip: Duration::from_micros(200),
        store: 4_000_000_000,
        store_round_trip: Duration::from_millis(5),
        store_latency: Duration::from_millis(5),
        racks: None,
    };
    let outcome =
        simulate(&FleetModel { hints: hints.into(), ..FleetModel::new(HOSTS, links, way.clone()) }, workload);
    assert_eq!((outcome.summary().incomplete, outcome.wrong_answers), (0, 0));
    outcome
}

/// Hints of a tracker that has the counts of another deployment; nothing if that had none.
fn hints(before: &FleetOutcome) -> HintsModel {
    HintsModel { known: before.counts.clone(), ..HintsModel::default() }
}

/// The paper's experiment, in small: first without counts of the image, and then with those of one deployment.
#[test]
fn the_slower_learn_from_the_faster() {
    let (way, first, second) = (Way::Independent, workload(1), workload(2));
    let waited = |outcome: &FleetOutcome| outcome.summary().waited;
    let lazy = [&first, &second].map(|workload| waited(&run(&way, None, workload)));
    let taught = run(&way, hints(&FleetOutcome::default()), &first);
    let known = run(&way, hints(&taught), &second);
    assert!(waited(&taught) < 0.75 * lazy[0], "{} after {}", waited(&taught), lazy[0]);
    assert!(waited(&known) < 0.5 * lazy[1], "{} after {}", waited(&known), lazy[1]);
    let counts =
        taught.counts.as_ref().map(|counts| (counts.disks, counts.slices.iter().map(|s| s.disks).max()));
    assert_eq!(counts, Some((HOSTS, Some(HOSTS))));
    assert!(known.hints.foreseen * 100 > known.hints.reads * 95, "{:?}", known.hints);
    // The same run gives the same outcome again.
    assert_eq!(run(&way, hints(&taught), &second), known);
}

/// With a swarm the store is asked once, by the first reader; hints still help slower disks.
#[test]
fn hints_and_a_swarm_go_together() {
    let (way, first) = (Way::Swarm(Box::<SwarmModel>::default()), workload(1));
    let alone = run(&Way::Independent, None, &first);
    let swarm = run(&way, None, &first);
    let both = run(&way, hints(&run(&way, hints(&FleetOutcome::default()), &workload(2))), &first);
    assert!(both.summary().waited < swarm.summary().waited, "{:?} {:?}", both.summary(), swarm.summary());
    assert!(both.summary().store_bytes * 4 < alone.summary().store_bytes);
}

/// A disk that has a plan follows that, and teaches others all the same.
#[test]
fn a_plan_comes_before_hints() {
    let mut planned = workload(1);
    planned.plan = Plan::List(planned.boots[0].recorded_order(usize::MAX).into());
    let (without, with) = (
        run(&Way::Independent, None, &planned),
        run(&Way::Independent, hints(&FleetOutcome::default()), &planned),
    );
    assert_eq!(without.summary().waited, with.summary().waited);
    assert!(with.counts.is_some_and(|counts| counts.slices.len() > 400));
}
