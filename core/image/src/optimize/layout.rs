//! The assignment of the parts of a disk to places.

use headstart_block::{BLOCK_SIZE, BlockDevice, ByteRange, PlanItem, SECTOR_SIZE};
use headstart_lsmt::{Segment, Stack};
use std::collections::BTreeMap;

/// The parts of a disk in the order in which their data is to be stored. None has more than a block, none overlap.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// The parts that the first plan names, in its order.
    pub(super) hot: Vec<ByteRange>,
    /// The parts that only the others name, in their order.
    pub(super) beyond: Vec<ByteRange>,
    /// The parts that no plan names, in the disk's order; empty if they stay in the layers that have them.
    pub(super) rest: Vec<ByteRange>,
}

impl Layout {
    /// Lays out the parts of a disk of `size` bytes that `plans` name.
    pub(super) fn new(size: u64, plans: &[&[PlanItem]]) -> Self {
        let mut seen = Seen::default();
        let mut named = plans.iter().map(|plan| seen.parts(plan, size));
        let hot = named.next().unwrap_or_default();
        let beyond = named.flatten().collect();
        Self { hot, beyond, rest: Vec::new() }
    }

    /// The same layout, with all other data of `disk`.
    pub(super) fn with_rest(self, disk: &Stack) -> Self {
        let mut named: Vec<ByteRange> = self.hot.iter().chain(&self.beyond).copied().collect();
        named.sort_unstable_by_key(|part| part.offset());
        named.push(ByteRange::between(disk.size(), disk.size()));
        let mut start = 0;
        let gaps = named.iter().map(|part| {
            let gap = ByteRange::between(start, part.offset());
            start = part.end();
            gap
        });
        let gaps: Vec<ByteRange> = gaps.filter(|gap| !gap.is_empty()).collect();
        let mut rest = Vec::new();
        for gap in gaps {
            for segment in data_of(disk, gap) {
                let data = bytes_of(segment).intersect(gap);
                rest.extend(data.parts(BLOCK_SIZE));
            }
        }
        Self { rest, ..self }
    }

    /// All parts, in their order.
    pub(super) fn parts(&self) -> impl Iterator<Item = ByteRange> {
        self.hot.iter().chain(&self.beyond).chain(&self.rest).copied()
    }
}

/// The slices of each block that were named.
#[derive(Default)]
struct Seen(BTreeMap<u64, u32>);

impl Seen {
    /// The parts that a plan names and that were not named before, in its order.
    fn parts(&mut self, plan: &[PlanItem], size: u64) -> Vec<ByteRange> {
        let mut parts = Vec::new();
        for item in plan.iter().filter(|item| item.block < size.div_ceil(BLOCK_SIZE)) {
            let seen = self.0.entry(item.block).or_default();
            let new = PlanItem { mask: item.mask & !*seen, ..*item };
            *seen |= item.mask;
            parts.extend(new.parts(size));
        }
        parts
    }
}

/// The segments of `disk` with data in `part`, trimmed to it but in whole sectors.
pub(super) fn data_of(disk: &Stack, part: ByteRange) -> impl Iterator<Item = Segment> {
    let found = disk.index().lookup(part.offset() / SECTOR_SIZE, part.end().div_ceil(SECTOR_SIZE));
    found.filter(|segment| !segment.is_zeroed())
}

/// The bytes of the disk that a segment covers.
pub(super) fn bytes_of(segment: Segment) -> ByteRange {
    ByteRange::between(segment.offset() * SECTOR_SIZE, segment.end() * SECTOR_SIZE)
}
