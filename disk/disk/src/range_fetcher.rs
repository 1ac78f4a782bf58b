//! Fetches ranges into the cache for a caller that is not a disk: an agent that fetches bytes on behalf of other hosts.

use crate::fetch::Fetcher;
use crate::need::Need;
use headstart_block::{ByteRange, Result};
use headstart_cache::CachedBlob;
use headstart_store::{Store, Urgency};
use std::sync::Arc;

/// A fetcher that brings ranges of blobs from one store into the cache, by the code that disks use. Ranges
/// are claimed, so that no disk of this host fetches the same bytes, and verified. [`bring`](Self::bring) must run on a
/// runtime of several threads: on a runtime of one thread it panics.
pub struct RangeFetcher {
    fetcher: Fetcher,
    location: String,
}

impl RangeFetcher {
    /// Creates a fetcher of blobs in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        let location = store.location();
        Self { fetcher: Fetcher::new(store, None), location }
    }

    /// The location of the store, as the store names it.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Fetches `range` of `blob` and the pages of the hash tree that verify it. Returns when all of them are
    /// in the cache.
    ///
    /// # Errors
    /// Errors of [`Store::read`] and of [`CachedBlob::insert`]. A failed fetch is not retried.
    pub async fn bring(&self, blob: &Arc<CachedBlob>, range: ByteRange, urgency: Urgency) -> Result<()> {
        self.fetcher.fetch(blob, range, &Need::of(urgency), &|| ()).await.map(drop)
    }
}
