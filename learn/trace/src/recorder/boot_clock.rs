//! The boot that goes on, decided by the reads of many threads without a lock: the word of a [`RecordingPhase`].
//!
//! Reads of the boot sector that come together after a pause all belong to the boot that one of them begins. So the
//! pause ends after its boot has begun:
//!
//! 1. A read looks at the time of the last read, then at the boot.
//! 2. A read that is the first of a boot by these replaces the boot that it saw by its own. Of several, one succeeds;
//!    the others find its boot, and belong to it.
//! 3. The read raises the time of the last read (`Release`). A read that sees that time (`Acquire`) also sees the boot,
//!    at which it looks later.
//!
//! A read that sees the boot and not yet the end of the pause begins no second boot: the boot's word has the arrival of
//! its first read, and since then there was no pause. A new client is noted together with the boot that went on when it
//! came. As soon as another boot has begun, no read counts as that client's first.
//!
//! A read of another place ends a pause, too, and begins no boot. If such a read comes together with reads of the boot
//! sector, those that see its time belong to the old boot, although another may begin one that did not see it.

use crate::boots::{Arrival, RecordingPhase, covers_boot_sector};
use headstart_block::{AtomicWord, ByteRange};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The precision of the time of the last read, which is therefore written seldom.
pub(super) const GRAIN_US: u64 = 100_000;

/// The boots of a disk. Times are microseconds since the disk was attached.
pub(super) struct BootClock<W> {
    /// The word of the [`RecordingPhase`].
    phase: W,
    boots: W,
    /// The time at which a read last arrived or ended; see [`GRAIN_US`].
    last_read_us: W,
    clients: W,
    /// The boot after which a client came to a disk that had none, if nothing was read since; 0 if there is no such
    /// boot.
    newcomer: W,
}

impl<W: AtomicWord> BootClock<W> {
    /// Makes the clock of a disk of which nothing was read.
    pub(super) fn new() -> Self {
        let [phase, boots, last_read_us, clients, newcomer] = [(); 5].map(|()| W::new(0));
        Self { phase, boots, last_read_us, clients, newcomer }
    }

    /// Returns the word of the boot that is in progress, or of the last one.
    pub(super) fn boot(&self) -> u64 {
        self.phase.load(Ordering::Relaxed)
    }

    /// Returns the number of boots that have begun.
    pub(super) fn boots(&self) -> u64 {
        self.boots.load(Ordering::Relaxed)
    }

    /// Notes that a client has connected to the disk.
    pub(super) fn client_came(&self) {
        // Clients that have left read before: theirs is the last boot.
        if self.clients.fetch_add(1, Ordering::Acquire) == 0 {
            self.newcomer.store(self.boot(), Ordering::Relaxed);
        }
    }

    /// Notes that a client has disconnected from the disk.
    pub(super) fn client_left(&self) {
        self.clients.fetch_sub(1, Ordering::Release);
    }

    /// Notes that a read arrives, which may begin a boot. Returns the word of the boot that it belongs to.
    pub(super) fn read_arrived(&self, range: ByteRange, at_us: u64) -> u64 {
        let last_us = self.last_read_us.load(Ordering::Acquire);
        let before = self.boot();
        let is_first_of_client = self.newcomer.load(Ordering::Relaxed) == before;
        let boot = if before == 0 || is_first_of_client || covers_boot_sector(range) {
            // There was no pause since the first read of the boot, though its end may not be visible yet.
            let last_us = last_us.max(RecordingPhase::of_word(before).began_us());
            let quiet = Duration::from_micros(at_us.saturating_sub(last_us));
            self.decide(before, &Arrival { at_us, range, quiet, is_first_of_client })
        } else {
            before
        };
        self.was_read(at_us, last_us);
        boot
    }

    #[cold]
    fn decide(&self, before: u64, read: &Arrival) -> u64 {
        let after = RecordingPhase::of_word(before).after(read).to_word();
        if after == before {
            if read.is_first_of_client {
                self.newcomer.store(0, Ordering::Relaxed);
            }
            return before;
        }
        // If another thread was faster, its boot has just begun.
        match self.phase.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                self.boots.fetch_add(1, Ordering::Relaxed);
                after
            }
            Err(now) => now,
        }
    }

    /// Begins a boot at `at_us`, whatever is read; returns its word.
    pub(super) fn begin(&self, at_us: u64) -> u64 {
        let mut before = self.boot();
        loop {
            let after_us = RecordingPhase::of_word(before).began_us().saturating_add(u64::from(before > 0));
            let after = RecordingPhase::Recording { since_us: at_us.max(after_us) }.to_word();
            match self.phase.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.boots.fetch_add(1, Ordering::Relaxed);
                    return after;
                }
                Err(now) => before = now,
            }
        }
    }

    /// Lets the next read begin no boot by being the first. Returns the word of the boot that goes on.
    pub(super) fn go_on(&self) -> u64 {
        let first = RecordingPhase::Recording { since_us: 0 }.to_word();
        match self.phase.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => first,
            Err(begun) => begun,
        }
    }

    /// Notes that a read ended at `at_us`.
    pub(super) fn read_ended(&self, at_us: u64) {
        self.was_read(at_us, self.last_read_us.load(Ordering::Relaxed));
    }

    fn was_read(&self, at_us: u64, last_us: u64) {
        if at_us >= last_us.saturating_add(GRAIN_US) {
            self.last_read_us.fetch_max(at_us, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod interleavings;
