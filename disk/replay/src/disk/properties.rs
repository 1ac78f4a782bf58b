//! Properties that hold for any boot and any plan.

use super::*;
use crate::link::{Failures, Latency};
use crate::model::ReplayClock;
use headstart_pull::{MissRest, SLICE_SIZE};
use headstart_trace::{Op, Record};
use proptest::prelude::*;
use std::time::Duration;

/// Blocks of a plan.
const BLOCKS: u64 = 26;

/// A disk that boots read again and again, or one with more blocks than the engine looks at in one event.
fn a_size() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(24 * BLOCK_SIZE - 3 * SLICE_SIZE), 1 => Just(700 * BLOCK_SIZE - SLICE_SIZE / 2)]
}

fn a_boot() -> impl Strategy<Value = Boot> {
    let len = prop_oneof![4 => Just(4096_u64), 2 => 512..200_000_u64, 1 => 1_u64 << 20..5 << 20];
    let pause = prop_oneof![3 => 0_u64..20_000, 2 => 0_u64..2_000_000, 1 => Just(0_u64)];
    let service = prop::option::of(0_u32..100_000);
    let read = (pause, 0..24 * BLOCK_SIZE / 512, 0_u64..30, len, service, 0_u32..8);
    (a_size(), prop::collection::vec(read, 0..80)).prop_map(|(size, reads)| {
        let mut t_us = 0;
        let record = |(pause, sector, far, len, service_us, kind): (u64, u64, u64, u64, Option<u32>, u32)| {
            t_us += pause;
            let start = (sector * 512 + far * 20 * BLOCK_SIZE) % size;
            Record {
                t_us,
                op: if kind == 0 { Op::Write } else { Op::Read },
                range: ByteRange::between(start, (start + len).min(size)),
                service_us,
            }
        };
        Boot::of_records(size, &reads.into_iter().map(record).collect::<Vec<_>>(), 1)
    })
}

fn a_plan() -> impl Strategy<Value = Plan> {
    let item = (0..BLOCKS, prop_oneof![any::<u32>(), Just(u32::MAX)]);
    let item = item.prop_map(|(block, mask)| PlanItem { block, mask });
    prop_oneof![
        1 => Just(Plan::Lazy),
        1 => Just(Plan::Sequential),
        5 => prop::collection::vec(item, 0..30).prop_map(|items| Plan::List(items.into())),
    ]
}

fn a_rate() -> impl Strategy<Value = u64> {
    prop_oneof![1_000_000_u64..20_000_000, Just(BLOCK_SIZE), Just(4 * BLOCK_SIZE), Just(100_000_000)]
}

fn a_real_model() -> impl Strategy<Value = Model> {
    let misses = prop_oneof![
        Just(MissPolicy::Own(MissRest::Block)),
        Just(MissPolicy::Own(MissRest::None)),
        Just(MissPolicy::Blocks)
    ];
    let preloads = prop_oneof![Just(PreloadUnit::Slices), Just(PreloadUnit::Blocks)];
    let link = (a_rate(), 0_u64..100, 0_u64..50);
    let rest = (any::<bool>(), prop::option::of(1_u64..50_000), prop::option::of(100_000_u64..10_000_000));
    let away = prop::collection::vec((0_u64..20_000_000, 0_u64..30_000_000), 0..3);
    let failures = (prop_oneof![2 => Just(0_u32), 1 => 1_u32..300_000], away);
    (misses, preloads, link, rest, failures, any::<u64>()).prop_map(
        |(
            misses,
            preloads,
            (rate, round_trip, spread),
            (open, stored, fill_rate),
            (per_million, away),
            seed,
        )| {
            let mut model = Model::real(rate, Duration::from_millis(round_trip));
            let span = |(from, long): (u64, u64)| (Nanos::from_micros(from), Nanos::from_micros(from + long));
            let away = away.into_iter().map(span).collect();
            model.link.failures = Failures { per_million, away, ..Failures::default() };
            model.link.latency = Latency { spread: Duration::from_millis(spread), ..Latency::default() };
            let clock = if open { ReplayClock::Open } else { ReplayClock::Closed };
            Model { misses, preloads, clock, stored, fill_rate, seed, ..model }
        },
    )
}

/// The paper's model as plainly as can be: a clock that steps from block to block, with nothing of the engine's.
fn plain_waits(boot: &Boot, plan: &Plan, rate: u64, fills: bool) -> Vec<u64> {
    let blocks = boot.disk_size().div_ceil(BLOCK_SIZE);
    let mut order: Vec<u64> = match plan {
        Plan::Lazy => Vec::new(),
        Plan::Sequential => (0..blocks).collect(),
        Plan::List(items) => {
            items.iter().filter(|item| item.mask != 0 || fills).map(|item| item.block).collect()
        }
    };
    if let (Plan::List(items), true) = (plan, fills) {
        order = items.iter().map(|item| item.block).collect();
    }
    if fills {
        order.extend(0..blocks);
    }
    order.retain(|block| *block < blocks);
    let took = |block: u64| {
        let len = BLOCK_SIZE.min(boot.disk_size() - block * BLOCK_SIZE);
        (u128::from(len) * 1_000_000_000).div_ceil(u128::from(rate)) as u64
    };
    // The time at which each block is local; a requested block is sure to come, in the order of the requests.
    let mut local = vec![u64::MAX; blocks as usize];
    let (mut free_at, mut next) = (0, 0);
    let mut waits = Vec::new();
    for read in boot.reads() {
        let now = read.at.0;
        // Preloads that began before now. One that would begin at this very moment begins before the read as well.
        while free_at <= now && next < order.len() {
            let block = order[next];
            next += 1;
            if local[block as usize] == u64::MAX {
                free_at += took(block);
                local[block as usize] = free_at;
            }
        }
        // The link rests when there is nothing to preload.
        free_at = free_at.max(now);
        let mut wait = 0;
        for block in read.range.offset() / BLOCK_SIZE..read.range.end().div_ceil(BLOCK_SIZE) {
            if local[block as usize] == u64::MAX {
                free_at += took(block);
                local[block as usize] = free_at;
            }
            wait = wait.max(local[block as usize].saturating_sub(now));
        }
        waits.push(wait);
    }
    waits
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The engine under the paper's settings does what the paper says, to the nanosecond.
    #[test]
    fn the_engine_follows_the_papers_model(
        boot in a_boot(), plan in a_plan(), rate in a_rate(), fills in any::<bool>(),
    ) {
        let model = Model::paper(rate);
        let model = if fills { model.with_fill() } else { model };
        let plan = match plan {
            Plan::List(items) => Plan::List(items.iter().map(|item| PlanItem::whole(item.block)).collect()),
            other => other,
        };
        let mut simulator = Simulator::new();
        let outcome = simulator.run(&boot, &plan, &model);
        let waits: Vec<_> = simulator.waits().iter().map(|wait| wait.0).collect();
        let wanted = plain_waits(&boot, &plan, rate, fills);
        prop_assert_eq!(outcome.hits as usize, wanted.iter().filter(|wait| **wait == 0).count());
        prop_assert_eq!(&waits, &wanted);
        prop_assert_eq!(outcome.waited.0, wanted.iter().sum::<u64>());
        // Reads that follow others change nothing.
        let all = simulator.run(&boot, &plan, &Model { report_all: true, ..model });
        prop_assert_eq!(all, outcome);
        let again: Vec<_> = simulator.waits().iter().map(|wait| wait.0).collect();
        prop_assert_eq!(again, waits);
    }

    /// Two runs with one seed are the same to the last bit, whatever ran before in the same memory.
    #[test]
    fn the_same_seed_gives_the_same_outcome(
        boot in a_boot(), other in a_boot(), plan in a_plan(), model in a_real_model(), paper in any::<bool>(),
    ) {
        let model = if paper { Model::paper(3_000_000) } else { model };
        let mut simulator = Simulator::new();
        let first = simulator.run(&boot, &plan, &model);
        let waits = simulator.waits().to_vec();
        simulator.run(&other, &plan, &model);
        prop_assert_eq!(simulator.run(&boot, &plan, &model), first);
        prop_assert_eq!(simulator.waits(), &waits[..]);
    }

    /// Every read is answered, and the books agree.
    #[test]
    fn waits_hits_and_bytes_of_an_outcome_add_up(boot in a_boot(), plan in a_plan(), model in a_real_model()) {
        let mut simulator = Simulator::new();
        let outcome = simulator.run(&boot, &plan, &model);
        let waits = simulator.waits();
        prop_assert_eq!(outcome.reads as usize, boot.reads().len());
        prop_assert_eq!(waits.len(), boot.reads().len());
        prop_assert!(outcome.hits as usize <= waits.iter().filter(|wait| wait.0 == 0).count());
        prop_assert_eq!(outcome.waited.0, waits.iter().map(|wait| wait.0).sum::<u64>());
        prop_assert_eq!(outcome.slow.total() as usize, waits.iter().filter(|wait| **wait > SLOW).count());
        let Accuracy { preloaded, read, pulled, found } = outcome.accuracy;
        prop_assert!(read <= preloaded && preloaded <= pulled && found <= pulled, "{:?}", outcome.accuracy);
        prop_assert!(outcome.bytes_before_last_read <= outcome.bytes.total());
        if plan == Plan::Lazy && model.fill_rate.is_none() && model.misses != MissPolicy::Own(MissRest::Block) {
            prop_assert_eq!((outcome.bytes.preload, outcome.bytes.fill), (0, 0));
        }
        if model.clock == ReplayClock::Open {
            let last = boot.reads().iter().zip(waits).map(|(read, wait)| read.at.plus(*wait)).max();
            prop_assert_eq!(outcome.last_read, last.unwrap_or_default());
        }
    }
}
