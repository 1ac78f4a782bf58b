//! Timers: events that happen at a time, unless something else happens first.

use crate::{FetchId, ReadId, Time};
use std::collections::BTreeSet;

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The read has waited long enough.
    Deadline(ReadId),
    /// The back-off of the fetch is over.
    Retry(FetchId),
    /// The background fetch that a miss waits for should have come by now.
    Late(FetchId),
}

/// Timers by time. A timer that is not needed any more is taken out: no stale one is kept.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    set: BTreeSet<(Time, Timer)>,
}

impl Timers {
    pub(crate) fn add(&mut self, at: Time, timer: Timer) {
        self.set.insert((at, timer));
    }

    pub(crate) fn remove(&mut self, at: Time, timer: Timer) {
        self.set.remove(&(at, timer));
    }

    /// The time of the next timer.
    pub(crate) fn next(&self) -> Option<Time> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Takes out a timer that is due at `now`.
    pub(crate) fn due(&mut self, now: Time) -> Option<Timer> {
        self.next().filter(|at| *at <= now)?;
        self.set.pop_first().map(|(_, timer)| timer)
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (Time, Timer)> {
        self.set.iter().copied()
    }
}
