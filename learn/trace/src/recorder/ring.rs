//! The ring of records: many threads put records in, one takes them out, and none ever waits for another.
//!
//! A writer takes a slot by one atomic exchange and fills it by four atomic stores; the last of them, which also says
//! that the slot is full, is what the reader looks at first. The reader empties a slot before it frees it. A ring
//! that is not emptied keeps the records that came first.

use headstart_block::AtomicWord;
use std::sync::atomic::Ordering;

/// Set in a slot's last word once the slot is full.
const FULL: u64 = 1 << 63;

/// A ring of slots of four words.
pub(super) struct Ring<W> {
    slots: Box<[[W; 4]]>,
    /// Slots taken so far: the next one is at this number, modulo the number of slots.
    taken: W,
    /// Slots emptied so far.
    freed: W,
}

impl<W: AtomicWord> Ring<W> {
    /// Makes a ring with room for `slots` records, one at least.
    pub(super) fn new(slots: usize) -> Self {
        let slot = || [(); 4].map(|()| W::new(0));
        Self { slots: (0..slots.max(1)).map(|_| slot()).collect(), taken: W::new(0), freed: W::new(0) }
    }

    /// Puts a record in, the highest bit of whose last word is 0; `false` if there is no room.
    pub(super) fn put(&self, record: [u64; 4]) -> bool {
        let Some(slot) = self.take() else { return false };
        slot[0].store(record[0], Ordering::Relaxed);
        slot[1].store(record[1], Ordering::Relaxed);
        slot[2].store(record[2], Ordering::Relaxed);
        slot[3].store(record[3] | FULL, Ordering::Release);
        true
    }

    /// Takes a slot that is empty.
    fn take(&self) -> Option<&[W; 4]> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            // The reads of a slot came before it was freed.
            let waiting = taken.saturating_sub(self.freed.load(Ordering::Acquire));
            if waiting >= self.slots.len() as u64 {
                return None;
            }
            let next = taken + 1;
            match self.taken.compare_exchange_weak(taken, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.slot(taken),
                Err(now) => taken = now,
            }
        }
    }

    fn slot(&self, number: u64) -> Option<&[W; 4]> {
        self.slots.get(usize::try_from(number % self.slots.len() as u64).ok()?)
    }

    /// Takes out the records so far, up to one that is being put in. One thread at a time may call this.
    pub(super) fn drain(&self, each: &mut dyn FnMut([u64; 4])) {
        let mut freed = self.freed.load(Ordering::Relaxed);
        while freed < self.taken.load(Ordering::Relaxed) {
            // A slot that is being filled right now is taken the next time.
            let Some(record) = self.slot(freed).and_then(empty) else { return };
            freed += 1;
            self.freed.store(freed, Ordering::Release);
            each(record);
        }
    }

    /// The number of records that were put in.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// Empties a slot, unless it is being filled right now.
fn empty<W: AtomicWord>(slot: &[W; 4]) -> Option<[u64; 4]> {
    let last = slot[3].load(Ordering::Acquire);
    if last & FULL == 0 {
        return None;
    }
    let [first, second, third] = [0, 1, 2].map(|at: usize| slot[at].load(Ordering::Relaxed));
    slot[3].store(0, Ordering::Relaxed);
    Some([first, second, third, last & !FULL])
}

#[cfg(test)]
mod interleavings;
