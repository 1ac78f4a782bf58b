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
//! *Most* is two thirds. From 30 MB/s on, where what is missed costs more than what is brought in vain, it is half.

use crate::bandwidth::Bandwidth;
use crate::evaluate::Item;
use crate::policy::{Aim, Training};
use crate::statistics::Window;
use crate::vocabulary::BlockId;

/// The share of the traces that read what comes first, for a bandwidth.
fn most(bandwidth: Bandwidth) -> f64 {
    if bandwidth < Bandwidth::mb(30) { 2.0 / 3.0 } else { 0.5 }
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
