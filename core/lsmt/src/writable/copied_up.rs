//! The blocks that merging runs copied up from the base, and that no client has written over since.
//!
//! They are kept in memory, a bit for each block of 4 KiB. Their sum is noted in `state.json` now and then, and
//! only that sum is known when the disk is opened again.

use super::space::BLOCK_SECTORS;
use headstart_block::SECTOR_SIZE;
use std::collections::BTreeMap;

/// Bytes of a block.
const BLOCK: u64 = BLOCK_SECTORS * SECTOR_SIZE;

/// Bytes by which the noted sum may be wrong.
const NOTED_WITHIN: u64 = 16 << 20;

/// Blocks that were copied up.
#[derive(Default)]
pub(super) struct CopiedUp {
    /// Bits of 64 blocks each, none without a bit.
    cells: BTreeMap<u64, u64>,
    blocks: u64,
    /// Bytes that were copied up before the disk was opened, wherever they are.
    before: u64,
    /// Bytes that `state.json` records.
    noted: u64,
}

impl CopiedUp {
    /// The blocks of a disk that is opened, of which only the sum in bytes is known.
    pub(super) fn noted(bytes: u64) -> Self {
        Self { before: bytes, noted: bytes, ..Self::default() }
    }

    /// Bytes that were copied up.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks * BLOCK + self.before
    }

    /// Notes that the sectors `[start, end)` were copied up, and with them every block that has some of them.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        for (cell, bits) in cells(start / BLOCK_SECTORS, end.div_ceil(BLOCK_SECTORS)) {
            let found = self.cells.entry(cell).or_default();
            self.blocks += u64::from((bits & !*found).count_ones());
            *found |= bits;
        }
    }

    /// Notes that a client has written or discarded the sectors `[start, end)`: no block within is a copy any more.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if self.cells.is_empty() {
            return;
        }
        for (cell, bits) in cells(start.div_ceil(BLOCK_SECTORS), end / BLOCK_SECTORS) {
            let Some(found) = self.cells.get_mut(&cell) else { continue };
            self.blocks -= u64::from((bits & *found).count_ones());
            *found &= !bits;
            if *found == 0 {
                self.cells.remove(&cell);
            }
        }
    }

    /// `true` if the sum of a disk with `live` bytes differs from the noted one by [`NOTED_WITHIN`] or more.
    pub(super) fn is_to_be_noted(&self, live: u64) -> bool {
        self.noted.abs_diff(self.bytes().min(live)) >= NOTED_WITHIN
    }

    /// Limits the sum to the `live` bytes, because no more can have been copied up than there is; returns it.
    pub(super) fn cut_to(&mut self, live: u64) -> u64 {
        self.before = self.before.min(live.saturating_sub(self.blocks * BLOCK));
        self.bytes().min(live)
    }

    /// Remembers the sum that `state.json` records.
    pub(super) fn set_noted(&mut self, bytes: u64) {
        self.noted = bytes;
    }
}

/// The cells of the blocks `[start, end)`, and their bits there.
fn cells(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (start / 64..if start < end { end.div_ceil(64) } else { 0 }).map(move |cell| {
        let (from, to) = (start.max(cell * 64) % 64, (end - cell * 64).min(64));
        (cell, (u64::MAX << from) & (u64::MAX >> (64 - to)))
    })
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const BLOCKS: u64 = 200;

    proptest! {
        #[test]
        fn blocks_are_copies_until_they_are_written_over(
            steps in vec((any::<bool>(), 0..BLOCKS * BLOCK_SECTORS, 1..900u64), 0..40), before in 0u64..9999,
        ) {
            let (mut copied, mut model) = (CopiedUp::noted(before), [false; BLOCKS as usize]);
            for (adds, start, len) in steps {
                let end = (start + len).min(BLOCKS * BLOCK_SECTORS);
                if adds { copied.add(start, end) } else { copied.remove(start, end) }
                for (block, is_copied) in model.iter_mut().enumerate() {
                    let (first, last) = (block as u64 * BLOCK_SECTORS, (block as u64 + 1) * BLOCK_SECTORS);
                    if adds {
                        *is_copied |= start < last && first < end;
                    } else {
                        *is_copied &= !(start <= first && last <= end);
                    }
                }
                let blocks = model.iter().filter(|it| **it).count() as u64;
                prop_assert_eq!(copied.bytes(), blocks * BLOCK + before);
                prop_assert!(copied.cells.values().all(|bits| *bits != 0));
            }
        }
    }
}
