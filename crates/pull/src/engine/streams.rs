//! Long preloads, whose bytes are taken as they come.
//!
//! A stream shrinks from its front: what has come is released, its readers are served, and what is left is what the
//! request is about, in `active`, on the wire, and in a failure.
//!
//! *Held*: while misses are on their way and could be slowed by it, a stream is not read from; what its sender had
//! sent by then, a bandwidth-delay product, still comes, as with any request of the background. The rule is the one
//! that lets no request of the background begin. A stream that somebody waits for is a miss itself, and never held.
//!
//! *Who waits*: a reader whose bytes come about as soon as a request of his own would bring them; else he asks
//! apart at once. When the stream passes there, it brings those bytes again: as long as the pieces are small that
//! costs less than another request would. But where a long stretch before it has become local, the stream is ended,
//! and goes on behind that as another one.
//!
//! *Whole ones* come in about a round trip, as rests of blocks and scans do. They are waited for as any request is, and
//! not held: their driver claims all of such a one at once, and what waits for the claim of one disk must not wait for
//! that disk's own misses.

use super::Engine;
use crate::estimator::{Pace, span};
use crate::request::{Past, Request, Sent, State, Stream};
use crate::timers::Timer;
use crate::window::{coalesce, first_bytes};
use crate::{Action, BlobRange, Estimate, FetchId, Priority, Time, World};
use std::time::Duration;

/// Bytes ahead in a stream that are waited for where nobody knows how fast it is.
const UNKNOWN_AHEAD: u64 = 256 << 10;
/// Local bytes before a stream that are worth another request, at least; and in bandwidth-delay products.
const SKIPPED_MIN: u64 = 512 << 10;
const SKIPPED_PIPES: u64 = 4;
/// The largest piece that a stream is told in.
const PIECE: u64 = 256 << 10;
/// A stream that was silent for so long beyond what a piece takes has stalled: others may go on with the plan.
const SILENCE: Duration = Duration::from_secs(1);

impl Engine {
    /// Whether a reader may wait for `part` in a request, or had better ask for it himself.
    pub(super) fn may_join(&self, request: &Request, part: BlobRange) -> bool {
        match request.state {
            State::Sent(Sent { stream: Some(stream), .. }) if !stream.whole => {
                !request.apart && self.comes_soon(request.range, stream, part)
            }
            _ => request.is_joinable(self.now),
        }
    }

    /// Whether a stream brings `part` about as soon as another request would: not later than that by more than what
    /// it costs everybody to bring it twice, and a round trip, by which the other would have to wait for what is on
    /// the wire.
    fn comes_soon(&self, left: BlobRange, stream: Stream, part: BlobRange) -> bool {
        let Some(in_stream) = self.comes_in(left, stream, part) else {
            return part.range.end().saturating_sub(left.range.offset()) <= UNKNOWN_AHEAD;
        };
        let Estimate { bandwidth: Some(bandwidth), round_trip: Some(round_trip) } = self.estimate() else {
            return false;
        };
        let takes = span(part.len(), bandwidth);
        in_stream <= (round_trip + takes).saturating_mul(2)
    }

    /// In what time a stream of which `left` is left brings `part`; `None` if nobody knows.
    fn comes_in(&self, left: BlobRange, stream: Stream, part: BlobRange) -> Option<Duration> {
        let Estimate { bandwidth: Some(bandwidth), round_trip: Some(round_trip) } = self.estimate() else {
            return None;
        };
        let begins = match stream.heard {
            _ if stream.held => round_trip,
            Some(_) => Duration::ZERO,
            None => (stream.asked + round_trip).since(self.now),
        };
        let ahead = part.range.end().saturating_sub(left.range.offset());
        Some(begins.saturating_add(span(ahead, bandwidth)))
    }

    /// By when a stream should have brought `part`.
    fn late_for(&self, left: BlobRange, stream: Stream, part: BlobRange) -> Time {
        if !self.settings.rescue {
            return Time(u64::MAX);
        }
        let expected = self.comes_in(left, stream, part);
        self.now + super::fetches::late_after(expected)
    }

    /// Somebody begins to wait for `part` of a stream, or it has shrunk: sets the time by which it is late.
    pub(super) fn expect(&mut self, fetch: FetchId) {
        let Some(request) = self.requests.get(fetch) else { return };
        let State::Sent(Sent { stream: Some(stream), late: before, .. }) = request.state else { return };
        let last = request.waiters.iter().map(|waiter| waiter.range).max_by_key(|range| range.range.end());
        if stream.whole && last.is_some() {
            return;
        }
        self.timers.remove(before, Timer::Late(fetch));
        let Some(last) = last else { return };
        let late = self.late_for(request.range, stream, last);
        if let Some(Request { state: State::Sent(sent), .. }) = self.requests.get_mut(fetch) {
            sent.late = late;
            self.timers.add(late, Timer::Late(fetch));
        }
    }

    /// The first bytes of a request, up to before `upto`, are local.
    pub(super) fn progressed(
        &mut self,
        fetch: FetchId,
        upto: u64,
        world: &dyn World,
        actions: &mut Vec<Action>,
    ) {
        let Some(front) = self.shrink(fetch, upto) else { return };
        let Some(request) = self.requests.get_mut(fetch) else { return };
        // It lives: who was not served by it may wait for it again, and what failed before is over.
        request.apart = false;
        request.past = Past::default();
        if let State::Sent(Sent { stream: Some(stream), source, priority, .. }) = &mut request.state {
            let (source, priority) = (*source, *priority);
            let first = stream.heard.replace(self.now).is_none();
            self.estimator.progressed(self.now, fetch, front.len());
            self.counters.add_bytes(priority, front.len());
            if first {
                self.source_is_well(source);
            }
        }
        self.serve_front(fetch, upto, actions);
        self.became_local(front, world, actions);
        self.skip_local(fetch, world, actions);
    }

    /// Somebody else brought `range`: where a stream begins with it, it has come so far, which says nothing of the
    /// link.
    pub(super) fn found_front(&mut self, fetch: FetchId, range: BlobRange) {
        let Some(request) = self.requests.get(fetch).filter(|_| self.streams.contains(&fetch)) else {
            return;
        };
        if range.blob == request.range.blob && range.range.offset() <= request.range.range.offset() {
            self.shrink(fetch, range.range.end());
            if let Some(Request { state: State::Sent(Sent { stream: Some(stream), .. }), .. }) =
                self.requests.get_mut(fetch)
            {
                stream.heard = Some(self.now);
            }
            self.estimator.holds(fetch, false);
            self.expect(fetch);
        }
    }

    /// Takes off what a request under way begins with, and what is local. Its readers are the caller's.
    fn shrink(&mut self, fetch: FetchId, upto: u64) -> Option<BlobRange> {
        let request = self.requests.get_mut(fetch)?;
        let BlobRange { blob, range } = request.range;
        if upto <= range.offset() || upto >= range.end() {
            return None;
        }
        let front = BlobRange::between(blob, range.offset(), upto);
        match request.state {
            State::Sent(sent) => self.wire.shrink(sent.priority, front.len()),
            State::Arrived(_) => {}
            State::Queued(_) | State::Waiting(_) => return None,
        }
        request.range = BlobRange::between(blob, upto, range.end());
        self.active.release(front, fetch);
        Some(front)
    }

    /// Serves the readers of a request whose bytes lie before `upto`.
    fn serve_front(&mut self, fetch: FetchId, upto: u64, actions: &mut Vec<Action>) {
        let Some(request) = self.requests.get_mut(fetch) else { return };
        let served: Vec<_> =
            request.waiters.extract_if(.., |waiter| waiter.range.range.end() <= upto).collect();
        for waiter in served {
            self.satisfy(waiter.read, actions);
        }
        self.expect(fetch);
    }

    /// Makes pieces one that can be streamed, through what is local between them and not worth another request.
    pub(super) fn stream_through(&self, pieces: &mut Vec<BlobRange>) {
        if pieces.len() < 2 {
            return;
        }
        let mut joined = pieces.clone();
        coalesce(&mut joined, self.skipped(), &self.active);
        if joined.iter().all(|piece| piece.len() > self.settings.stream_min) {
            *pieces = joined;
        }
    }

    /// How long a stretch of local bytes has to be for a stream not to go through it.
    fn skipped(&self) -> u64 {
        self.pace().pipe.saturating_mul(SKIPPED_PIPES).max(SKIPPED_MIN)
    }

    /// Ends a stream before which a long stretch is local, and goes on behind that.
    fn skip_local(&mut self, fetch: FetchId, world: &dyn World, actions: &mut Vec<Action>) {
        let Some(request) = self.requests.get(fetch) else { return };
        let (left, born) = (request.range, request.born);
        if !self.streams.contains(&fetch) || !request.waiters.is_empty() {
            return;
        }
        let first = |len: u64| first_bytes(left, len);
        if !super::fetches::is_local(first(self.settings.unit), world)
            || !super::fetches::is_local(first(self.skipped()), world)
        {
            return;
        }
        let mut next = None;
        world.missing(left, &mut |run| {
            if run.blob == left.blob {
                next.get_or_insert(run.range.offset());
            }
        });
        self.cut(fetch, actions);
        if let Some(next) = next {
            let rest = BlobRange::between(left.blob, next.max(left.range.offset()), left.range.end());
            let more = self.request(rest, born, Past::default());
            if let Some(request) = self.requests.get_mut(more) {
                // Some of it may be local: it is to be looked at.
                request.made_in = 0;
            }
            self.queue(more);
        }
    }

    /// Ends a stream that is not needed any more.
    fn cut(&mut self, fetch: FetchId, actions: &mut Vec<Action>) {
        if self.remove(fetch).is_some() {
            self.counters.cancelled += 1;
            actions.push(Action::Cancel { fetch });
        }
    }

    /// Another plan is followed from now on: what nobody waits for of the streams of the last one is not needed.
    pub(super) fn end_streams(&mut self, actions: &mut Vec<Action>) {
        for fetch in self.streams.clone() {
            let unwanted =
                |request: &Request| request.born == Priority::Preload && request.waiters.is_empty();
            if self.requests.get(fetch).is_some_and(unwanted) {
                self.cut(fetch, actions);
            }
        }
    }

    /// Holds streams while others need the link, and lets them go on.
    pub(super) fn steer_streams(&mut self, actions: &mut Vec<Action>) {
        if self.streams.is_empty() {
            return;
        }
        let free = self.misses_allow();
        for fetch in &self.streams {
            let Some(request) = self.requests.get_mut(*fetch) else { continue };
            let wanted = !request.waiters.is_empty();
            let State::Sent(Sent { stream: Some(stream), .. }) = &mut request.state else { continue };
            let hold = !(free || wanted || stream.whole);
            if stream.held == hold {
                continue;
            }
            stream.held = hold;
            self.estimator.holds(*fetch, hold);
            self.counters.held += u64::from(hold);
            let fetch = *fetch;
            actions.push(if hold { Action::Hold { fetch } } else { Action::Resume { fetch } });
        }
    }

    /// Whether a stream has the link, and none beside it need help the plan on.
    pub(super) fn streams_flow(&self, pace: Pace) -> bool {
        let piece = self.estimator.estimate().bandwidth.map_or(SILENCE, |bandwidth| span(PIECE, bandwidth));
        let patience = piece.saturating_mul(2) + SILENCE;
        self.streams.iter().any(|fetch| {
            let Some(request) = self.requests.get(*fetch) else { return false };
            let State::Sent(Sent { stream: Some(stream), .. }) = request.state else { return false };
            let silent = self.now.since(stream.heard.unwrap_or(stream.asked));
            request.range.len() > pace.pipe && silent < patience
        })
    }

    /// Bytes on the wire that are not of streams.
    pub(super) fn beside_streams(&self) -> u64 {
        let streams = self.streams.iter().filter_map(|fetch| self.requests.get(*fetch));
        self.wire.bytes() - streams.map(|request| request.range.len()).sum::<u64>().min(self.wire.bytes())
    }
}
