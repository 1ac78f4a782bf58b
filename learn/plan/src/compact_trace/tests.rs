//! Compacting keeps the content of the reads.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const DISK: u64 = 16 * BLOCK_SIZE - 4096;

fn read(t_us: u64, offset: u64, len: u64) -> Record {
    Record { t_us, op: Op::Read, range: ByteRange::new(offset, len).unwrap(), service_us: None }
}

#[test]
fn masks_are_of_slices() {
    let mask = |offset, len, block| mask_of(ByteRange::new(offset, len).unwrap(), block);
    assert_eq!(mask(0, 1, 0), 1);
    assert_eq!(mask(SLICE_SIZE - 1, 2, 0), 0b11);
    assert_eq!(mask(0, BLOCK_SIZE, 0), u32::MAX);
    assert_eq!(mask(BLOCK_SIZE - 512, 1024, 0), 1 << 31);
    assert_eq!(mask(BLOCK_SIZE - 512, 1024, 1), 1);
    assert_eq!(mask(SLICE_SIZE, 3 * BLOCK_SIZE, 1), u32::MAX);
}

#[test]
fn invalid_records_are_left_out_and_counted() {
    let mut block_table = BlockTable::new(DISK);
    let mut records = vec![read(5, 0, 512), read(6, DISK - 512, 1024), read(u64::MAX, 0, 512), read(7, 9, 0)];
    records.push(Record { op: Op::Write, ..read(8, 0, 512) });
    let trace = CompactTrace::of_records(&records, &mut block_table);
    assert_eq!((trace.reads().len(), trace.left_out(), block_table.len()), (1, 2, 1));
    assert_eq!((trace.grace_us(), trace.duration_us()), (5, 0));
    let empty = CompactTrace::of_records(&[], &mut block_table);
    assert_eq!((empty.grace_us(), empty.duration_us(), empty.first_accesses().len()), (0, 0, 0));
}

#[test]
fn reads_under_way_together_are_one_burst() {
    let mut block_table = BlockTable::new(DISK);
    let block = |t_us, block, service_us| Record { service_us, ..read(t_us, block * BLOCK_SIZE, 512) };
    let records = [
        block(0, 0, Some(50)),
        block(10, 1, Some(9)),
        block(15, 2, Some(9)),
        block(30, 3, None),
        block(31, 0, None),
    ];
    let trace = CompactTrace::of_records(&records, &mut block_table);
    let joins: Vec<_> = trace.fresh.iter().map(|fresh| (fresh.read, fresh.joins)).collect();
    assert_eq!(joins, [(0, false), (1, true), (2, true), (3, false)]);
}

#[test]
fn a_faster_guest_keeps_its_grace_period() {
    let mut block_table = BlockTable::new(DISK);
    let trace = CompactTrace::of_records(&[read(100, 0, 1), read(150, 0, 1)], &mut block_table);
    let faster = trace.faster(5, &block_table);
    assert_eq!(faster.reads().iter().map(|read| read.t_us).collect::<Vec<_>>(), [100, 110]);
}

#[test]
fn another_image_names_the_same_blocks_by_its_own_numbers() {
    let (mut ours, mut theirs) = (BlockTable::new(DISK), BlockTable::new(DISK));
    theirs.add(&[5]);
    let records = [read(100, 9 * BLOCK_SIZE, 1), read(150, 6 * BLOCK_SIZE - 1, 2)];
    let trace = CompactTrace::of_records(&records, &mut ours);
    let moved = trace.renumbered(&ours, &mut theirs);
    assert_eq!(
        moved.first_accesses().iter().map(|id| theirs.blocks()[*id as usize]).collect::<Vec<_>>(),
        [9, 5, 6]
    );
    let expected = CompactTrace::of_records(&records, &mut theirs);
    assert_eq!((moved.reads(), &moved.accesses), (expected.reads(), &expected.accesses));
}

proptest! {
    #[test]
    fn the_tables_tell_what_the_reads_tell(
        reads in prop::collection::vec((0_u64..1000, 0..DISK - (5 << 20), 1_u64..5 << 20), 0..60)
    ) {
        let mut records: Vec<_> = reads.iter().map(|(t, offset, len)| read(*t, *offset, *len)).collect();
        records.sort_by_key(|record| record.t_us);
        let mut block_table = BlockTable::new(DISK);
        let trace = CompactTrace::of_records(&records, &mut block_table);
        let mut blocks: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut singles: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let mut slices = BTreeSet::new();
        let mut fresh = Vec::new();
        for (number, record) in records.iter().enumerate() {
            let range = record.range.offset() / BLOCK_SIZE..=(record.range.end() - 1) / BLOCK_SIZE;
            for block in range.clone() {
                blocks.entry(block).or_default().push(record.t_us);
            }
            if range.start() == range.end() {
                singles.entry(*range.start()).or_default().push(u32::try_from(record.t_us).unwrap());
            }
            let all = record.range.offset() / SLICE_SIZE..=(record.range.end() - 1) / SLICE_SIZE;
            if all.fold(false, |new, slice| slices.insert(slice) | new) {
                fresh.push(u32::try_from(number).unwrap());
            }
        }
        prop_assert_eq!(trace.first_accesses().len(), blocks.len());
        for block in &trace.blocks {
            let number = block_table.blocks()[block.block as usize];
            let times = &blocks[&number];
            prop_assert_eq!(u64::from(block.first_us), times[0]);
            prop_assert_eq!(u64::from(block.last_us), times[times.len() - 1]);
            prop_assert_eq!(block.count as usize, times.len());
            let (times, sums) = trace.times(block);
            prop_assert_eq!(times, singles.get(&number).map_or(&[][..], |times| &times[..]));
            let sum: u64 = times.iter().map(|time| u64::from(*time)).sum();
            prop_assert_eq!(sums[times.len()] - sums[0], sum);
        }
        prop_assert_eq!(trace.fresh.iter().map(|fresh| fresh.read).collect::<Vec<_>>(), fresh);
        let mut touched = BTreeSet::new();
        for access in trace.reads().iter().flat_map(|read| trace.accesses(read)) {
            let block = block_table.blocks()[access.block as usize];
            touched.extend((0..32).filter(|slice| access.mask >> slice & 1 == 1).map(|slice| block * 32 + slice));
        }
        prop_assert_eq!(touched, slices);
    }
}
