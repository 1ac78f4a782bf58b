//! The reads of a trace, in sums.
//!
//! Counting takes one pass over the records and one sort of the reads by offset, and needs no map. A distinct unit is
//! counted once, however often it is read. Reads in the order of their offsets are also in the order of their units,
//! for every size of unit. So a unit was counted before if and only if it is not behind the unit that was counted last.

use crate::record::{Op, Record};
use serde::Serialize;

/// The units, in bytes, in which distinct data are counted: pages, slices and blocks.
pub const UNITS: [u64; 3] = [4 << 10, 64 << 10, 2 << 20];

/// The upper bounds, inclusive and in bytes, of the size classes of reads. One more class, the last, has no
/// bound.
pub const SIZES: [u64; 9] =
    [512, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20];

/// Counts of the requests of one trace, or sums over several traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestStats {
    /// The number of reads.
    pub reads: u64,
    /// The number of writes.
    pub writes: u64,
    /// The total length of the reads, in bytes.
    pub read_bytes: u64,
    /// The total length of the writes, in bytes.
    pub written_bytes: u64,
    /// The total size of the distinct units that were read, in bytes, for each unit in [`UNITS`]. For several
    /// traces, the sum.
    pub distinct_bytes: [u64; UNITS.len()],
    /// The number of reads that are in more than one block of 2 MiB.
    pub cross_block_reads: u64,
    /// Time from the creation to the first request, in microseconds; for several traces, the sum.
    pub first_us: u64,
    /// Time from the first request to the last, in microseconds; for several traces, the sum.
    pub duration_us: u64,
    /// The number of reads in each size class; [`SIZES`] has the bounds.
    pub sizes: [u64; SIZES.len() + 1],
}

impl RequestStats {
    /// Counts the requests of one trace, whose records are in the order of time.
    #[must_use]
    pub fn of(records: &[Record]) -> Self {
        let mut stats = Self::default();
        let mut read = Vec::with_capacity(records.len());
        for record in records {
            let len = record.range.len();
            if record.op == Op::Write {
                stats.writes += 1;
                stats.written_bytes = stats.written_bytes.saturating_add(len);
                continue;
            }
            stats.reads += 1;
            stats.read_bytes = stats.read_bytes.saturating_add(len);
            let class = SIZES.iter().position(|size| len <= *size).unwrap_or(SIZES.len());
            stats.sizes[class] += 1;
            if len > 0 {
                let [_, _, block] = UNITS;
                let last = record.range.end() - 1;
                stats.cross_block_reads += u64::from(record.range.offset() / block != last / block);
                read.push((record.range.offset(), last));
            }
        }
        read.sort_unstable();
        stats.distinct_bytes = UNITS.map(|unit| distinct_bytes(&read, unit));
        if let (Some(first), Some(last)) = (records.first(), records.last()) {
            stats.first_us = first.t_us;
            stats.duration_us = last.t_us.saturating_sub(first.t_us);
        }
        stats
    }

    /// Adds the counts of another trace, or of several.
    pub fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, value: u64| *sum = sum.saturating_add(value);
        add(&mut self.reads, other.reads);
        add(&mut self.writes, other.writes);
        add(&mut self.read_bytes, other.read_bytes);
        add(&mut self.written_bytes, other.written_bytes);
        add(&mut self.cross_block_reads, other.cross_block_reads);
        add(&mut self.first_us, other.first_us);
        add(&mut self.duration_us, other.duration_us);
        self.distinct_bytes.iter_mut().zip(other.distinct_bytes).for_each(|(sum, value)| add(sum, value));
        self.sizes.iter_mut().zip(other.sizes).for_each(|(sum, value)| add(sum, value));
    }
}

/// Returns the median of some numbers; of an even count, the greater of the two in the middle. 0 without numbers.
#[must_use]
pub fn median(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers: Vec<_> = numbers.collect();
    let middle = numbers.len() / 2;
    if numbers.is_empty() { 0 } else { *numbers.select_nth_unstable(middle).1 }
}

/// Bytes of the distinct units in `reads`: first and last byte of each, sorted.
fn distinct_bytes(reads: &[(u64, u64)], unit: u64) -> u64 {
    let (mut units, mut next) = (0_u64, 0);
    for (first, last) in reads {
        let (first, end) = ((first / unit).max(next), last / unit + 1);
        units += end.saturating_sub(first);
        next = next.max(end);
    }
    units.saturating_mul(unit)
}

/// Returns the size class with the index `class` in [`RequestStats::sizes`] as text for people: "up to" its
/// upper bound or, for the last class, "over" the greatest bound.
#[must_use]
pub fn size_class(class: usize) -> String {
    let size = |bytes| headstart_block::ByteSize(bytes).to_string();
    match SIZES.get(class) {
        Some(bytes) => format!("up to {}", size(*bytes)),
        None => format!("over {}", size(SIZES[SIZES.len() - 1])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ByteRange;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn read(t_us: u64, offset: u64, len: u64) -> Record {
        Record { t_us, op: Op::Read, range: ByteRange::between(offset, offset + len), service_us: None }
    }

    #[test]
    fn requests_are_counted_by_kind_and_size() {
        let mut records = vec![read(10, 0, 4096), read(20, 4095, 2), read(30, (2 << 20) - 512, 1024)];
        records.push(Record { op: Op::Write, ..read(70, 1 << 30, 4096) });
        records.push(read(70, 5, 0));
        let stats = RequestStats::of(&records);
        assert_eq!((stats.reads, stats.writes, stats.read_bytes, stats.written_bytes), (4, 1, 5122, 4096));
        // Pages 0, 1, and the last of block 0 and the first of block 1.
        assert_eq!(stats.distinct_bytes, [4 * 4096, 3 * 65536, 2 << 21]);
        assert_eq!((stats.cross_block_reads, stats.first_us, stats.duration_us), (1, 10, 60));
        assert_eq!(stats.sizes, [2, 2, 0, 0, 0, 0, 0, 0, 0, 0].map(|n: u64| n));
        let mut sum = RequestStats::default();
        sum.add(&stats);
        sum.add(&stats);
        assert_eq!((sum.reads, sum.distinct_bytes[2], sum.duration_us), (8, 4 << 21, 120));
        assert_eq!(RequestStats::of(&[]), RequestStats::default());
    }

    proptest! {
        #[test]
        fn distinct_bytes_are_those_of_a_set(reads in prop::collection::vec((0_u64..1 << 22, 1_u64..200_000), 0..40)) {
            let records: Vec<_> = reads.iter().map(|&(offset, len)| read(0, offset, len)).collect();
            let expected = UNITS.map(|unit| {
                let units: BTreeSet<_> =
                    reads.iter().flat_map(|(offset, len)| offset / unit..=(offset + len - 1) / unit).collect();
                units.len() as u64 * unit
            });
            prop_assert_eq!(RequestStats::of(&records).distinct_bytes, expected);
        }
    }
}
