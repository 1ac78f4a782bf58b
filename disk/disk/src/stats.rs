//! The counters of a disk while it serves. Updating them is cheap enough for every read. Latencies are counted as whole
//! distributions, not as averages.
//!
//! Each counter is a relaxed atomic of its own: each value that is read is right, but several values need not belong to
//! the same instant.

use headstart_telemetry::histogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counters and latency distributions of one disk.
#[derive(Debug, Default)]
pub struct DiskStats {
    /// The durations of reads whose bytes were all on this host when they arrived.
    pub hits: Histogram,
    /// The durations of reads that had to wait for bytes from a store or another host, also of those that failed then.
    pub misses: Histogram,
    /// The durations of writes; zeroing and discards count as writes.
    pub writes: Histogram,
    /// The durations of flushes.
    pub flushes: Histogram,
    /// The number of bytes that clients have read.
    pub read_bytes: AtomicU64,
    /// The number of bytes that clients have written or zeroed.
    pub written_bytes: AtomicU64,
    /// The number of reads, writes (zeroing included), resizes and flushes that failed.
    pub errors: AtomicU64,
    /// The number of reads that are waiting now.
    pub waiting: AtomicU64,
    /// The numbers of reads that took at least [`SLOW`], indexed by [`SlowCause`].
    pub slow: [AtomicU64; SlowCause::ALL.len()],
}

/// The duration from which on a read counts as slow. At one second users notice it, and guests log it.
pub const SLOW: Duration = Duration::from_secs(1);

/// The cause of a read that took at least [`SLOW`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowCause {
    /// The plan that is followed when the read ends does not name all slices of the read, or no plan is followed.
    Unforeseen,
    /// That plan names all slices of the read, but their bytes were not local in time.
    Late,
    /// Fetches of this disk failed while the read waited, whatever the plan names.
    Store,
    /// The bytes were local, so this host itself was slow.
    Other,
}

impl SlowCause {
    /// All causes, in the order of their indexes.
    pub const ALL: [Self; 4] = [Self::Unforeseen, Self::Late, Self::Store, Self::Other];

    /// The cause's name in output for programs, such as `unforeseen`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unforeseen => "unforeseen",
            Self::Late => "late",
            Self::Store => "store",
            Self::Other => "other",
        }
    }
}

impl DiskStats {
    /// The number of reads that took at least [`SLOW`] for `cause`.
    #[must_use]
    pub fn slow_by(&self, cause: SlowCause) -> u64 {
        self.slow[cause as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}
