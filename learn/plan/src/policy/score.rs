//! The score of a block (ThinkAhead paper, section 5.3, equation 1):
//!
//! `S(b) = α·ac + β·(tmax − tavg)/tmax + (1 − α − β)·(tmax − tmin)/tmax`
//!
//! Here `ac` is the number of reads of the block divided by that of the most read block. `tavg` and `tmin` are the
//! average and the earliest time of its reads, counted from each trace's first read, and `tmax` is the latest time of a
//! read in the group. Blocks with higher scores are preloaded sooner.

use crate::block_table::BlockId;
use crate::policy::Training;
use crate::statistics::{AccessTimes, ReadWindow};

/// The weights of the three terms of a block's score. The third term, the time of the earliest read, has the
/// weight 1 − `alpha` − `beta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// The weight of the number of reads, 0 to 1.
    pub alpha: f64,
    /// The weight of the average time of the reads, 0 to 1.
    pub beta: f64,
}

/// Orders the blocks of a group of traces by score, the highest first.
#[derive(Clone, Debug)]
pub struct Scorer {
    /// The id, the block, and the three terms of each.
    blocks: Vec<(BlockId, u64, [f64; 3])>,
    scores: Vec<(f64, u64, BlockId)>,
}

impl Scorer {
    /// Makes a scorer of the blocks that the traces of a group read; `window` selects the reads that count.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn new(training: &Training<'_>, window: ReadWindow) -> Self {
        let statistics = training.statistics;
        let most = statistics.read_blocks(window).map(|(_, stats)| stats.count).max().unwrap_or(1) as f64;
        let t_max = f64::from(statistics.latest_us(window).max(1));
        let terms = |(id, stats): (BlockId, &AccessTimes)| {
            let count = stats.count as f64 / most;
            let average = (t_max - stats.average_us()) / t_max;
            let earliest = (t_max - f64::from(stats.min_us)) / t_max;
            (id, training.block_table.blocks()[id as usize], [count, average, earliest])
        };
        let blocks: Vec<_> = statistics.read_blocks(window).map(terms).collect();
        Self { scores: Vec::with_capacity(blocks.len()), blocks }
    }

    /// Returns the blocks in descending order of score for these weights. Blocks of equal score are in the order of
    /// the disk.
    #[must_use]
    pub fn order(&mut self, weights: Weights) -> Vec<BlockId> {
        let Weights { alpha, beta } = weights;
        let gamma = 1.0 - alpha - beta;
        self.scores.clear();
        self.scores.extend(self.blocks.iter().map(|(id, block, [count, average, earliest])| {
            (alpha * count + beta * average + gamma * earliest, *block, *id)
        }));
        self.scores.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.scores.iter().map(|(_, _, id)| *id).collect()
    }
}
