//! The health of the store that all bytes come from.
//!
//! A store that fails is left alone by the background for a while, longer each time it fails again: one pause
//! for all of the background, however many of its requests failed together. Misses ignore it (each has its own
//! back-off): they find out first that the store is back. The first success ends the pause.

use crate::retry::BackOff;
use crate::{Retry, Time};

/// The failures of the store, and the pause after them.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    /// Failures without a success between, those during one pause counted once.
    failures: u32,
    paused_until: Time,
}

impl StoreHealth {
    /// Notes a fetch that failed at `now`.
    pub(crate) fn failed(&mut self, now: Time, retry: &Retry, back_off: &mut BackOff) {
        if now >= self.paused_until {
            self.failures = self.failures.saturating_add(1);
            self.paused_until = now + back_off.pause(retry, self.failures);
        }
    }

    /// Notes that the store works; returns `true` if it had been failing for more than one pause.
    pub(crate) fn works(&mut self) -> bool {
        let recovered = self.failures > 1;
        *self = Self::default();
        recovered
    }

    /// The time until which the background has to wait.
    pub(crate) fn paused_until(&self) -> Time {
        self.paused_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn failures_together_are_one_pause() {
        let (retry, mut back_off) = (Retry::default(), BackOff::new(0));
        let mut store = StoreHealth::default();
        let mut now = Time(1_000_000);
        for _ in 0..50 {
            store.failed(now, &retry, &mut back_off);
        }
        assert!(store.paused_until() <= now + Duration::from_millis(100));
        for _ in 0..10 {
            now = store.paused_until();
            store.failed(now, &retry, &mut back_off);
        }
        assert!(store.paused_until() >= now + Duration::from_millis(2500));
        assert!(store.works());
        assert!(!store.works());
        assert_eq!(store.paused_until(), Time(0));
        store.failed(now, &retry, &mut back_off);
        assert!(!store.works(), "it was away for one pause at most");
    }
}
