//! A disk's bytes from other hosts that have the same image: they are asked first, and relied on for nothing.
//!
//! A [`Swarm`] brings verified chunks of blobs into the cache that this disk reads from. So its answer is only the end
//! of a wait: bytes that the cache lacks then, the disk fetches from its store, as it would without a swarm. A host
//! that answers late, or not at all, or wrongly, costs that wait, which is bounded, and nothing else.
//!
//! Bytes are exchanged in whole chunks. So with a swarm a disk also requests whole chunks from its store: it can pass
//! on only whole chunks. Long ranges go in steps, several of them on their way at a time; the bytes of a step that the
//! swarm does not bring are streamed from the store.
//!
//! Only blobs with a hash tree are shared, and the trees themselves. The trees are verified only when data is checked
//! by them; if a check fails, the blob and its tree come from the store alone for a while.

use crate::blobs::Blobs;
use crate::fetch::{Arrived, Fetcher, Need, missing_bytes};
use crate::preloading::Preloader;
use crate::puller::Puller;
use crate::stream::{Piece, Streaming, refuse_bypassed};
use futures::StreamExt;
use futures::future::{BoxFuture, try_join, try_join_all};
use futures::stream;
use headstart_block::{
    BLOCK_SIZE, ByteRange, Digest, Error, ErrorKind, PlanItem, ReadAt, Result, SLICE_SIZE,
};
use headstart_cache::CachedBlob;
use headstart_pull::{Plan, World};
use headstart_store::Urgency;
use headstart_swarm::CHUNK_SIZE;
use headstart_swarm::tracker::{Access, ImageKey};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The number of bytes of a long range that are requested at once.
const STEP: u64 = 512 << 10;

/// The same if the swarm brings nothing: fewer and longer requests to the store.
const STEP_MOST: u64 = 4 << 20;

/// The number of steps that are on their way at a time.
const STEPS_AHEAD: usize = 4;

/// The time for which a blob comes from its store alone after a check of it failed: meanwhile agents leave alone the
/// peer that is to blame.
const DISTRUST: Duration = Duration::from_secs(5);

/// The longest time that the swarm may take for pages of a hash tree, whatever its own limit is: data that came waits
/// for them, and from the length of that wait an agent would judge how slow the store is. The pages are few: fetching
/// them from the store as well costs it little.
const TREE_LONGEST: Duration = Duration::from_secs(3);

/// The interval at which the swarm is told the reads.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(50);

/// The interval after no reads for [`BUSY`].
pub(crate) const TELL_IDLE: Duration = Duration::from_millis(500);

/// The time without reads of new slices after which a disk is idle.
pub(crate) const BUSY: Duration = Duration::from_secs(10);

/// The number of reads of absent bytes that are looked at again; more are forgotten.
const PENDING_MAX: usize = 4096;

/// Other hosts that have the same blobs. Blobs go by their digests, ranges are whole chunks, cut at a blob's end.
///
/// No call fails, and none but [`bring`](Self::bring) waits: a swarm that is away brings nothing.
pub trait Swarm: Send + Sync {
    /// Notes that a disk takes part in a blob that has a hash tree, and in the tree; `origin` is the blob's store, as a
    /// reference names it. Called as often as a disk joins.
    fn join(&self, blob: &Arc<CachedBlob>, origin: &str);

    /// Notes that a disk that joined is gone.
    fn leave(&self, blob: &Digest);

    /// Returns when no more of the range is to be expected: the disk has to fetch the bytes that are missing then from
    /// its store, and report them by [`became_local`](Self::became_local). If the future is dropped, no read waits any
    /// more.
    fn bring<'a>(&'a self, blob: &'a Digest, range: ByteRange, urgency: Urgency) -> BoxFuture<'a, ()>;

    /// The most time that [`bring`](Self::bring) may take, whatever happens: the swarm bounds its waits itself, and
    /// sooner, because it knows how long the store takes now. After that time it is dropped.
    fn longest(&self) -> Duration;

    /// Notes that the disk has fetched these bytes itself.
    fn became_local(&self, blob: &Digest, range: ByteRange);

    /// Notes that the disk has read some of these bytes.
    fn read(&self, blob: &Digest, range: ByteRange);

    /// Notes whether the disk follows a plan at present: if `running`, the swarm brings only requested chunks.
    fn planned(&self, blob: &Digest, running: bool);

    /// Notes that a disk of an image was created and is going to boot. `None` if the reads of boots are not gathered.
    fn boot(&self, _image: ImageKey) -> Option<Box<dyn Boot>> {
        None
    }
}

/// A disk that boots, as seen by the tracker that gathers the reads of boots. Dropped, it has booted, or is gone.
pub trait Boot: Send {
    /// Notes that it has read these slices for the first time.
    fn read(&mut self, accesses: &[Access]);

    /// The reads of this image's boots on other hosts, if they are new.
    fn hinted(&mut self) -> Option<Hinted>;
}

/// The reads of an image's boots on other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hinted {
    /// The items to preload, in this order.
    pub items: Vec<PlanItem>,
    /// The number of disks that were counted.
    pub disks: u32,
}

/// The part of one disk in a swarm.
pub(crate) struct Sharing {
    swarm: Arc<dyn Swarm>,
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
    pub(crate) fn join(swarm: Arc<dyn Swarm>, blobs: &[Arc<CachedBlob>], origin: &str) -> Self {
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
            let mut distrusted = self.distrusted.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut distrusted = self.distrusted.lock().unwrap_or_else(PoisonError::into_inner);
        distrusted.insert(blob.spec().digest, until);
        distrusted.extend(blob.tree().map(|tree| (tree.spec().digest, until)));
    }

    /// The number of bytes that the swarm brought while this disk waited for them.
    pub(crate) fn brought(&self) -> u64 {
        self.brought.load(Ordering::Relaxed)
    }

    async fn bring(&self, blob: &CachedBlob, range: ByteRange, need: &Need) {
        let before = missing_bytes(blob, range);
        let digest = &blob.spec().digest;
        let bringing = async {
            if need.at(range.offset()) == Urgency::Background {
                tokio::select! {
                    () = self.swarm.bring(digest, range, Urgency::Background) => return,
                    () = need.hurried(range.offset()) => {}
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
    fn became_local(&self, blob: &CachedBlob, range: ByteRange) {
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
fn whole_chunks(range: ByteRange, len: u64) -> ByteRange {
    let start = range.offset() - range.offset() % CHUNK_SIZE;
    ByteRange::between(start, range.end().next_multiple_of(CHUNK_SIZE).min(len).max(start))
}

impl Fetcher {
    /// As [`Fetcher::fetch`], for a blob that is shared.
    pub(crate) async fn fetch_together(
        &self,
        sharing: &Sharing,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        need: &Need,
        arrived: Arrived<'_>,
    ) -> Result<bool> {
        if need.at(range.offset()) == Urgency::Background {
            refuse_bypassed(blob)?;
        }
        let range = whole_chunks(range, blob.len());
        let before = missing_bytes(blob, range);
        if before == 0 {
            return Ok(false);
        }
        sharing.bring(blob, range, need).await;
        let mut runs = Vec::new();
        let mut left = 0;
        blob.missing(range, &mut |run| {
            left += run.len();
            runs.push(run);
        });
        if runs.is_empty() {
            arrived();
            return Ok(true);
        }
        let coming = AtomicUsize::new(runs.len());
        let last_arrived = || {
            if coming.fetch_sub(1, Ordering::Relaxed) == 1 {
                arrived();
            }
        };
        let fetching = runs.into_iter().map(|run| {
            let last_arrived = &last_arrived;
            async move {
                let brought = self.fetch_alone(blob, run, need, last_arrived).await?;
                sharing.became_local(blob, whole_chunks(run, blob.len()));
                Ok::<_, Error>(brought)
            }
        });
        let brought = try_join_all(fetching).await?;
        Ok(left < before || brought.into_iter().any(|brought| brought))
    }

    /// As [`Fetcher::stream`], for a blob that is shared.
    pub(crate) async fn stream_together(
        &self,
        sharing: &Sharing,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        streaming: Streaming<'_>,
    ) -> Result<bool> {
        let range = whole_chunks(range, blob.len());
        let step = AtomicU64::new(STEP);
        let (send, mut steps) = mpsc::channel(1);
        let (held, need) = (streaming.held.clone(), streaming.need);
        let asking = async {
            let parts = stream::unfold(range.offset(), |at| {
                let end = range.end().min(at.saturating_add(step.load(Ordering::Relaxed)));
                std::future::ready((at < range.end()).then(|| (ByteRange::between(at, end), end)))
            });
            let asked = parts.map(|part| {
                let mut held = held.clone();
                async move {
                    // A sender that is gone holds the stream no more.
                    let _ = held.wait_for(|held| !held).await;
                    let before = missing_bytes(blob, part);
                    if before > 0 {
                        sharing.bring(blob, part, need).await;
                    }
                    (part, before)
                }
            });
            let mut asked = std::pin::pin!(asked.buffered(STEPS_AHEAD));
            while let Some(answer) = asked.next().await {
                if send.send(answer).await.is_err() {
                    break;
                }
            }
            drop(send);
            Ok::<_, Error>(())
        };
        let taking = async {
            let mut brought = false;
            while let Some((part, before)) = steps.recv().await {
                refuse_bypassed(blob)?;
                let missing = missing_bytes(blob, part);
                let longer =
                    if missing == before && before > 0 { step.load(Ordering::Relaxed) * 2 } else { STEP };
                step.store(longer.min(STEP_MOST), Ordering::Relaxed);
                brought |= missing < before;
                brought |= self.stream_rest(sharing, blob, part, &streaming).await?;
                let piece = if before == 0 { Piece::Found(part) } else { Piece::Upto(part.end()) };
                (streaming.tell)(piece);
            }
            (streaming.arrived)();
            Ok(brought)
        };
        // If `taking` has failed, `asking` is dropped with it.
        let ((), brought) = try_join(asking, taking).await?;
        Ok(brought)
    }

    /// Streams the bytes of a step that the swarm did not bring from the store.
    async fn stream_rest(
        &self,
        sharing: &Sharing,
        blob: &Arc<CachedBlob>,
        part: ByteRange,
        streaming: &Streaming<'_>,
    ) -> Result<bool> {
        let (mut runs, mut brought) = (Vec::new(), false);
        blob.missing(part, &mut |run| runs.push(run));
        for run in runs {
            if run.offset() > part.offset() {
                (streaming.tell)(Piece::Upto(run.offset()));
            }
            // Chunks up to this offset were reported.
            let told = AtomicU64::new(whole_chunks(run, blob.len()).offset());
            let tell = |piece| {
                if let Piece::Upto(upto) = piece {
                    let upto = if upto == blob.len() { upto } else { upto - upto % CHUNK_SIZE };
                    let from = told.fetch_max(upto, Ordering::Relaxed);
                    sharing.became_local(blob, ByteRange::between(from.min(upto), upto));
                }
                (streaming.tell)(piece);
            };
            let (held, whole, need) = (streaming.held.clone(), streaming.whole, streaming.need);
            let streaming = Streaming { need, held, whole, tell: &tell, arrived: &|| () };
            brought |= self.stream_alone(blob, run, streaming).await?;
            let rest = whole_chunks(run, blob.len());
            let from = told.load(Ordering::Relaxed).max(rest.offset());
            sharing.became_local(blob, ByteRange::between(from.min(rest.end()), rest.end()));
        }
        Ok(brought)
    }

    /// Notes a blob whose bytes were found wrong by a check.
    pub(crate) fn noting_wrong(&self, blob: &CachedBlob, result: Result<()>) -> Result<()> {
        if let (Err(error), Some(sharing)) = (&result, self.sharing())
            && error.kind() == ErrorKind::Corrupt
        {
            sharing.distrust(blob);
        }
        result
    }
}

/// Tells the swarm a disk's reads and whether it follows a plan, until the disk is gone.
pub(crate) async fn tell(preloader: Weak<Preloader>, puller: Weak<Puller>, swarm: Arc<dyn Swarm>) {
    let Some(blobs) = puller.upgrade().map(|puller| Arc::clone(puller.blobs())) else { return };
    let mut telling = Telling { swarm, blobs, heard: 0, pending: Vec::new(), planned: false, passed: 0 };
    let mut last = Instant::now();
    loop {
        {
            let (Some(puller), Some(preloader)) = (puller.upgrade(), preloader.upgrade()) else { return };
            if puller.is_closed() {
                return;
            }
            if telling.reads(&preloader) | telling.planned(&puller) {
                last = Instant::now();
            }
        }
        tokio::time::sleep(if last.elapsed() < BUSY { TELL_EVERY } else { TELL_IDLE }).await;
    }
}

/// The state of the reports to the swarm.
struct Telling {
    swarm: Arc<dyn Swarm>,
    blobs: Arc<Blobs>,
    /// The number of entries of the log of accesses that were reported.
    heard: usize,
    /// Reads whose bytes were not local when they were last looked at: a place in the blobs, and a range.
    pending: Vec<(usize, ByteRange)>,
    planned: bool,
    /// The number of items that were passed of the plan that ended last.
    passed: u64,
}

impl Drop for Telling {
    fn drop(&mut self) {
        if self.planned {
            self.say_planned(false);
        }
    }
}

impl Telling {
    /// Reports new reads; `true` if there were any.
    fn reads(&mut self, preloader: &Preloader) -> bool {
        let blobs = &self.blobs;
        let mut reads = std::mem::take(&mut self.pending);
        preloader.accesses().since(&mut self.heard, &mut |access| {
            each_run(access.block, access.slices, &mut |part| {
                let part = part.intersect(ByteRange::between(0, blobs.disk_size()));
                blobs.ranges(part, &mut |found| {
                    let place = found.blob.0 as usize;
                    let Some(blob) = blobs.data().get(place).filter(|blob| blob.tree().is_some()) else {
                        return;
                    };
                    reads.push((place, whole_chunks(found.range, blob.len())));
                });
            });
        });
        let any = !reads.is_empty();
        for (place, range) in merged(reads) {
            let Some(blob) = self.blobs.data().get(place) else { continue };
            if blob.is_local(range) {
                self.swarm.read(&blob.spec().digest, range);
            } else {
                self.pending.push((place, range));
            }
        }
        self.pending.truncate(PENDING_MAX);
        any
    }

    /// Reports whether a plan is followed, if that changed; `true` if one is.
    fn planned(&mut self, puller: &Puller) -> bool {
        let preloading = puller.preloading();
        let more = match &preloading.plan {
            Plan::Lazy => false,
            Plan::Sequential => preloading.items < self.blobs.disk_size().div_ceil(BLOCK_SIZE),
            Plan::List(items) => preloading.items < items.len() as u64,
        };
        // A long range is passed when it is requested. Bytes that reads bring along later belong to no plan.
        let last = || preloading.items > 0 && self.passed != preloading.items && puller.is_preloading();
        let running = more || last();
        if !running {
            self.passed = preloading.items;
        }
        if running != self.planned {
            self.planned = running;
            self.say_planned(running);
        }
        running
    }

    fn say_planned(&self, running: bool) {
        for blob in self.blobs.data().iter().filter(|blob| blob.tree().is_some()) {
            self.swarm.planned(&blob.spec().digest, running);
        }
    }
}

/// Names the runs of slices of a block, as bytes of the disk.
fn each_run(block: u64, slices: u32, each: &mut dyn FnMut(ByteRange)) {
    let mut slices = u64::from(slices);
    let mut at = block.saturating_mul(BLOCK_SIZE);
    while slices != 0 {
        let skipped = slices.trailing_zeros();
        slices >>= skipped;
        let run = slices.trailing_ones();
        slices >>= run;
        let start = at.saturating_add(u64::from(skipped) * SLICE_SIZE);
        at = start.saturating_add(u64::from(run) * SLICE_SIZE);
        each(ByteRange::between(start, at));
    }
}

/// The same ranges, each byte once.
fn merged(mut ranges: Vec<(usize, ByteRange)>) -> Vec<(usize, ByteRange)> {
    ranges.sort_unstable_by_key(|(place, range)| (*place, range.offset()));
    ranges.dedup_by(|next, last| {
        let joins = next.0 == last.0 && next.1.offset() <= last.1.end();
        if joins {
            last.1 = ByteRange::between(last.1.offset(), last.1.end().max(next.1.end()));
        }
        joins
    });
    ranges
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

    #[test]
    fn runs_of_slices_are_bytes_of_the_disk() {
        let runs = |slices| {
            let mut runs = Vec::new();
            each_run(1, slices, &mut |run| {
                runs.push(((run.offset() - BLOCK_SIZE) / SLICE_SIZE, (run.end() - BLOCK_SIZE) / SLICE_SIZE));
            });
            runs
        };
        assert_eq!(runs(0), []);
        assert_eq!(runs(u32::MAX), [(0, 32)]);
        assert_eq!(runs(0b1011_0000), [(4, 6), (7, 8)]);
        assert_eq!(runs(1 << 31 | 1), [(0, 1), (31, 32)]);
    }

    #[test]
    fn ranges_merge_within_a_blob() {
        let ranges =
            vec![(1, range(0, 4)), (0, range(4, 6)), (0, range(0, 4)), (0, range(8, 9)), (0, range(1, 2))];
        assert_eq!(merged(ranges), [(0, range(0, 6)), (0, range(8, 9)), (1, range(0, 4))]);
    }
}
