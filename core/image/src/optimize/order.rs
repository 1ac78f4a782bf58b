//! The order in which boots read, as the boot layer of an image records it.

use crate::manifest::Manifest;
use headstart_block::{BLOCK_SIZE, ByteRange, PlanItem, SECTOR_SIZE, SLICE_SIZE};
use headstart_lsmt::{Segment, Stack};
use std::collections::BTreeMap;

/// Returns a preload plan made from the boot layer of an optimized image, which stores the data that boots
/// read in the order of a plan. Following the result reads that layer's blob from front to back. `disk` is
/// the disk made of the disk layers of `manifest`. Empty if the image has no boot layer.
///
/// The function visits each segment of the boot layer, which takes some milliseconds for tens of thousands of
/// segments.
#[must_use]
pub fn boot_order(disk: &Stack, manifest: &Manifest) -> Vec<PlanItem> {
    let Some((layer, boot_bytes)) = boot_layer(manifest) else { return Vec::new() };
    // A boot layer has its own data; layers below it may have two sources.
    let source = disk.sources().iter().position(|source| source.layer == layer);
    let of_layer = |segment: &&Segment| Some(usize::from(segment.layer())) == source && !segment.is_zeroed();
    let mut segments: Vec<Segment> = disk.index().segments().iter().filter(of_layer).copied().collect();
    segments.sort_unstable_by_key(|segment| segment.moffset());
    let hot = segments.partition_point(|segment| stored_at(disk, *segment) < boot_bytes);
    let mut order = Order::default();
    for segment in &segments[..hot] {
        order.add(segment.offset() * SECTOR_SIZE, segment.end() * SECTOR_SIZE);
    }
    order.items
}

/// The topmost boot layer, counted among the disk's layers, and the number of bytes of its blob that are hot.
pub(super) fn boot_layer(manifest: &Manifest) -> Option<(usize, u64)> {
    let layers = manifest.disk_layers().enumerate();
    layers.filter_map(|(n, layer)| Some((n, layer.boot_bytes()?))).last()
}

/// The offset in its layer's blob of a segment of the merged index, in bytes.
fn stored_at(disk: &Stack, segment: Segment) -> u64 {
    let first = ByteRange::between(segment.offset() * SECTOR_SIZE, (segment.offset() + 1) * SECTOR_SIZE);
    let mut at = u64::MAX;
    disk.stored_ranges(first, &mut |_, stored| at = stored.offset());
    at
}

/// A plan in the making.
#[derive(Default)]
struct Order {
    items: Vec<PlanItem>,
    /// The slices of each block that are in it.
    seen: BTreeMap<u64, u32>,
}

impl Order {
    /// Adds the slices of the disk's bytes `[start, end)` that are not in it yet.
    fn add(&mut self, start: u64, end: u64) {
        for slice in start / SLICE_SIZE..end.div_ceil(SLICE_SIZE) {
            let (block, bit) = (slice * SLICE_SIZE / BLOCK_SIZE, 1 << (slice % (BLOCK_SIZE / SLICE_SIZE)));
            let seen = self.seen.entry(block).or_default();
            if *seen & bit != 0 {
                continue;
            }
            *seen |= bit;
            match self.items.last_mut() {
                // The slices of an item are taken in the disk's order.
                Some(last) if last.block == block && last.mask < bit => last.mask |= bit,
                _ => self.items.push(PlanItem { block, mask: bit }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_come_once_in_the_order_of_the_data() {
        let mut order = Order::default();
        let slice = |n: u64| (n * SLICE_SIZE, (n + 1) * SLICE_SIZE);
        for n in [5, 6, 3, 33, 31, 32] {
            let (start, end) = slice(n);
            order.add(start, start + 4096);
            order.add(end - 4096, end);
        }
        order.add(0, 70 * SLICE_SIZE);
        let items: Vec<_> = order.items.iter().map(|item| (item.block, item.mask)).collect();
        let rest = !(1 << 5 | 1 << 6 | 1 << 3 | 1 << 31);
        let expected =
            [(0, 0b11 << 5), (0, 1 << 3), (1, 2), (0, 1 << 31), (1, 1), (0, rest), (1, !3), (2, 0b11_1111)];
        assert_eq!(items, expected);
    }
}
