//! Bounds against the best of all orders, on traces small enough to try them all.

use super::*;
use crate::evaluate::{BootEvaluator, Evaluator, Misses};
use crate::testing::{Read, trace};
use headstart_block::{BLOCK_SIZE, SLICE_SIZE};
use proptest::prelude::*;

/// All orders of all subsets of the given blocks.
fn orders(of: &[u32]) -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new()];
    let mut at = 0;
    while at < all.len() {
        for id in of {
            if !all[at].contains(id) {
                let longer: Vec<u32> = all[at].iter().copied().chain([*id]).collect();
                all.push(longer);
            }
        }
        at += 1;
    }
    all
}

/// The largest sum by trying everything.
fn by_trying(gains: &[Vec<i64>], taken: u32) -> i64 {
    let Some((row, rest)) = gains.split_first() else { return 0 };
    let free = (0..row.len()).filter(|column| taken >> column & 1 == 0);
    free.map(|column| row[column] + by_trying(rest, taken | 1 << column)).max().unwrap_or(0)
}

/// Boots of at most five blocks, one of which may be the short last one of the disk, some of whose reads are wide.
fn a_boot() -> impl Strategy<Value = Vec<Read>> {
    let pause = prop_oneof![3 => 0_u32..200_000, 2 => 0_u32..1_500_000, 1 => Just(500_000), 1 => Just(0)];
    let read = (pause, 0_u64..5, 0_u64..20, prop_oneof![6 => 1_u64..3, 1 => 20_u64..40]);
    prop::collection::vec(read, 0..14).prop_map(|reads| {
        let mut t_us = 0;
        let mut at = |(pause, block, slice, slices): Read| {
            t_us += pause;
            // The disk ends with slice 22 of block 4.
            let slices = slices.min(4 * 32 + 22 - block * 32 - slice);
            (t_us, block, slice, slices)
        };
        reads.into_iter().map(&mut at).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn assignments_are_the_best(gains in prop::collection::vec(prop::collection::vec(0_i64..20, 6), 0..6)) {
        prop_assert_eq!(assignment(&gains), by_trying(&gains, 0));
    }

    #[test]
    fn no_order_hits_more(reads in a_boot(), rate in prop::sample::select(vec![1_u64, 2, 4, 8])) {
        let mut block_table = BlockTable::new(4 * BLOCK_SIZE + 22 * SLICE_SIZE + 4096);
        // Includes one that nothing reads.
        block_table.add(&[0, 1, 2, 3, 4]);
        let boot = trace(&reads, &mut block_table);
        let bandwidth = Bandwidth::mib(rate);
        let mut evaluator = Evaluator::new(&block_table, bandwidth);
        let best = orders(&[0, 1, 2, 3, 4]).iter().map(|order| evaluator.evaluate(order, &boot).hits).max();
        let bound = hits_at_most(&boot, &block_table, bandwidth);
        prop_assert!(best.unwrap_or(0) <= bound, "{:?} {}", best, bound);
        prop_assert!(bound <= boot.counted().len() as u64);
    }

    #[test]
    fn no_plan_delays_less(reads in a_boot(), rate in 1_u64..9, round_trip in 0_u64..50_000_000) {
        let mut block_table = BlockTable::new(4 * BLOCK_SIZE + 22 * SLICE_SIZE + 4096);
        block_table.add(&[0, 1, 2, 3, 4]);
        let boot = trace(&reads, &mut block_table);
        for misses in [Misses::Block, Misses::RangeThenRest, Misses::Range] {
            let link = BootLink { bandwidth: Bandwidth::mib(rate), round_trip, misses };
            let bound = delay_at_least(&boot, &block_table, &link);
            let masks = crate::Statistics::of([&boot]);
            let mut evaluator = BootEvaluator::new(&block_table, link);
            for order in orders(&[0, 1, 2, 3]) {
                let items: Vec<_> = order.iter().map(|id| (*id, masks.mask(*id, 0.0))).collect();
                let delay = evaluator.evaluate(&items, &boot).delay_ns;
                prop_assert!(delay >= u128::from(bound), "{misses:?} {order:?}: {delay} {bound}");
            }
        }
    }
}

/// Without a choice, the bound is exact: two blocks a second apart, the link brings one a second.
#[test]
fn tight_where_there_is_no_choice() {
    let mut block_table = BlockTable::new(1 << 30);
    let boot = trace(&[(1_000_000, 3, 0, 1), (1_000_001, 3, 0, 1), (1_500_000, 7, 0, 1)], &mut block_table);
    let bandwidth = Bandwidth::mib(2);
    assert_eq!(hits_at_most(&boot, &block_table, bandwidth), 2);
    assert_eq!(Evaluator::new(&block_table, bandwidth).evaluate(&[0, 1], &boot).hits, 2);
}
