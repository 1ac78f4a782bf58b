//! The totals of a session so far: for a status line and the report at the end.

use crate::session::DiskSession;
use std::sync::atomic::Ordering;

/// The totals of a session's disks so far.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Bytes of the images' blobs that are on this host.
    pub local: u64,
    /// All bytes of the images' blobs.
    pub all: u64,
    /// The number of reads that were served without waiting.
    pub hits: u64,
    /// The number of reads that had to wait for bytes from a store or another host.
    pub misses: u64,
    /// The number of reads that are waiting now.
    pub waiting: u64,
    /// Bytes that were received from stores.
    pub fetched: u64,
}

impl Totals {
    /// Returns the totals of `session` up to now.
    #[must_use]
    pub fn of(session: &DiskSession) -> Self {
        let mut totals =
            Self { fetched: session.stores.iter().map(|s| s.counters().bytes).sum(), ..Self::default() };
        for disk in &session.disks {
            let (local, all) = disk.local_bytes();
            let stats = disk.disk.stats();
            totals.local += local;
            totals.all += all;
            totals.hits += stats.hits.snapshot().count();
            totals.misses += stats.misses.snapshot().count();
            totals.waiting += stats.waiting.load(Ordering::Relaxed);
        }
        totals
    }

    /// The share of reads that were served without waiting, in percent; 100 if there were no reads.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        percent(self.hits, self.hits + self.misses)
    }

    /// The share of the images' bytes that are on this host, in percent; 100 if there are no bytes.
    #[must_use]
    pub fn local_part(&self) -> f64 {
        percent(self.local, self.all)
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn percent(part: u64, all: u64) -> f64 {
    if all == 0 { 100.0 } else { part as f64 * 100.0 / all as f64 }
}
