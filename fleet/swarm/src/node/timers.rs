//! The timers of a node, and the tick that it requests from its driver.

use crate::Time;
use crate::event::{BlobId, Chunks, WantId};
use crate::message::RequestId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An entry of the timer queue. Of timers that are due at the same time, the lesser runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A request may be late.
    Request(RequestId),
    /// A want must be answered.
    Want(WantId),
    /// A disk has had the time to fetch these chunks.
    Disk(BlobId, Chunks),
    /// Adverts of new chunks are to be sent.
    Adverts,
    /// Promises of chunks that are still fetched here are to be repeated.
    Promises,
    /// A root is to be asked, or asked again.
    Join,
    /// Neighbours are to be chosen again.
    Choose,
}

/// A timer that is set at most once at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Alarm {
    /// The timer is not set.
    #[default]
    Idle,
    /// The timer is set, and has not run.
    Set,
}

impl Alarm {
    /// Notes that the timer is set; `true` if it was not set before.
    pub(super) fn set(&mut self) -> bool {
        std::mem::replace(self, Self::Set) == Self::Idle
    }

    /// Notes that the timer runs.
    pub(super) fn ring(&mut self) {
        *self = Self::Idle;
    }
}

/// The timer queue.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BinaryHeap<Reverse<(Time, Timer)>>,
    /// The last requested tick.
    wake_at: Option<Time>,
}

impl Timers {
    /// Sets a timer.
    pub(super) fn set(&mut self, at: Time, timer: Timer) {
        self.queue.push(Reverse((at, timer)));
    }

    /// Takes the next timer that is due.
    pub(super) fn next_due(&mut self, now: Time) -> Option<Timer> {
        let Reverse((at, timer)) = self.queue.peek().copied()?;
        if at > now {
            return None;
        }
        self.queue.pop();
        Some(timer)
    }

    /// Returns the tick to request, if it is another than the one requested before. Timers at the head of the queue
    /// that are `over` are removed.
    pub(super) fn next_tick(&mut self, now: Time, over: impl Fn(Timer) -> bool) -> Option<Time> {
        while let Some(Reverse((at, timer))) = self.queue.peek().copied() {
            if over(timer) {
                self.queue.pop();
                continue;
            }
            if self.wake_at.is_none_or(|wake| at < wake || wake <= now) {
                self.wake_at = Some(at);
                return Some(at);
            }
            break;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_run_in_order_when_they_are_due() {
        let mut timers = Timers::default();
        timers.set(Time(20), Timer::Adverts);
        timers.set(Time(10), Timer::Choose);
        timers.set(Time(10), Timer::Join);
        assert_eq!(timers.next_due(Time(9)), None);
        assert_eq!(timers.next_due(Time(15)), Some(Timer::Join));
        assert_eq!(timers.next_due(Time(15)), Some(Timer::Choose));
        assert_eq!(timers.next_due(Time(15)), None);
        assert_eq!(timers.next_due(Time(20)), Some(Timer::Adverts));
    }

    #[test]
    fn a_tick_is_requested_once_and_again_only_for_an_earlier_timer() {
        let mut timers = Timers::default();
        timers.set(Time(20), Timer::Adverts);
        assert_eq!(timers.next_tick(Time(0), |_| false), Some(Time(20)));
        assert_eq!(timers.next_tick(Time(0), |_| false), None);
        timers.set(Time(10), Timer::Want(WantId(1)));
        assert_eq!(timers.next_tick(Time(0), |timer| timer != Timer::Adverts), None, "the want is over");
        timers.set(Time(15), Timer::Want(WantId(2)));
        assert_eq!(timers.next_tick(Time(0), |_| false), Some(Time(15)));
        assert_eq!(timers.next_tick(Time(15), |_| false), Some(Time(15)), "the tick has come");
    }

    #[test]
    fn an_alarm_is_set_once_until_it_rings() {
        let mut alarm = Alarm::default();
        assert!(alarm.set());
        assert!(!alarm.set());
        alarm.ring();
        assert!(alarm.set());
    }
}
