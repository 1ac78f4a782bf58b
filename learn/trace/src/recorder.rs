//! The recorder: notes each request of a disk's boots without slowing it down.
//!
//! The recorder decides at each read that arrives whether it begins a boot ([`boots`](crate::boots) has the rules). A
//! request belongs to the boot that was recorded when the request arrived. A further boot mostly begins after a
//! *pause*, a time without reads. The recorder measures pauses to about a fifth of a second.
//!
//! Records go into a ring that is allocated once. The [`Saver`](crate::Saver) empties it about once a second, so a disk
//! may boot any number of times. A full ring keeps the records that came first; further records are counted and
//! dropped.
//!
//! On the disk of a container image, the start of a container is not a read of the boot sector:
//! [`container_started`](Recorder::container_started) is told of it.
//!
//! The disk never waits for the saver of the trace, nor the saver for the disk. Threads share data without locks in two
//! modules only, `ring` and `boot_clock`; tests of these modules try every order in which the steps of threads can
//! occur.

mod boot_clock;
mod container_start;
mod ring;

pub use container_start::ContainerStart;

use crate::boots::{RecordingPhase, is_over};
use crate::record::{Op, Record};
use boot_clock::{BootClock, GRAIN_US};
use headstart_block::{ByteRange, exact, saturating};
use parking_lot::Mutex;
use ring::Ring;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The maximum number of records that the saver keeps of a boot. A disk's recorder is also made for this number of
/// records that wait for [`Recorder::drain`]; these take 2 MiB of memory.
pub const RECORDS_MAX: usize = 65_536;

/// The default time for which a boot is recorded: six minutes, as in the published traces.
pub const WINDOW: Duration = Duration::from_secs(360);

/// Set in a record's last word for a write.
const WRITE: u64 = 1 << 62;

/// Identifies one of the boots of a disk, or stands for no boot. A later boot is greater than an earlier one; the value
/// for no boot is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootId(u64);

impl BootId {
    /// Returns the time from attaching the disk to the first read of the boot; `None` if this value stands for no boot.
    #[must_use]
    pub fn since(self) -> Option<Duration> {
        self.0.checked_sub(1).map(Duration::from_micros)
    }
}

/// Records the requests of one disk in a ring of fixed size. Recording a request never waits.
pub struct Recorder {
    /// Records of four words: the boot; `t_us << 32 | service_us`; offset; length with [`WRITE`].
    ring: Ring<AtomicU64>,
    /// The lock of the thread that empties slots.
    draining: Mutex<()>,
    /// Requests that found no slot.
    dropped: AtomicU64,
    /// The number of requests that were taken out and not kept.
    discarded: AtomicU64,
    created: Instant,
    window: Duration,
    clock: BootClock<AtomicU64>,
    /// The start of the first container; `None` if none has started.
    start: Mutex<Option<ContainerStart>>,
    /// The word of the boot that went on when this process took the disk over; 0 if it has not.
    taken_over: AtomicU64,
    /// Requests that arrive later, in microseconds since the disk was attached, are of other containers, too.
    unmixed_us: AtomicU64,
}

impl Recorder {
    /// Makes a recorder for a disk that was attached at `created`. Requests are recorded if they arrive within `window`
    /// (at most 2^32 - 1 microseconds, about 71.6 minutes; more counts as that) after the first read of a boot. Up to
    /// `records_max` recorded requests (0 counts as 1) wait to be [drained](Self::drain); further requests are dropped
    /// and counted.
    #[must_use]
    pub fn new(created: Instant, window: Duration, records_max: usize) -> Self {
        let window = window.min(Duration::from_micros(u64::from(u32::MAX)));
        Self {
            ring: Ring::new(records_max),
            draining: Mutex::default(),
            dropped: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            created,
            window,
            clock: BootClock::new(),
            start: Mutex::default(),
            taken_over: AtomicU64::new(0),
            unmixed_us: AtomicU64::new(u64::MAX),
        }
    }

    /// The moment at which the disk was attached.
    #[must_use]
    pub fn created(&self) -> Instant {
        self.created
    }

    /// The time for which each boot is recorded, counted from the first read of the boot.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Returns the boot that began last, whether or not it is still recorded. If none has begun, the result stands for
    /// no boot.
    #[must_use]
    pub fn boot(&self) -> BootId {
        self.shown(self.clock.boot())
    }

    /// Notes that an earlier process has served the clients of this disk until now, which go on reading. What they
    /// have read is in their memory, so a recording of this process would lack it: nothing is recorded until a machine
    /// boots again, and no start of a container.
    pub fn took_over(&self) {
        self.taken_over.store(self.clock.go_on(), Ordering::Relaxed);
    }

    /// The boot of a word; no boot for the one that is not recorded.
    fn shown(&self, word: u64) -> BootId {
        BootId(if word == self.taken_over.load(Ordering::Relaxed) { 0 } else { word })
    }

    /// Returns the number of boots that have begun.
    #[must_use]
    pub fn boots(&self) -> u64 {
        self.clock.boots()
    }

    /// Returns the phase of recording at the moment `now`.
    #[must_use]
    pub fn phase(&self, now: Instant) -> RecordingPhase {
        RecordingPhase::of_word(self.boot().0).at(self.micros(now), self.window)
    }

    /// Notes that a client has connected to the disk. If the disk had no client, the next read may begin a
    /// boot.
    pub fn client_came(&self) {
        self.clock.client_came();
    }

    /// Notes that a client has disconnected from the disk. The caller must have noted by
    /// [`client_came`](Self::client_came) that it had connected.
    pub fn client_left(&self) {
        self.clock.client_left();
    }

    /// Notes the arrival of a read of `range`, which may begin a boot. Returns the boot that the read belongs
    /// to, for [`record`](Self::record) when the read is complete.
    pub fn read_arrived(&self, range: ByteRange, arrived: Instant) -> BootId {
        self.shown(self.clock.read_arrived(range, self.micros(arrived)))
    }

    /// Records a completed request of `boot`, the boot in which the request arrived; `arrived` is the arrival of the
    /// request, and `took` the time from then until its completion. A request that arrived after the window of the
    /// boot, or before any boot, is ignored. If the ring is full, the request is dropped and counted.
    pub fn record(&self, boot: BootId, op: Op, range: ByteRange, arrived: Instant, took: Duration) {
        let at_us = self.micros(arrived);
        if op == Op::Read && took >= Duration::from_micros(GRAIN_US) {
            let ended_us = at_us.saturating_add(saturating::<u64>(took.as_micros()));
            self.clock.read_ended(ended_us);
        }
        let Some(since_us) = boot.0.checked_sub(1) else { return };
        if is_over(since_us, at_us, self.window) || at_us > self.unmixed_us.load(Ordering::Relaxed) {
            return;
        }
        // The window fits 32 bits of microseconds, so this is far from overflowing.
        let t_us = at_us.saturating_sub(since_us);
        let times = t_us << 32 | u64::from(saturating::<u32>(took.as_micros()));
        let write = if op == Op::Write { WRITE } else { 0 };
        if !self.ring.put([boot.0, times, range.offset(), range.len().min(WRITE - 1) | write]) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the waiting records, nearly in the order in which the requests completed, and passes them to `keep`. A
    /// request for which `keep` returns `false` counts as [dropped](Self::dropped). A record that a thread is just
    /// adding, and the records behind it, are left for the next call.
    pub fn drain(&self, keep: &mut dyn FnMut(BootId, Record) -> bool) {
        let _draining = self.draining.lock();
        self.ring.drain(&mut |words| {
            // The first reads may have come before it was known that they go on.
            let boot = self.shown(words[0]);
            let is_kept = record_of(words).is_some_and(|record| boot != BootId(0) && keep(boot, record));
            if !is_kept {
                self.discarded.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Returns the number of requests that were recorded and not lost: those that [`drain`](Self::drain) passed on and
    /// that `keep` accepted, and those that still wait.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.ring.taken().saturating_sub(self.discarded.load(Ordering::Relaxed))
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

/// The record of four words of the ring; `None` if no range is like its range.
fn record_of([_, times, offset, last]: [u64; 4]) -> Option<Record> {
    let op = if last & WRITE == 0 { Op::Read } else { Op::Write };
    let range = ByteRange::new(offset, last & !WRITE)?;
    let service_us = exact(times & u64::from(u32::MAX), "it was cut to 32 bits");
    Some(Record { t_us: times >> 32, op, range, service_us: Some(service_us) })
}

#[cfg(test)]
mod tests;
