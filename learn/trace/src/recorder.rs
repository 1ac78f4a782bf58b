//! The recorder: notes each request of a disk's boots without slowing it down.
//!
//! The beginning of a boot is decided as its first read arrives ([`RecordingPhase`]); a request belongs to the boot
//! that went on when it arrived. Records go into a ring that is allocated once and that the [`Saver`](crate::Saver)
//! empties once a second, so a disk may boot any number of times. A ring that is not emptied keeps the records that
//! came first; a record that finds it full is counted and dropped.
//!
//! A writer takes a slot by one atomic exchange and fills it by four atomic stores; the last of them, which also says
//! that the slot is full, is what the reader looks at first. The reader empties a slot before it frees it. So neither
//! ever waits: neither the disk for the saver of the trace, nor the saver for the disk.

use crate::boots::{Arrival, RecordingPhase, covers_boot_sector, is_over};
use crate::record::{Op, Record};
use headstart_block::{ByteRange, exact, saturating};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The maximum number of records of a boot, and also of the records of a disk that wait for
/// [`Recorder::drain`]. The latter take 2 MiB of memory.
pub const RECORDS_MAX: usize = 65_536;

/// The default time for which a boot is recorded: six minutes, as in the published traces.
pub const WINDOW: Duration = Duration::from_secs(360);

/// The precision of the time of the last read, which is therefore written seldom.
const GRAIN_US: u64 = 100_000;

/// Set in a slot's last word once the slot is full.
const FULL: u64 = 1 << 63;
/// Set in a slot's last word for a write.
const WRITE: u64 = 1 << 62;

/// Four words: the boot; `t_us << 32 | service_us`; offset; length with [`FULL`] and [`WRITE`].
type Slot = [AtomicU64; 4];

/// The identity of a boot among the boots of a disk, or of no boot. A later boot compares as greater, no boot as least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootId(u64);

impl BootId {
    /// Returns the time from attaching the disk to the first read of the boot; `None` if this identifies no boot,
    /// because none had begun.
    #[must_use]
    pub fn since(self) -> Option<Duration> {
        self.0.checked_sub(1).map(Duration::from_micros)
    }
}

/// Records the requests of one disk in a ring of fixed size. Recording a request never waits.
pub struct Recorder {
    slots: Box<[Slot]>,
    /// Slots taken so far: the next one is at this number, modulo the number of slots.
    taken: AtomicU64,
    /// Slots emptied so far.
    freed: AtomicU64,
    /// The lock of the thread that empties slots.
    draining: Mutex<()>,
    /// Requests that found no slot.
    dropped: AtomicU64,
    /// The number of requests that were taken out and not kept.
    discarded: AtomicU64,
    created: Instant,
    window: Duration,
    /// The word of the [`RecordingPhase`].
    phase: AtomicU64,
    boots: AtomicU64,
    /// The time at which a read last arrived or ended, in microseconds since the creation; see [`GRAIN_US`].
    last_read_us: AtomicU64,
    clients: AtomicU32,
    /// `true` if a client came to a disk that had none, and has read nothing yet.
    is_newcomer: AtomicBool,
}

impl Recorder {
    /// Makes a recorder for a disk that was attached at `created`. Requests are recorded if they arrive
    /// within `window` (at most 71 minutes) after the first read of a boot. Up to `records_max` recorded requests wait
    /// to be [drained](Self::drain); further requests are dropped and counted.
    #[must_use]
    pub fn new(created: Instant, window: Duration, records_max: usize) -> Self {
        let slots = (0..records_max.max(1)).map(|_| Slot::default()).collect();
        let window = window.min(Duration::from_micros(u64::from(u32::MAX)));
        let [taken, freed, dropped, discarded] = Default::default();
        let [phase, boots, last_read_us] = Default::default();
        Self {
            slots,
            taken,
            freed,
            draining: Mutex::default(),
            dropped,
            discarded,
            created,
            window,
            phase,
            boots,
            last_read_us,
            clients: AtomicU32::new(0),
            is_newcomer: AtomicBool::new(false),
        }
    }

    /// The moment at which the disk was attached.
    #[must_use]
    pub fn created(&self) -> Instant {
        self.created
    }

    /// The time from its first read for which each boot is recorded.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Returns the boot that began last, whether or not it is still recorded.
    #[must_use]
    pub fn boot(&self) -> BootId {
        BootId(self.phase.load(Ordering::Relaxed))
    }

    /// Returns the number of boots that have begun.
    #[must_use]
    pub fn boots(&self) -> u64 {
        self.boots.load(Ordering::Relaxed)
    }

    /// Returns the phase of recording at the moment `now`.
    #[must_use]
    pub fn phase(&self, now: Instant) -> RecordingPhase {
        RecordingPhase::of_word(self.boot().0).at(self.micros(now), self.window)
    }

    /// Notes that a client has connected to the disk. If the disk had no client, the next read may begin a
    /// boot.
    pub fn client_came(&self) {
        if self.clients.fetch_add(1, Ordering::Relaxed) == 0 {
            self.is_newcomer.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that a client has disconnected from the disk.
    pub fn client_left(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes the arrival of a read of `range`, which may begin a boot. Returns the boot that the read belongs
    /// to, for [`record`](Self::record) when the read is complete.
    pub fn read_arrived(&self, range: ByteRange, arrived: Instant) -> BootId {
        let at_us = self.micros(arrived);
        // A thread that sees a boot also sees that its first read has ended the pause.
        let boot = BootId(self.phase.load(Ordering::Acquire));
        let last_us = self.last_read_us.load(Ordering::Relaxed);
        let is_first = self.is_newcomer.load(Ordering::Relaxed);
        self.was_read(at_us, last_us);
        if boot.0 != 0 && !is_first && !covers_boot_sector(range) {
            return boot;
        }
        let quiet = Duration::from_micros(at_us.saturating_sub(last_us));
        let is_first_of_client = is_first && self.is_newcomer.swap(false, Ordering::Relaxed);
        self.decide(boot, &Arrival { at_us, range, quiet, is_first_of_client })
    }

    #[cold]
    fn decide(&self, before: BootId, read: &Arrival) -> BootId {
        let after = RecordingPhase::of_word(before.0).after(read).to_word();
        if after == before.0 {
            return before;
        }
        // If another thread was faster, its boot has just begun.
        match self.phase.compare_exchange(before.0, after, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                self.boots.fetch_add(1, Ordering::Relaxed);
                BootId(after)
            }
            Err(now) => BootId(now),
        }
    }

    fn was_read(&self, at_us: u64, last_us: u64) {
        if at_us >= last_us.saturating_add(GRAIN_US) {
            self.last_read_us.fetch_max(at_us, Ordering::Relaxed);
        }
    }

    /// Records a completed request of `boot`, the boot in which the request arrived; `arrived` is the arrival of the
    /// request, and `took` the time from then until its completion. A request that arrived after the window of the
    /// boot, or before any boot, is ignored.
    pub fn record(&self, boot: BootId, op: Op, range: ByteRange, arrived: Instant, took: Duration) {
        let at_us = self.micros(arrived);
        if op == Op::Read && took >= Duration::from_micros(GRAIN_US) {
            let ended_us = at_us.saturating_add(saturating::<u64>(took.as_micros()));
            self.was_read(ended_us, self.last_read_us.load(Ordering::Relaxed));
        }
        let Some(since_us) = boot.0.checked_sub(1) else { return };
        if is_over(since_us, at_us, self.window) {
            return;
        }
        let Some(slot) = self.take() else { return };
        // The window fits 32 bits of microseconds, so this is far from overflowing.
        let t_us = at_us.saturating_sub(since_us);
        let service_us = saturating::<u32>(took.as_micros());
        slot[0].store(boot.0, Ordering::Relaxed);
        slot[1].store(t_us << 32 | u64::from(service_us), Ordering::Relaxed);
        slot[2].store(range.offset(), Ordering::Relaxed);
        let write = if op == Op::Write { WRITE } else { 0 };
        slot[3].store(range.len().min(WRITE - 1) | write | FULL, Ordering::Release);
    }

    /// Takes a slot that is empty.
    fn take(&self) -> Option<&Slot> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            // The reads of a slot came before it was freed.
            let waiting = taken.saturating_sub(self.freed.load(Ordering::Acquire));
            if waiting >= self.slots.len() as u64 {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            let next = taken + 1;
            match self.taken.compare_exchange_weak(taken, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.slot(taken),
                Err(now) => taken = now,
            }
        }
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(number % self.slots.len() as u64).ok()?)
    }

    /// Removes the waiting records, nearly in the order in which the requests completed, and passes them to
    /// `keep`. A request for which `keep` returns `false` counts as [dropped](Self::dropped).
    pub fn drain(&self, keep: &mut dyn FnMut(BootId, Record) -> bool) {
        let _draining = self.draining.lock();
        let mut freed = self.freed.load(Ordering::Relaxed);
        while freed < self.taken.load(Ordering::Relaxed) {
            // A slot that is being filled right now is taken the next time.
            let Some((boot, record)) = self.slot(freed).and_then(empty) else { return };
            freed += 1;
            self.freed.store(freed, Ordering::Release);
            if !record.is_some_and(|record| keep(boot, record)) {
                self.discarded.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of requests that were recorded and kept, or still wait.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.taken.load(Ordering::Relaxed).saturating_sub(self.discarded.load(Ordering::Relaxed))
    }

    /// Returns the number of requests that arrived within the window of a boot and were lost, because the
    /// ring was full or [`drain`](Self::drain) did not keep them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed) + self.discarded.load(Ordering::Relaxed)
    }

    /// A moment in microseconds since the disk was attached.
    fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.created);
        since.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(since.subsec_micros()))
    }
}

/// Empties a slot, unless it is being filled right now.
fn empty(slot: &Slot) -> Option<(BootId, Option<Record>)> {
    let last = slot[3].load(Ordering::Acquire);
    if last & FULL == 0 {
        return None;
    }
    let boot = BootId(slot[0].load(Ordering::Relaxed));
    let times = slot[1].load(Ordering::Relaxed);
    let op = if last & WRITE == 0 { Op::Read } else { Op::Write };
    let range = ByteRange::new(slot[2].load(Ordering::Relaxed), last & !(FULL | WRITE));
    slot[3].store(0, Ordering::Relaxed);
    let service_us = exact(times & u64::from(u32::MAX), "it was cut to 32 bits");
    let record = range.map(|range| Record { t_us: times >> 32, op, range, service_us: Some(service_us) });
    Some((boot, record))
}

#[cfg(test)]
mod tests;
