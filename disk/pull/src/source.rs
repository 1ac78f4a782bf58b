//! The choice of the source to fetch from.
//!
//! For each range it is the source with the fewest fetches outstanding, among those that work. There is only the
//! store now.
//!
//! A source that fails is left alone by the background for a while, longer each time it fails again: one pause
//! for all of the background, however many of its requests failed together. Misses ignore it (each has its own
//! back-off): they find out first that the source is back. The first success ends the pause.

use crate::retry::BackOff;
use crate::{Retry, Source, Time};

#[derive(Debug)]
struct Health {
    source: Source,
    outstanding: usize,
    /// Failures without a success between, those during one pause counted once.
    failures: u32,
    paused_until: Time,
}

/// All sources of the disk.
#[derive(Debug)]
pub(crate) struct Sources(Vec<Health>);

impl Sources {
    pub(crate) fn new() -> Self {
        Self(vec![Health { source: Source::Store, outstanding: 0, failures: 0, paused_until: Time(0) }])
    }

    /// Chooses a source for one more fetch and counts it there.
    pub(crate) fn choose(&mut self) -> Source {
        let best = self.0.iter_mut().min_by_key(|health| (health.failures > 0, health.outstanding));
        best.map_or(Source::Store, |health| {
            health.outstanding += 1;
            health.source
        })
    }

    /// Notes a fetch that ended without a verdict on the source (it was cancelled, or its bytes were wrong).
    pub(crate) fn ended(&mut self, source: Source) {
        self.with(source, |health| health.outstanding = health.outstanding.saturating_sub(1));
    }

    /// Notes a fetch that failed at `now`.
    pub(crate) fn failed(&mut self, now: Time, source: Source, retry: &Retry, back_off: &mut BackOff) {
        self.with(source, |health| {
            if now >= health.paused_until {
                health.failures = health.failures.saturating_add(1);
                health.paused_until = now + back_off.pause(retry, health.failures);
            }
        });
    }

    /// Notes that the source works; returns `true` if it had been failing for more than one pause.
    pub(crate) fn works(&mut self, source: Source) -> bool {
        let mut recovered = false;
        self.with(source, |health| {
            recovered = health.failures > 1;
            health.failures = 0;
            health.paused_until = Time(0);
        });
        recovered
    }

    /// The time until which the background has to wait: until some source may be asked.
    pub(crate) fn paused_until(&self) -> Time {
        self.0.iter().map(|health| health.paused_until).min().unwrap_or_default()
    }

    fn with(&mut self, source: Source, change: impl FnOnce(&mut Health)) {
        if let Some(health) = self.0.iter_mut().find(|health| health.source == source) {
            change(health);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn failures_together_are_one_pause() {
        let (retry, mut back_off) = (Retry::default(), BackOff::new(0));
        let mut sources = Sources::new();
        let mut now = Time(1_000_000);
        for _ in 0..50 {
            sources.failed(now, Source::Store, &retry, &mut back_off);
        }
        assert!(sources.paused_until() <= now + Duration::from_millis(100));
        for _ in 0..10 {
            now = sources.paused_until();
            sources.failed(now, Source::Store, &retry, &mut back_off);
        }
        assert!(sources.paused_until() >= now + Duration::from_millis(2500));
        assert!(sources.works(Source::Store));
        assert!(!sources.works(Source::Store));
        assert_eq!(sources.paused_until(), Time(0));
    }
}
