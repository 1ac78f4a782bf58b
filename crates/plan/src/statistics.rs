//! What many traces say of each block: sums and extremes, so that traces can be added one by one, and those of two
//! parts of a data set be merged (sufficient statistics of the paper's score, section 5.3).
//!
//! Times count from the trace's first read, in microseconds. All counts are of the first [`READS_MAX`] reads, like
//! everything that speaks of hits; masks are of all reads.
//!
//! [`READS_MAX`]: crate::READS_MAX

use crate::condensed::Condensed;
use crate::vocabulary::BlockId;
use headstart_block::PlanItem;

/// Of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// Reads in it.
    pub accesses: u64,
    /// Traces that read it.
    pub traces: u32,
    /// The earliest read.
    pub min_us: u32,
    /// The sum of the times of all reads.
    pub sum_us: u64,
    /// The sum over the traces of the times of their first reads.
    pub first_sum_us: u64,
    /// Traces that read each slice.
    pub slices: [u32; 32],
}

impl BlockStats {
    /// The average time of a read, in microseconds.
    #[must_use]
    pub fn average_us(&self) -> f64 {
        ratio(self.sum_us, self.accesses)
    }

    /// The average over the traces of the time of the first read, in microseconds.
    #[must_use]
    pub fn first_average_us(&self) -> f64 {
        ratio(self.first_sum_us, u64::from(self.traces))
    }

    /// The slices that at least `share` (0 to 1) of the block's traces read, and at least one of them.
    #[must_use]
    pub fn mask(&self, share: f64) -> u32 {
        let needed = (share * f64::from(self.traces)).max(1.0);
        let hot = |count: &u32| f64::from(*count) >= needed;
        (0..).zip(&self.slices).filter(|(_, count)| hot(count)).fold(0, |mask, (slice, _)| mask | 1 << slice)
    }

    fn merge(&mut self, other: &Self) {
        if other.accesses > 0 {
            self.min_us = if self.accesses == 0 { other.min_us } else { self.min_us.min(other.min_us) };
        }
        self.accesses = self.accesses.saturating_add(other.accesses);
        self.traces = self.traces.saturating_add(other.traces);
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.first_sum_us = self.first_sum_us.saturating_add(other.first_sum_us);
        for (sum, count) in self.slices.iter_mut().zip(other.slices) {
            *sum = sum.saturating_add(count);
        }
    }
}

/// Of all blocks of some traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Traces.
    pub traces: u32,
    /// Reads.
    pub reads: u64,
    /// The latest read.
    pub max_us: u32,
    /// The sum of the grace periods.
    pub grace_sum_us: u64,
    /// By id; shorter than the vocabulary where nothing is known of its end.
    pub blocks: Vec<BlockStats>,
}

impl Statistics {
    /// Of these traces.
    #[must_use]
    pub fn of<'a>(traces: impl IntoIterator<Item = &'a Condensed>) -> Self {
        let mut statistics = Self::default();
        traces.into_iter().for_each(|trace| statistics.add(trace));
        statistics
    }

    /// Adds a trace.
    pub fn add(&mut self, trace: &Condensed) {
        let start = trace.grace_us();
        self.traces += 1;
        self.grace_sum_us += u64::from(start);
        self.reads += trace.counted().len() as u64;
        if let Some(last) = trace.counted().last() {
            self.max_us = self.max_us.max(last.t_us - start);
        }
        let known = trace.accesses().map(|(_, touch)| touch.block as usize + 1).max().unwrap_or(0);
        if self.blocks.len() < known {
            self.blocks.resize(known, BlockStats::default());
        }
        for block in &trace.blocks {
            let (first_us, stats) = (block.first_us - start, &mut self.blocks[block.block as usize]);
            stats.min_us = if stats.traces == 0 { first_us } else { stats.min_us.min(first_us) };
            stats.traces += 1;
            stats.first_sum_us += u64::from(first_us);
        }
        for read in trace.counted() {
            for touch in trace.touches(read) {
                let stats = &mut self.blocks[touch.block as usize];
                stats.accesses += 1;
                stats.sum_us += u64::from(read.t_us - start);
            }
        }
        self.add_masks(trace, known);
    }

    fn add_masks(&mut self, trace: &Condensed, known: usize) {
        let mut masks = vec![0_u32; known];
        for (_, touch) in trace.accesses() {
            masks[touch.block as usize] |= touch.mask;
        }
        for (stats, mut mask) in self.blocks.iter_mut().zip(masks) {
            while mask != 0 {
                stats.slices[mask.trailing_zeros() as usize] += 1;
                mask &= mask - 1;
            }
        }
    }

    /// Adds the traces of another part.
    pub fn merge(&mut self, other: &Self) {
        self.traces = self.traces.saturating_add(other.traces);
        self.reads = self.reads.saturating_add(other.reads);
        self.max_us = self.max_us.max(other.max_us);
        self.grace_sum_us = self.grace_sum_us.saturating_add(other.grace_sum_us);
        if self.blocks.len() < other.blocks.len() {
            self.blocks.resize(other.blocks.len(), BlockStats::default());
        }
        self.blocks.iter_mut().zip(&other.blocks).for_each(|(block, other)| block.merge(other));
    }

    /// The blocks that were read, with their ids.
    pub fn read_blocks(&self) -> impl Iterator<Item = (BlockId, &BlockStats)> {
        (0..).zip(&self.blocks).filter(|(_, block)| block.accesses > 0)
    }

    /// An order of blocks as items of a plan, each with its slices that at least `share` of its traces read.
    #[must_use]
    pub fn items(&self, order: &[BlockId], blocks: &[u64], share: f64) -> Vec<PlanItem> {
        let item = |id: &BlockId| {
            let mask = self.blocks.get(*id as usize).map_or(0, |stats| stats.mask(share));
            // What only the reads past the counted ones know has no slices here.
            let block = *blocks.get(*id as usize)?;
            (mask != 0).then_some(PlanItem { block, mask })
        };
        order.iter().filter_map(item).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "an average")]
fn ratio(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Read, trace};
    use crate::vocabulary::Vocabulary;
    use proptest::prelude::*;

    #[test]
    fn counts_from_the_first_read() {
        let mut vocabulary = Vocabulary::new(1 << 30);
        let one = trace(&[(1000, 7, 0, 1), (1010, 3, 2, 2), (1030, 7, 0, 1)], &mut vocabulary);
        let two = trace(&[(50, 3, 2, 1)], &mut vocabulary);
        let statistics = Statistics::of([&one, &two]);
        let block = |block| &statistics.blocks[vocabulary.id(block).unwrap() as usize];
        assert_eq!((statistics.traces, statistics.reads, statistics.max_us), (2, 4, 30));
        assert_eq!((block(7).accesses, block(7).traces, block(7).min_us, block(7).sum_us), (2, 1, 0, 30));
        assert_eq!((block(3).accesses, block(3).traces, block(3).min_us, block(3).sum_us), (2, 2, 0, 10));
        assert_eq!((block(3).mask(0.0), block(3).mask(1.0)), (0b1100, 0b100));
        let items = statistics.items(&[vocabulary.id(3).unwrap()], vocabulary.blocks(), 0.0);
        assert_eq!(items, [PlanItem { block: 3, mask: 0b1100 }]);
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
            let mut vocabulary = Vocabulary::new(1 << 30);
            let traces: Vec<_> = traces.iter().map(|reads| trace(reads, &mut vocabulary)).collect();
            let cut = cut.min(traces.len());
            let mut merged = Statistics::of(&traces[..cut]);
            merged.merge(&Statistics::of(&traces[cut..]));
            prop_assert_eq!(merged, Statistics::of(&traces));
        }
    }
}
