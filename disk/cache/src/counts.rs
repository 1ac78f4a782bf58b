//! Counts of one process since it opened the cache.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one process since it opened the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounters {
    /// Bytes that were inserted and written to the cache's files.
    pub inserted_bytes: u64,
    /// Bytes that were inserted and kept in memory, because the disk did not accept them or the cache had no room for
    /// them.
    pub bypassed_bytes: u64,
    /// Bytes that this process evicted.
    pub evicted_bytes: u64,
    /// The number of ranges that were found wrong: by the hash tree when they were inserted or, for a blob without a
    /// tree, by a reader.
    pub corrupt_inserts: u64,
    /// The number of reads of the cache's files that failed, because of the disk for example.
    pub failed_reads: u64,
    /// The number of times that this process found a complete blob without a hash tree to match its digest.
    pub proven_blobs: u64,
    /// The number of times that this process found a complete blob without a hash tree not to match its digest.
    pub wrong_blobs: u64,
    /// Bytes that were right when they were inserted, were found damaged later, and were removed.
    pub damaged_bytes: u64,
}

/// The counters behind [`CacheCounters`].
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) inserted_bytes: AtomicU64,
    pub(crate) bypassed_bytes: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    pub(crate) corrupt_inserts: AtomicU64,
    pub(crate) failed_reads: AtomicU64,
    pub(crate) proven_blobs: AtomicU64,
    pub(crate) wrong_blobs: AtomicU64,
    pub(crate) damaged_bytes: AtomicU64,
}

impl Counts {
    /// The present values.
    pub(crate) fn read(&self) -> CacheCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheCounters {
            inserted_bytes: read(&self.inserted_bytes),
            bypassed_bytes: read(&self.bypassed_bytes),
            evicted_bytes: read(&self.evicted_bytes),
            corrupt_inserts: read(&self.corrupt_inserts),
            failed_reads: read(&self.failed_reads),
            proven_blobs: read(&self.proven_blobs),
            wrong_blobs: read(&self.wrong_blobs),
            damaged_bytes: read(&self.damaged_bytes),
        }
    }
}
