//! The lock of byte ranges during writes: whole sectors are shared, a read-modify-write is alone.
//!
//! A write of part of a sector reads the sector, changes it and writes it back. Another write of that sector in between
//! would be lost, although the two may not even overlap. So such a write takes its sectors *exclusively*, and every
//! other write takes its own *shared*: writes of whole sectors, which are nearly all writes, never wait for each other.
//! Few ranges are held at a time, hence a plain list.

use headstart_block::ByteRange;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// The mode in which a range is held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Beside other writes of whole sectors.
    Shared,
    /// Alone.
    Exclusive,
}

#[derive(Default)]
pub(super) struct RangeLock {
    held: Mutex<Vec<(ByteRange, Hold)>>,
    released: Condvar,
}

/// A held range, until it is dropped.
pub(super) struct Held<'a> {
    lock: &'a RangeLock,
    entry: (ByteRange, Hold),
}

impl RangeLock {
    /// Takes `range` if no held range conflicts.
    pub(super) fn try_lock(&self, range: ByteRange, hold: Hold) -> Option<Held<'_>> {
        let mut held = self.list();
        (!conflicts(&held, range, hold)).then(|| self.enter(&mut held, range, hold))
    }

    /// Waits until no held range conflicts, and takes `range`.
    pub(super) fn lock(&self, range: ByteRange, hold: Hold) -> Held<'_> {
        let mut held = self.list();
        self.released.wait_while(&mut held, |held| conflicts(held, range, hold));
        self.enter(&mut held, range, hold)
    }

    fn enter<'a>(&'a self, held: &mut Vec<(ByteRange, Hold)>, range: ByteRange, hold: Hold) -> Held<'a> {
        let entry = (range, hold);
        held.push(entry);
        Held { lock: self, entry }
    }

    /// The list of held ranges.
    fn list(&self) -> MutexGuard<'_, Vec<(ByteRange, Hold)>> {
        self.held.lock()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.lock.list();
        if let Some(position) = held.iter().position(|entry| *entry == self.entry) {
            held.swap_remove(position);
        }
        drop(held);
        self.lock.released.notify_all();
    }
}

fn conflicts(held: &[(ByteRange, Hold)], range: ByteRange, hold: Hold) -> bool {
    let alone = |other: Hold| hold == Hold::Exclusive || other == Hold::Exclusive;
    held.iter().any(|(other, how)| alone(*how) && !other.intersect(range).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_overlaps_a_read_modify_write_waits() {
        let lock = RangeLock::default();
        let range = ByteRange::between;
        let first = lock.try_lock(range(0, 1024), Hold::Shared).unwrap();
        let second = lock.try_lock(range(512, 2048), Hold::Shared).unwrap();
        assert!(lock.try_lock(range(512, 1024), Hold::Exclusive).is_none());
        let alone = lock.try_lock(range(2048, 2560), Hold::Exclusive).unwrap();
        assert!(lock.try_lock(range(2048, 4096), Hold::Shared).is_none());
        drop((first, alone));
        assert!(lock.try_lock(range(512, 1024), Hold::Exclusive).is_none());
        drop(second);
        assert!(lock.try_lock(range(512, 1024), Hold::Exclusive).is_some());
        assert!(lock.list().is_empty());
    }
}
