//! Checks of the promises at the head of `engine`, after every event of every test.

use super::Engine;
use crate::request::{Request, Sent, State};
use crate::timers::{Timer, Timers};
use crate::{FetchId, Priority, ReadId};
use std::collections::BTreeMap;

impl Engine {
    /// Panics if the engine's tables do not agree with each other.
    pub(crate) fn check(&self) {
        let (mut waits, mut misses, mut background, mut bytes) = (BTreeMap::<ReadId, usize>::new(), 0, 0, 0);
        let mut queued = [0; 3];
        for (fetch, request) in self.requests.all() {
            for waiter in &request.waiters {
                *waits.entry(waiter.read).or_default() += 1;
            }
            match request.state {
                State::Queued(priority) => {
                    assert_eq!(priority, request.priority(), "{fetch:?} is in the wrong queue");
                    queued[priority as usize] += 1;
                }
                State::Sent(sent) => {
                    *(if sent.priority == Priority::Miss { &mut misses } else { &mut background }) += 1;
                    bytes += request.range.len();
                    self.check_sent(fetch, request, sent);
                }
                State::Arrived => {}
                State::Waiting(until) => {
                    assert!(self.timers.contains(until, Timer::Retry(fetch)), "{fetch:?}");
                }
            }
        }
        assert_eq!(
            (self.wire.misses(), self.wire.background(), self.wire.bytes()),
            (misses, background, bytes)
        );
        for priority in [Priority::Miss, Priority::Preload, Priority::Fill] {
            assert_eq!(self.queues.len(priority), queued[priority as usize], "{priority:?}");
        }
        for (read, waiting) in &self.reads {
            assert_eq!(Some(&waiting.pending), waits.get(read), "{read}");
            assert!(self.timers.contains(waiting.deadline, Timer::Deadline(*read)));
        }
        assert_eq!(waits.len(), self.reads.len(), "a request has a waiter that is gone");
        for (range, holder) in self.active.all() {
            let held = self.requests.get(holder).map(|request| request.range);
            assert!(held.is_some_and(|held| held.range.intersect(range.range) == range.range), "{holder:?}");
        }
        self.check_limits(misses, background);
    }

    fn check_sent(&self, fetch: FetchId, request: &Request, sent: Sent) {
        assert_eq!(sent.stream.is_some(), self.streams.contains(&fetch));
        let held = sent.stream.is_some_and(|stream| stream.held);
        assert!(!held || request.waiters.is_empty(), "somebody waits for what is held");
        let long = sent.stream.is_some_and(|stream| !stream.whole);
        assert_eq!(held, long && request.waiters.is_empty() && !self.misses_allow());
        if sent.priority != Priority::Miss && !request.waiters.is_empty() {
            assert!(
                self.timers.contains(sent.late, Timer::Late(fetch)),
                "{fetch:?} is waited for without end"
            );
            let last = request.waiters.iter().map(|waiter| waiter.range.range.end()).max();
            assert!(
                last.is_some_and(|last| last <= sent.promoted_upto),
                "{fetch:?} is waited for and not promoted"
            );
        }
    }

    fn check_limits(&self, misses: usize, background: usize) {
        assert!(misses <= self.settings.miss_requests);
        assert!(background <= self.settings.depth_max);
        assert!(self.reads.len() <= self.settings.reads_max);
        let timers = self.timers.iter().filter(|timer| !matches!(timer, Timer::Deadline(_))).count();
        assert!(timers <= self.requests.all().count(), "stale timers are kept");
    }
}

impl Timers {
    fn contains(&self, at: crate::Time, timer: Timer) -> bool {
        self.all().any(|entry| entry == (at, timer))
    }

    fn iter(&self) -> impl Iterator<Item = Timer> {
        self.all().map(|(_, timer)| timer)
    }
}
