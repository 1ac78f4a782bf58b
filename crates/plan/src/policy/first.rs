//! What most boots read, by first access: what [`search`](super::search) makes for the delay of a boot (ours).
//!
//! A guest that waits gets every block in the end, so that giving up late ones, as the score does for hits, gains
//! nothing: order by first access wins (DESIGN, section 6). What is left to gain at low bandwidth is bytes. Some
//! training boots did what others do not (a scan, an update, a backup); the slices that they alone read keep the link
//! from those that are needed. So:
//!
//! 1. Slices that most of the group's boots read, by the blocks' average first access.
//! 2. Then blocks with none of these, with all that any boot read.
//!
//! *Most* is seven tenths. From 30 MB/s on, where what is missed costs more than what is brought in vain, it is half.
//!
//! # Figures
//!
//! Total wait of 54 boots that no plan was trained on, in seconds on the average, by the pull engine in the real model
//! with 20 ms (groups of two to five boots, some of them no normal ones):
//!
//! | | 2 MB/s | 4 | 6 | 8 | 10 | 30 | guest five times faster: 2 | 4 | 6 | 8 | 10 | 30 |
//! |---|---|---|---|---|---|---|---|---|---|---|---|---|
//! | all slices, by first access | 23.18 | 3.36 | 0.41 | 0.01 | 0.01 | 0.01 | 63.55 | 25.86 | 12.12 | 4.99 | 2.28 | 0.23 |
//! | half | 19.23 | 2.14 | 0.36 | 0.01 | 0.01 | 0.01 | 58.65 | 22.99 | 10.03 | 3.88 | 1.60 | 0.03 |
//! | seven tenths | 16.64 | 2.06 | 0.36 | 0.02 | 0.01 | 0.01 | 56.69 | 21.76 | 9.18 | 3.18 | 1.21 | 0.03 |
//! | eight tenths | 16.86 | 2.18 | 0.45 | 0.08 | 0.08 | 0.05 | 56.74 | 21.89 | 9.22 | 3.24 | 1.27 | 0.07 |
//! | the test boot's own | 16.35 | 2.04 | 0.34 | 0.00 | 0.00 | 0.00 | 55.98 | 21.42 | 9.08 | 3.15 | 1.19 | 0.02 |
//!
//! The order hardly matters: by earliest time or by rank instead of the average time, or by the first access of the
//! slices that are hot, each figure is within 2%. Nothing that was searched for is better. A plan that names a
//! block twice, its early slices and later its late ones, waits 14% less at 2 MB/s and longer from 6 MB/s on (more,
//! smaller requests), and as long at 2 MB/s with a faster guest: not worth it.

use crate::bandwidth::Bandwidth;
use crate::evaluate::Item;
use crate::policy::{Aim, Training};
use crate::statistics::Window;
use crate::vocabulary::BlockId;

/// The share of the traces that read what comes first, for a bandwidth.
fn most(bandwidth: Bandwidth) -> f64 {
    if bandwidth < Bandwidth::mb(30) { 0.7 } else { 0.5 }
}

/// See the module's head.
#[must_use]
pub fn items(training: &Training<'_>, aim: &Aim) -> Vec<Item> {
    let (statistics, blocks) = (training.statistics, training.vocabulary.blocks());
    let mut order: Vec<(f64, u64, BlockId)> = statistics
        .read_blocks(Window::All)
        .filter_map(|(id, stats)| Some((stats.first_average_us(), *blocks.get(id as usize)?, id)))
        .collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let with = |share: f64| move |&(_, _, id): &(f64, u64, BlockId)| (id, statistics.mask(id, share));
    let (mut items, rare): (Vec<Item>, Vec<Item>) =
        order.iter().map(with(most(aim.bandwidth))).partition(|(_, mask)| *mask != 0);
    items.extend(rare.into_iter().map(|(id, _)| (id, statistics.mask(id, 0.0))));
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::Misses;
    use crate::policy::Objective;
    use crate::statistics::Statistics;
    use crate::testing::trace;
    use crate::vocabulary::Vocabulary;

    #[test]
    fn what_most_read_first_and_what_few_read_last() {
        let mut vocabulary = Vocabulary::new(1 << 30);
        // All read slice 0 of blocks 9 and 5; one reads a slice more, and block 2 before all.
        let mut boots = vec![trace(&[(7, 2, 3, 1), (8, 9, 0, 2), (50, 5, 0, 1)], &mut vocabulary)];
        boots.extend([60, 70, 80].map(|t| trace(&[(10, 9, 0, 1), (t, 5, 0, 1)], &mut vocabulary)));
        let (statistics, traces) = (Statistics::of(&boots), boots.iter().collect::<Vec<_>>());
        let training =
            Training { vocabulary: &vocabulary, statistics: &statistics, traces: &traces, centroid: 0 };
        let objective = Objective::Boot { round_trip: 0, misses: Misses::RangeThenRest, hot: true };
        for rate in [2, 150] {
            let aim = Aim { objective, bandwidth: Bandwidth::mb(rate), seed: 1 };
            let items: Vec<_> = items(&training, &aim)
                .iter()
                .map(|(id, mask)| (vocabulary.blocks()[*id as usize], *mask))
                .collect();
            assert_eq!(items, [(9, 0b1), (5, 0b1), (2, 0b1000)]);
        }
        // Two of two are most; one of two is half.
        let some = Statistics::of(&boots[..2]);
        let training = Training { statistics: &some, traces: &traces[..2], ..training };
        let slices_of_9 = |rate| {
            let items = items(&training, &Aim { objective, bandwidth: Bandwidth::mb(rate), seed: 1 });
            items.iter().find(|(id, _)| vocabulary.blocks()[*id as usize] == 9).map(|(_, mask)| *mask)
        };
        assert_eq!([slices_of_9(29), slices_of_9(30)], [Some(0b1), Some(0b11)]);
    }
}
