//! Statistics of each block over many traces: sums and extremes, so that traces can be added one by one, and the
//! statistics of two parts of a data set can be merged. The ThinkAhead paper's score (section 5.3) needs no more.
//!
//! Times count from the trace's first read, in microseconds. There are separate numbers for all reads and for the first
//! 3,000 reads of a trace, which hit rates count: an order for hits gains nothing from later reads, but a guest waits
//! for these too.

use crate::block_table::{BlockId, BlockTable};
use crate::compact_trace::{CompactTrace, READS_MAX};
use crate::slices;
use headstart_block::saturating;

/// The reads of a trace that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadWindow {
    /// All reads: a guest waits for late ones too.
    All,
    /// The first [`READS_MAX`] reads, which hit rates count.
    Counted,
}

/// The number of reads of one block over several traces, and the times of these reads, counted from each trace's first
/// read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessTimes {
    /// The number of reads of the block.
    pub count: u64,
    /// The number of traces that read the block.
    pub traces: u32,
    /// The time of the earliest read, in microseconds since the trace's first read; 0 without reads.
    pub min_us: u32,
    /// The sum of the times of all reads, in microseconds since each trace's first read.
    pub sum_us: u64,
    /// The sum, over the traces that read the block, of the time of the block's first read, in microseconds since
    /// the trace's first read.
    pub first_sum_us: u64,
}

impl AccessTimes {
    /// Returns the average time of a read, in microseconds since the trace's first read; 0 without reads.
    #[must_use]
    pub fn average_us(&self) -> f64 {
        ratio(self.sum_us, self.count)
    }

    /// Returns the average time of the first read of the block, in microseconds since the trace's first read;
    /// 0 if no trace reads it.
    #[must_use]
    pub fn first_average_us(&self) -> f64 {
        ratio(self.first_sum_us, u64::from(self.traces))
    }

    /// Returns the average time of the first read of the block, in whole milliseconds since the trace's first
    /// read; `None` if no trace reads it.
    #[must_use]
    pub fn first_average_ms(&self) -> Option<u32> {
        let average = self.first_sum_us.checked_div(u64::from(self.traces))? / 1000;
        Some(saturating(average))
    }

    fn add(&mut self, t_us: u32, is_first: bool) {
        if is_first {
            self.min_us = if self.traces == 0 { t_us } else { self.min_us.min(t_us) };
            self.traces = self.traces.saturating_add(1);
            self.first_sum_us = self.first_sum_us.saturating_add(u64::from(t_us));
        }
        self.count = self.count.saturating_add(1);
        self.sum_us = self.sum_us.saturating_add(u64::from(t_us));
    }

    fn merge(&mut self, other: &Self) {
        if other.count > 0 {
            self.min_us = if self.count == 0 { other.min_us } else { self.min_us.min(other.min_us) };
        }
        self.count = self.count.saturating_add(other.count);
        self.traces = self.traces.saturating_add(other.traces);
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.first_sum_us = self.first_sum_us.saturating_add(other.first_sum_us);
    }
}

/// The statistics of one block over several traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// The accesses by all reads of the traces.
    pub all: AccessTimes,
    /// The accesses by the first 3,000 reads of each trace, which hit rates are computed from.
    pub counted: AccessTimes,
    /// The number of traces that read each slice (64 KiB) of the block.
    pub slices: [u32; 32],
}

impl BlockStats {
    /// Returns [`all`](Self::all) or [`counted`](Self::counted): the accesses by the reads that `window` selects.
    #[must_use]
    pub fn by(&self, window: ReadWindow) -> &AccessTimes {
        match window {
            ReadWindow::All => &self.all,
            ReadWindow::Counted => &self.counted,
        }
    }

    fn merge(&mut self, other: &Self) {
        self.all.merge(&other.all);
        self.counted.merge(&other.counted);
        for (sum, count) in self.slices.iter_mut().zip(other.slices) {
            *sum = sum.saturating_add(count);
        }
    }
}

/// The statistics of several traces, block by block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The number of traces that the statistics are made from.
    pub traces: u32,
    /// The number of reads of all traces.
    pub reads: u64,
    /// The time of the latest read of any trace, in microseconds since the trace's first read.
    pub max_us: u32,
    /// The time of the latest read of any trace among its first 3,000 reads, in microseconds since the
    /// trace's first read.
    pub counted_max_us: u32,
    /// The sum of the grace periods (from the creation of the disk to its first read), in microseconds.
    pub grace_sum_us: u64,
    /// The statistics of each block, by its id. Blocks past the end of the list are read by no trace.
    pub blocks: Vec<BlockStats>,
}

impl Statistics {
    /// Makes the statistics of these traces.
    #[must_use]
    pub fn of<'a>(traces: impl IntoIterator<Item = &'a CompactTrace>) -> Self {
        let mut statistics = Self::default();
        traces.into_iter().for_each(|trace| statistics.add(trace));
        statistics
    }

    /// Adds a trace that was made with the same block table.
    pub fn add(&mut self, trace: &CompactTrace) {
        let start = trace.grace_us();
        self.traces = self.traces.saturating_add(1);
        self.grace_sum_us = self.grace_sum_us.saturating_add(u64::from(start));
        self.reads = self.reads.saturating_add(trace.reads().len() as u64);
        self.max_us = self.max_us.max(trace.duration_us());
        if let Some(last) = trace.counted().last() {
            self.counted_max_us = self.counted_max_us.max(last.t_us - start);
        }
        let known = trace.first_accesses().iter().map(|id| *id as usize + 1).max().unwrap_or(0);
        if self.blocks.len() < known {
            self.blocks.resize(known, BlockStats::default());
        }
        let mut masks = vec![0_u32; known];
        for (at, read) in trace.reads().iter().enumerate() {
            let t_us = read.t_us - start;
            for access in trace.accesses(read) {
                let (stats, mask) =
                    (&mut self.blocks[access.block as usize], &mut masks[access.block as usize]);
                stats.all.add(t_us, *mask == 0);
                if at < READS_MAX {
                    stats.counted.add(t_us, *mask == 0);
                }
                *mask |= access.mask;
            }
        }
        for (stats, mask) in self.blocks.iter_mut().zip(masks) {
            for slice in slices::of(mask) {
                stats.slices[slice] = stats.slices[slice].saturating_add(1);
            }
        }
    }

    /// Adds the statistics of other traces that were made with the same block table.
    pub fn merge(&mut self, other: &Self) {
        self.traces = self.traces.saturating_add(other.traces);
        self.reads = self.reads.saturating_add(other.reads);
        self.max_us = self.max_us.max(other.max_us);
        self.counted_max_us = self.counted_max_us.max(other.counted_max_us);
        self.grace_sum_us = self.grace_sum_us.saturating_add(other.grace_sum_us);
        if self.blocks.len() < other.blocks.len() {
            self.blocks.resize(other.blocks.len(), BlockStats::default());
        }
        self.blocks.iter_mut().zip(&other.blocks).for_each(|(block, other)| block.merge(other));
    }

    /// Returns the statistics with counts and sums scaled up in proportion, as if there were `traces` traces. If there
    /// are `traces` or more already, nothing changes.
    #[must_use]
    pub fn weighted(&self, traces: u32) -> Self {
        let (times, of) = (u128::from(traces.max(self.traces)), u128::from(self.traces.max(1)));
        let wide = |number: u64| saturating::<u64>(u128::from(number) * times / of);
        let narrow = |number: u32| saturating::<u32>(wide(u64::from(number)));
        let accesses = |accesses: &AccessTimes| AccessTimes {
            count: wide(accesses.count),
            traces: narrow(accesses.traces),
            min_us: accesses.min_us,
            sum_us: wide(accesses.sum_us),
            first_sum_us: wide(accesses.first_sum_us),
        };
        let block = |block: &BlockStats| BlockStats {
            all: accesses(&block.all),
            counted: accesses(&block.counted),
            slices: block.slices.map(narrow),
        };
        Self {
            traces: narrow(self.traces),
            reads: wide(self.reads),
            max_us: self.max_us,
            counted_max_us: self.counted_max_us,
            grace_sum_us: wide(self.grace_sum_us),
            blocks: self.blocks.iter().map(block).collect(),
        }
    }

    /// Returns the statistics without rare slices: if less than the share `share` (0 to 1) of the traces read a slice,
    /// its count becomes 0. A block that has only such slices counts as not read.
    #[must_use]
    pub fn likely(&self, share: f64) -> Self {
        let needed = share * f64::from(self.traces);
        let block = |block: &BlockStats| {
            let slices = block.slices.map(|count| if f64::from(count) >= needed { count } else { 0 });
            let is_read = slices.iter().any(|count| *count > 0);
            if is_read { BlockStats { slices, ..block.clone() } } else { BlockStats::default() }
        };
        Self { blocks: self.blocks.iter().map(block).collect(), ..self.clone() }
    }

    /// Returns the same statistics with the block ids of another block table, `to`; `from` is the table of these
    /// statistics. Blocks that were read and that `to` lacks are added to `to`. The blocks' numbers on the disk do not
    /// change.
    #[must_use]
    pub fn renumbered(&self, from: &BlockTable, to: &mut BlockTable) -> Self {
        let known = || from.blocks().iter().zip(&self.blocks).filter(|(_, stats)| stats.all.count > 0);
        let mut sorted: Vec<u64> = known().map(|(block, _)| *block).collect();
        sorted.sort_unstable();
        to.add(&sorted);
        let mut blocks = vec![BlockStats::default(); to.len()];
        for (block, stats) in known() {
            if let Some(id) = to.id(*block) {
                blocks[id as usize] = stats.clone();
            }
        }
        Self { blocks, ..self.clone() }
    }

    /// Returns the blocks that the reads selected by `window` access, in the order of their ids, each with its counts
    /// for these reads.
    pub fn read_blocks(&self, window: ReadWindow) -> impl Iterator<Item = (BlockId, &AccessTimes)> {
        let blocks = (0..).zip(self.blocks.iter().map(move |block| block.by(window)));
        blocks.filter(|(_, block)| block.count > 0)
    }

    /// Returns the time of the latest read, among the reads that `window` selects in all traces, in microseconds since
    /// the trace's first read; 0 without reads.
    #[must_use]
    pub fn latest_us(&self, window: ReadWindow) -> u32 {
        match window {
            ReadWindow::All => self.max_us,
            ReadWindow::Counted => self.counted_max_us,
        }
    }

    /// Returns a mask of the slices of a block that enough traces read; bit `i` stands for slice `i`. Enough is a share
    /// of `share` (0 to 1) of all traces, but at least one trace. 0 for an unknown block.
    #[must_use]
    pub fn mask(&self, id: BlockId, share: f64) -> u32 {
        let needed = (share * f64::from(self.traces)).max(1.0);
        let slices = self.blocks.get(id as usize).map_or([0; 32], |block| block.slices);
        let hot = |count: &u32| f64::from(*count) >= needed;
        (0..).zip(&slices).filter(|(_, count)| hot(count)).fold(0, |mask, (slice, _)| mask | 1 << slice)
    }
}

mod stored;

#[expect(clippy::cast_precision_loss, reason = "an average")]
fn ratio(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Read, trace};
    use proptest::prelude::*;

    #[test]
    fn counts_from_the_first_read() {
        let mut block_table = BlockTable::new(1 << 30);
        let one = trace(&[(1000, 7, 0, 1), (1010, 3, 2, 2), (1030, 7, 0, 1)], &mut block_table);
        let two = trace(&[(50, 3, 2, 1)], &mut block_table);
        let statistics = Statistics::of([&one, &two]);
        let stats = |block| &statistics.blocks[block_table.id(block).unwrap() as usize];
        let block = |block| stats(block).all;
        assert_eq!((statistics.traces, statistics.reads, statistics.max_us), (2, 4, 30));
        assert_eq!((block(7).count, block(7).traces, block(7).min_us, block(7).sum_us), (2, 1, 0, 30));
        assert_eq!((block(3).count, block(3).traces, block(3).min_us, block(3).sum_us), (2, 2, 0, 10));
        let id = |block| block_table.id(block).unwrap();
        assert_eq!((statistics.mask(id(3), 0.0), statistics.mask(id(3), 1.0)), (0b1100, 0b100));
        assert_eq!((statistics.mask(id(7), 0.5), statistics.mask(id(7), 0.51)), (0b1, 0));
        assert_eq!(statistics.mask(9, 0.0), 0, "of an unknown block");
    }

    #[test]
    fn other_words_and_more_weight_change_nothing_else() {
        let mut block_table = BlockTable::new(1 << 30);
        let boot = trace(&[(1000, 7, 0, 1), (1010, 3, 2, 2), (1030, 7, 0, 1)], &mut block_table);
        let statistics = Statistics::of([&boot]);
        let mut other = BlockTable::new(1 << 30);
        other.add(&[1, 3]);
        let moved = statistics.renumbered(&block_table, &mut other);
        assert_eq!((moved.traces, moved.blocks.len(), moved.blocks[0].all.count), (1, 3, 0));
        for block in [3, 7] {
            let of = |statistics: &Statistics, words: &BlockTable| {
                statistics.blocks[words.id(block).unwrap() as usize].clone()
            };
            assert_eq!(of(&moved, &other), of(&statistics, &block_table));
        }
        let thrice = statistics.weighted(3);
        assert_eq!(thrice, Statistics::of([&boot; 3]));
        assert_eq!(thrice.weighted(2), thrice, "weight is never lost");
        assert_eq!(Statistics::default().weighted(5).traces, 0);
        let mut two = thrice.clone();
        two.add(&trace(&[(1000, 3, 2, 1)], &mut block_table));
        let slices = |statistics: &Statistics, block| {
            let id = block_table.id(block).unwrap() as usize;
            statistics.blocks[id].slices.iter().map(|count| u32::from(*count > 0)).sum::<u32>()
        };
        let likely = |share: f64| [3, 7].map(|block| slices(&two.likely(share), block));
        assert_eq!([likely(0.0), likely(0.75), likely(1.0)], [[2, 1], [2, 1], [1, 0]]);
        assert_eq!(two.likely(1.0).read_blocks(ReadWindow::All).count(), 1);
    }

    fn reads() -> impl Strategy<Value = Vec<Read>> {
        let reads = prop::collection::vec((0_u32..500, 0_u64..20, 0_u64..30, 1_u64..40), 0..20);
        reads.prop_map(|mut reads| {
            reads.sort_unstable();
            reads
        })
    }

    proptest! {
        #[test]
        fn merging_parts_is_adding_their_traces(traces in prop::collection::vec(reads(), 0..6), cut in 0_usize..6) {
            let mut block_table = BlockTable::new(1 << 30);
            let traces: Vec<_> = traces.iter().map(|reads| trace(reads, &mut block_table)).collect();
            let cut = cut.min(traces.len());
            let mut merged = Statistics::of(&traces[..cut]);
            merged.merge(&Statistics::of(&traces[cut..]));
            prop_assert_eq!(merged, Statistics::of(&traces));
        }
    }
}
