//! Fetches ranges and streams of blobs that are shared: from the swarm first, then from the store.
//!
//! Long ranges go in steps, several of them on their way at a time; the bytes of a step that the swarm does not bring
//! are streamed from the store.

use crate::claims::{missing_bytes, refuse_bypassed};
use crate::fetch::Fetcher;
use crate::need::{Arrived, Need};
use crate::sharing::{Sharing, whole_chunks};
use crate::streaming::{StreamProgress, Streaming};
use futures::StreamExt;
use futures::future::{try_join, try_join_all};
use futures::stream;
use headstart_block::exchange::CHUNK_SIZE;
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result};
use headstart_cache::CachedBlob;
use headstart_store::Urgency;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// The number of bytes of a long range that are requested at once.
const STEP: u64 = 512 << 10;

/// The same if the swarm brings nothing: fewer and longer requests to the store.
const STEP_MOST: u64 = 4 << 20;

/// The number of steps that are on their way at a time.
const STEPS_AHEAD: usize = 4;

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
                let progress =
                    if before == 0 { StreamProgress::Found(part) } else { StreamProgress::Upto(part.end()) };
                (streaming.on_progress)(progress);
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
                (streaming.on_progress)(StreamProgress::Upto(run.offset()));
            }
            // Chunks up to this offset were reported.
            let reported = AtomicU64::new(whole_chunks(run, blob.len()).offset());
            let on_progress = |progress| {
                if let StreamProgress::Upto(upto) = progress {
                    let upto = if upto == blob.len() { upto } else { upto - upto % CHUNK_SIZE };
                    let from = reported.fetch_max(upto, Ordering::Relaxed);
                    sharing.became_local(blob, ByteRange::between(from.min(upto), upto));
                }
                (streaming.on_progress)(progress);
            };
            let (held, whole, need) = (streaming.held.clone(), streaming.whole, streaming.need);
            let streaming = Streaming { need, held, whole, on_progress: &on_progress, arrived: &|| () };
            brought |= self.stream_alone(blob, run, streaming).await?;
            let rest = whole_chunks(run, blob.len());
            let from = reported.load(Ordering::Relaxed).max(rest.offset());
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
