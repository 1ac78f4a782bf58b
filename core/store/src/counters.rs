//! Counters of a store's work, for metrics.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the work of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreCounters {
    /// The number of requests sent, including hedges (second requests for slow reads) and retries.
    pub requests: u64,
    /// The number of bytes of blobs received, including those of answers that were abandoned.
    pub bytes: u64,
    /// The number of times that a call was sent again: a metadata call (manifest, length, tag, write) after a
    /// failure, or a read because the store did not have the blob (yet).
    pub retries: u64,
    /// The number of hedges: demand reads, for which a disk is waiting, that were slow and were requested a
    /// second time.
    pub hedges: u64,
    /// The number of hedges in which the second request was answered first.
    pub hedges_won: u64,
    /// The number of reads that failed.
    pub errors: u64,
    /// The number of reads that are waiting for the server at this moment, for the start of an answer or for
    /// more of it.
    #[serde(skip)]
    pub waiting: u64,
}

impl StoreCounters {
    /// Adds each counter to the counter of the same name in `other`, and returns the sums.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
            retries: self.retries + other.retries,
            hedges: self.hedges + other.hedges,
            hedges_won: self.hedges_won + other.hedges_won,
            errors: self.errors + other.errors,
            waiting: self.waiting + other.waiting,
        }
    }

    /// `true` if reads wait for the server, nothing of a blob has come since `before`, and nothing has failed.
    pub(crate) fn is_silent_since(&self, before: &Self) -> bool {
        let seen = |counters: &Self| (counters.bytes, counters.errors, counters.retries);
        self.waiting > 0 && seen(self) == seen(before)
    }
}

/// The counters while they count.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) hedges_won: AtomicU64,
    pub(crate) errors: AtomicU64,
    waiting: AtomicU64,
}

/// A read that waits for the server, until it is dropped.
pub(crate) struct Waiting<'m>(&'m AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Meter {
    pub(crate) fn add(counter: &AtomicU64, number: u64) {
        counter.fetch_add(number, Ordering::Relaxed);
    }

    /// Counts a read that begins to wait for the server.
    pub(crate) fn waits(&self) -> Waiting<'_> {
        Self::add(&self.waiting, 1);
        Waiting(&self.waiting)
    }

    pub(crate) fn read(&self) -> StoreCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreCounters {
            requests: value(&self.requests),
            bytes: value(&self.bytes),
            retries: value(&self.retries),
            hedges: value(&self.hedges),
            hedges_won: value(&self.hedges_won),
            errors: value(&self.errors),
            waiting: value(&self.waiting),
        }
    }
}
