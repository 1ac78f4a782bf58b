use super::*;
use headstart_block::{BLOCK_SIZE, PlanItem, SLICE_SIZE};
use headstart_plan::zero_shot::ChoiceReason;
use headstart_plan::{Centroid, FirstRead, GroupPlans, RatedPlan};
use headstart_pull::Estimate;

const MB: u64 = 1_000_000;

fn group(blocks: &[u64], second: u32, rates: &[u64]) -> GroupPlans {
    let plan = |rate: &u64| {
        let items = blocks.iter().map(|block| PlanItem { block: *block, mask: 0b11 }).collect();
        RatedPlan { rate: rate * MB, policy: "search".to_owned(), weights: None, score: 0.0, items }
    };
    let mut sorted: Vec<_> = (0..).zip(blocks).map(|(at, block)| (*block, at * second)).collect();
    sorted.sort_unstable();
    GroupPlans {
        category: 0,
        entrypoint: String::new(),
        traces: 5,
        centroid: Centroid { order: blocks.to_vec() },
        plans: rates.iter().map(plan).collect(),
        first_reads: sorted.into_iter().map(|(block, ms)| FirstRead { block, ms }).collect(),
    }
}

fn begin(groups: Vec<GroupPlans>) -> Pilot {
    let plans = ImagePlans { reason: ChoiceReason::Trained, groups };
    Pilot::new(Arc::new(plans), Some(10 * MB))
}

#[test]
fn a_container_is_started_by_the_plan_of_its_entrypoint() {
    let of = |entrypoint: &str, blocks: &[u64]| GroupPlans {
        entrypoint: entrypoint.to_owned(),
        ..group(blocks, 1000, &[1])
    };
    let mut pilot = begin(vec![of("", &[1, 2]), of("nginx", &[3, 4]), of("nginx", &[5]), of("sh", &[6])]);
    let blocks = |plan: Option<Plan>| match plan {
        Some(Plan::List(items)) => items.iter().map(|item| item.block).collect(),
        _ => Vec::new(),
    };
    assert_eq!(blocks(pilot.on_container("nginx")), [3, 4]);
    assert_eq!(blocks(Some(pilot.plan())), [3, 4]);
    assert_eq!(pilot.on_container("nginx"), None);
    assert_eq!(pilot.on_container("postgres"), None);
    assert_eq!(blocks(pilot.on_container("sh")), [6]);
    assert_eq!(pilot.report().switches.groups, 2);
}

/// The engine's report when it has passed `items` items of its plan.
fn passed(plan: &Plan, items: u64) -> Preloading {
    let bandwidth = Some(10 * MB);
    Preloading { plan: plan.clone(), items, estimate: Estimate { bandwidth, round_trip: None } }
}

fn ms(ms: u64) -> Time {
    Time(ms * 1000)
}

/// Reads two slices of each block, one block every 100 ms; returns the plan that the pilot chooses instead.
fn boot(pilot: &mut Pilot, items: u64, blocks: impl IntoIterator<Item = u64>) -> Option<Plan> {
    let engine = passed(&pilot.plan(), items);
    for (at, block) in (0..).zip(blocks) {
        let now = ms(3000 + 100 * at);
        let plan = pilot.on_access(now, block, 0b11).or(pilot.on_tick(now, &engine));
        if plan.is_some() {
            return plan;
        }
    }
    None
}

#[test]
fn a_boot_as_foreseen_is_preloaded_to_its_end() {
    let mut pilot = begin(vec![group(&(0..100).collect::<Vec<_>>(), 100, &[5, 10])]);
    assert_eq!(boot(&mut pilot, 90, 0..100), None);
    let report = pilot.report();
    let blocks = |blocks: u64| blocks * 2 * SLICE_SIZE;
    assert_eq!((report.preloaded, report.used), (blocks(90), blocks(90)));
    assert_eq!((report.due, report.due_used), (blocks(75), blocks(75)));
    assert_eq!(report.stopped, None);
}

#[test]
fn no_preload_is_due_in_the_grace_period_or_in_a_pause() {
    let mut pilot = begin(vec![group(&(0..100).collect::<Vec<_>>(), 100, &[10])]);
    let engine = passed(&pilot.plan(), 99);
    for now in (0..100_000).step_by(50) {
        assert_eq!(pilot.on_tick(ms(now), &engine), None);
    }
    assert_eq!(pilot.report().due, 0);
    assert_eq!(boot(&mut pilot, 99, 0..10), None);
    assert_eq!(pilot.on_tick(ms(900_000), &engine), None, "however long it reads nothing more");
    assert_eq!(pilot.report().due, 7 * 2 * SLICE_SIZE);
}

#[test]
fn boots_that_read_some_of_it_or_in_another_order_are_not_given_up() {
    let all: Vec<u64> = (0..100).collect();
    let plans = || vec![group(&all, 100, &[10])];
    let orders: [Vec<u64>; 4] = [
        all.iter().copied().filter(|block| block % 3 != 1).collect(),
        (0..50).collect(),
        [all[..20].to_vec(), all[60..].to_vec(), all[20..60].to_vec()].concat(),
        all.chunks(8).flat_map(|chunk| chunk.iter().rev()).copied().collect(),
    ];
    for order in orders {
        assert_eq!(boot(&mut begin(plans()), 99, order.iter().copied()), None, "{order:?}");
    }
}

#[test]
fn a_plan_of_unread_blocks_is_stopped_once() {
    // First blocks that are never read, then ones that are.
    let useless: Vec<u64> = (500..600).chain(0..100).collect();
    let mut first = begin(vec![group(&useless, 0, &[10])]);
    assert_eq!(boot(&mut first, 50, 0..100), Some(Plan::Lazy));
    let stopped = first.report().stopped.unwrap();
    assert_eq!(stopped.why, StopReason::Useless { due: DUE_MIN, read: 0 });
    assert!(stopped.at < ms(4000), "{stopped:?}");
    assert_eq!(stopped.to_string(), "of 6 preloaded blocks that should have been read by now 0 were");
    assert_eq!(first.plan(), Plan::Lazy);
    assert_eq!(boot(&mut first, 50, 0..100), None, "said once");
    // The plan does not name the blocks that the boot reads.
    let mut strange = begin(vec![group(&(500..600).collect::<Vec<_>>(), 60_000, &[10])]);
    assert_eq!(boot(&mut strange, 50, 0..100), Some(Plan::Lazy));
    let why = strange.report().stopped.unwrap().why;
    assert_eq!(why, StopReason::Strange { read: READ_MIN, named: 0 });
    // With nothing left to stop, it goes on.
    let mut done = begin(vec![group(&useless, 0, &[10])]);
    assert_eq!(boot(&mut done, 200, 0..100), None);
}

#[test]
fn times_that_have_not_passed_keep_a_plan() {
    // The first hundred blocks are read after a minute, by other boots, and this one has just begun.
    let late: Vec<u64> = (500..600).chain(0..100).collect();
    let mut times = group(&late, 0, &[10]);
    times.first_reads =
        late.iter().map(|block| FirstRead { block: *block, ms: 60_000 }).collect::<Vec<_>>().into();
    let mut sorted = times.first_reads.to_vec();
    sorted.sort_by_key(|read| read.block);
    times.first_reads = sorted.into();
    let mut pilot = begin(vec![times.clone()]);
    let engine = passed(&pilot.plan(), 50);
    for block in 1000..1010 {
        assert_eq!(pilot.on_access(ms(3000), block, 1), None);
    }
    assert_eq!((pilot.on_tick(ms(10_000), &engine), pilot.report().due), (None, 0));
    assert_eq!(pilot.on_tick(ms(3000 + 60_000 / FASTER), &engine), Some(Plan::Lazy));
}

#[test]
fn the_plan_of_another_group_is_better_than_none() {
    let (one, two): (Vec<u64>, Vec<u64>) = ((500..600).chain(0..100).collect(), (0..100).collect());
    let mut pilot = begin(vec![group(&one, 0, &[10]), group(&two, 0, &[10])]);
    let plan = boot(&mut pilot, 50, 0..100);
    let first = match &plan {
        Some(Plan::List(items)) => items.first().map(|item| item.block),
        _ => None,
    };
    assert_eq!((first, pilot.report().switches.groups), (Some(0), 1));
    assert_eq!(boot(&mut pilot, 50, 0..100), None);
    assert_eq!(pilot.report().stopped, None);
    // If none does, it ends, and does not go round in circles.
    let third: Vec<u64> = (600..700).chain(0..100).collect();
    let mut last = begin(vec![group(&one, 0, &[10]), group(&third, 0, &[10])]);
    assert_eq!(boot(&mut last, 50, 0..100), Some(Plan::Lazy));
}

#[test]
fn bins_that_say_the_same_change_nothing() {
    let mut pilot = begin(vec![group(&(0..100).collect::<Vec<_>>(), 100, &[5, 10])]);
    let engine = passed(&pilot.plan(), 50);
    for now in 0..100 {
        let slow = Estimate { bandwidth: Some(5 * MB), round_trip: None };
        assert_eq!(pilot.on_tick(ms(now * 50), &Preloading { estimate: slow, ..engine.clone() }), None);
    }
    assert_eq!(pilot.report().switches.bins, 1);
    assert_eq!(pilot.report().preloaded, 50 * 2 * SLICE_SIZE);
}

#[test]
fn boots_of_any_size_are_bounded() {
    let mut pilot = begin(vec![group(&(0..100).collect::<Vec<_>>(), 100, &[10])]);
    for block in 0..200_000 {
        pilot.on_access(ms(block), block * 7, u32::MAX);
    }
    pilot.on_access(ms(1), u64::MAX / BLOCK_SIZE, u32::MAX);
    assert!(pilot.account.slices_read() <= 32 << 16);
}
