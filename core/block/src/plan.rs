//! Plans: the blocks to preload, in order. Learning makes them, and the pull engine follows them.

use crate::ByteRange;
use std::sync::Arc;

/// Length of a block in bytes: 2 MiB. Plans divide the address space of a disk into blocks.
pub const BLOCK_SIZE: u64 = 2 << 20;

/// Length of a slice in bytes: 64 KiB. A block has 32 slices.
pub const SLICE_SIZE: u64 = 64 << 10;

/// The blocks (2 MiB ranges) of a disk to preload, in the order in which to fetch them. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Plan {
    /// No block: bytes are fetched only when they are read.
    #[default]
    Lazy,
    /// The whole disk from its start to its end.
    Sequential,
    /// The listed blocks, in this order.
    List(Arc<[PlanItem]>),
}

/// A block (2 MiB) of the disk, and the slices (64 KiB each) of it to preload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanItem {
    /// The number of the block, which starts at byte `block * BLOCK_SIZE` of the disk. A block past the disk's end
    /// is skipped.
    pub block: u64,
    /// One bit for each of the 32 slices: bit `i` (the lowest is bit 0) is set if slice `i` is to be
    /// preloaded.
    pub mask: u32,
}

impl PlanItem {
    /// An item that preloads all 32 slices of `block`.
    #[must_use]
    pub fn whole(block: u64) -> Self {
        Self { block, mask: u32::MAX }
    }

    /// Returns the byte ranges of the disk to preload, ascending. Neighbouring slices form one range, and ranges are
    /// cut at `disk_size`, the size of the disk in bytes. There are no ranges if the block is past the end of the disk
    /// or no bit of the mask is set.
    pub fn parts(self, disk_size: u64) -> impl Iterator<Item = ByteRange> {
        let start = self.block.checked_mul(BLOCK_SIZE).filter(|start| *start < disk_size);
        let mut mask = if start.is_some() { self.mask } else { 0 };
        let mut slice: u64 = 0;
        std::iter::from_fn(move || {
            let start = start?;
            if mask == 0 {
                return None;
            }
            let skip = mask.trailing_zeros();
            mask >>= skip;
            let run = mask.trailing_ones();
            mask = mask.checked_shr(run).unwrap_or(0);
            let first = slice + u64::from(skip);
            slice = first + u64::from(run);
            let bytes = |slice: u64| start.saturating_add(slice * SLICE_SIZE).min(disk_size);
            Some(ByteRange::between(bytes(first), bytes(slice)))
        })
        .filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(item: PlanItem, disk_size: u64) -> Vec<(u64, u64)> {
        item.parts(disk_size)
            .map(|part| (part.offset() / SLICE_SIZE, part.len().div_ceil(SLICE_SIZE)))
            .collect()
    }

    #[test]
    fn neighbouring_slices_are_one_part() {
        let disk = 4 * BLOCK_SIZE;
        assert_eq!(slices(PlanItem::whole(1), disk), [(32, 32)]);
        assert_eq!(slices(PlanItem { block: 0, mask: 0b1011 }, disk), [(0, 2), (3, 1)]);
        assert_eq!(slices(PlanItem { block: 0, mask: 1 << 31 }, disk), [(31, 1)]);
        assert_eq!(slices(PlanItem { block: 0, mask: 0 }, disk), []);
    }

    #[test]
    fn plan_items_are_cut_at_the_end_of_the_disk() {
        assert_eq!(slices(PlanItem::whole(u64::MAX), 100), []);
        let parts: Vec<_> = PlanItem::whole(0).parts(SLICE_SIZE + 512).collect();
        assert_eq!(parts, [ByteRange::between(0, SLICE_SIZE + 512)]);
    }
}
