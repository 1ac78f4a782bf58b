//! Long preloads, whose bytes are taken as they come.
//!
//! A stream shrinks from its front: bytes that have come are released, their readers are served, and the rest is the
//! range of the request, in `active`, on the wire, and in a failure.
//!
//! *Held*: while misses are on their way and could be slowed by it, a stream is not read from; the bytes that its
//! sender had sent by then, a bandwidth-delay product, still come, as with any request of the background. The rule
//! is the one that lets no request of the background begin. A stream with waiters is a miss itself, and never held.
//!
//! *Waiting*: a reader waits if its bytes come about as soon as a request of its own would bring them; otherwise it
//! bypasses it at once. When the stream passes that place, it brings those bytes again: as long as the ranges are
//! small, that costs less than another request would. But if a long range before it has become local, the stream
//! is ended, and another one goes on behind that range.
//!
//! *Whole ones* come in about a round trip, as rests of blocks and scans do. Reads wait for them as for any
//! request, and they are not held: their driver claims all of such a stream at once, and a read that waits for the
//! claim of one disk must not wait for that disk's own misses.

use super::Engine;
use crate::estimator::{Pace, span};
use crate::request::{Past, Request, Sent, State, Stream};
use crate::timers::Timer;
use crate::window::{coalesce, first_bytes};
use crate::{BlobRange, BlobView, EngineAction, Estimate, FetchId, Priority, Time};
use std::time::Duration;

/// Bytes ahead in a stream that are waited for if its speed is unknown.
const UNKNOWN_AHEAD: u64 = 256 << 10;
/// Local bytes before a stream that are worth another request, at least; and in bandwidth-delay products.
const SKIPPED_MIN: u64 = 512 << 10;
const SKIPPED_PIPES: u64 = 4;
/// The most bytes of a stream that one event reports.
const PROGRESS_MAX: u64 = 256 << 10;
/// The silence, beyond the time of such a range, after which a stream has stalled: others may go on with the plan.
const SILENCE: Duration = Duration::from_secs(1);

impl Engine {
    /// `true` if a reader may wait for `part` in a request, `false` if it should ask for it itself.
    pub(super) fn may_join(&self, request: &Request, part: BlobRange) -> bool {
        match request.state {
            State::Sent(Sent { stream: Some(stream), .. }) if !stream.whole => {
                !request.is_bypassed && self.comes_soon(request.range, stream, part)
            }
            _ => request.is_joinable(self.now),
        }
    }

    /// `true` if a stream brings `part` about as soon as another request would. It may come later by the cost of
    /// bringing it twice and by a round trip, because the other request would have to wait for the bytes on the
    /// wire.
    fn comes_soon(&self, remaining: BlobRange, stream: Stream, part: BlobRange) -> bool {
        let Some(in_stream) = self.comes_in(remaining, stream, part) else {
            return part.range.end().saturating_sub(remaining.range.offset()) <= UNKNOWN_AHEAD;
        };
        let Estimate { bandwidth: Some(bandwidth), round_trip: Some(round_trip) } = self.estimate() else {
            return false;
        };
        let takes = span(part.len(), bandwidth);
        in_stream <= (round_trip + takes).saturating_mul(2)
    }

    /// The time in which a stream of which `remaining` remains brings `part`; `None` if it is unknown.
    fn comes_in(&self, remaining: BlobRange, stream: Stream, part: BlobRange) -> Option<Duration> {
        let Estimate { bandwidth: Some(bandwidth), round_trip: Some(round_trip) } = self.estimate() else {
            return None;
        };
        let begins = match stream.last_progress_at {
            _ if stream.held => round_trip,
            Some(_) => Duration::ZERO,
            None => (stream.sent_at + round_trip).since(self.now),
        };
        let ahead = part.range.end().saturating_sub(remaining.range.offset());
        Some(begins.saturating_add(span(ahead, bandwidth)))
    }

    /// The time by which a stream should have brought `part`.
    fn late_for(&self, remaining: BlobRange, stream: Stream, part: BlobRange) -> Time {
        if !self.settings.bypass_late {
            return Time(u64::MAX);
        }
        let expected = self.comes_in(remaining, stream, part);
        self.now + super::fetches::late_after(expected)
    }

    /// Sets the time by which a stream is late, after a reader begins to wait for a part of it, or after it has shrunk.
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

    /// Notes that the first bytes of a request, up to before `upto`, are local.
    pub(super) fn progressed(
        &mut self,
        fetch: FetchId,
        upto: u64,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        let Some(front) = self.shrink(fetch, upto) else { return };
        let Some(request) = self.requests.get_mut(fetch) else { return };
        // The stream works: readers that it has not served may wait for it again, and earlier failures do not count.
        request.is_bypassed = false;
        request.past = Past::default();
        if let State::Sent(Sent { stream: Some(stream), priority, .. }) = &mut request.state {
            let priority = *priority;
            let first = stream.last_progress_at.replace(self.now).is_none();
            self.estimator.progressed(self.now, fetch, front.len());
            self.counters.add_bytes(priority, front.len());
            if first {
                self.store_works();
            }
        }
        self.serve_front(fetch, upto, actions);
        self.became_local(front, view, actions);
        self.skip_local(fetch, view, actions);
    }

    /// Notes that another process brought `range`: a stream that begins with it has advanced, which says nothing of the
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
                stream.last_progress_at = Some(self.now);
            }
            self.estimator.holds(fetch, false);
            self.expect(fetch);
        }
    }

    /// Removes the local bytes before `upto` from the front of a request under way, and returns their range. The
    /// caller handles its readers.
    fn shrink(&mut self, fetch: FetchId, upto: u64) -> Option<BlobRange> {
        let request = self.requests.get_mut(fetch)?;
        let BlobRange { blob, range } = request.range;
        if upto <= range.offset() || upto >= range.end() {
            return None;
        }
        let front = BlobRange::between(blob, range.offset(), upto);
        match request.state {
            State::Sent(sent) => self.wire.shrink(sent.priority, front.len()),
            State::Arrived => {}
            State::Queued(_) | State::Waiting(_) => return None,
        }
        request.range = BlobRange::between(blob, upto, range.end());
        self.active.release(front, fetch);
        Some(front)
    }

    /// Serves the readers of a request whose bytes are before `upto`.
    fn serve_front(&mut self, fetch: FetchId, upto: u64, actions: &mut Vec<EngineAction>) {
        let Some(request) = self.requests.get_mut(fetch) else { return };
        let served: Vec<_> =
            request.waiters.extract_if(.., |waiter| waiter.range.range.end() <= upto).collect();
        for waiter in served {
            self.satisfy(waiter.read, actions);
        }
        self.expect(fetch);
    }

    /// Joins ranges that can be streamed, across local bytes between them that are not worth another request.
    pub(super) fn stream_through(&self, ranges: &mut Vec<BlobRange>) {
        if ranges.len() < 2 {
            return;
        }
        let mut joined = ranges.clone();
        coalesce(&mut joined, self.skipped(), &self.active);
        if joined.iter().all(|range| range.len() > self.settings.stream_min) {
            *ranges = joined;
        }
    }

    /// The length of a range of local bytes from which on a stream does not go through it.
    fn skipped(&self) -> u64 {
        self.pace().pipe.saturating_mul(SKIPPED_PIPES).max(SKIPPED_MIN)
    }

    /// Ends a stream before which a long range is local, and goes on behind it.
    fn skip_local(&mut self, fetch: FetchId, view: &dyn BlobView, actions: &mut Vec<EngineAction>) {
        let Some(request) = self.requests.get(fetch) else { return };
        let (remaining, born) = (request.range, request.born);
        if !self.streams.contains(&fetch) || !request.waiters.is_empty() {
            return;
        }
        let first = |len: u64| first_bytes(remaining, len);
        if !super::fetches::is_local(first(self.settings.unit), view)
            || !super::fetches::is_local(first(self.skipped()), view)
        {
            return;
        }
        let mut next = None;
        view.missing(remaining, &mut |run| {
            if run.blob == remaining.blob {
                next.get_or_insert(run.range.offset());
            }
        });
        self.cut(fetch, actions);
        if let Some(next) = next {
            let rest =
                BlobRange::between(remaining.blob, next.max(remaining.range.offset()), remaining.range.end());
            let more = self.request(rest, born, Past::default());
            if let Some(request) = self.requests.get_mut(more) {
                // Some of it may be local, so it has to be checked.
                request.made_in = 0;
            }
            self.queue(more);
        }
    }

    /// Ends a stream that is not needed any more.
    fn cut(&mut self, fetch: FetchId, actions: &mut Vec<EngineAction>) {
        if self.remove(fetch).is_some() {
            self.counters.cancelled += 1;
            actions.push(EngineAction::Cancel { fetch });
        }
    }

    /// Ends the streams of the last plan as far as no read waits for them, because another plan is followed from
    /// now on.
    pub(super) fn end_streams(&mut self, actions: &mut Vec<EngineAction>) {
        for fetch in self.streams.clone() {
            let unwanted =
                |request: &Request| request.born == Priority::Preload && request.waiters.is_empty();
            if self.requests.get(fetch).is_some_and(unwanted) {
                self.cut(fetch, actions);
            }
        }
    }

    /// Holds streams while others need the link, and lets them go on.
    pub(super) fn steer_streams(&mut self, actions: &mut Vec<EngineAction>) {
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
            actions.push(if hold { EngineAction::Hold { fetch } } else { EngineAction::Resume { fetch } });
        }
    }

    /// `true` if a stream has the link, so that no request beside it needs to help the plan on.
    pub(super) fn streams_flow(&self, pace: Pace) -> bool {
        let progress_time =
            self.estimator.estimate().bandwidth.map_or(SILENCE, |bandwidth| span(PROGRESS_MAX, bandwidth));
        let silence_max = progress_time.saturating_mul(2) + SILENCE;
        self.streams.iter().any(|fetch| {
            let Some(request) = self.requests.get(*fetch) else { return false };
            let State::Sent(Sent { stream: Some(stream), .. }) = request.state else { return false };
            let silent = self.now.since(stream.last_progress_at.unwrap_or(stream.sent_at));
            request.range.len() > pace.pipe && silent < silence_max
        })
    }

    /// The bytes on the wire that do not belong to streams.
    pub(super) fn beside_streams(&self) -> u64 {
        let streams = self.streams.iter().filter_map(|fetch| self.requests.get(*fetch));
        self.wire.bytes() - streams.map(|request| request.range.len()).sum::<u64>().min(self.wire.bytes())
    }
}
