//! Counters of what a store did, for metrics.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a store did since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Requests sent, hedges and retries included.
    pub requests: u64,
    /// Bytes of blobs received, also those of answers that were given up.
    pub bytes: u64,
    /// Metadata calls tried again.
    pub retries: u64,
    /// Demand reads sent a second time.
    pub hedges: u64,
    /// Of these, those whose second request was answered first.
    pub hedges_won: u64,
    /// Reads that failed.
    pub errors: u64,
}

impl Counters {
    /// The sums of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
            retries: self.retries + other.retries,
            hedges: self.hedges + other.hedges,
            hedges_won: self.hedges_won + other.hedges_won,
            errors: self.errors + other.errors,
        }
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
}

impl Meter {
    pub(crate) fn add(counter: &AtomicU64, number: u64) {
        counter.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Counters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            requests: value(&self.requests),
            bytes: value(&self.bytes),
            retries: value(&self.retries),
            hedges: value(&self.hedges),
            hedges_won: value(&self.hedges_won),
            errors: value(&self.errors),
        }
    }
}
