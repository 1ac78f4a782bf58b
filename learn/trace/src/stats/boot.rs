//! The numbers that the figures of the ThinkAhead paper take from one trace.

use super::BLOCK;
use crate::record::{Op, Record};
use crate::trace::Trace;
use headstart_block::exact;

/// The sizes of blocks, in bytes, for which [`BootCounts::cross`] counts the reads that are in more than one block.
pub const CROSS: [u64; 8] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];

/// Accesses are counted for this time from a trace's first request on, in microseconds: six minutes, as in the
/// ThinkAhead paper.
pub const WINDOW_US: u64 = 360_000_000;
/// The share of reads among the requests is counted for this time from a trace's first request on, in microseconds:
/// three minutes, as in the ThinkAhead paper.
pub const RATIO_US: u64 = 180_000_000;
/// [`pattern`] returns the reads of this time from a trace's first request on, in microseconds: two minutes, as in
/// figure 9 of the ThinkAhead paper.
pub const PATTERN_US: u64 = 120_000_000;
/// Most points of figure 9: more cannot be told apart.
const PATTERN_MAX: usize = 1 << 20;

/// The reads of one block in one trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUse {
    /// The number of the block on the disk (offset divided by 2 MiB).
    pub block: u64,
    /// The number of reads of the block.
    pub count: u64,
    /// The time of the first read of the block, in microseconds since the trace's first request.
    pub first_us: u64,
    /// The sum of the times of all reads of the block, in microseconds since the trace's first request.
    pub sum_us: u64,
}

/// The numbers of one trace that the figures of the ThinkAhead paper are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootCounts {
    /// The number of reads in the first three minutes after the trace's first request.
    pub reads_early: u64,
    /// The number of reads and writes in the first three minutes.
    pub requests_early: u64,
    /// The number of reads in the first six minutes.
    pub reads: u64,
    /// The time from the creation of the disk to its first read, in microseconds; `None` if there are no reads in the
    /// first six minutes, or the time of the creation is unknown.
    pub grace_us: Option<u64>,
    /// The number of reads that are in more than one block, for each size of block in [`CROSS`].
    pub cross: [u64; CROSS.len()],
    /// The times from each read to the next, in microseconds.
    pub intervals_us: Vec<u32>,
    /// The blocks that were read, in ascending order.
    pub blocks: Vec<BlockUse>,
}

impl BootCounts {
    /// Counts the requests of the first six minutes after the trace's first request. The records must be in the order
    /// of time. All numbers are 0 or empty for a trace without records.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let Some(first) = trace.records.first().map(|record| record.t_us) else { return Self::default() };
        let mut boot = Self::default();
        let mut uses = Vec::with_capacity(trace.records.len());
        let mut last_read: Option<u64> = None;
        for record in trace.records.iter().take_while(|record| record.t_us - first <= WINDOW_US) {
            let t_us = record.t_us - first;
            if t_us <= RATIO_US {
                boot.requests_early += 1;
                boot.reads_early += u64::from(record.op == Op::Read);
            }
            if record.op == Op::Write {
                continue;
            }
            boot.reads += 1;
            // The layout of a file by itself does not tell the time at which the disk was created.
            if last_read.is_none() && (first > 0 || trace.creation.size > 0) {
                boot.grace_us = Some(record.t_us.saturating_add(trace.creation.attached_before_us()));
            }
            if let Some(last) = last_read {
                boot.intervals_us.push(exact(record.t_us - last, "WINDOW_US has 32 bits"));
            }
            last_read = Some(record.t_us);
            boot.count_blocks(record, t_us, &mut uses);
        }
        uses.sort_unstable();
        for uses in uses.chunk_by(|a, b| a.0 == b.0) {
            let Some((block, first_us)) = uses.first().copied() else { continue };
            let sum_us = uses.iter().map(|(_, t_us)| t_us).sum();
            boot.blocks.push(BlockUse { block, count: uses.len() as u64, first_us, sum_us });
        }
        boot
    }

    fn count_blocks(&mut self, record: &Record, t_us: u64, uses: &mut Vec<(u64, u64)>) {
        if record.range.is_empty() {
            return;
        }
        let (start, last) = (record.range.offset(), record.range.end() - 1);
        for (cross, size) in self.cross.iter_mut().zip(CROSS) {
            *cross += u64::from(start / size != last / size);
        }
        uses.extend((start / BLOCK..=last / BLOCK).map(|block| (block, t_us)));
    }

    /// Returns the percentage of reads among the requests of the first three minutes; `None` without
    /// requests.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    pub fn read_percent(&self) -> Option<f64> {
        (self.requests_early > 0).then(|| self.reads_early as f64 * 100.0 / self.requests_early as f64)
    }

    /// Returns the percentage of the blocks (2 MiB) of a disk of `size` bytes that were read; `None` if `size` is 0,
    /// which stands for an unknown size.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    pub fn access_percent(&self, size: u64) -> Option<f64> {
        (size > 0).then(|| self.blocks.len() as f64 * 100.0 / size.div_ceil(BLOCK) as f64)
    }
}

/// Returns the first `max` distinct blocks that a trace reads, by their numbers on the disk, in the order of first
/// access. The records must be in the order of time.
#[must_use]
pub fn first_blocks(trace: &Trace, max: usize) -> Vec<u64> {
    let reads = trace.records.iter().filter(|record| record.op == Op::Read && !record.range.is_empty());
    let blocks = reads.flat_map(|read| read.range.offset() / BLOCK..=(read.range.end() - 1) / BLOCK);
    let mut first = Vec::with_capacity(max.min(trace.records.len()));
    let mut seen = std::collections::BTreeSet::new();
    for block in blocks {
        if first.len() == max {
            break;
        }
        if seen.insert(block) {
            first.push(block);
        }
    }
    first
}

/// Returns the points of figure 9 of the ThinkAhead paper, at most 2^20: the reads of the first two minutes. A point is
/// the time in microseconds since the first request, and the number of the block (2 MiB) that is read. A read of
/// several blocks has a point for each block. The records must be in the order of time.
#[must_use]
pub fn pattern(trace: &Trace) -> Vec<(u64, u64)> {
    let Some(first) = trace.records.first().map(|record| record.t_us) else { return Vec::new() };
    let early = trace.records.iter().take_while(|record| record.t_us.saturating_sub(first) <= PATTERN_US);
    let reads = early.filter(|record| record.op == Op::Read && !record.range.is_empty());
    let blocks = reads.flat_map(|read| {
        let blocks = read.range.offset() / BLOCK..=(read.range.end() - 1) / BLOCK;
        blocks.map(move |block| (read.t_us - first, block))
    });
    blocks.take(PATTERN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Creation;
    use headstart_block::ByteRange;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn trace(requests: &[(u64, Op, u64, u64)]) -> Trace {
        let record = |&(t_us, op, offset, len): &(u64, Op, u64, u64)| Record {
            t_us,
            op,
            range: ByteRange::between(offset, offset + len),
            service_us: None,
        };
        let creation = Creation { size: 100 * BLOCK, ..Creation::default() };
        Trace { creation, records: requests.iter().map(record).collect(), ..Trace::default() }
    }

    #[test]
    fn a_boot_is_summed_up() {
        let start = 4_000_000;
        let boot = trace(&[
            (start, Op::Write, 0, 512),
            (start + 10, Op::Read, 0, 512),
            (start + 30, Op::Read, BLOCK - 512, 1024),
            (start + RATIO_US + 1, Op::Read, 0, 0),
            (start + WINDOW_US, Op::Read, 9 * BLOCK, 512),
            (start + WINDOW_US + 1, Op::Read, 50 * BLOCK, 512),
        ]);
        let order = first_blocks(&boot, 3);
        assert_eq!(pattern(&boot), [(10, 0), (30, 0), (30, 1)]);
        let boot = BootCounts::of(&boot);
        assert_eq!((boot.requests_early, boot.reads_early, boot.reads), (3, 2, 4));
        assert_eq!(boot.grace_us, Some(start + 10));
        assert_eq!(boot.cross, [1, 1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(boot.intervals_us, [20, 180_000_001 - 30, 180_000_000 - 1]);
        let expected = [(0, 2, 10, 40), (1, 1, 30, 30), (9, 1, WINDOW_US, WINDOW_US)];
        let expected =
            expected.map(|(block, count, first_us, sum_us)| BlockUse { block, count, first_us, sum_us });
        assert_eq!(boot.blocks, expected);
        assert_eq!((boot.access_percent(100 * BLOCK), boot.access_percent(0)), (Some(3.0), None));
        assert_eq!((order, BootCounts::of(&Trace::default())), (vec![0, 1, 9], BootCounts::default()));
    }

    proptest! {
        /// The same as with a map.
        #[test]
        fn blocks_are_those_of_a_map(
            reads in prop::collection::vec((0_u64..1_000, 0_u64..40 * BLOCK, 0_u64..3 * BLOCK), 1..60),
        ) {
            let mut reads = reads;
            reads.sort_unstable();
            let requests: Vec<_> = reads.iter().map(|&(t, offset, len)| (t, Op::Read, offset, len)).collect();
            let boot = BootCounts::of(&trace(&requests));
            let mut map = BTreeMap::<u64, (u64, u64, u64)>::new();
            for (t, offset, len) in &reads {
                let t = t - reads[0].0;
                for block in (0..*len).step_by(512 << 10).map(|byte| (offset + byte) / BLOCK).chain(
                    len.checked_sub(1).map(|last| (offset + last) / BLOCK)).collect::<std::collections::BTreeSet<_>>() {
                    let entry = map.entry(block).or_insert((0, t, 0));
                    *entry = (entry.0 + 1, entry.1, entry.2 + t);
                }
            }
            let found: Vec<_> = boot.blocks.iter().map(|b| (b.block, (b.count, b.first_us, b.sum_us))).collect();
            prop_assert_eq!(found, map.into_iter().collect::<Vec<_>>());
        }
    }
}
