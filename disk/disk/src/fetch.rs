//! Fetches one range of a blob from its store into the cache: claimed, read, verified, kept.
//!
//! A claim makes sure that no other disk of this host, in this process or another, fetches the same bytes meanwhile;
//! bytes that others have claimed are waited for. The cache verifies the bytes before any reader sees them. For that
//! the pages of the hash tree are needed, which the pull engine requests at the same time. If they come later than the
//! data, or were lost, they are waited for or fetched here.

use crate::claims::{claim, missing_bytes, refuse_bypassed};
use crate::need::{Arrived, Need};
use crate::opening::Opening;
use crate::sharing::Sharing;
use crate::streaming::PIECE_MOST;
use futures::future::{BoxFuture, try_join_all};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result, saturating};
use headstart_cache::{CachedBlob, WaitHint};
use headstart_store::{Store, Urgency};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// The time that others may take for their claimed bytes, in milliseconds, before these are fetched here as well: the
/// others may be stopped, or have a slower way to the store. It counts from the last byte that they brought.
const CLAIM_TIMEOUT_MS: u64 = 3000;

/// The factor by which others may take longer than the store took to answer here. If the store is slow, fetching twice
/// makes a slow link slower, and then all of them run into their timeouts.
const CLAIM_TIMEOUT_PER_ANSWER: u64 = 4;

/// The most time for others, in milliseconds.
const CLAIM_TIMEOUT_MAX_MS: u64 = 15_000;

/// The least time for others, in milliseconds, however often the wait was in vain: a process that holds one claim and
/// does not work holds many, and a reader that meets one after the other must not wait for the full time at each.
const CLAIM_TIMEOUT_MIN_MS: u64 = 100;

/// The divisor of the time for others each time that the wait was in vain.
const CLAIM_TIMEOUT_DIVISOR: u64 = 4;

/// The time after which a stream of this disk that brought nothing is not waited for, even for its next piece.
const STALLED: Duration = Duration::from_millis(500);

/// The time to wait for a notice before looking again: a notice could be missed if a claim ends without bytes.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The number of bytes of an index that are requested at once when it may be wrong.
const OPENING_PART: u64 = 4 << 20;

/// The number of times that the pages of the hash tree may be lost again while a range is verified.
const TREE_ATTEMPTS: u32 = 8;

/// Fetches ranges from a store.
pub(crate) struct Fetcher {
    store: Arc<dyn Store>,
    /// The disk's part in a swarm, if there is one.
    sharing: Option<Sharing>,
    /// The time that others may take, in milliseconds.
    claim_timeout_ms: AtomicU64,
    /// The disk's own streams that are not claimed as a whole.
    streams: Mutex<HashMap<u64, OwnStream>>,
    next_stream: AtomicU64,
}

/// A stream of this disk.
struct OwnStream {
    blob: Digest,
    /// The range from the stream's position to the end of its claims.
    claimed: ByteRange,
    /// The time at which it came to this position.
    since: Instant,
    /// Set by a reader that waits for the stream's next bytes.
    promoted: watch::Sender<bool>,
}

/// A wait for bytes that others fetch.
struct Wait {
    /// The time of their last sign of life.
    since: Instant,
    /// The bytes that were missing then.
    missing: u64,
}

impl Fetcher {
    pub(crate) fn new(store: Arc<dyn Store>, sharing: Option<Sharing>) -> Self {
        Self {
            store,
            sharing,
            claim_timeout_ms: AtomicU64::new(CLAIM_TIMEOUT_MS),
            streams: Mutex::default(),
            next_stream: AtomicU64::new(0),
        }
    }

    /// Returns when all of `range` is in the cache; `true` if any of it came through this disk, and not through others
    /// of this host.
    pub(crate) async fn fetch(
        &self,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        need: &Need,
        arrived: Arrived<'_>,
    ) -> Result<bool> {
        match self.sharing().filter(|sharing| sharing.has(blob)) {
            Some(sharing) => self.fetch_together(sharing, blob, range, need, arrived).await,
            None => self.fetch_alone(blob, range, need, arrived).await,
        }
    }

    /// The disk's part in a swarm.
    pub(crate) fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_ref()
    }

    /// The same from the store, whether the blob is shared or not.
    pub(crate) async fn fetch_alone(
        &self,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        need: &Need,
        arrived: Arrived<'_>,
    ) -> Result<bool> {
        let mut brought = false;
        let mut waiting: Option<Wait> = None;
        loop {
            let urgency = need.at(range.offset());
            if urgency == Urgency::Background {
                refuse_bypassed(blob)?;
            }
            let (wake, woken) = oneshot::channel();
            blob.subscribe(Box::new(move || {
                // The receiver may have given up.
                let _ = wake.send(());
            }));
            let claim = claim(blob, range).await?;
            let runs = claim.owned().iter();
            let bytes = try_join_all(runs.map(|run| self.read(blob, *run, urgency))).await?;
            if !bytes.is_empty() {
                brought = true;
                arrived();
            }
            for (run, bytes) in claim.owned().iter().zip(bytes) {
                self.insert(blob, *run, &bytes, urgency).await?;
            }
            let hint = claim.wait_hint();
            drop(claim);
            if hint == WaitHint::Nothing {
                if waiting.is_some() && !brought {
                    self.claim_timeout_ms.fetch_max(CLAIM_TIMEOUT_MS, Ordering::Relaxed);
                }
                return Ok(brought);
            }
            if urgency == Urgency::Demand && self.is_streamed_late(blob, range) {
                // The engine knows of the stream, and asks anyway: the bytes would come later from the stream than from
                // here.
                self.fetch_unclaimed(blob, range, urgency).await?;
                return Ok(true);
            }
            let missing = missing_bytes(blob, range);
            let wait = waiting.take().filter(|wait| wait.missing == missing);
            let wait = wait.unwrap_or_else(|| Wait { since: Instant::now(), missing });
            let claim_timeout = Duration::from_millis(self.claim_timeout_ms.load(Ordering::Relaxed));
            if wait.since.elapsed() > claim_timeout {
                self.waited_in_vain(claim_timeout);
                self.fetch_unclaimed(blob, range, urgency).await?;
                return Ok(true);
            }
            waiting = Some(wait);
            let looking_again = async {
                match hint {
                    // Timed out or not: look again.
                    WaitHint::Notified => drop(timeout(LOOK_AGAIN.min(claim_timeout), woken).await),
                    WaitHint::Poll(pause) => tokio::time::sleep(pause).await,
                    WaitHint::Nothing => {}
                }
            };
            tokio::select! {
                () = looking_again => {}
                () = need.promoted(range.offset()), if urgency == Urgency::Background => {}
            }
        }
    }

    /// `true` if a layer that was opened by these bytes would be opened by the same bytes now. Fetches those that are
    /// missing.
    pub(crate) async fn is_same(&self, blob: &Arc<CachedBlob>, opening: &Opening) -> Result<bool> {
        for part in opening.ranges.iter().flat_map(|range| range.parts(OPENING_PART)) {
            self.fetch(blob, part, &Need::DEMAND, &|| ()).await?;
        }
        tokio::task::block_in_place(|| opening.is_same(blob))
    }

    /// Notes that others did not bring their claimed bytes within `claim_timeout`. Of many that waited together only
    /// the first counts.
    fn waited_in_vain(&self, claim_timeout: Duration) {
        let was = saturating::<u64>(claim_timeout.as_millis());
        let less = (was / CLAIM_TIMEOUT_DIVISOR).max(CLAIM_TIMEOUT_MIN_MS);
        let _ = self.claim_timeout_ms.compare_exchange(was, less, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Fetches missing bytes although others have claimed them.
    async fn fetch_unclaimed(
        &self,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<()> {
        let mut runs = Vec::new();
        blob.missing(range, &mut |run| runs.push(run));
        for run in runs {
            let bytes = self.read(blob, run, urgency).await?;
            self.insert(blob, run, &bytes, urgency).await?;
        }
        Ok(())
    }

    async fn read(&self, blob: &CachedBlob, range: ByteRange, urgency: Urgency) -> Result<bytes::Bytes> {
        let digest = &blob.spec().digest;
        let asked = Instant::now();
        let bytes = self.store.read(digest, range, urgency).await;
        let bytes = bytes.map_err(|e| e.about(format!("blob {digest}")))?;
        self.answered_after(asked.elapsed());
        Ok(bytes)
    }

    /// Notes the time that the store took to answer.
    pub(crate) fn answered_after(&self, took: Duration) {
        let took = saturating::<u64>(took.as_millis());
        let claim_timeout = took.saturating_mul(CLAIM_TIMEOUT_PER_ANSWER).min(CLAIM_TIMEOUT_MAX_MS);
        self.claim_timeout_ms.fetch_max(claim_timeout, Ordering::Relaxed);
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<u64, OwnStream>> {
        // Every change of it is a single call.
        self.streams.lock()
    }

    /// Registers a stream that begins and has claimed `claimed`; returns its number, and the channel that becomes
    /// `true` when a read waits for it.
    pub(crate) fn stream_begins(
        &self,
        blob: &CachedBlob,
        claimed: ByteRange,
    ) -> (u64, watch::Receiver<bool>) {
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        let (promoted, promotion) = watch::channel(false);
        self.streams()
            .insert(number, OwnStream { blob: blob.spec().digest, claimed, since: Instant::now(), promoted });
        (number, promotion)
    }

    /// Notes that a stream's position and claims are `range` now.
    pub(crate) fn stream_is_at(&self, number: u64, range: ByteRange) {
        if let Some(stream) = self.streams().get_mut(&number) {
            (stream.claimed, stream.since) = (range, Instant::now());
            // A reader that still waits sets it again.
            stream.promoted.send_replace(false);
        }
    }

    pub(crate) fn stream_ends(&self, number: u64) {
        self.streams().remove(&number);
    }

    /// `true` if a stream of this disk has claimed any missing bytes of `range` that are not in its next piece, or
    /// stalls. All streams that have claimed missing bytes are told that a read waits.
    fn is_streamed_late(&self, blob: &CachedBlob, range: ByteRange) -> bool {
        let (streams, digest) = (self.streams(), blob.spec().digest);
        let mut late = false;
        blob.missing(range, &mut |run| {
            for stream in streams.values().filter(|stream| stream.blob == digest) {
                let claimed = run.intersect(stream.claimed);
                if claimed.is_empty() {
                    continue;
                }
                late |= claimed.end() > stream.claimed.offset().saturating_add(PIECE_MOST)
                    || stream.since.elapsed() > STALLED;
                stream.promoted.send_replace(true);
            }
        });
        late
    }

    /// Verifies and keeps the bytes that came for `range`.
    pub(crate) async fn insert(
        &self,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        bytes: &[u8],
        urgency: Urgency,
    ) -> Result<()> {
        for attempt in 0..TREE_ATTEMPTS {
            if attempt >= TREE_ATTEMPTS / 2 {
                blob.bypass_for_now();
            }
            // Hashing and writing take up to a millisecond, more if the disk is slow: not at the cost of other tasks.
            let result = tokio::task::block_in_place(|| blob.insert(range.offset(), bytes));
            let result = self.noting_wrong(blob, result);
            let (Err(error), Some(tree)) = (&result, blob.tree()) else { return result };
            match error.kind() {
                ErrorKind::Absent => self.fetch_tree_pages(blob, tree, range, urgency).await?,
                _ => return result,
            }
        }
        Err(Error::new(
            ErrorKind::Io,
            "the pages of its hash tree vanish from the cache as soon as they are there",
        )
        .about(format!("blob {}", blob.spec().digest))
        .remedy("give the cache more room"))
    }

    fn fetch_tree_pages<'a>(
        &'a self,
        blob: &'a Arc<CachedBlob>,
        tree: &'a Arc<CachedBlob>,
        range: ByteRange,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut pages = Vec::new();
            blob.tree_missing(range, &mut |run| pages.push(run));
            let need = Need::of(urgency);
            try_join_all(pages.into_iter().map(|run| self.fetch(tree, run, &need, &|| ()))).await?;
            Ok(())
        })
    }
}
