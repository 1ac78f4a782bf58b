//! Fetches ranges into the cache for a caller that is not a disk: an agent that fetches bytes on behalf of other hosts.

use crate::fetch::Fetcher;
use crate::need::Need;
use headstart_block::{ByteRange, Result};
use headstart_cache::CachedBlob;
use headstart_store::{Store, Urgency};
use std::sync::Arc;

/// Fetches ranges of blobs from one store, by the code that disks fetch with: claimed, so that no disk of this host
/// fetches them meanwhile, verified, kept. For a runtime of several threads.
pub struct RangeFetcher {
    fetcher: Fetcher,
    location: String,
}

impl RangeFetcher {
    /// Creates a fetcher that fetches from this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        let location = store.location();
        Self { fetcher: Fetcher::new(store, None), location }
    }

    /// The location of the store.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Returns when all of `range` is in the cache, with the pages of the hash tree that it needed.
    ///
    /// # Errors
    /// Errors of [`Store::read`] and of [`CachedBlob::insert`]. Nothing is tried again.
    pub async fn bring(&self, blob: &Arc<CachedBlob>, range: ByteRange, urgency: Urgency) -> Result<()> {
        self.fetcher.fetch(blob, range, &Need::of(urgency), &|| ()).await.map(drop)
    }
}
