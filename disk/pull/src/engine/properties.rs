//! Properties that always hold: any reads, plans and settings over any link, with failures, against the bitmaps of
//! the test's own disk. The engine's tables are checked after every event ([`super::invariants`]).

use crate::testing::{Disk, Fate, Link, Sim, UNIT};
use crate::{
    BackgroundSharing, BlobRange, EngineEvent, EngineSettings, MissRest, Plan, PlanItem, Priority, Retry,
    SLICE_SIZE, Time,
};
use headstart_block::ByteRange;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const SLICES: u64 = 32 * 6;
const DEADLINE: Duration = Duration::from_secs(60);
/// The time after which the engine gets no events.
const LAST: u64 = 20_000_000;

#[derive(Clone, Debug)]
enum Step {
    Read(u64, u64),
    Forget(u64),
    Plan(Plan),
    FillRate(Option<u64>),
    /// Another process brings some units.
    Brought(u64, u64),
}

/// The rates at which fetches fail, in percent of all.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    fail: u64,
    corrupt: u64,
    permanent: u64,
    stall: u64,
    breaks: u64,
    away: (u64, u64),
}

#[derive(Clone, Debug)]
struct Case {
    scattered: bool,
    settings: EngineSettings,
    link: Link,
    trouble: Trouble,
    steps: Vec<(u64, Step)>,
}

fn a_plan() -> impl Strategy<Value = Plan> {
    let item = (0_u64..8, prop_oneof![any::<u32>(), Just(u32::MAX), Just(1)])
        .prop_map(|(block, mask)| PlanItem { block, mask });
    prop_oneof![
        Just(Plan::Lazy),
        Just(Plan::Sequential),
        prop::collection::vec(item, 0..12).prop_map(|items| Plan::List(items.into())),
    ]
}

fn a_step() -> impl Strategy<Value = Step> {
    let sector = 0..SLICES * SLICE_SIZE / 512;
    prop_oneof![
        12 => (sector.clone(), prop_oneof![1_u64..64, 1_u64..4096])
            .prop_map(|(start, len)| Step::Read(start * 512, len * 512)),
        2 => (0_u64..40).prop_map(Step::Forget),
        1 => a_plan().prop_map(Step::Plan),
        1 => prop::option::of(100_000_u64..20_000_000).prop_map(Step::FillRate),
        2 => (sector, 1_u64..20).prop_map(|(start, units)| Step::Brought(start * 512 / UNIT, units)),
    ]
}

fn settings() -> impl Strategy<Value = EngineSettings> {
    let sizes = (prop_oneof![Just(0), Just(UNIT)], 1_u64..70, 1_usize..40, 1_usize..5, 1_usize..70);
    let streams = (prop_oneof![1_u64..70, Just(1000)], 4_u64..40);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), 0_u64..4);
    (sizes, switches, streams, any::<u64>()).prop_map(
        |(sizes, (rest, fill, bypass_late, look_ahead), streams, seed)| EngineSettings {
            stream_max: streams.0 * UNIT,
            stream_min: streams.1 * UNIT,
            gap: sizes.0,
            miss_max: sizes.1 * UNIT,
            miss_requests: sizes.2,
            depth_min: sizes.3,
            depth_max: sizes.4,
            look_ahead,
            bypass_late,
            miss_rest: if rest { MissRest::Block } else { MissRest::None },
            sharing: if fill { BackgroundSharing::Fill } else { BackgroundSharing::Strict },
            deadline: DEADLINE,
            retry: Retry { first: Duration::from_millis(10), most: Duration::from_secs(1), corrupt_limit: 3 },
            seed,
            ..EngineSettings::default()
        },
    )
}

fn a_case() -> impl Strategy<Value = Case> {
    let rare = |most: u64| prop_oneof![2 => Just(0), 1 => 0..=most];
    let away = prop_oneof![Just((0, 0)), (0..LAST, 0_u64..30_000_000)];
    let trouble = (rare(50), rare(20), rare(10), rare(5), rare(30), away).prop_map(
        |(fail, corrupt, permanent, stall, breaks, away)| Trouble {
            fail,
            corrupt,
            permanent,
            stall,
            breaks,
            away,
        },
    );
    let link = (1_u64..100, 0_u64..100).prop_map(|(rate, round_trip)| Link {
        rate: rate * 1_000_000,
        round_trip: Duration::from_millis(round_trip),
    });
    let steps = prop::collection::vec((0..LAST, a_step()), 1..60);
    (any::<bool>(), settings(), link, trouble, steps).prop_map(
        |(scattered, settings, link, trouble, mut steps)| {
            steps.sort_by_key(|(at, _)| *at);
            Case { scattered, settings, link, trouble, steps }
        },
    )
}

/// The fate of a fetch: drawn from its number, so that two runs have the same.
fn fate(trouble: Trouble, n: u64, now: Time) -> Fate {
    let (from, span) = trouble.away;
    if (from..from + span).contains(&now.0) {
        return Fate::Fail;
    }
    let mut drawn = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 100;
    let chances = [
        (trouble.fail, Fate::Fail),
        (trouble.corrupt, Fate::Corrupt),
        (trouble.permanent, Fate::Permanent),
        (trouble.stall, Fate::Stall),
        (trouble.breaks, Fate::Break),
    ];
    for (chance, fate) in chances {
        if drawn < chance {
            return fate;
        }
        drawn -= chance;
    }
    Fate::Good
}

fn run(case: &Case) -> Sim {
    let disk = if case.scattered { Disk::scattered(SLICES) } else { Disk::plain(SLICES * SLICE_SIZE) };
    let mut sim = Sim::new(disk, case.settings.clone());
    sim.link = case.link;
    let trouble = case.trouble;
    sim.fates = Box::new(move |n, now, _, _| fate(trouble, n, now));
    for (at, step) in case.steps.clone() {
        sim.run(Time(at));
        match step {
            Step::Read(start, len) => sim.read(start, len),
            Step::Forget(read) => sim.forget(crate::ReadId(read)),
            Step::Plan(plan) => sim.notify(EngineEvent::PlanChanged(plan)),
            Step::FillRate(rate) => sim.notify(EngineEvent::FillRate(rate)),
            Step::Brought(first, units) => sim.bring(first * UNIT, (first + units) * UNIT),
        }
    }
    sim.run(Time(LAST) + DEADLINE + Duration::from_secs(1));
    sim
}

fn check_reads(case: &Case, sim: &Sim) -> Result<(), TestCaseError> {
    let Trouble { corrupt, permanent, .. } = case.trouble;
    for read in &sim.reads {
        let Some((end, result)) = &read.end else {
            prop_assert!(read.forgotten, "{read:?} is never answered");
            continue;
        };
        if result.is_err() && corrupt == 0 && permanent == 0 {
            prop_assert!(end.since(read.at) >= DEADLINE, "{read:?} failed early");
        }
        prop_assert!(end.since(read.at) <= DEADLINE, "{read:?} waited too long");
    }
    let counters = sim.counters();
    let ended =
        counters.completed + counters.failed_deadline + counters.failed_permanent + counters.failed_corrupt;
    prop_assert_eq!(counters.reads, ended + counters.forgotten + counters.refused);
    Ok(())
}

/// No unit is brought twice, unless it was asked for again because it was late, or is between others. Streams, which
/// go through short local ranges, may.
fn check_bytes(case: &Case, sim: &Sim) -> Result<(), TestCaseError> {
    if case.settings.gap > 0 || sim.counters().overtaken + sim.counters().overtaken_in_stream > 0 {
        return Ok(());
    }
    let mut brought = BTreeMap::new();
    for asked in sim.asked.iter().filter(|asked| asked.fate == Fate::Good && !asked.stream) {
        for unit in asked.range.range.parts(4096) {
            let times: &mut u32 = brought.entry((asked.range.blob, unit.offset())).or_default();
            *times += 1;
            prop_assert!(*times == 1, "{} is fetched twice", BlobRange { range: unit, ..asked.range });
        }
    }
    Ok(())
}

/// Without fetches that end badly for good, all wanted bytes are there in the end.
fn check_progress(case: &Case, sim: &mut Sim) -> Result<(), TestCaseError> {
    let Trouble { corrupt, permanent, stall, .. } = case.trouble;
    if corrupt + permanent + stall > 0 {
        return Ok(());
    }
    let last_plan = case.steps.iter().rev().find_map(|(_, step)| match step {
        Step::Plan(plan) => Some(plan.clone()),
        _ => None,
    });
    let whole = ByteRange::between(0, SLICES * SLICE_SIZE);
    if last_plan == Some(Plan::Sequential) {
        prop_assert!(sim.disk.is_local(whole), "the plan is not done: {:?}", sim.counters());
    }
    let last_left = case.steps.iter().rev().find_map(|(_, step)| match step {
        Step::FillRate(rate) => Some(*rate),
        _ => None,
    });
    if last_left.flatten().is_some() {
        sim.run(Time(LAST * 20));
        prop_assert!(sim.disk.is_local(whole), "the disk is not full: {:?}", sim.engine.progress());
        let progress = sim.engine.progress();
        prop_assert_eq!(progress.total, Some(progress.local));
    }
    if case.settings.miss_rest == MissRest::Block {
        for read in sim.reads.iter().filter(|read| !read.forgotten) {
            prop_assert!(sim.disk.is_local(read.part.intersect(whole)));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_read_is_answered_and_every_byte_fetched_once(case in a_case()) {
        let mut sim = run(&case);
        check_reads(&case, &sim)?;
        check_bytes(&case, &sim)?;
        check_progress(&case, &mut sim)?;
    }

    #[test]
    fn the_left_rate_holds(rate in 200_000_u64..5_000_000, link in 6_u64..50, scattered in any::<bool>()) {
        let disk = if scattered { Disk::scattered(SLICES * 8) } else { Disk::plain(SLICES * SLICE_SIZE * 8) };
        let mut sim = Sim::new(disk, EngineSettings::default());
        sim.link.rate = link * 1_000_000;
        sim.notify(EngineEvent::FillRate(Some(rate)));
        sim.run(Time(6_000_000));
        let fills = sim.asked.iter().filter(|asked| asked.priority == Priority::Fill);
        let bytes: u64 = fills.map(|asked| asked.range.len()).sum();
        let slack = (1 << 20) + rate / 10;
        prop_assert!(bytes <= rate * 6 + slack, "{bytes}");
        prop_assert!(bytes + slack >= rate * 6, "{bytes}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_same_seed_gives_the_same_actions(case in a_case()) {
        prop_assert_eq!(run(&case).log, run(&case).log);
    }
}
