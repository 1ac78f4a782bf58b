//! What most boots read, by first access: what [`search`](super::search) makes for the delay of a boot (ours).
//!
//! A guest that waits gets every block in the end, so that giving up late ones, as the score does for hits, gains
//! nothing: order by first access wins (DESIGN, section 6). What is left to gain at low bandwidth is bytes. Some
//! training boots did what others do not (a scan, an update, a backup); the slices that they alone read keep the link
//! from those that are needed. So:
//!
//! 1. Slices that are likely to be read, by their blocks' average first access.
//! 2. Then blocks with none of these, with all that any boot read.
//!
//! *Likely* is what at least a quarter of the boots read even if this is one of the luckier samples: the share in the
//! training traces less two standard errors. Of three boots that takes all three, of five four, of seven five, of 25
//! twelve, of a hundred 35. (At 10 MB/s and 20 ms it costs a quarter of a miss to bring a slice in vain.) From 30 MB/s
//! on, where a miss costs more than what many slices cost, it is one standard error: of three boots two, of five three.
//!
//! # Figures
//!
//! Total wait of 54 boots that no plan was trained on, in seconds on the average, by the pull engine in the real model
//! with 20 ms (groups of two to five boots, some of them no normal ones):
//!
//! | | 2 MB/s | 4 | 6 | 8 | 10 | 30 | guest five times faster: 2 | 4 | 6 | 8 | 10 | 30 |
//! |---|---|---|---|---|---|---|---|---|---|---|---|---|
//! | all slices, by first access | 23.18 | 3.37 | 0.41 | 0.01 | 0.01 | 0.01 | 63.58 | 25.92 | 12.13 | 5.09 | 2.28 | 0.22 |
//! | what half of the boots read | 19.23 | 2.14 | 0.36 | 0.01 | 0.01 | 0.01 | 58.65 | 22.99 | 10.03 | 3.88 | 1.60 | 0.03 |
//! | what eight tenths read | 16.86 | 2.18 | 0.45 | 0.08 | 0.08 | 0.05 | 56.74 | 21.89 | 9.22 | 3.24 | 1.27 | 0.07 |
//! | what is likely | 16.64 | 2.06 | 0.36 | 0.02 | 0.01 | 0.01 | 56.69 | 21.76 | 9.18 | 3.18 | 1.21 | 0.03 |
//! | what the boot itself reads | 16.35 | 2.04 | 0.34 | 0.00 | 0.00 | 0.00 | 55.98 | 21.42 | 9.08 | 3.15 | 1.19 | 0.02 |
//!
//! On synthetic traces of 25 boots an image, which vary more: all 98.9, 43.1, 13.4, 8.3, 1.15 and 0.66 s at 2, 4, 8, 10,
//! 30 and 90 MB/s; seven tenths 91.8, 39.1, 12.4, 8.2, 1.73 and 0.99 s; what is likely 90.6, 38.2, 11.7, 7.2, 1.08 and
//! 0.59 s.
//!
//! The order hardly matters: by the earliest time or by rank instead of the average time, or by the first access of
//! the slices that are hot, each figure is within 3%. Nothing that was searched for is better. A plan that names a
//! block twice, its early slices and later its late ones, waits 14% less at 2 MB/s and longer from 6 MB/s on (more,
//! smaller requests), and as long at 2 MB/s with a faster guest: not worth it.

use crate::bandwidth::Bandwidth;
use crate::evaluate::Item;
use crate::policy::{Aim, Training};
use crate::statistics::Window;
use crate::vocabulary::BlockId;

/// The share of so many boots that is enough for a bandwidth.
fn enough(boots: u32, bandwidth: Bandwidth) -> f64 {
    let boots = f64::from(boots.max(1));
    let errors = if bandwidth < Bandwidth::mb(30) { 2.0 } else { 1.0 };
    // The root of `share - errors · √(share · (1 - share) / boots) = least`.
    let (least, spread) = (0.25, errors * errors / boots);
    let half = (2.0 * least + spread) / 2.0;
    (half + (half * half - (1.0 + spread) * least * least).max(0.0).sqrt()) / (1.0 + spread)
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
    let enough = enough(statistics.traces, aim.bandwidth);
    let with = |share: f64| move |&(_, _, id): &(f64, u64, BlockId)| (id, statistics.mask(id, share));
    let (mut items, rare): (Vec<Item>, Vec<Item>) =
        order.iter().map(with(enough)).partition(|(_, mask)| *mask != 0);
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
    fn the_fewer_boots_the_more_of_them() {
        let needed = |boots: u32, rate| {
            let share = enough(boots, Bandwidth::mb(rate));
            (1..=boots).find(|count| f64::from(*count) >= share * f64::from(boots))
        };
        assert_eq!(
            [1, 2, 3, 4, 5, 7, 25, 100].map(|boots| needed(boots, 2)),
            [1, 2, 3, 3, 4, 5, 12, 35].map(Some)
        );
        assert_eq!(
            [1, 2, 3, 4, 5, 7, 25, 100].map(|boots| needed(boots, 30)),
            [1, 2, 2, 2, 3, 4, 9, 30].map(Some)
        );
    }

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
        // One of four is never enough, two of four are from 30 MB/s on.
        boots[1] = trace(&[(8, 9, 0, 2), (60, 5, 0, 1)], &mut vocabulary);
        let (statistics, traces) = (Statistics::of(&boots), boots.iter().collect::<Vec<_>>());
        let training =
            Training { vocabulary: &vocabulary, statistics: &statistics, traces: &traces, centroid: 0 };
        let first = |rate| items(&training, &Aim { objective, bandwidth: Bandwidth::mb(rate), seed: 1 })[0].1;
        assert_eq!([first(29), first(30)], [0b1, 0b11]);
    }
}
