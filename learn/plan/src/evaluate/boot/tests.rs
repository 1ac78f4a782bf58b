//! The closed loop: examples worked out by hand, and the open loop on the times that it leads to.

use super::*;
use crate::evaluate::replay;
use crate::testing::{Read, trace};
use headstart_block::BLOCK_SIZE;
use proptest::prelude::*;

const SECOND: u32 = 1_000_000;
/// A block takes a second, a slice 31.25 ms.
const SLOW: Bandwidth = Bandwidth::mib(2);
const MILLI: RawNanos = 1_000_000;

fn score(items: &[(u64, u32)], reads: &[Read], misses: Misses, round_trip: RawNanos) -> BootScore {
    let mut block_table = BlockTable::new(64 * BLOCK_SIZE);
    block_table.add(&(0..64).collect::<Vec<_>>());
    let trace = trace(reads, &mut block_table);
    let items: Vec<_> = items.iter().map(|(block, mask)| (block_table.id(*block).unwrap(), *mask)).collect();
    BootEvaluator::new(&block_table, BootLink { bandwidth: SLOW, round_trip, misses })
        .evaluate(&items, &trace)
}

#[test]
fn lazily_a_boot_waits_for_each_block_and_a_round_trip() {
    let reads = [(SECOND, 3, 0, 1), (SECOND + 1, 4, 0, 1), (SECOND + 2, 3, 1, 1), (SECOND + 3, 5, 31, 2)];
    let blocks = score(&[], &reads, Misses::Block, 20 * MILLI);
    // The blocks of one read are asked for together: a round trip less.
    assert_eq!((blocks.delay_ns, blocks.waits, blocks.bytes), (4_060_000_000, 3, 4 * BLOCK_SIZE));
    let ranges = score(&[], &reads, Misses::Range, 20 * MILLI);
    assert_eq!(
        (ranges.delay_ns, ranges.bytes),
        (u128::from(4 * 20 * MILLI + 5 * 31_250_000), 5 * SLICE_SIZE)
    );
}

#[test]
fn the_rest_of_a_block_comes_after_the_plan() {
    let (hot, all) = (1, u32::MAX);
    // 0: slice on the wire 1000 to 1031.25 ms behind block 8; then 9 to 2031.25 ms; then the rest of 0 to 3000 ms.
    let reads = [(500_000, 0, 0, 1), (600_000, 0, 5, 1)];
    let late = score(&[(8, all), (9, all)], &reads, Misses::RangeThenRest, 0);
    // It misses again at 1.13125 s, behind the block on the wire.
    assert_eq!((late.delay_ns, late.waits), (531_250_000 + 931_250_000, 2));
    let reads = [(500_000, 0, 0, 1), (3 * SECOND, 0, 5, 1)];
    assert_eq!(score(&[(8, all), (9, all)], &reads, Misses::RangeThenRest, 0).waits, 1);
    assert_eq!(score(&[(8, all), (0, hot)], &reads, Misses::Range, 0).waits, 2);
}

#[test]
fn hot_ranges_are_there_sooner() {
    let reads = [(100_000, 0, 0, 1), (100_000, 1, 7, 1), (200_000, 2, 1, 1)];
    let items = [(0, 1), (1, 1 << 7), (2, 0b10)];
    assert_eq!(score(&items, &reads, Misses::Range, 0).delay_ns, 0);
    // Whole: 0 until 1 s, the slice of 1 that missed, the rest of 1 until 2 s, the slice of 2 that missed at
    // 1.13125 s.
    let whole = items.map(|(block, _)| (block, u32::MAX));
    assert_eq!(score(&whole, &reads, Misses::Range, 0).delay_ns, 931_250_000 + 900_000_000);
}

#[test]
fn a_burst_waits_for_its_longest() {
    let burst = [(SECOND, 0, 0, 1), (SECOND, 1, 0, 1)];
    assert_eq!(score(&[], &burst, Misses::Block, 0).delay_ns, 2_000_000_000);
    let serial = [(SECOND, 0, 0, 1), (SECOND + 10, 1, 0, 1)];
    assert_eq!(score(&[], &serial, Misses::Block, 50 * MILLI).delay_ns, 2_100_000_000);
    assert_eq!(score(&[], &burst, Misses::Block, 50 * MILLI).delay_ns, 2_050_000_000);
}

fn a_read() -> impl Strategy<Value = Read> {
    (0_u32..40, 0_u64..12, 0_u64..32, 1_u64..40)
        .prop_map(|(t, block, slice, slices)| (t * 100_000, block, slice, slices))
}

proptest! {
    #[test]
    fn a_boot_is_the_open_loop_of_the_times_that_it_leads_to(
        mut reads in prop::collection::vec(a_read(), 1..25),
        order in prop::collection::vec(0_u64..16, 0..20),
        rate in prop::sample::select(vec![1_u64, 2, 4, 5, 8, 10]),
    ) {
        reads.sort_unstable();
        reads.dedup_by_key(|read| read.0);
        let mut block_table = BlockTable::new(16 * BLOCK_SIZE);
        block_table.add(&(0..16).collect::<Vec<_>>());
        let bandwidth = Bandwidth::mib(rate);
        let recorded = trace(&reads, &mut block_table);
        let mut delay = 0;
        let mut shifted = Vec::new();
        for (t, block, slice, slices) in &reads {
            shifted.push((t + delay, *block, *slice, *slices));
            let (_, waits) =
                replay(&mut order.as_slice(), &trace(&shifted, &mut block_table), &block_table, bandwidth);
            delay += (waits[waits.len() - 1] / 1000) as u32;
        }
        let items: Vec<_> = order.iter().map(|block| (block_table.id(*block).unwrap(), u32::MAX)).collect();
        let link = BootLink { bandwidth, round_trip: 0, misses: Misses::Block };
        let score = BootEvaluator::new(&block_table, link).evaluate(&items, &recorded);
        prop_assert_eq!(score.delay_ns, u128::from(delay) * 1000);
        prop_assert_eq!(score.bytes % BLOCK_SIZE, 0);
    }
}
