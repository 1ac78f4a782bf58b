//! Reads that miss: their requests, their waits and their ends.

use super::{Engine, ORPHANS_MAX};
use crate::estimator::span;
use crate::request::{Past, Request, State, Waiter};
use crate::timers::Timer;
use crate::window::{coalesce, first_bytes, missing};
use crate::{
    BLOCK_SIZE, BlobRange, BlobView, EngineAction, Estimate, FetchId, MissRest, Priority, ReadId, Time,
};
use headstart_block::{ByteRange, Error, ErrorKind};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A read that waits.
#[derive(Debug)]
pub(super) struct Read {
    /// The number of times that it is among the waiters of requests.
    pub(super) pending: usize,
    pub(super) deadline: Time,
    /// The requests that it waited for, including ended ones.
    fetches: Vec<FetchId>,
}

impl Engine {
    pub(super) fn read(
        &mut self,
        read: ReadId,
        ranges: &[ByteRange],
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        if self.reads.contains_key(&read) {
            debug_assert!(false, "{read} is reported twice");
            return;
        }
        self.counters.reads += 1;
        if self.reads.len() >= self.settings.reads_max {
            self.counters.refused += 1;
            let error = Error::new(ErrorKind::Unavailable, "too many reads wait for remote bytes");
            actions.push(EngineAction::Fail { read, error: Arc::new(error) });
            return;
        }
        let quickly = self.blocks_come_quickly();
        let disk = ByteRange::between(0, view.disk_size());
        let (mut trees, mut data) = (Vec::new(), Vec::new());
        for range in ranges.iter().map(|range| range.intersect(disk)).filter(|range| !range.is_empty()) {
            let before = data.len();
            view.ranges(range, &mut |stored| missing(stored, view, &mut trees, &mut data));
            if data.len() > before && self.settings.miss_rest == MissRest::Block {
                self.counters.rest_dropped += self.preload.missed(range, self.settings.rest_max, quickly);
            }
        }
        self.last_miss = Some(self.now);
        let deadline = self.now + self.settings.deadline;
        self.reads.insert(read, Read { pending: 0, deadline, fetches: Vec::new() });
        self.timers.add(deadline, Timer::Deadline(read));
        for wanted in [trees, data] {
            self.want(read, wanted, self.settings.gap, &Past::default(), view, actions);
        }
        self.complete_if_local(read, actions);
    }

    /// `true` if a whole block comes in a few round trips.
    fn blocks_come_quickly(&self) -> bool {
        let Estimate { bandwidth: Some(bandwidth), round_trip: Some(round_trip) } = self.estimate() else {
            return false;
        };
        span(BLOCK_SIZE, bandwidth) <= round_trip * 4
    }

    /// Makes `read` wait for all of `wanted`: joins requests under way, makes requests for the rest. Pages of hash
    /// trees are wanted before the data that waits for them.
    pub(super) fn want(
        &mut self,
        read: ReadId,
        mut wanted: Vec<BlobRange>,
        gap: u64,
        past: &Past,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        coalesce(&mut wanted, 0, &self.active);
        let (mut joined, mut free) = (Vec::new(), Vec::new());
        for range in wanted {
            let mut from = range.range.offset();
            for (part, holder) in self.active.within(range) {
                let Some(request) = self.requests.get(holder) else { continue };
                if self.may_join(request, part) {
                    push(&mut free, BlobRange::between(range.blob, from, part.range.offset()));
                    joined.push((holder, part));
                    from = part.range.end();
                } else if let State::Sent(sent) = request.state {
                    let long = sent.stream.is_some_and(|stream| !stream.whole);
                    let counter = if long && !request.is_bypassed {
                        &mut self.counters.overtaken_in_stream
                    } else {
                        &mut self.counters.overtaken
                    };
                    *counter += 1;
                }
            }
            push(&mut free, BlobRange::between(range.blob, from, range.range.end()));
        }
        for (fetch, part) in joined {
            self.join(read, fetch, part, actions);
            self.want_pages(&[read], fetch, view, actions);
        }
        let mut trees = Vec::new();
        let coalesced = coalesce(&mut free, gap, &self.active);
        self.counters.coalesced += coalesced;
        for range in free {
            self.request_miss(read, range, past);
            if coalesced > 0 {
                // The bytes in the gap may need other pages of the hash tree.
                let active = &self.active;
                view.missing(range, &mut |run| active.free(run, None, &mut trees));
            }
        }
        coalesce(&mut trees, 0, &self.active);
        for range in trees {
            self.request_miss(read, range, past);
        }
    }

    /// Makes requests for `range`, for `read` to wait for.
    fn request_miss(&mut self, read: ReadId, range: BlobRange, past: &Past) {
        let mut rest = range;
        while !rest.is_empty() {
            let range = first_bytes(rest, self.settings.miss_max);
            rest = BlobRange::between(rest.blob, range.range.end(), rest.range.end());
            let fetch = self.request(range, Priority::Miss, past.clone());
            self.wait(read, fetch, range);
            self.queue(fetch);
        }
    }

    /// Makes a request, which is not queued yet.
    pub(super) fn request(&mut self, range: BlobRange, born: Priority, past: Past) -> FetchId {
        let (state, waiters) = (State::Queued(born), Vec::new());
        let (made_in, is_bypassed) = (self.events, false);
        let request = Request { range, born, asked_as: born, state, past, made_in, is_bypassed, waiters };
        let fetch = self.requests.add(request);
        self.active.hold(range, fetch);
        fetch
    }

    fn join(&mut self, read: ReadId, fetch: FetchId, range: BlobRange, actions: &mut Vec<EngineAction>) {
        self.counters.joined += 1;
        let Some(request) = self.requests.get_mut(fetch) else { return };
        if let State::Sent(sent) = &mut request.state
            && sent.priority != Priority::Miss
        {
            self.counters.promoted += 1;
            self.timers.add(sent.late, Timer::Late(fetch));
            let upto = range.range.end();
            if sent.promoted_upto < upto {
                sent.promoted_upto = upto;
                actions.push(EngineAction::Promote { fetch, upto });
            }
        }
        self.wait(read, fetch, range);
        self.expect(fetch);
    }

    /// Makes the reads that wait for a request that has arrived wait for the pages of the hash tree that it lacks, too.
    pub(super) fn want_pages_of(
        &mut self,
        fetch: FetchId,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        let Some(request) = self.requests.get(fetch) else { return };
        let reads: BTreeSet<_> = request.waiters.iter().map(|waiter| waiter.read).collect();
        self.want_pages(&Vec::from_iter(reads), fetch, view, actions);
    }

    /// Makes `reads` wait for the pages of the hash tree that a request lacks, if its bytes have arrived. All of it is
    /// verified at once. Its pages may be another request of the background, which may have failed and has to rest as
    /// long as reads wait.
    fn want_pages(
        &mut self,
        reads: &[ReadId],
        fetch: FetchId,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        let Some(request) = self.requests.get(fetch).filter(|request| request.has_arrived()) else {
            return;
        };
        let (range, mut trees) = (request.range, Vec::new());
        view.missing(range, &mut |run| {
            if run.blob != range.blob {
                trees.push(run);
            }
        });
        for read in reads.iter().filter(|_| !trees.is_empty()) {
            self.want(*read, trees.clone(), 0, &Past::default(), view, actions);
        }
    }

    fn wait(&mut self, read: ReadId, fetch: FetchId, range: BlobRange) {
        if let (Some(waiting), Some(request)) = (self.reads.get_mut(&read), self.requests.get_mut(fetch)) {
            request.waiters.push(Waiter { read, range });
            waiting.pending += 1;
            waiting.fetches.push(fetch);
        }
    }

    /// Notes that `read` waits for one request less.
    pub(super) fn satisfy(&mut self, read: ReadId, actions: &mut Vec<EngineAction>) {
        if let Some(waiting) = self.reads.get_mut(&read) {
            waiting.pending -= 1;
            self.complete_if_local(read, actions);
        }
    }

    /// Completes `read` if it waits for nothing any more.
    fn complete_if_local(&mut self, read: ReadId, actions: &mut Vec<EngineAction>) {
        if self.reads.get(&read).is_some_and(|waiting| waiting.pending == 0) {
            self.counters.completed += 1;
            self.end(read);
            actions.push(EngineAction::Complete { read });
        }
    }

    /// Makes the readers of `fetch` ask for their bytes themselves, as misses, and not wait for it any more.
    pub(super) fn bypass(&mut self, fetch: FetchId, view: &dyn BlobView, actions: &mut Vec<EngineAction>) {
        let Some(request) = self.requests.get_mut(fetch) else { return };
        request.is_bypassed = true;
        let waiters = std::mem::take(&mut request.waiters);
        self.want_again(waiters, &Past::default(), view, actions);
    }

    /// Makes waiters that were taken off their request wait for their bytes that are still missing.
    pub(super) fn want_again(
        &mut self,
        waiters: Vec<Waiter>,
        past: &Past,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        for Waiter { read, range } in waiters {
            let (mut trees, mut data) = (Vec::new(), Vec::new());
            missing(range, view, &mut trees, &mut data);
            for wanted in [trees, data] {
                self.want(read, wanted, 0, past, view, actions);
            }
            self.satisfy(read, actions);
        }
    }

    pub(super) fn forget(&mut self, read: ReadId) {
        if self.reads.contains_key(&read) {
            self.counters.forgotten += 1;
            self.end(read);
        }
    }

    pub(super) fn deadline(&mut self, read: ReadId, actions: &mut Vec<EngineAction>) {
        let Some(waiting) = self.reads.get(&read) else { return };
        let requests = waiting.fetches.iter().rev().filter_map(|fetch| self.requests.get(*fetch));
        let cause = requests.filter_map(|request| request.past.error.clone()).next();
        let seconds = self.settings.deadline.as_secs_f64();
        let mut error = Error::new(ErrorKind::Unavailable, format!("not served within {seconds} s"));
        if let Some(cause) = cause {
            error = error.caused_by(cause);
        }
        self.counters.failed_deadline += 1;
        self.end(read);
        actions.push(EngineAction::Fail { read, error: Arc::new(error) });
    }

    /// Fails a read, if it still waits; returns `true` if it did.
    pub(super) fn fail(&mut self, read: ReadId, error: &Arc<Error>, actions: &mut Vec<EngineAction>) -> bool {
        let waited = self.reads.contains_key(&read);
        if waited {
            self.end(read);
            actions.push(EngineAction::Fail { read, error: Arc::clone(error) });
        }
        waited
    }

    /// Takes a read away from everything it waits for.
    fn end(&mut self, read: ReadId) {
        let Some(waiting) = self.reads.remove(&read) else { return };
        self.timers.remove(waiting.deadline, Timer::Deadline(read));
        for fetch in waiting.fetches {
            let Some(request) = self.requests.get_mut(fetch) else { continue };
            let before = request.waiters.len();
            request.waiters.retain(|waiter| waiter.read != read);
            if before > 0 && request.waiters.is_empty() {
                self.orphan(fetch);
            }
        }
    }

    /// Notes that no read waits for a request any more.
    pub(super) fn orphan(&mut self, fetch: FetchId) {
        let Some(request) = self.requests.get(fetch) else { return };
        match request.state {
            State::Queued(_) | State::Waiting(_) if self.queues.len(Priority::Preload) >= ORPHANS_MAX => {
                self.remove(fetch);
            }
            State::Queued(priority) => {
                self.queues.remove(priority, fetch);
                self.queue(fetch);
            }
            State::Sent(sent) => self.timers.remove(sent.late, Timer::Late(fetch)),
            State::Waiting(_) | State::Arrived => {}
        }
    }
}

fn push(ranges: &mut Vec<BlobRange>, range: BlobRange) {
    if !range.is_empty() {
        ranges.push(range);
    }
}
