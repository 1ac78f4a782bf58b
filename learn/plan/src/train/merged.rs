//! One group of the traces of several images, by the number of the block: for an image that has none of its own.
//!
//! Each image counts the same, whatever the number of its traces: they stand for kinds of images, of which the new
//! one is another.
//!
//! Below 30 MB/s only slices are planned that half of them read: on the boots of `data/traces` whose images were left
//! out (the example `zero_shot`, by `iocnt-2t`), plans of everything that a family reads gave hit rates of 0.59,
//! 0.73 and 0.83 at 4, 6 and 8 MiB/s and delays of 73.6, 21.8 and 4.7 s at 2, 4 and 8 MB/s, those of slices that
//! half of it reads 0.66, 0.85 and 0.95 and 28.2, 6.6 and 0.9 s. From 30 MB/s on the link has room for all.

use super::{Trained, Trainer};
use crate::bandwidth::Bandwidth;
use crate::best::first_best;
use crate::block_table::BlockTable;
use crate::compact_trace::Packed;
use crate::plans::GroupPlans;
use crate::policy::{Training, Weights};
use crate::preprocess::ImageModel;
use crate::statistics::{ReadWindow, Statistics};
use std::cmp::Reverse;

/// Traces of a merged group that are at hand.
const SAMPLE_MAX: usize = 32;

/// The share of the images that have to read a slice for it to be planned on a slow link.
const LIKELY: f64 = 0.5;

/// The bandwidth from which on everything is planned.
const ROOM_FOR_ALL: Bandwidth = Bandwidth::mb(30);

/// The data of an image that merging needs.
pub(super) struct Summary {
    block_table: BlockTable,
    /// The statistics of all its groups.
    statistics: Statistics,
    /// Some traces, those of larger groups first.
    sample: Vec<Packed>,
}

impl Summary {
    pub(super) fn of(block_table: &BlockTable, model: &ImageModel) -> Self {
        let mut groups: Vec<_> = model.groups().iter().collect();
        groups.sort_by_key(|group| Reverse(group.statistics.traces));
        let mut statistics = Statistics::default();
        groups.iter().for_each(|group| statistics.merge(&group.statistics));
        let kept = groups.iter().flat_map(|group| &group.kept);
        Self {
            block_table: block_table.clone(),
            statistics,
            sample: kept.take(SAMPLE_MAX).map(Packed::of).collect(),
        }
    }
}

impl Trainer<'_> {
    /// The plans of the images as one group, with the weights of the image that is most like them all; `None` if
    /// they read nothing.
    #[expect(clippy::cast_precision_loss, reason = "a number of blocks")]
    pub(super) fn merged(&self, images: &[&Trained]) -> Option<GroupPlans> {
        let disk_size = images.iter().map(|image| image.summary.block_table.disk_size()).max()?;
        let most = images.iter().map(|image| image.summary.statistics.traces).max()?;
        let (mut block_table, mut statistics) = (BlockTable::new(disk_size), Statistics::default());
        for Trained { summary, .. } in images {
            let weighted = summary.statistics.weighted(most);
            statistics.merge(&weighted.renumbered(&summary.block_table, &mut block_table));
        }
        if statistics.traces == 0 {
            return None;
        }
        let mut sample = Vec::new();
        let longest = images.iter().map(|image| image.summary.sample.len()).max().unwrap_or(0);
        for turn in 0..longest {
            for Trained { summary, .. } in images {
                if let Some(trace) = summary.sample.get(turn).filter(|_| sample.len() < SAMPLE_MAX) {
                    let own = trace.unpack(&summary.block_table);
                    sample.push(own.renumbered(&summary.block_table, &mut block_table));
                }
            }
        }
        // The paper's Jaccard index of the blocks of one image and of all is highest for the image that reads most.
        let reads = |image: &&&Trained| image.summary.statistics.read_blocks(ReadWindow::All).count() as f64;
        let like = first_best(images.iter().filter(|image| !image.groups.is_empty()), reads);
        let weights = |rate: Bandwidth| -> Option<Weights> {
            let group = like?.0.groups.first()?;
            group.plans.iter().find(|plan| plan.rate == rate.bytes())?.weights
        };
        let traces: Vec<_> = sample.iter().collect();
        let likely = statistics.likely(LIKELY);
        let are_alike = likely.read_blocks(ReadWindow::All).next().is_some();
        let training = |rate: Bandwidth| {
            let statistics = if rate < ROOM_FOR_ALL && are_alike { &likely } else { &statistics };
            Training { block_table: &block_table, statistics, traces: &traces }
        };
        let mut group = self.group(0, &training, &weights);
        group.traces = images.iter().map(|image| image.traces).sum();
        // Its first trace is of one image: a boot of another one cannot be recognized by it.
        group.centroid.order.clear();
        Some(group)
    }
}
