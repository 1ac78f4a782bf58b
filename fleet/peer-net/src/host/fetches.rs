//! The agent's own fetches from stores: chunks that other hosts ask for, and parts of hash trees.

use crate::blob::Blob;
use crate::host::Host;
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use headstart_swarm::{Chunks, Event, StoreFetchId, Urgency};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// The number of concurrent background fetches.
const BACKGROUND_MAX: usize = 4;

pub(crate) struct Fetches {
    /// The longest time for a fetch: a waiting host gives up after it.
    longest: Duration,
    background: Semaphore,
    /// The background fetches that have not begun.
    queued: Mutex<HashMap<StoreFetchId, AbortHandle>>,
}

impl Fetches {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, background: Semaphore::new(BACKGROUND_MAX), queued: Mutex::default() }
    }
}

impl Host {
    /// Fetches requested chunks, and notifies the machine. A repeated call with more urgency does not queue.
    pub(crate) fn fetch(
        self: &Arc<Self>,
        fetch: StoreFetchId,
        blob: Option<Arc<Blob>>,
        chunks: Chunks,
        urgency: Urgency,
        again: bool,
    ) {
        let queued = || self.fetches.queued.lock();
        if again {
            match queued().remove(&fetch) {
                Some(waiting) => waiting.abort(),
                None => return,
            }
        }
        let host = Arc::clone(self);
        let mut queue = queued();
        let task = self.runtime.spawn(async move {
            let permit = match urgency {
                Urgency::Demand => None,
                // The semaphore is never closed.
                Urgency::Background => host.fetches.background.acquire().await.ok(),
            };
            host.fetches.queued.lock().remove(&fetch);
            let fetched = match &blob {
                Some(blob) => tokio::time::timeout(host.fetches.longest, host.fetch_now(blob, chunks, urgency))
                    .await
                    .unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the store takes too long"))),
                None => Err(Error::new(ErrorKind::NotFound, "the blob was closed")),
            };
            drop(permit);
            if let (Err(error), Some(blob)) = (&fetched, &blob) {
                tracing::debug!(%error, blob = %blob.identity.digest, "cannot fetch what other hosts ask for");
                host.became_local(blob, chunks.bytes(blob.len()));
            }
            host.fetched(fetch, fetched.is_ok());
        });
        if urgency == Urgency::Background {
            queue.insert(fetch, task.abort_handle());
        }
    }

    async fn fetch_now(&self, blob: &Blob, chunks: Chunks, urgency: Urgency) -> Result<()> {
        let range_fetcher =
            blob.range_fetcher().ok_or_else(|| Error::new(ErrorKind::NotFound, "it has no store here"))?;
        let range = chunks.bytes(blob.len());
        let mut missing = 0;
        blob.cached.missing(range, &mut |run| missing += run.len());
        for part in blob.with_proof(range) {
            range_fetcher.bring(&blob.cached, part, urgency).await?;
        }
        self.counts.fetched_bytes.fetch_add(missing, Ordering::Relaxed);
        Ok(())
    }

    /// Fetches parts of a tree that the agent needs and the swarm does not send.
    pub(crate) fn fetch_own(self: &Arc<Self>, tree: &Arc<Blob>, from_store: Vec<Chunks>) {
        let Some(range_fetcher) = tree.range_fetcher().filter(|_| !from_store.is_empty()) else { return };
        let (host, tree) = (Arc::clone(self), Arc::clone(tree));
        self.runtime.spawn(async move {
            for chunks in from_store {
                let range = chunks.bytes(tree.len());
                match range_fetcher.bring(&tree.cached, range, Urgency::Demand).await {
                    Ok(()) => host.became_local(&tree, range),
                    Err(error) => {
                        tracing::debug!(%error, blob = %tree.identity.digest, "cannot fetch a hash tree");
                    }
                }
            }
        });
    }

    /// The bytes of `range` may be here now: the machine is notified of the chunks that are. For an outboard, the pages
    /// that connect them to the root are fetched first if there is a store: without those no other host gets the
    /// chunks.
    pub(crate) fn became_local(self: &Arc<Self>, blob: &Arc<Blob>, range: ByteRange) {
        let Some(range_fetcher) = blob.range_fetcher().filter(|_| blob.is_outboard()) else {
            return self.report_local(blob, range);
        };
        let whole = blob.local_chunks(range);
        let lacking: Vec<_> =
            whole.iter().flat_map(|chunks| blob.lacking_proof(chunks.bytes(blob.len()))).collect();
        if lacking.is_empty() {
            return self.report_local(blob, range);
        }
        let (host, blob) = (Arc::clone(self), Arc::clone(blob));
        self.runtime.spawn(async move {
            for part in lacking {
                if let Err(error) = range_fetcher.bring(&blob.cached, part, Urgency::Background).await {
                    tracing::debug!(%error, blob = %blob.identity.digest, "cannot fetch what proves a hash tree");
                    break;
                }
            }
            host.report_local(&blob, range);
        });
    }

    pub(crate) fn report_local(self: &Arc<Self>, blob: &Blob, range: ByteRange) {
        for chunks in blob.local_chunks(range) {
            self.event(Event::BecameLocal { blob: blob.id, chunks });
        }
    }
}
