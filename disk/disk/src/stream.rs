//! Fetches a long range of a blob as one answer of its store, piece by piece: each is verified, kept and reported as it
//! comes.
//!
//! *Claims* go ahead of the stream by a short stretch and no more: a reader that needs bytes far ahead fetches them
//! itself. The stream skips such bytes when it gets there.
//!
//! *Other streams* on this host of the same blob, because their disks boot the same image, are found by their claims. A
//! stream that comes second follows: it waits for each stretch, and asks the store for nothing until the next bytes are
//! claimed by none. Since a claim is given back only when the next one is taken, it never gets ahead.
//!
//! *Whole streams*, which come soon, are claimed as a whole, as other requests are, and are made only if others have
//! claimed none of their bytes: so disks that read the same at once fetch no byte twice. A reader that needs bytes of a
//! whole stream waits for it, also on the same disk.
//!
//! *Held*, a stream takes nothing from its connection, which holds the sender back when it is full. But if a read of
//! this disk waits for its next piece, it goes on until that piece is local.

use crate::claims::{claim, refuse_bypassed};
use crate::fetch::Fetcher;
use crate::streaming::{PIECE_MOST, StreamProgress, Streaming};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_cache::{CacheClaim, CachedBlob};
use headstart_store::Urgency;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// The least number of bytes that are verified and reported at once, except at the end.
const PIECE: u64 = 64 << 10;

/// Bytes of a claim.
const STRETCH: u64 = 128 << 10;

/// The least number of bytes that are claimed ahead of a stream. A follower looks on when it sees a piece, perhaps
/// before the claims have moved on with it: the bytes that it looks at are claimed anyway, because a piece and a step
/// are less than this.
const AHEAD: u64 = 256 << 10;

/// The number of bytes that a follower looks at and waits for at a time.
const STEP: u64 = 64 << 10;

impl Fetcher {
    /// Returns when all of `range` is in the cache; `true` if any of it came through this disk, and not through others
    /// of this host.
    pub(crate) async fn stream(
        &self,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        streaming: Streaming<'_>,
    ) -> Result<bool> {
        match self.sharing().filter(|sharing| sharing.has(blob)) {
            Some(sharing) => self.stream_together(sharing, blob, range, streaming).await,
            None => self.stream_alone(blob, range, streaming).await,
        }
    }

    /// The same from the store, whether the blob is shared or not.
    pub(crate) async fn stream_alone(
        &self,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        mut streaming: Streaming<'_>,
    ) -> Result<bool> {
        let end = range.end().div_ceil(blob.unit()).saturating_mul(blob.unit()).min(blob.len());
        let mut at = range.offset();
        let mut brought = false;
        while let Some(next) = first_missing(blob, ByteRange::between(at, end)) {
            if next > at {
                (streaming.on_progress)(StreamProgress::Found(ByteRange::between(at, next)));
            }
            at = next;
            refuse_bypassed(blob)?;
            let step = if streaming.whole { end } else { end.min(at.saturating_add(STEP)) };
            let step = ByteRange::between(at, step);
            let claim = claim(blob, step).await?;
            let mine = match claim.owned() {
                [only] if streaming.whole => only.intersect(step) == step,
                [first, ..] if !streaming.whole => first.offset() == at,
                _ => false,
            };
            if mine {
                brought = true;
                self.lead(blob, ByteRange::between(at, end), claim, &mut streaming).await?;
                at = end;
                continue;
            }
            drop(claim);
            if self.fetch_alone(blob, step, streaming.need, &|| ()).await? {
                brought = true;
                (streaming.on_progress)(StreamProgress::Upto(step.end()));
            } else {
                (streaming.on_progress)(StreamProgress::Found(step));
            }
            at = step.end();
        }
        Ok(brought)
    }

    /// Streams all of `range`, whose beginning `claim` covers.
    async fn lead(
        &self,
        blob: &Arc<CachedBlob>,
        range: ByteRange,
        claim: CacheClaim,
        streaming: &mut Streaming<'_>,
    ) -> Result<()> {
        let digest = blob.spec().digest;
        let about = |e: Error| e.about(format!("blob {digest}"));
        let mut ahead = Ahead::new(self, blob, range, claim, streaming.whole);
        ahead.advance(range.offset()).await?;
        let asked = Instant::now();
        let mut parts = self.store().read_stream(&digest, range, Urgency::Background).await.map_err(about)?;
        let mut buffer = BytesMut::new();
        let mut at = range.offset();
        let mut first = true;
        loop {
            ahead.may_go_on(&mut streaming.held).await;
            let Some(part) = parts.next().await else { break };
            buffer.extend_from_slice(&part.map_err(about)?);
            if std::mem::take(&mut first) {
                self.answered_after(asked.elapsed());
            }
            let last = at + buffer.len() as u64 == range.end();
            if last {
                (streaming.arrived)();
            }
            while let Some(piece) = next_piece(&mut buffer, at, last, blob.unit()) {
                refuse_bypassed(blob)?;
                self.keep(blob, at, &piece).await?;
                at += piece.len() as u64;
                ahead.advance(at).await?;
                (streaming.on_progress)(StreamProgress::Upto(at));
            }
        }
        if at < range.end() {
            return Err(about(Error::new(ErrorKind::Unavailable, "ended before its last byte")));
        }
        Ok(())
    }

    /// Verifies and keeps the bytes of a piece that are missing.
    async fn keep(&self, blob: &Arc<CachedBlob>, at: u64, piece: &Bytes) -> Result<()> {
        let range = ByteRange::between(at, at + piece.len() as u64);
        let mut missing = Vec::new();
        blob.missing(range, &mut |run| missing.push(run.intersect(range)));
        for run in missing.into_iter().filter(|run| !run.is_empty()) {
            let place = |offset: u64| to_usize(offset - at);
            let bytes = piece.get(place(run.offset())..place(run.end())).unwrap_or_default();
            self.insert(blob, run, bytes, Urgency::Background).await?;
        }
        Ok(())
    }
}

fn first_missing(blob: &CachedBlob, range: ByteRange) -> Option<u64> {
    let mut first = None;
    blob.missing(range, &mut |run| _ = first.get_or_insert(run.offset().max(range.offset())));
    first
}

/// Takes the next whole units out of the bytes that have come at `at`, if they are enough; at the end, all bytes.
fn next_piece(buffer: &mut BytesMut, at: u64, last: bool, unit: u64) -> Option<Bytes> {
    let have = buffer.len() as u64;
    let whole = |bytes: u64| ((at + bytes) / unit * unit).saturating_sub(at);
    let take = match whole(have.min(PIECE_MOST.max(unit))) {
        _ if last && have <= PIECE_MOST => have,
        enough if enough >= PIECE.min(whole(PIECE.max(unit))) || last => enough,
        _ => 0,
    };
    (take > 0).then(|| buffer.split_to(to_usize(take)).freeze())
}

/// The claims ahead of a stream.
struct Ahead<'a> {
    fetcher: &'a Fetcher,
    blob: &'a Arc<CachedBlob>,
    range: ByteRange,
    /// The claims, each with its end.
    claims: VecDeque<(u64, CacheClaim)>,
    /// The stream's number in the fetcher, and the channel that is `true` when a read waits for it; `None` if it is
    /// claimed as a whole.
    known: Option<(u64, watch::Receiver<bool>)>,
}

impl<'a> Ahead<'a> {
    fn new(
        fetcher: &'a Fetcher,
        blob: &'a Arc<CachedBlob>,
        range: ByteRange,
        first: CacheClaim,
        whole: bool,
    ) -> Self {
        let end = first.owned().last().map_or(range.offset(), |run| run.end().min(range.end()));
        let claimed = ByteRange::between(range.offset(), end);
        let known = (!whole).then(|| fetcher.stream_begins(blob, claimed));
        Self { fetcher, blob, range, claims: VecDeque::from([(end, first)]), known }
    }

    /// Returns when the stream is not held, or a read waits for its claimed bytes.
    async fn may_go_on(&mut self, held: &mut watch::Receiver<bool>) {
        // A sender that is gone holds the stream no more.
        let free = held.wait_for(|held| !held);
        match &mut self.known {
            Some((_, promoted)) => tokio::select! {
                _ = free => {}
                _ = promoted.wait_for(|promoted| *promoted) => {}
            },
            None => _ = free.await,
        }
    }

    /// Moves the stream's position to `at`: claims the bytes that follow, then gives back the claims behind it.
    async fn advance(&mut self, at: u64) -> Result<()> {
        let mut end = self.claims.back().map_or(at, |(end, _)| (*end).max(at));
        while end < self.range.end() && end < at.saturating_add(AHEAD) {
            let stretch = ByteRange::between(end, self.range.end().min(end.saturating_add(STRETCH)));
            self.claims.push_back((stretch.end(), claim(self.blob, stretch).await?));
            end = stretch.end();
        }
        while self.claims.front().is_some_and(|(end, _)| *end <= at) {
            self.claims.pop_front();
        }
        if let Some((number, _)) = self.known {
            self.fetcher.stream_is_at(number, ByteRange::between(at, end));
        }
        Ok(())
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        if let Some((number, _)) = self.known {
            self.fetcher.stream_ends(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_units() {
        let unit = 16 << 10;
        let take = |len: usize, at: u64, last: bool| {
            let mut buffer = BytesMut::zeroed(len);
            let mut taken = Vec::new();
            let mut at = at;
            while let Some(piece) = next_piece(&mut buffer, at, last, unit) {
                at += piece.len() as u64;
                taken.push(piece.len() >> 10);
            }
            (taken, buffer.len())
        };
        assert_eq!(take(63 << 10, 0, false), (vec![], 63 << 10));
        assert_eq!(take(65 << 10, 0, false), (vec![64], 1 << 10));
        assert_eq!(take(700 << 10, 0, false), (vec![128, 128, 128, 128, 128], 60 << 10));
        assert_eq!(take(300 << 10, 0, true), (vec![128, 128, 44], 0));
        assert_eq!(take(5, 32 << 10, true), (vec![0], 0), "the short end of a blob");
        assert_eq!(take(0, 0, true), (vec![], 0));
    }
}
