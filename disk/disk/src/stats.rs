//! The counters of a disk while it serves: cheap enough for every read, and with whole distributions, not averages.
//!
//! All counters are relaxed atomics of their own; a scrape sees each one right, not all at one instant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use headstart_telemetry::histogram::{BUCKETS, Histogram, LatencyDistribution};

/// The counters of one disk.
#[derive(Debug, Default)]
pub struct DiskStats {
    /// Reads all of whose bytes were on this host when they arrived, with their times.
    pub hits: Histogram,
    /// Reads that had to wait for bytes from a store or a peer, with their whole times.
    pub misses: Histogram,
    /// Writes, zeroing and discards included.
    pub writes: Histogram,
    /// Flushes.
    pub flushes: Histogram,
    /// Bytes read by the client.
    pub read_bytes: AtomicU64,
    /// Bytes written or zeroed by the client.
    pub written_bytes: AtomicU64,
    /// Reads, writes and flushes that failed.
    pub errors: AtomicU64,
    /// Reads that wait right now.
    pub waiting: AtomicU64,
    /// Reads slower than [`SLOW`], by [`SlowCause`].
    pub slow: [AtomicU64; SlowCause::ALL.len()],
}

/// The time beyond which a read is slow: people notice it, and guests log it.
pub const SLOW: Duration = Duration::from_secs(1);

/// The cause of a slow read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowCause {
    /// No plan had foreseen the read.
    Unforeseen,
    /// The read was planned, but its bytes were not local in time.
    Late,
    /// The store failed meanwhile.
    Store,
    /// The bytes were local: this host was slow.
    Other,
}

impl SlowCause {
    /// All causes.
    pub const ALL: [Self; 4] = [Self::Unforeseen, Self::Late, Self::Store, Self::Other];

    /// The cause as a word for programs.
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
    /// The number of reads that were slow for this cause.
    #[must_use]
    pub fn slow_by(&self, cause: SlowCause) -> u64 {
        self.slow[cause as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}
