//! The blocks that merging runs copied up from the base, and that no client has written over since.
//!
//! They are kept in memory, a bit for each block of 4 KiB. Their sum is noted in `state.json` now and then, and
//! only that sum is known when the disk is opened again.

use super::WritableDisk;
use super::space::BLOCK_SECTORS;
use super::state::State;
use super::view::View;
use headstart_block::{Result, SECTOR_SIZE};
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

    /// Limits the sum to the `live` bytes: no more can have been copied up than there is.
    fn cut_to(&mut self, live: u64) {
        self.before = self.before.min(live.saturating_sub(self.blocks * BLOCK));
    }
}

/// The cells of the blocks `[start, end)`, and their bits there.
fn cells(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (start / 64..if start < end { end.div_ceil(64) } else { 0 }).map(move |cell| {
        let (from, to) = (start.max(cell * 64) % 64, (end - cell * 64).min(64));
        (cell, (u64::MAX << from) & (u64::MAX >> (64 - to)))
    })
}

impl View {
    /// Bytes that merging may still copy up. With the bytes that it has copied, they are at most
    /// [`Limits::copied_up`], or at most the bytes that clients wrote. `live` is the sum of both.
    ///
    /// [`Limits::copied_up`]: super::Limits::copied_up
    pub(super) fn copy_room(&self, live: u64) -> u64 {
        let copied = self.copied_up.bytes().min(live);
        self.limits.copied_up.max(live - copied).saturating_sub(copied)
    }
}

impl WritableDisk {
    /// Notes in `state.json` the bytes that were copied up, if that has changed by [`NOTED_WITHIN`] or more.
    pub(super) fn note_copied_up(&self) -> Result<()> {
        let has_changed = |view: &View| {
            let copied = &view.copied_up;
            copied.noted.abs_diff(copied.bytes().min(self.space_of(view).live)) >= NOTED_WITHIN
        };
        if !has_changed(&self.view()) {
            return Ok(());
        }
        let bytes = {
            let mut view = self.view_mut();
            let live = self.space_of(&view).live;
            view.copied_up.cut_to(live);
            view.copied_up.bytes().min(live)
        };
        let mut state = self.state.lock();
        let noted = State { copied_up_bytes: bytes, ..state.clone() };
        self.store(&mut state, noted)?;
        self.view_mut().copied_up.noted = bytes;
        Ok(())
    }
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
