//! The recorder: notes each request of a disk's first minutes without slowing it down.
//!
//! The buffer is preallocated and filled once, from its start: what matters of a boot is its beginning, so the
//! earliest records are kept, and what finds it full is counted and dropped. A writer takes a slot by one atomic
//! addition and fills it by three atomic stores; the last of them, which also says that the slot is full, is what
//! a reader looks at first. So nobody ever waits: not the disk for whoever saves the trace, nor the other way round.

use crate::record::{Op, Record};
use headstart_block::ByteRange;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most records of a disk. They take 1.5 MiB of memory.
pub const RECORDS_MAX: usize = 65_536;

/// How long a disk is recorded by default: as long as the published traces.
pub const WINDOW: Duration = Duration::from_secs(360);

/// Set in a slot's last word once the slot is full.
const FULL: u64 = 1 << 63;
/// Set in a slot's last word for a write.
const WRITE: u64 = 1 << 62;

/// Three words: `t_us << 32 | service_us`; offset; length with [`FULL`] and [`WRITE`].
type Slot = [AtomicU64; 3];

/// Records the requests of one disk.
pub struct Recorder {
    slots: Box<[Slot]>,
    /// Slots taken, and from there on requests dropped.
    taken: AtomicU64,
    created: Instant,
    window: Duration,
}

impl Recorder {
    /// Records what arrives within `window` (at most 71 minutes) from `created` on, at most `records_max` requests.
    #[must_use]
    pub fn new(created: Instant, window: Duration, records_max: usize) -> Self {
        let slots = (0..records_max).map(|_| Slot::default()).collect();
        let window = window.min(Duration::from_micros(u64::from(u32::MAX)));
        Self { slots, taken: AtomicU64::new(0), created, window }
    }

    /// The moment from which times count.
    #[must_use]
    pub fn created(&self) -> Instant {
        self.created
    }

    /// How long it records.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Notes a request that arrived at `arrived` and took `took`.
    pub fn record(&self, op: Op, range: ByteRange, arrived: Instant, took: Duration) {
        let since = arrived.saturating_duration_since(self.created);
        if since > self.window {
            return;
        }
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let Some(slot) = usize::try_from(taken).ok().and_then(|taken| self.slots.get(taken)) else { return };
        // The window fits 32 bits of microseconds, so this is far from overflowing.
        let t_us = since.as_secs() * 1_000_000 + u64::from(since.subsec_micros());
        let service_us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        slot[0].store(t_us << 32 | u64::from(service_us), Ordering::Relaxed);
        slot[1].store(range.offset(), Ordering::Relaxed);
        let write = if op == Op::Write { WRITE } else { 0 };
        slot[2].store(range.len().min(WRITE - 1) | write | FULL, Ordering::Release);
    }

    /// What was recorded so far, in the order of arrival.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let taken = usize::try_from(self.taken.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let mut records: Vec<_> = self.slots.iter().take(taken).filter_map(read).collect();
        // Requests are noted when they end, and by several threads.
        records.sort_by_key(|record| record.t_us);
        records
    }

    /// Requests that are in the buffer, or about to be.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.taken.load(Ordering::Relaxed).min(self.slots.len() as u64)
    }

    /// Requests that arrived within the window and found no room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.taken.load(Ordering::Relaxed).saturating_sub(self.slots.len() as u64)
    }
}

/// The record in a slot, unless it is being filled right now.
fn read(slot: &Slot) -> Option<Record> {
    let last = slot[2].load(Ordering::Acquire);
    if last & FULL == 0 {
        return None;
    }
    let times = slot[0].load(Ordering::Relaxed);
    let op = if last & WRITE == 0 { Op::Read } else { Op::Write };
    let range = ByteRange::new(slot[1].load(Ordering::Relaxed), last & !(FULL | WRITE))?;
    let service_us = u32::try_from(times & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    Some(Record { t_us: times >> 32, op, range, service_us: Some(service_us) })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what it records is the time")]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange::between(offset, offset + len)
    }

    #[test]
    fn keeps_the_earliest_and_counts_the_rest() {
        let created = Instant::now();
        let recorder = Recorder::new(created, WINDOW, 3);
        for n in 0..5 {
            let arrived = created + Duration::from_millis(10 - n);
            recorder.record(Op::Read, range(n * 4096, 4096), arrived, Duration::from_micros(n));
        }
        recorder.record(Op::Write, range(0, 512), created + WINDOW + Duration::from_secs(1), Duration::ZERO);
        assert_eq!(recorder.dropped(), 2);
        let seen: Vec<_> =
            recorder.records().iter().map(|r| (r.t_us, r.range.offset(), r.service_us)).collect();
        assert_eq!(seen, [(8000, 8192, Some(2)), (9000, 4096, Some(1)), (10_000, 0, Some(0))]);
    }

    #[test]
    fn many_threads_lose_nothing() {
        let created = Instant::now();
        let recorder = Recorder::new(created, WINDOW, 40_000);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for n in 0..10_000 {
                        let op = if n % 2 == 0 { Op::Read } else { Op::Write };
                        recorder.record(op, range(thread << 40 | n, 512), created, Duration::from_secs(1));
                    }
                });
            }
            // Reading meanwhile gives whole records only.
            for record in recorder.records() {
                assert_eq!(record.range.len(), 512);
            }
        });
        let records = recorder.records();
        let mut offsets: Vec<_> = records.iter().map(|record| record.range.offset()).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!((records.len(), offsets.len(), recorder.dropped()), (40_000, 40_000, 0));
        assert!(records.iter().all(|r| (r.op == Op::Read) == (r.range.offset() % 2 == 0)));
    }

    #[test]
    fn a_record_costs_less_than_100_ns() {
        let round = || {
            let recorder = Recorder::new(Instant::now(), WINDOW, RECORDS_MAX);
            let started = Instant::now();
            for n in 0..RECORDS_MAX as u64 {
                recorder.record(Op::Read, range(n << 12, 4096), started, Duration::from_micros(80));
            }
            started.elapsed() / u32::try_from(RECORDS_MAX).unwrap()
        };
        // Whatever else the machine does makes rounds slower, never faster: the fastest counts. The bench has the
        // figure.
        let each = (0..16).map(|_| round()).min().unwrap();
        assert!(each < Duration::from_nanos(100), "{each:?}");
    }
}
