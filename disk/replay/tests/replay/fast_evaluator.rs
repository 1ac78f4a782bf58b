//! The evaluators of `headstart-plan`, which searches of plans use, agree with the engine in the paper's model.
//!
//! On any boot, any order of blocks, known before or found as reads come, and any bandwidth, the waits of each read are
//! the same to the nanosecond, and so is each count.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]

use headstart_block::{BLOCK_SIZE, ByteRange, Plan, PlanItem, SLICE_SIZE};
use headstart_plan::evaluate::{Evaluator, Online, Score, replay};
use headstart_plan::{Bandwidth, BlockTable, CompactTrace};
use headstart_pull::Engine;
use headstart_replay::{Boot, BootOutcome, Guide, Model, Nanos, Simulator};
use headstart_trace::{Op, Record};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct Case {
    disk_size: u64,
    records: Vec<Record>,
    order: Vec<u64>,
    rate: u64,
}

/// Boots of a small disk, whose blocks are read again and again, and of one with more blocks than the engine looks at
/// in one event; short and long ones (more reads than count).
fn a_case() -> impl Strategy<Value = Case> {
    let blocks = prop_oneof![4 => Just(20_u64), 1 => Just(2000)];
    let count = prop_oneof![8 => 0_usize..120, 1 => 2990_usize..3010];
    let rate = prop_oneof![
        3 => prop::sample::select(vec![2, 4, 6, 8, 10, 30, 50, 70, 90, 150]).prop_map(|rate: u64| rate * MIB),
        1 => 500_000_u64..200_000_000,
    ];
    (blocks, count, rate, 0..32 * SLICE_SIZE / 512).prop_flat_map(|(blocks, count, rate, short)| {
        let disk_size = blocks * BLOCK_SIZE - short * 512;
        // Halves of a second fall together with the ends of blocks at powers of two.
        let pause = prop_oneof![
            4 => 0_u64..3000, 2 => 0_u64..1_500_000, 1 => Just(500_000), 2 => Just(0), 1 => Just(7_812)
        ];
        let len = prop_oneof![6 => Just(4096_u64), 2 => 512_u64..150_000, 1 => MIB..5 * MIB];
        let read = (pause, 0..blocks, 0..BLOCK_SIZE / 512, len, 0_u32..20);
        let reads = prop::collection::vec(read, count);
        let order = prop::collection::vec(0..blocks, 0..(blocks as usize * 3 / 2).min(700));
        (reads, order).prop_map(move |(reads, order)| {
            let mut t_us = 0;
            let record = |(pause, block, sector, len, kind): (u64, u64, u64, u64, u32)| {
                t_us += pause;
                let start = (block * BLOCK_SIZE + sector * 512).min(disk_size - 512);
                let range = ByteRange::between(start, (start + len).min(disk_size));
                let op = if kind == 0 { Op::Write } else { Op::Read };
                Record { t_us, op, range, service_us: (kind == 1).then_some(5000) }
            };
            Case { disk_size, records: reads.into_iter().map(record).collect(), order, rate }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_engine(case in a_case()) {
        let Case { disk_size, records, order, rate } = case;
        let mut block_table = BlockTable::new(disk_size);
        let compact = CompactTrace::of_records(&records, &mut block_table);
        let mut known = order.clone();
        known.sort_unstable();
        known.dedup();
        block_table.add(&known);
        let ids: Vec<_> = order.iter().filter_map(|block| block_table.id(*block)).collect();
        let mut evaluator = Evaluator::new(&block_table, Bandwidth::new(rate));
        let score = evaluator.evaluate(&ids, &compact);

        let boot = Boot::of_records(disk_size, &records, 1);
        let mut simulator = Simulator::new();
        let outcome = simulator.run(&boot, &plan(&order), &Model::paper(rate));

        let waits: Vec<_> = evaluator.waits(&compact).collect();
        agree(&outcome, simulator.waits(), &score, &waits)?;
    }

    /// The evaluators agree also for plans that are decided as reads come.
    #[test]
    fn agrees_with_the_engine_read_by_read(case in a_case(), depth in 0_u64..9, every in 1_u64..9) {
        let Case { disk_size, records, order, rate } = case;
        let mut block_table = BlockTable::new(disk_size);
        let compact = CompactTrace::of_records(&records, &mut block_table);
        let ahead = Ahead { first: order, depth, every, seen: 0 };
        let (score, waits) = replay(&mut ahead.clone(), &compact, &block_table, Bandwidth::new(rate));
        let boot = Boot::of_records(disk_size, &records, 1);
        let mut simulator = Simulator::new();
        let outcome = simulator.run_guided(&boot, &mut ahead.clone(), &Model::paper(rate));
        agree(&outcome, simulator.waits(), &score, &waits)?;
    }
}

fn agree(outcome: &BootOutcome, waited: &[Nanos], score: &Score, waits: &[u64]) -> Result<(), TestCaseError> {
    prop_assert_eq!(waited.iter().map(|wait| wait.0).collect::<Vec<_>>(), waits);
    prop_assert_eq!((outcome.reads, outcome.hits), (score.reads, score.hits));
    prop_assert_eq!(u128::from(outcome.waited.0), score.wait_ns);
    prop_assert_eq!(waits.iter().max().copied().unwrap_or(0), score.wait_max_ns);
    let accuracy = outcome.accuracy;
    prop_assert_eq!((accuracy.preloaded, accuracy.read), (score.preloaded, score.preloaded_read));
    prop_assert_eq!((accuracy.pulled, accuracy.found), (score.pulled, score.found_local));
    Ok(())
}

/// Begins with an order, then goes where some of the reads go.
#[derive(Clone)]
struct Ahead {
    first: Vec<u64>,
    depth: u64,
    every: u64,
    seen: u64,
}

impl Ahead {
    fn after(&mut self, block: u64) -> Option<Vec<u64>> {
        self.seen += 1;
        self.seen.is_multiple_of(self.every).then(|| (1..=self.depth).map(|step| block + step).collect())
    }
}

impl Online for Ahead {
    fn at_creation(&mut self) -> Vec<u64> {
        self.first.clone()
    }

    fn on_read(&mut self, blocks: &[u64]) -> Option<Vec<u64>> {
        self.after(*blocks.last()?)
    }
}

impl Guide for Ahead {
    fn at_creation(&mut self) -> Plan {
        plan(&self.first)
    }

    fn on_read(&mut self, _: Nanos, range: ByteRange, _: &Engine) -> Option<Plan> {
        self.after((range.end() - 1) / BLOCK_SIZE).map(|blocks| plan(&blocks))
    }
}

fn plan(blocks: &[u64]) -> Plan {
    Plan::List(blocks.iter().map(|block| PlanItem::whole(*block)).collect())
}
