//! Blocks that are read right now, and therefore not erased.

use crate::device::FlashBlock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counters that blocks share, by their number: an erasure may wait for the readers of a block that shares the counter,
/// nothing worse. 16 KiB.
const COUNTERS: usize = 4096;

/// The flash blocks under reads. A reader pins a block while it still holds the lock under which it looked the block
/// up, and unpins it when the bytes are there. A block that is to be erased is not looked up, so that no pin comes
/// late.
#[derive(Debug)]
pub struct Pins(Box<[AtomicU32]>);

/// One block under a read, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct ReadPin<'a>(&'a AtomicU32);

impl Default for Pins {
    fn default() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Pins {
    /// Keeps `block` from being erased by its vSSD until the pin is dropped. Any thread, no lock, no allocation.
    pub fn pin(&self, block: FlashBlock) -> ReadPin<'_> {
        let counter = &self.0[block.0 as usize % COUNTERS];
        counter.fetch_add(1, Ordering::AcqRel);
        ReadPin(counter)
    }

    /// `true` if `block`, or one that shares its counter, is read.
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
