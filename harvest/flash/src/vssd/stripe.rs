//! The place of a logical page among the logical blocks: neighbours are in different ones, so that a long transfer uses
//! every channel.
//!
//! Groups of `width` logical blocks are filled row by row: unit 0 is the first of block 0, unit 1 the first of block
//! 1, ..., unit `width` the second of block 0. Neither the number of channels nor the size of the disk enters, so that
//! both may change. The last group may be cut short: then none of its blocks is whole.

use headstart_block::{exact, saturating};
use std::ops::Range;

/// A bijection of logical pages and pages of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stripe {
    /// Logical blocks of a group.
    width: u32,
    /// Pages of a unit.
    unit: u32,
    /// Pages of a logical block.
    pages: u32,
}

impl Stripe {
    pub(super) fn new(width: u32, unit: u32, pages: u32) -> Self {
        Self { width, unit, pages }
    }

    /// The number of logical blocks of `pages` logical pages: whole groups.
    pub(super) fn blocks(&self, pages: u32) -> u32 {
        let group = u64::from(self.width) * u64::from(self.pages);
        exact(u64::from(pages).div_ceil(group) * u64::from(self.width), "settings with more are refused")
    }

    /// The logical block of a logical page, and the page in it.
    pub(super) fn locate(&self, page: u32) -> (u32, u16) {
        let group = u64::from(self.width) * u64::from(self.pages);
        let (number, rest) = (u64::from(page) / group, u64::from(page) % group);
        let (unit, within) = (rest / u64::from(self.unit), rest % u64::from(self.unit));
        let block = number * u64::from(self.width) + unit % u64::from(self.width);
        let at = unit / u64::from(self.width) * u64::from(self.unit) + within;
        (exact(block, "settings with more are refused"), exact(at, "a block has at most 65,535 pages"))
    }

    /// The logical page at a page of a logical block; beyond the disk in a group that is cut short.
    pub(super) fn page(&self, block: u32, at: u16) -> u64 {
        let (width, unit, at) = (u64::from(self.width), u64::from(self.unit), u64::from(at));
        let (group, column) = (u64::from(block) / width, u64::from(block) % width);
        group * width * u64::from(self.pages) + (at / unit * width + column) * unit + at % unit
    }

    /// `true` if all pages of a logical block are within a disk of `pages`.
    pub(super) fn is_whole(&self, block: u32, pages: u32) -> bool {
        let group = u64::from(self.width) * u64::from(self.pages);
        (u64::from(block / self.width) + 1) * group <= u64::from(pages)
    }

    /// The logical blocks of the groups that are wholly in a run of logical pages, and the logical pages of those.
    pub(super) fn whole_groups(&self, run: &Range<u32>) -> (Range<u32>, Range<u32>) {
        let group = u64::from(self.width) * u64::from(self.pages);
        let first = u64::from(run.start).div_ceil(group);
        let last = (u64::from(run.end) / group).max(first);
        let width = u64::from(self.width);
        let pages =
            saturating::<u32>(first * group).min(run.end)..saturating::<u32>(last * group).min(run.end);
        (
            saturating::<u32>(first * width)..saturating::<u32>(last * width),
            if first == last { run.end..run.end } else { pages },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbouring_pages_are_on_different_channels() {
        let stripe = Stripe::new(4, 1, 8);
        assert_eq!(
            [0, 1, 3, 4, 31, 32].map(|page| stripe.locate(page)),
            [(0, 0), (1, 0), (3, 0), (0, 1), (3, 7), (4, 0)]
        );
        assert_eq!([0, 1, 32, 33].map(|pages| stripe.blocks(pages)), [0, 4, 4, 8]);
        assert_eq!(
            [(3, 63), (3, 64), (4, 63), (7, 64)].map(|(block, pages)| stripe.is_whole(block, pages)),
            [true, true, false, true]
        );
    }

    proptest! {
        #[test]
        fn a_page_maps_to_its_stripe_and_back(
            width in 1_u32..70, unit in 1_u32..5, rows in 1_u32..40, page in any::<u32>(),
        ) {
            let stripe = Stripe::new(width, unit, unit * rows);
            let (block, at) = stripe.locate(page);
            prop_assert!(u32::from(at) < unit * rows);
            prop_assert_eq!(stripe.page(block, at), u64::from(page));
        }

        #[test]
        fn whole_groups_have_all_pages_of_their_stripes(
            width in 1_u32..5, rows in 1_u32..5, first in 0_u32..100, count in 0_u32..100,
        ) {
            let stripe = Stripe::new(width, 1, rows);
            let run = first..first + count;
            let (blocks, pages) = stripe.whole_groups(&run);
            for page in run {
                let (block, _) = stripe.locate(page);
                prop_assert_eq!(blocks.contains(&block), pages.contains(&page));
            }
            for block in blocks {
                for at in (0..).take(rows as usize) {
                    prop_assert!(pages.contains(&u32::try_from(stripe.page(block, at)).unwrap()));
                }
            }
        }
    }
}
