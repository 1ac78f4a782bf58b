//! The first reads of a disk: a log that the disk's reads write. The code that follows plans
//! ([`preloading`](crate::preloading)) reads the log.
//!
//! The guest's reads, hits and misses alike, decide whether a plan is followed, changed or stopped. So each read notes
//! the slices that it touches, and the log records each slice once, in the order of the first reads. Noting is on the
//! path of every read: it takes no lock, allocates nothing, and for slices that were read before (nearly all reads,
//! after a while) does nothing except one load.
//!
//! A block has a word with a bit for each slice. The thread that is the first to set bits of a block takes the next
//! entry of the log by adding one to a counter, and writes the block and those bits into the entry, as one word. A
//! reader of the log that comes to an entry that is taken and not yet written stops, and continues from that entry the
//! next time. The log is bounded, and so is the part of a disk that it covers. Reads beyond these bounds are not
//! recorded; the only cost is that a plan is judged by fewer reads.

use headstart_block::{BLOCK_SIZE, ByteRange, SLICE_SIZE};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of blocks of a disk that are covered: the first 2 TiB, 4 MiB of memory at most.
const BLOCKS_MAX: u64 = 1 << 20;

/// The number of first accesses that are kept. A boot has some thousands.
const LOG_MAX: usize = 1 << 15;

/// The slices (64 KiB) of one block that one read was the first to touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstAccess {
    /// The number of the block on the disk, counted in blocks of 2 MiB.
    pub block: u64,
    /// The slices of the block, as bits: bit `i` stands for slice `i`, as in a
    /// [`PlanItem`](headstart_block::PlanItem).
    pub slices: u32,
}

/// The log of a disk's first reads: each slice (64 KiB) is recorded once, when it is read for the first time.
/// The log keeps at most 32,768 entries and covers the first 2 TiB of a disk.
pub struct Accesses {
    /// The slices of each block that were read.
    seen: Box<[AtomicU32]>,
    /// Block and slices of each access; 0 if nothing was written yet.
    log: Box<[AtomicU64]>,
    next: AtomicUsize,
}

impl Accesses {
    /// Creates the empty log of a disk of `disk_size` bytes.
    #[must_use]
    pub fn new(disk_size: u64) -> Self {
        let blocks = disk_size.div_ceil(BLOCK_SIZE).min(BLOCKS_MAX);
        Self {
            seen: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
            log: (0..LOG_MAX).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// Records a read of `range` (in bytes) of the disk. Slices that were recorded before are ignored.
    #[inline]
    pub fn note(&self, range: ByteRange) {
        let Some(last) = range.end().checked_sub(1).filter(|_| !range.is_empty()) else { return };
        let (first, last) = (range.offset() / SLICE_SIZE, last / SLICE_SIZE);
        let block = first / SLICES;
        if last / SLICES == block {
            self.touch(block, mask(first % SLICES, last % SLICES));
        } else {
            self.note_blocks(first, last);
        }
    }

    #[cold]
    fn note_blocks(&self, first: u64, last: u64) {
        let known = self.seen.len() as u64;
        for block in first / SLICES..(last / SLICES).saturating_add(1).min(known) {
            let start = block * SLICES;
            self.touch(block, mask(first.max(start) - start, last.min(start + SLICES - 1) - start));
        }
    }

    #[inline]
    fn touch(&self, block: u64, slices: u32) {
        let Some(seen) = usize::try_from(block).ok().and_then(|block| self.seen.get(block)) else { return };
        if slices & !seen.load(Ordering::Relaxed) != 0 {
            self.first(seen, block, slices);
        }
    }

    #[cold]
    fn first(&self, seen: &AtomicU32, block: u64, slices: u32) {
        let new = slices & !seen.fetch_or(slices, Ordering::Relaxed);
        if new == 0 {
            return;
        }
        // Far from an overflow: a disk has less than 2^25 slices here, and each comes once.
        if let Some(place) = self.log.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            place.store(block << 32 | u64::from(new), Ordering::Release);
        }
    }

    /// Calls `each` with the entries of the log from index `from` on, and sets `from` to the index at which the next
    /// call has to continue. A caller starts with 0.
    pub fn since(&self, from: &mut usize, each: &mut dyn FnMut(FirstAccess)) {
        while let Some(place) = self.log.get(*from) {
            let word = place.load(Ordering::Acquire);
            if word == 0 {
                return;
            }
            *from += 1;
            // The upper and the lower half.
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
            each(FirstAccess { block: word >> 32, slices: word as u32 });
        }
    }

    /// Returns `true` once any slice in the first 2 TiB was read.
    #[must_use]
    pub fn are_any(&self) -> bool {
        self.next.load(Ordering::Relaxed) > 0
    }

    /// Returns those of `slices` of a block (bit `i` stands for slice `i`) that were read; 0 for a block
    /// beyond the first 2 TiB.
    #[must_use]
    pub fn was_read(&self, block: u64, slices: u32) -> u32 {
        let seen = usize::try_from(block).ok().and_then(|block| self.seen.get(block));
        seen.map_or(0, |seen| seen.load(Ordering::Relaxed) & slices)
    }
}

const SLICES: u64 = BLOCK_SIZE / SLICE_SIZE;

/// The bits from slice `first` to slice `last` of a block, both below 32.
fn mask(first: u64, last: u64) -> u32 {
    u32::MAX >> (SLICES - 1 - last) & u32::MAX << first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(accesses: &Accesses, from: &mut usize) -> Vec<(u64, u32)> {
        let mut read = Vec::new();
        accesses.since(from, &mut |access| read.push((access.block, access.slices)));
        read
    }

    #[test]
    fn each_slice_comes_once_in_the_order_of_first_access() {
        let accesses = Accesses::new(3 * BLOCK_SIZE + 512);
        let note = |start, end| accesses.note(ByteRange::between(start, end));
        note(BLOCK_SIZE, BLOCK_SIZE + 1);
        note(BLOCK_SIZE, BLOCK_SIZE + 4096);
        note(7, 7);
        note(SLICE_SIZE - 1, 2 * SLICE_SIZE + 1);
        let mut from = 0;
        assert!(accesses.are_any() && !Accesses::new(512).are_any());
        assert_eq!(read(&accesses, &mut from), [(1, 1), (0, 0b111)]);
        note(0, 3 * BLOCK_SIZE + 512);
        assert_eq!(read(&accesses, &mut from), [(0, !0b111), (1, !1), (2, u32::MAX), (3, 1)]);
        note(4 * BLOCK_SIZE, 5 * BLOCK_SIZE);
        note(u64::MAX - 1, u64::MAX);
        assert_eq!(read(&accesses, &mut from), []);
        assert_eq!([accesses.was_read(1, 3), accesses.was_read(3, 3), accesses.was_read(9, 3)], [3, 1, 0]);
    }

    #[test]
    fn masks_are_of_the_slices_between() {
        assert_eq!([mask(0, 0), mask(31, 31), mask(0, 31), mask(4, 7)], [1, 1 << 31, u32::MAX, 0xf0]);
    }

    #[test]
    fn a_full_log_takes_no_more() {
        let accesses = Accesses::new(1 << 42);
        for block in 0..LOG_MAX as u64 + 9 {
            accesses.note(ByteRange::between(block * BLOCK_SIZE, block * BLOCK_SIZE + 1));
        }
        assert_eq!(read(&accesses, &mut 0).len(), LOG_MAX);
    }

    #[test]
    fn readers_and_writers_at_the_same_time_lose_nothing() {
        let accesses = Accesses::new(64 * BLOCK_SIZE);
        let mut found = std::collections::BTreeMap::<u64, u32>::new();
        let mut from = 0;
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4_u64)
                .map(|writer| {
                    let accesses = &accesses;
                    scope.spawn(move || {
                        for n in 0..64 * SLICES {
                            let slice = (n * 37 + writer * 11) % (64 * SLICES);
                            accesses.note(ByteRange::between(slice * SLICE_SIZE, (slice + 1) * SLICE_SIZE));
                        }
                    })
                })
                .collect();
            while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                for (block, slices) in read(&accesses, &mut from) {
                    let known = found.entry(block).or_default();
                    assert_eq!(*known & slices, 0, "twice");
                    *known |= slices;
                }
            }
        });
        for (block, slices) in read(&accesses, &mut from) {
            *found.entry(block).or_default() |= slices;
        }
        assert!(found.len() == 64 && found.values().all(|slices| *slices == u32::MAX));
    }
}
