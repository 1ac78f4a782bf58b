//! The part of one disk in a swarm: the blobs that it shares, and the waits for the swarm.
//!
//! Bytes are exchanged in whole chunks. So with a swarm a disk also requests whole chunks from its store: it can pass
//! on only whole chunks.
//!
//! Only blobs with a hash tree are shared, and the trees themselves. The trees are verified only when data is checked
//! by them; if a check fails, the blob and its tree come from the store alone for a while.

use crate::claims::missing_bytes;
use crate::need::Need;
use crate::swarm::SwarmClient;
use headstart_block::exchange::CHUNK_SIZE;
use headstart_block::{ByteRange, Digest};
use headstart_cache::CachedBlob;
use headstart_store::Urgency;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The time for which a blob comes from its store alone after a check of it failed: meanwhile agents leave alone the
/// peer that is to blame.
const DISTRUST: Duration = Duration::from_secs(5);

/// The longest time that the swarm may take for pages of a hash tree, whatever its own limit is: data that came waits
/// for them, and from the length of that wait an agent would judge how slow the store is. The pages are few: fetching
/// them from the store as well costs it little.
const TREE_LONGEST: Duration = Duration::from_secs(3);

/// The part of one disk in a swarm.
pub(crate) struct Sharing {
    swarm: Arc<dyn SwarmClient>,
    /// The blobs that it has joined.
    blobs: Vec<Arc<CachedBlob>>,
    /// The digests of these and of their trees.
    shared: HashSet<Digest>,
    /// Blobs and trees, by digest, with the time until which they come from the store alone.
    distrusted: Mutex<HashMap<Digest, Instant>>,
    /// Bytes that were missing when the swarm was asked and local when it had answered.
    brought: AtomicU64,
}

impl Sharing {
    /// Joins with those of `blobs` that have a hash tree.
    pub(crate) fn join(swarm: Arc<dyn SwarmClient>, blobs: &[Arc<CachedBlob>], origin: &str) -> Self {
        let blobs: Vec<_> = blobs.iter().filter(|blob| blob.tree().is_some()).cloned().collect();
        let mut shared = HashSet::new();
        for blob in &blobs {
            swarm.join(blob, origin);
            shared.insert(blob.spec().digest);
            shared.extend(blob.tree().map(|tree| tree.spec().digest));
        }
        Self { swarm, blobs, shared, distrusted: Mutex::default(), brought: AtomicU64::new(0) }
    }

    /// `true` if a blob is requested from the swarm.
    pub(crate) fn has(&self, blob: &CachedBlob) -> bool {
        let digest = blob.spec().digest;
        let distrusted = || {
            let mut distrusted = self.distrusted.lock();
            if !distrusted.is_empty() {
                distrusted.retain(|_, until| Instant::now() < *until);
            }
            distrusted.contains_key(&digest)
        };
        self.shared.contains(&digest) && !distrusted()
    }

    /// Notes that bytes of a blob, or pages of its tree, were wrong.
    pub(crate) fn distrust(&self, blob: &CachedBlob) {
        let until = Instant::now() + DISTRUST;
        let mut distrusted = self.distrusted.lock();
        distrusted.insert(blob.spec().digest, until);
        distrusted.extend(blob.tree().map(|tree| (tree.spec().digest, until)));
    }

    /// The number of bytes that the swarm brought while this disk waited for them.
    pub(crate) fn brought(&self) -> u64 {
        self.brought.load(Ordering::Relaxed)
    }

    /// Asks the swarm for a range, and returns when no more of it is to be expected.
    pub(crate) async fn bring(&self, blob: &CachedBlob, range: ByteRange, need: &Need) {
        let before = missing_bytes(blob, range);
        let digest = &blob.spec().digest;
        let bringing = async {
            if need.at(range.offset()) == Urgency::Background {
                tokio::select! {
                    () = self.swarm.bring(digest, range, Urgency::Background) => return,
                    () = need.promoted(range.offset()) => {}
                }
            }
            // Bytes that are on their way are not requested twice: it is the same want with more urgency.
            self.swarm.bring(digest, range, Urgency::Demand).await;
        };
        let mut longest = self.swarm.longest();
        if blob.tree().is_none() {
            longest = longest.min(TREE_LONGEST);
        }
        if timeout(longest, bringing).await.is_err() {
            tracing::debug!(blob = %digest, %range, "the swarm does not answer");
        }
        let brought = before.saturating_sub(missing_bytes(blob, range));
        self.brought.fetch_add(brought, Ordering::Relaxed);
    }

    /// Reports the whole chunks of `range`, if they are local.
    pub(crate) fn became_local(&self, blob: &CachedBlob, range: ByteRange) {
        if blob.is_local(range) && !range.is_empty() {
            self.swarm.became_local(&blob.spec().digest, range);
        }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        for blob in &self.blobs {
            self.swarm.leave(&blob.spec().digest);
        }
    }
}

/// The whole chunks of a blob of `len` bytes that `range` touches.
pub(crate) fn whole_chunks(range: ByteRange, len: u64) -> ByteRange {
    let start = range.offset() - range.offset() % CHUNK_SIZE;
    ByteRange::between(start, range.end().next_multiple_of(CHUNK_SIZE).min(len).max(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::between(start, end)
    }

    #[test]
    fn chunks_are_whole_but_the_last() {
        let len = 3 * CHUNK_SIZE + 5;
        assert_eq!(whole_chunks(range(1, 2), len), range(0, CHUNK_SIZE));
        assert_eq!(whole_chunks(range(CHUNK_SIZE, CHUNK_SIZE + 1), len), range(CHUNK_SIZE, 2 * CHUNK_SIZE));
        assert_eq!(whole_chunks(range(3 * CHUNK_SIZE, len), len), range(3 * CHUNK_SIZE, len));
        assert!(whole_chunks(range(len, len), len).end() == len);
        assert!(whole_chunks(range(0, 0), 0).is_empty());
    }
}
