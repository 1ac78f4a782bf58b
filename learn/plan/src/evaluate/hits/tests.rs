//! The fast evaluator against examples worked out by hand, and against the plain replay.

use super::*;
use crate::evaluate::replay;
use crate::testing::{Read, trace};
use headstart_block::BLOCK_SIZE;
use proptest::prelude::*;

/// A block takes a second.
const SLOW: Bandwidth = Bandwidth::mib(2);
const SECOND: u32 = 1_000_000;

fn score(order: &[u64], reads: &[Read]) -> Score {
    let mut block_table = BlockTable::new(64 * BLOCK_SIZE);
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    block_table.add(&sorted);
    let trace = trace(reads, &mut block_table);
    let order: Vec<_> = order.iter().map(|block| block_table.id(*block).unwrap()).collect();
    Evaluator::new(&block_table, SLOW).evaluate(&order, &trace)
}

#[test]
fn lazily_every_first_read_waits_for_its_block() {
    let score = score(
        &[],
        &[(SECOND, 0, 0, 1), (SECOND + 500_000, 0, 1, 1), (3 * SECOND, 0, 0, 1), (3 * SECOND, 1, 0, 1)],
    );
    assert_eq!((score.reads, score.hits, score.wait_ns), (4, 1, 2_500_000_000));
    assert_eq!((score.preloaded, score.accuracy()), (0, None));
    assert_eq!((score.pulled, score.found_local, score.artifact_accuracy()), (1, 1, Some(1.0)));
}

#[test]
fn preloading_begins_at_the_creation_and_a_miss_goes_after_the_block_on_the_wire() {
    // 5 is local at 1 s, 6 on the wire until 2 s when 9 misses at 1.5 s; 9 until 3 s, then 7 until 4 s.
    let reads = [(SECOND, 5, 0, 1), (1_500_000, 9, 0, 1), (3_999_999, 7, 0, 1), (4 * SECOND, 7, 0, 1)];
    let score = score(&[5, 6, 7], &reads);
    assert_eq!((score.hits, score.wait_ns, score.wait_max_ns), (2, 1_500_001_000, 1_500_000_000));
    assert_eq!((score.preloaded, score.preloaded_read, score.pulled, score.found_local), (3, 2, 4, 2));
}

#[test]
fn a_preload_on_the_wire_at_the_end_does_not_count() {
    let score = score(&[5, 6], &[(1_500_000, 6, 0, 1)]);
    assert_eq!((score.hits, score.wait_ns, score.preloaded, score.preloaded_read), (0, 500_000_000, 1, 0));
}

#[test]
fn a_read_of_two_blocks_needs_both() {
    let reads = [(1_000_000, 5, 31, 2), (2_000_000, 5, 31, 2)];
    let score = score(&[5, 7], &reads);
    // 7 is on the wire until 2 s, then 6 until 3 s.
    assert_eq!((score.hits, score.wait_ns, score.found_local), (0, 3_000_000_000, 1));
}

fn a_read() -> impl Strategy<Value = Read> {
    (0_u32..40, 0_u64..12, 0_u64..32, 1_u64..40)
        .prop_map(|(t, block, slice, slices)| (t * 100_000, block, slice, slices))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn equals_the_plain_replay(
        mut reads in prop::collection::vec(a_read(), 0..40),
        order in prop::collection::vec(0_u64..16, 0..20),
        rate in 1_u64..20,
        short in 0_u64..BLOCK_SIZE,
    ) {
        reads.sort_unstable();
        let mut block_table = BlockTable::new(14 * BLOCK_SIZE + short);
        block_table.add(&(0..16).collect::<Vec<_>>());
        let trace = trace(&reads, &mut block_table);
        // Ties are the hard case: times of reads and of transfers are often equal here.
        let bandwidth = Bandwidth::mib(rate);
        let ids: Vec<_> = order.iter().map(|block| block_table.id(*block).unwrap()).collect();
        let mut evaluator = Evaluator::new(&block_table, bandwidth);
        let fast = evaluator.evaluate(&ids, &trace);
        let (plain, waits) = replay(&mut order.as_slice(), &trace, &block_table, bandwidth);
        prop_assert_eq!(fast, plain);
        prop_assert_eq!(evaluator.waits(&trace).collect::<Vec<_>>(), waits);
        prop_assert_eq!(evaluator.evaluate(&ids, &trace), fast, "it can be used again");
    }
}
