//! The totals of a session so far: for a status line and the report at the end.

use crate::session::DiskSession;
use std::sync::atomic::Ordering;

/// The totals of a session so far.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Bytes of images that are on this host.
    pub local: u64,
    /// All bytes of images.
    pub all: u64,
    /// Reads that were served without waiting.
    pub hits: u64,
    /// Reads that waited for bytes.
    pub misses: u64,
    /// Reads that wait now.
    pub waiting: u64,
    /// Bytes that came from stores.
    pub fetched: u64,
}

impl Totals {
    /// The totals now.
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

    /// Hits among all reads, in percent; 100 if there were none.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        percent(self.hits, self.hits + self.misses)
    }

    /// Bytes that are on this host among all, in percent.
    #[must_use]
    pub fn local_part(&self) -> f64 {
        percent(self.local, self.all)
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn percent(part: u64, all: u64) -> f64 {
    if all == 0 { 100.0 } else { part as f64 * 100.0 / all as f64 }
}
