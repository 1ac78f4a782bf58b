//! Blocks that are read right now, and therefore not erased.

use crate::device::FlashBlock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counters that blocks share, by their number: an erasure may wait for the readers of a block that shares the counter,
/// nothing worse. 16 KiB.
const COUNTERS: usize = 4096;

/// Counters of the readers of flash blocks, which keep a block from being erased while it is read. A reader
/// must pin the block under the same lock under which it looked the block up, and drop the pin when it has the
/// bytes. Blocks that are about to be erased are no longer found by look-ups, so no pin comes too late.
#[derive(Debug)]
pub struct Pins(Box<[AtomicU32]>);

/// A reader's pin on one flash block, which is not erased until the pin is dropped.
#[derive(Debug)]
#[must_use]
pub struct ReadPin<'a>(&'a AtomicU32);

impl Default for Pins {
    fn default() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Pins {
    /// Keeps `block` from being erased by its vSSD until the returned pin is dropped. May be called from any
    /// thread; takes no lock and does not allocate.
    pub fn pin(&self, block: FlashBlock) -> ReadPin<'_> {
        let counter = &self.0[block.0 as usize % COUNTERS];
        counter.fetch_add(1, Ordering::AcqRel);
        ReadPin(counter)
    }

    /// Returns `true` if `block` is being read. There may be fewer counters than blocks: the result is also `true` if
    /// another block that shares the counter of `block` is being read.
    #[must_use]
    pub fn is_pinned(&self, block: FlashBlock) -> bool {
        self.0[block.0 as usize % COUNTERS].load(Ordering::Acquire) > 0
    }
}

impl Drop for ReadPin<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_pinned_until_its_last_pin_is_dropped() {
        let pins = Pins::default();
        let block = FlashBlock(70_000);
        let (first, second) = (pins.pin(block), pins.pin(block));
        drop(first);
        assert!(pins.is_pinned(block) && !pins.is_pinned(FlashBlock(1)));
        drop(second);
        assert!(!pins.is_pinned(block));
    }
}
