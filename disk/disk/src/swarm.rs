//! A disk's bytes from other hosts that have the same image: asked for first, relied on for nothing.
//!
//! A [`Swarm`] brings verified chunks of blobs into the cache that this disk reads from. So its answer is only the
//! end of a wait: what the cache lacks then, the disk fetches from its store, as it would without. Whoever answers
//! late, or not at all, or wrongly, costs that wait, which is bounded, and nothing else.
//!
//! Bytes are exchanged in whole chunks. So with a swarm a disk also asks its store for whole chunks: what it has of
//! one it can give away. Long ranges go in steps, several of them on their way at a time; what the swarm does not
//! bring of them is streamed from the store.
//!
//! Only blobs with a hash tree are shared, and the trees themselves. Those are believed only when data is checked by
//! them; where a check fails, the blob and its tree come from the store alone for a while.

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

/// Bytes of a long range that are asked for at once.
const STEP: u64 = 512 << 10;

/// The same where the swarm brings nothing: fewer and longer requests to the store.
const STEP_MOST: u64 = 4 << 20;

/// Steps that are on their way at a time.
const STEPS_AHEAD: usize = 4;

/// How long a blob comes from its store alone after a check of it failed: agents leave alone who is to blame
/// meanwhile.
const DISTRUST: Duration = Duration::from_secs(5);

/// How long pages of a hash tree may take the swarm, whatever it makes of that: data that came waits for them, and
/// by how long that takes an agent would judge how slow the store is. They are few: who fetches them as well costs
/// it little.
const TREE_LONGEST: Duration = Duration::from_secs(3);

/// How often the swarm is told what was read.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(50);

/// And how often where nothing was for [`BUSY`].
pub(crate) const TELL_IDLE: Duration = Duration::from_millis(500);

/// After so long without reads of anything new, a disk is idle.
pub(crate) const BUSY: Duration = Duration::from_secs(10);

/// Reads of bytes that were not here yet and that are looked at again; more are forgotten.
const PENDING_MAX: usize = 4096;

/// Other hosts that have the same blobs. Blobs go by their digests, ranges are whole chunks, cut at a blob's end.
///
/// No call fails, and none but [`bring`](Self::bring) waits: a swarm that is away brings nothing.
pub trait Swarm: Send + Sync {
    /// A disk takes part in a blob that has a hash tree, and in the tree; `origin` is the store that it lies in, as a
    /// reference names it. As often as a disk does.
    fn join(&self, blob: &Arc<CachedBlob>, origin: &str);

    /// That disk is gone.
    fn leave(&self, blob: &Digest);

    /// Returns when nothing more of the range is to be expected: what is missing then, the disk is to fetch from its
    /// store, and to tell by [`became_local`](Self::became_local). Dropped, nobody waits any more.
    fn bring<'a>(&'a self, blob: &'a Digest, range: ByteRange, urgency: Urgency) -> BoxFuture<'a, ()>;

    /// How long that may take at most, whatever happens: it bounds its waits itself, and sooner, as it knows how long
    /// the store takes now. After that it is dropped.
    fn longest(&self) -> Duration;

    /// The disk has brought these bytes itself.
    fn became_local(&self, blob: &Digest, range: ByteRange);

    /// The disk has read some of these bytes.
    fn read(&self, blob: &Digest, range: ByteRange);

    /// Whether the disk follows a plan at present: then the swarm brings nothing but what it is asked for.
    fn planned(&self, blob: &Digest, running: bool);

    /// A disk of an image was created and is going to boot. Nothing where nobody gathers what boots read.
    fn boot(&self, _image: ImageKey) -> Option<Box<dyn Boot>> {
        None
    }
}

/// A disk that boots, as those see it who gather what boots read. Dropped, it has booted, or is gone.
pub trait Boot: Send {
    /// It has read these slices for the first time.
    fn read(&mut self, accesses: &[Access]);

    /// What boots of this image elsewhere read, where that is news.
    fn hinted(&mut self) -> Option<Hinted>;
}

/// What boots of an image read elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hinted {
    /// What to preload, in this order.
    pub items: Vec<PlanItem>,
    /// How many disks were counted.
    pub disks: u32,
}

/// The part of one disk in a swarm.
pub(crate) struct Sharing {
    swarm: Arc<dyn Swarm>,
    /// What it has joined.
    blobs: Vec<Arc<CachedBlob>>,
    /// The digests of these and of their trees.
    shared: HashSet<Digest>,
    /// Blobs, by their own digests and their trees', and until when they come from the store alone.
    distrusted: Mutex<HashMap<Digest, Instant>>,
    /// Bytes that were missing when the swarm was asked and here when it had answered.
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

    /// Whether a blob is asked of the swarm.
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

    /// Bytes of a blob, or pages of its tree, were wrong.
    pub(crate) fn distrust(&self, blob: &CachedBlob) {
        let until = Instant::now() + DISTRUST;
        let mut distrusted = self.distrusted.lock().unwrap_or_else(PoisonError::into_inner);
        distrusted.insert(blob.spec().digest, until);
        distrusted.extend(blob.tree().map(|tree| (tree.spec().digest, until)));
    }

    /// Bytes that the swarm brought while this disk waited for them.
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
            // Of what is on its way nothing is asked for twice: it is the same want with more urgency.
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

    /// The whole chunks of `range` that are here.
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
    /// As [`Fetcher::fetch`], of a blob that is shared.
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

    /// As [`Fetcher::stream`], of a blob that is shared.
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
                    // Whoever held it and is gone holds it no more.
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
        // Where what takes has failed, what asks is dropped with it.
        let ((), brought) = try_join(asking, taking).await?;
        Ok(brought)
    }

    /// Streams from the store what the swarm did not bring of a step.
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
            // Chunks up to here were told of.
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

    /// What of a blob is checked was found wrong.
    pub(crate) fn noting_wrong(&self, blob: &CachedBlob, result: Result<()>) -> Result<()> {
        if let (Err(error), Some(sharing)) = (&result, self.sharing())
            && error.kind() == ErrorKind::Corrupt
        {
            sharing.distrust(blob);
        }
        result
    }
}

/// Tells the swarm what a disk reads and whether it follows a plan, until the disk is gone.
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

/// What the swarm was told.
struct Telling {
    swarm: Arc<dyn Swarm>,
    blobs: Arc<Blobs>,
    /// How much of the log of accesses.
    heard: usize,
    /// What was read and was not here yet when it was looked at last: a place in the blobs, and a range.
    pending: Vec<(usize, ByteRange)>,
    planned: bool,
    /// How many items of the plan that ended last were passed.
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
    /// Whether there were any.
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

    /// Whether a plan is followed.
    fn planned(&mut self, puller: &Puller) -> bool {
        let preloading = puller.preloading();
        let more = match &preloading.plan {
            Plan::Lazy => false,
            Plan::Sequential => preloading.items < self.blobs.disk_size().div_ceil(BLOCK_SIZE),
            Plan::List(items) => preloading.items < items.len() as u64,
        };
        // A long range is passed when it is asked for. What reads bring along later is nobody's plan.
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
