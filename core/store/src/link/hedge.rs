//! The decision to send a second request for a slow demand read.
//!
//! A read is slow if it has not begun after a multiple of the median time to the first byte of the last reads. Second
//! requests are paid from a budget that grows by a small share of each demand read and holds only a few: when the
//! whole store is slow, doubling the load would make it worse.

use crate::settings::HedgeSettings;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Duration;

/// Reads whose times are kept: enough for a steady median, few enough to follow a change within seconds.
const WINDOW: usize = 64;

/// The number of samples below which there is no useful median.
const LEAST_SAMPLES: usize = 8;

/// Most second requests that can be saved up.
const MOST_SAVED: f64 = 4.0;

pub(super) struct Hedge {
    settings: HedgeSettings,
    state: Mutex<State>,
}

struct State {
    /// Times to the first byte, the latest last.
    times: VecDeque<Duration>,
    median: Duration,
    /// Second requests that may be sent now.
    budget: f64,
}

impl Hedge {
    pub(super) fn new(settings: HedgeSettings) -> Self {
        let state = State { times: VecDeque::with_capacity(WINDOW), median: Duration::ZERO, budget: 1.0 };
        Self { settings, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Only statistics: any state that a panic left is good enough.
        self.state.lock()
    }

    /// The time for which a demand read that is sent now is waited for; `None` if too little is known.
    pub(super) fn delay(&self) -> Option<Duration> {
        let mut state = self.state();
        state.budget = (state.budget + self.settings.share.clamp(0.0, 1.0)).min(MOST_SAVED);
        let known = state.times.len() >= LEAST_SAMPLES;
        let multiple = self.settings.multiple.clamp(1.0, 1000.0);
        known.then(|| state.median.mul_f64(multiple).max(self.settings.least))
    }

    /// Takes a second request from the budget.
    pub(super) fn spend(&self) -> bool {
        let mut state = self.state();
        let affordable = state.budget >= 1.0;
        if affordable {
            state.budget -= 1.0;
        }
        affordable
    }

    /// Gives back the budget of a second request that was not sent.
    pub(super) fn refund(&self) {
        self.state().budget += 1.0;
    }

    /// Notes that a read began to be answered `time` after it was sent.
    pub(super) fn observe(&self, time: Duration) {
        let mut state = self.state();
        if state.times.len() == WINDOW {
            state.times.pop_front();
        }
        state.times.push_back(time);
        let mut sorted: Vec<_> = state.times.iter().copied().collect();
        let middle = sorted.len() / 2;
        state.median = *sorted.select_nth_unstable(middle).1;
    }
}
