//! The blocks that most boots read, in the order of first access. The policy [`search`](super::search) makes this plan
//! if the objective is the delay of a boot. The ThinkAhead paper has no such policy.
//!
//! An order for hits may give a block up, that is, preload other blocks before it although it then comes too late for
//! its reads. A guest that waits gains nothing by this, because it needs every block in the end. For such a guest, the
//! order of first access is the best (`docs/design-learning.md`). At low bandwidth, bytes can still be saved. Some
//! training boots did things that others do not (a scan, an update, a backup), and the slices that only these boots
//! read delay the slices that a normal boot needs. So the plan has two parts:
//!
//! 1. The slices that a boot is likely to read, by the average first access of their blocks.
//! 2. Then the blocks without likely slices. Of these, only slices are planned that at least half as many boots read as
//!    a likely slice needs; rarer slices are left to misses. At 5 MB/s this saves 3.4% of the bytes of whole blocks,
//!    and normal boots do not wait longer: their wait is 0.048 of the wait with whole blocks, instead of 0.053. (For
//!    all boots, odd ones included, it is 0.577 instead of 0.573.)
//!
//! A slice is *likely* if the share of the training boots that read it, less two standard errors, is at least a
//! quarter. That takes three of three boots, four of five, five of seven, twelve of 25, or 35 of a hundred. (A quarter,
//! because at 10 MB/s and 20 ms a slice that is brought in vain costs a quarter of a miss.) From 30 MB/s on, where a
//! miss costs more than many slices, one standard error is subtracted: two of three boots are enough, or three of five.
//!
//! # Figures
//!
//! The average total wait, in seconds, of 54 boots that no plan was trained on, with the pull engine and a round trip
//! of 20 ms (closed loop; groups of two to five boots, some of them not normal). Each row is a choice of slices for the
//! plan: all that some training boot read; those that half, or eight tenths, of the training boots read; the likely
//! ones and some rarer ones, as above; and, as the best possible choice, those that the tested boot itself reads. The
//! columns are bandwidths; for the last six, guests are five times as fast as recorded.
//!
//! | | 2 MB/s | 4 | 6 | 8 | 10 | 30 | five times faster: 2 | 4 | 6 | 8 | 10 | 30 |
//! |---|---|---|---|---|---|---|---|---|---|---|---|---|
//! | all, by first access | 23.30 | 2.75 | 0.26 | 0.01 | 0.01 | 0.01 | 63.89 | 25.06 | 10.67 | 4.50 | 1.99 | 0.01 |
//! | slices that half read | 19.36 | 1.74 | 0.25 | 0.01 | 0.01 | 0.01 | 58.86 | 22.06 | 8.76 | 3.38 | 1.40 | 0.01 |
//! | eight tenths | 16.95 | 1.82 | 0.33 | 0.08 | 0.07 | 0.04 | 56.97 | 20.91 | 7.94 | 2.82 | 1.11 | 0.05 |
//! | likely slices | 16.76 | 1.70 | 0.25 | 0.01 | 0.01 | 0.01 | 56.91 | 20.90 | 7.88 | 2.76 | 1.05 | 0.01 |
//! | the boot's own | 16.59 | 1.68 | 0.23 | 0.00 | 0.00 | 0.00 | 56.21 | 20.45 | 7.63 | 2.74 | 1.03 | 0.00 |
//!
//! Synthetic traces, with 25 boots for each image, vary more. At 2, 4, 8, 10, 30 and 90 MB/s the waits are: with all
//! slices 99.0, 42.2, 7.8, 3.6, 0.23 and 0.17 s; with those that half read 90.7, 37.7, 6.7, 3.1, 0.45 and 0.31 s; with
//! likely slices 90.6, 37.5, 6.4, 3.0, 0.22 and 0.17 s.
//!
//! Other orders hardly matter: with the earliest time or the rank instead of the average time, or with the first access
//! of the hot slices, each figure is within 2%. With a plan that names a block several times (its early slices first,
//! the late ones later) boots wait 14.18, 1.15 and 0.15 s at 2, 4 and 6 MB/s, and with the faster guest 56.83, 20.65,
//! 7.65, 2.47 and 0.90 s at 2 to 10 MB/s: 17% less at recorded speed, 2% less with the faster guest. The plan names
//! blocks once anyway, because other readers of plans expect that.

use crate::bandwidth::Bandwidth;
use crate::block_table::BlockId;
use crate::evaluate::Item;
use crate::policy::{Aim, Training};
use crate::statistics::ReadWindow;

/// The share of `boots` boots that is enough for a bandwidth.
fn enough(boots: u32, bandwidth: Bandwidth) -> f64 {
    let boots = f64::from(boots.max(1));
    let errors = if bandwidth < Bandwidth::mb(30) { 2.0 } else { 1.0 };
    // The root of `share - errors · √(share · (1 - share) / boots) = least`.
    let (least, spread) = (0.25, errors * errors / boots);
    let half = (2.0 * least + spread) / 2.0;
    (half + (half * half - (1.0 + spread) * least * least).max(0.0).sqrt()) / (1.0 + spread)
}

/// Returns the items of a plan for a short delay of a boot: blocks with slices that a further boot is likely to read,
/// by average first access; then blocks that have only rarer slices, with those slices that at least half as many boots
/// read as a likely slice needs. The documentation of the module defines *likely*.
#[must_use]
pub fn items(training: &Training<'_>, aim: &Aim) -> Vec<Item> {
    let (statistics, blocks) = (training.statistics, training.block_table.blocks());
    let mut order: Vec<(f64, u64, BlockId)> = statistics
        .read_blocks(ReadWindow::All)
        .filter_map(|(id, stats)| Some((stats.first_average_us(), *blocks.get(id as usize)?, id)))
        .collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let enough = enough(statistics.traces, aim.bandwidth);
    let with = |share: f64| move |&(_, _, id): &(f64, u64, BlockId)| (id, statistics.mask(id, share));
    let (mut items, rare): (Vec<Item>, Vec<Item>) =
        order.iter().map(with(enough)).partition(|(_, mask)| *mask != 0);
    let some = rare.into_iter().map(|(id, _)| (id, statistics.mask(id, enough / 2.0)));
    items.extend(some.filter(|(_, mask)| *mask != 0));
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_table::BlockTable;
    use crate::evaluate::Misses;
    use crate::policy::Objective;
    use crate::statistics::Statistics;
    use crate::testing::trace;

    #[test]
    fn of_fewer_boots_a_larger_share_is_needed() {
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
    fn blocks_that_most_boots_read_come_before_those_of_some() {
        let mut block_table = BlockTable::new(1 << 30);
        // All read slice 0 of blocks 9 and 5; one reads a slice more, and block 2 before all; block 3 half of them.
        let mut boots = vec![trace(&[(7, 2, 3, 1), (8, 9, 0, 2), (50, 5, 0, 1)], &mut block_table)];
        boots.extend([60, 70].map(|t| trace(&[(9, 3, 1, 1), (10, 9, 0, 1), (t, 5, 0, 1)], &mut block_table)));
        boots.push(trace(&[(10, 9, 0, 1), (80, 5, 0, 1)], &mut block_table));
        let (statistics, traces) = (Statistics::of(&boots), boots.iter().collect::<Vec<_>>());
        let training = Training { block_table: &block_table, statistics: &statistics, traces: &traces };
        let objective = Objective::Boot { round_trip: 0, misses: Misses::RangeThenRest, hot: true };
        for rate in [2, 150] {
            let aim = Aim { objective, bandwidth: Bandwidth::mb(rate), seed: 1 };
            let items: Vec<_> = items(&training, &aim)
                .iter()
                .map(|(id, mask)| (block_table.blocks()[*id as usize], *mask))
                .collect();
            // With cheap bytes one of four is enough to come last.
            let wanted: &[(u64, u32)] = match rate {
                2 => &[(9, 0b1), (5, 0b1), (3, 0b10)],
                _ => &[(3, 0b10), (9, 0b1), (5, 0b1), (2, 0b1000)],
            };
            assert_eq!(items, wanted, "{rate}");
        }
        // One of four is never enough, two of four are from 30 MB/s on.
        boots[1] = trace(&[(8, 9, 0, 2), (60, 5, 0, 1)], &mut block_table);
        let (statistics, traces) = (Statistics::of(&boots), boots.iter().collect::<Vec<_>>());
        let training = Training { block_table: &block_table, statistics: &statistics, traces: &traces };
        let first = |rate| items(&training, &Aim { objective, bandwidth: Bandwidth::mb(rate), seed: 1 })[0].1;
        assert_eq!([first(29), first(30)], [0b1, 0b11]);
    }
}
