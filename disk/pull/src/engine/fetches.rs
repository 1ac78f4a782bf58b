//! Requests on their way: sent, answered, tried again, given up.

use super::Engine;
use crate::estimator::span;
use crate::request::{Past, Request, Sent, State, Stream};
use crate::timers::Timer;
use crate::window::coalesce;
use crate::{BlobRange, BlobView, EngineAction, FetchId, FetchOutcome, Priority, Time};
use headstart_block::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

/// The time that a fetch may take beyond twice the expected time before it is late.
const LATE_SLACK: Duration = Duration::from_millis(20);
/// The time after which a fetch is late if the expected time is unknown.
const LATE_UNKNOWN: Duration = Duration::from_secs(1);

struct Failure {
    retry: bool,
    corrupt: bool,
    error: Arc<Error>,
}

impl Engine {
    /// Sends a request that was taken out of its queue, if it is still needed.
    pub(super) fn send(&mut self, fetch: FetchId, view: &dyn BlobView, actions: &mut Vec<EngineAction>) {
        if !self.is_needed(fetch, view, actions) {
            return;
        }
        let soon = self.pace().request;
        let Some(request) = self.requests.get_mut(fetch) else { return };
        let (priority, range, attempt) = (request.priority(), request.range, request.past.attempt);
        if priority == Priority::Miss {
            let bandwidth = self.estimator.estimate().bandwidth;
            let takes = bandwidth.map_or(Duration::ZERO, |bandwidth| span(range.len(), bandwidth));
            let from = if self.wire.misses() > 0 { self.misses_left_at.max(self.now) } else { self.now };
            self.misses_left_at = from + takes;
        }
        self.wire.add(priority, range.len());
        self.estimator.sent(self.now, fetch, range.len());
        let late = if self.settings.bypass_late {
            self.now + late_after(self.estimator.expected(self.wire.bytes()))
        } else {
            Time(u64::MAX)
        };
        let long = priority == Priority::Preload && range.len() > self.settings.stream_min;
        let whole = long && range.len() <= soon;
        let stream = long.then_some(Stream { sent_at: self.now, last_progress_at: None, held: false, whole });
        request.state = State::Sent(Sent { priority, late, stream, promoted_upto: 0 });
        if long {
            self.streams.push(fetch);
        }
        request.asked_as = priority;
        // Readers that bypassed it did so during an earlier try.
        request.is_bypassed = false;
        *match priority {
            Priority::Miss => &mut self.counters.miss_fetches,
            Priority::Preload => &mut self.counters.preload_fetches,
            Priority::Fill => &mut self.counters.fill_fetches,
        } += 1;
        if !long {
            self.counters.add_bytes(priority, range.len());
        }
        self.counters.retries += u64::from(attempt > 0);
        actions.push(EngineAction::Fetch { fetch, range, priority, attempt, stream: long, whole });
    }

    /// Checks again what a request has to bring, because it was not made just now. Its bytes may have become local,
    /// or another request may bring them, or they may need pages of the hash tree that were there before.
    fn is_needed(&mut self, fetch: FetchId, view: &dyn BlobView, actions: &mut Vec<EngineAction>) -> bool {
        let Some(request) = self.requests.get(fetch) else { return false };
        if request.made_in == self.events {
            return true;
        }
        let (range, born, past) = (request.range, request.born, request.past.clone());
        let streamed = request.priority() == Priority::Preload;
        let (mut own, mut trees) = (Vec::new(), Vec::new());
        view.missing(range, &mut |run| {
            let pieces = if run.blob == range.blob { &mut own } else { &mut trees };
            self.active.free(run, Some(fetch), pieces);
        });
        coalesce(&mut own, 0, &self.active);
        if streamed {
            self.stream_through(&mut own);
        }
        coalesce(&mut trees, 0, &self.active);
        if !request.waiters.is_empty() {
            return self.is_needed_by_waiters(fetch, own == [range], &trees, view, actions);
        }
        let Some((first, rest)) = own.split_first() else {
            self.remove(fetch);
            return false;
        };
        self.active.release(range, fetch);
        self.active.hold(*first, fetch);
        if let Some(request) = self.requests.get_mut(fetch) {
            request.range = *first;
        }
        for range in rest.iter().chain(&trees) {
            let more = self.request(*range, born, past.clone());
            self.queue(more);
        }
        true
    }

    /// As [`is_needed`](Self::is_needed), for a request that reads wait for: if anything has changed, they want
    /// their bytes again.
    fn is_needed_by_waiters(
        &mut self,
        fetch: FetchId,
        unchanged: bool,
        trees: &[BlobRange],
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) -> bool {
        if !unchanged {
            if let Some(request) = self.remove(fetch) {
                self.want_again(request.waiters, &request.past, view, actions);
            }
            return false;
        }
        if !trees.is_empty()
            && let Some(request) = self.requests.get(fetch)
        {
            let past = request.past.clone();
            for read in request.waiters.iter().map(|waiter| waiter.read).collect::<Vec<_>>() {
                self.want(read, trees.to_vec(), 0, &past, view, actions);
            }
        }
        true
    }

    pub(super) fn arrived(&mut self, fetch: FetchId) {
        let Some(request) = self.requests.get_mut(fetch) else { return };
        let (State::Sent(sent), bytes) = (request.state, request.range.len()) else { return };
        request.state = State::Arrived;
        // Its bytes are here, however late it was.
        request.is_bypassed = false;
        self.estimator.arrived(self.now, fetch, bytes);
        self.left_link(fetch, sent, bytes);
        if sent.stream.is_some() {
            self.counters.add_bytes(sent.priority, bytes);
        }
    }

    /// Notes that the bytes of a request from the link could be used.
    fn request_worked(&mut self, fetch: FetchId) {
        let state = self.requests.get(fetch).map(|request| request.state);
        if let Some(State::Arrived) = state {
            self.store_works();
        }
    }

    /// Notes that bytes of the store could be used.
    pub(super) fn store_works(&mut self) {
        if self.store.works() {
            // The store was away and is back: no request needs to wait for its next try.
            for (fetch, until) in self.requests.waiting().collect::<Vec<_>>() {
                self.timers.remove(until, Timer::Retry(fetch));
                self.queue(fetch);
            }
        }
    }

    fn left_link(&mut self, fetch: FetchId, sent: Sent, bytes: u64) {
        if sent.stream.is_some() {
            self.streams.retain(|stream| *stream != fetch);
        }
        self.wire.remove(sent.priority, bytes);
        self.timers.remove(sent.late, Timer::Late(fetch));
    }

    pub(super) fn fetched(
        &mut self,
        fetch: FetchId,
        outcome: FetchOutcome,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        match outcome {
            FetchOutcome::Done => {
                self.arrived(fetch);
                self.request_worked(fetch);
                self.done(fetch, actions);
            }
            FetchOutcome::Found => {
                self.comes_off(fetch);
                self.done(fetch, actions);
            }
            FetchOutcome::Failed { retry, corrupt, error } => {
                let failure = Failure { retry: retry || corrupt, corrupt, error };
                if self.came_back(fetch, &failure) {
                    self.failed(fetch, &failure, view, actions);
                }
            }
        }
    }

    /// Ends a request all of whose bytes are local, and the requests inside it.
    fn done(&mut self, fetch: FetchId, actions: &mut Vec<EngineAction>) {
        let Some(request) = self.remove(fetch) else { return };
        self.fill.became_local(self.now, request.range);
        let inside: Vec<_> = self.active.within(request.range).map(|(_, holder)| holder).collect();
        for waiter in request.waiters {
            self.satisfy(waiter.read, actions);
        }
        for fetch in inside {
            let other = self.requests.get(fetch).map(|other| other.range.range);
            if other.is_some_and(|other| request.range.range.intersect(other) == other) {
                self.overtaken(fetch, actions);
            }
        }
    }

    /// Ends a request whose bytes came in another way.
    fn overtaken(&mut self, fetch: FetchId, actions: &mut Vec<EngineAction>) {
        let Some(request) = self.remove(fetch) else { return };
        if matches!(request.state, State::Sent(_) | State::Arrived) {
            self.counters.cancelled += 1;
            actions.push(EngineAction::Cancel { fetch });
        }
        for waiter in request.waiters {
            self.satisfy(waiter.read, actions);
        }
    }

    /// Takes a request off the link that brought nothing over it. Returns `true` if it was under way.
    fn comes_off(&mut self, fetch: FetchId) -> bool {
        let Some(request) = self.requests.get_mut(fetch) else { return false };
        let bytes = request.range.len();
        match request.state {
            State::Queued(_) | State::Waiting(_) => false,
            State::Arrived => true,
            State::Sent(sent) => {
                request.state = State::Arrived;
                self.estimator.dropped(fetch);
                self.left_link(fetch, sent, bytes);
                true
            }
        }
    }

    /// Takes a failed request off the link and notes the consequence for the store. Returns `true` if it was under
    /// way.
    fn came_back(&mut self, fetch: FetchId, failure: &Failure) -> bool {
        if !self.comes_off(fetch) {
            return false;
        }
        // Corrupt bytes are bytes; an answer that no retry can change is an answer.
        if !failure.corrupt && failure.retry {
            self.store.failed(self.now, &self.settings.retry, &mut self.back_off);
        }
        if failure.corrupt {
            self.counters.corrupt += 1;
        } else if failure.error.kind() != ErrorKind::NoSpace {
            // This host has no room, which is no fault of the store.
            self.counters.failed_fetches += 1;
        }
        true
    }

    fn failed(
        &mut self,
        fetch: FetchId,
        failure: &Failure,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        let Some(request) = self.requests.get_mut(fetch) else { return };
        let background = request.asked_as != Priority::Miss;
        let past = &mut request.past;
        past.attempt = past.attempt.saturating_add(1);
        past.corrupt += u32::from(failure.corrupt);
        past.error = Some(Arc::clone(&failure.error));
        let since = *past.since.get_or_insert(self.now);
        let (attempt, corrupt) = (past.attempt, past.corrupt);
        let hopeless = !failure.retry || corrupt >= self.settings.retry.corrupt_limit;
        if background && !request.waiters.is_empty() {
            self.bypass(fetch, view, actions);
        }
        let Some(request) = self.requests.get(fetch) else { return };
        let abandoned = request.waiters.is_empty();
        let too_long = abandoned && self.now.since(since) >= self.settings.deadline;
        if !hopeless && !too_long {
            self.requeue(fetch, attempt, failure.corrupt);
            return;
        }
        let Some(Request { range, waiters, .. }) = self.remove(fetch) else { return };
        self.counters.given_up += u64::from(abandoned);
        for waiter in waiters {
            let failed = u64::from(self.fail(waiter.read, &failure.error, actions));
            if failure.corrupt {
                self.counters.failed_corrupt += failed;
            } else {
                self.counters.failed_permanent += failed;
            }
        }
        self.end_unverifiable(range, view, actions);
    }

    /// Ends the requests that have arrived and cannot be verified without `lost`, pages of a hash tree that were given
    /// up: no other request brings these as long as the data counts as under way. The readers ask for both again.
    fn end_unverifiable(&mut self, lost: BlobRange, view: &dyn BlobView, actions: &mut Vec<EngineAction>) {
        let lacks = |range: BlobRange| {
            let mut lacks = false;
            view.missing(range, &mut |run| {
                lacks |= run.blob == lost.blob && !run.range.intersect(lost.range).is_empty();
            });
            lacks && range.blob != lost.blob
        };
        let arrived: Vec<_> = self.requests.arrived().filter(|(_, range)| lacks(*range)).collect();
        for (fetch, _) in arrived {
            let Some(request) = self.remove(fetch) else { continue };
            self.counters.cancelled += 1;
            self.counters.given_up += u64::from(request.waiters.is_empty());
            actions.push(EngineAction::Cancel { fetch });
            self.want_again(request.waiters, &Past::default(), view, actions);
        }
    }

    /// Queues a failed request for another try: after its back-off, or at once if the bytes were wrong.
    fn requeue(&mut self, fetch: FetchId, attempt: u32, at_once: bool) {
        if at_once {
            self.queue(fetch);
            return;
        }
        let until = self.now + self.back_off.pause(&self.settings.retry, attempt);
        if let Some(request) = self.requests.get_mut(fetch) {
            request.state = State::Waiting(until);
            self.timers.add(until, Timer::Retry(fetch));
        }
    }

    /// Notes that another disk or process brought `range`.
    pub(super) fn became_local(
        &mut self,
        range: BlobRange,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        self.fill.became_local(self.now, range);
        let touched: Vec<_> = self.active.within(range).map(|(_, holder)| holder).collect();
        for fetch in touched {
            let Some(request) = self.requests.get_mut(fetch) else { continue };
            if is_local(request.range, view) {
                self.overtaken(fetch, actions);
                continue;
            }
            let served: Vec<_> =
                request.waiters.extract_if(.., |waiter| is_local(waiter.range, view)).collect();
            let orphaned = !served.is_empty() && request.waiters.is_empty();
            for waiter in served {
                self.satisfy(waiter.read, actions);
            }
            if orphaned {
                self.orphan(fetch);
            }
            self.found_front(fetch, range);
        }
    }

    /// Removes a request from everywhere. The caller handles its waiters.
    pub(super) fn remove(&mut self, fetch: FetchId) -> Option<Request> {
        let request = self.requests.remove(fetch)?;
        match request.state {
            State::Queued(priority) => self.queues.remove(priority, fetch),
            State::Sent(sent) => {
                self.estimator.dropped(fetch);
                self.left_link(fetch, sent, request.range.len());
            }
            State::Arrived => {}
            State::Waiting(until) => self.timers.remove(until, Timer::Retry(fetch)),
        }
        self.active.release(request.range, fetch);
        Some(request)
    }
}

/// The time after which a sent fetch is late, by its expected time.
pub(super) fn late_after(expected: Option<Duration>) -> Duration {
    expected.map_or(LATE_UNKNOWN, |span| span.saturating_mul(2) + LATE_SLACK)
}

/// `true` if all of `range` itself is local.
pub(super) fn is_local(range: BlobRange, view: &dyn BlobView) -> bool {
    let mut local = true;
    view.missing(range, &mut |run| local &= run.blob != range.blob);
    local
}
