//! Chunks that came before the pages of the hash tree that they are checked by.
//!
//! They wait in memory, up to a number of bytes for all hosts together; beyond that a chunk is given up, and the state
//! machine fetches it again.

use crate::blob::{Blob, Kept};
use crate::host::Host;
use headstart_block::{Error, ErrorKind};
use headstart_swarm::{Chunks, PeerId, RequestId, Urgency};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The most bytes that wait.
const PARKED_MAX: u64 = 16 << 20;

/// The longest wait of a chunk for its pages.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of times that the pages may come and be lost again.
const ATTEMPTS: u32 = 4;

#[derive(Default)]
pub(crate) struct VerificationQueue {
    bytes: AtomicU64,
}

impl VerificationQueue {
    /// The number of waiting bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A chunk that waits.
pub(crate) struct Unverified {
    pub(crate) peer: PeerId,
    pub(crate) request: Option<RequestId>,
    pub(crate) blob: Arc<Blob>,
    pub(crate) chunk: u32,
}

impl Host {
    /// Keeps a chunk until its pages are here. Its bytes are taken out of `body`.
    pub(crate) fn park(self: &Arc<Self>, parked: Unverified, body: &mut Vec<u8>, len: usize) {
        let size = len as u64;
        if self.verification_queue.bytes.fetch_add(size, Ordering::Relaxed) + size > PARKED_MAX {
            self.verification_queue.bytes.fetch_sub(size, Ordering::Relaxed);
            let full = Error::new(ErrorKind::NoSpace, "too many chunks wait for their hash tree");
            return self.report_arrival(parked.peer, parked.request, &parked.blob, parked.chunk, &Err(full));
        }
        let mut bytes = std::mem::take(body);
        bytes.truncate(len);
        let host = Arc::clone(self);
        self.runtime.spawn(async move {
            let checked = tokio::time::timeout(CHECK_TIMEOUT, host.check_later(&parked, &bytes)).await;
            let kept = checked.unwrap_or_else(|_| Err(tree_away()));
            host.verification_queue.bytes.fetch_sub(size, Ordering::Relaxed);
            host.report_arrival(parked.peer, parked.request, &parked.blob, parked.chunk, &kept);
        });
    }

    async fn check_later(self: &Arc<Self>, parked: &Unverified, bytes: &[u8]) -> headstart_block::Result<()> {
        let blob = &parked.blob;
        for _ in 0..ATTEMPTS {
            if let Some(tree) = &blob.tree {
                for chunks in blob.missing_tree_chunks(blob.bytes_of(parked.chunk)) {
                    self.bring(tree, chunks).await?;
                }
            }
            match blob.keep(parked.chunk, bytes, parked.peer)? {
                Kept::Whole(late) => {
                    self.checked_late(blob, &late);
                    return Ok(());
                }
                Kept::TreeMissing => {}
            }
        }
        Err(tree_away())
    }

    /// Gets chunks that the agent itself needs, from the swarm or from the store.
    async fn bring(self: &Arc<Self>, blob: &Arc<Blob>, chunks: Chunks) -> headstart_block::Result<()> {
        let (_, answer) = self.want(blob, chunks, Urgency::Demand);
        let from_store = answer.await.unwrap_or_else(|_| vec![chunks]);
        for chunks in from_store {
            let range_fetcher = blob.range_fetcher().ok_or_else(tree_away)?;
            range_fetcher.bring(&blob.cached, chunks.bytes(blob.len()), Urgency::Demand).await?;
            self.became_local(blob, chunks.bytes(blob.len()));
        }
        Ok(())
    }
}

fn tree_away() -> Error {
    Error::new(ErrorKind::Unavailable, "the pages of its hash tree do not come")
}
