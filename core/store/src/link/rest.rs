//! Leaving a store alone for as long as it asks to be left (`Retry-After`).
//!
//! A store that answers 429 or 503 in this way means all reads, not only the one that it answered. Reads that begin
//! meanwhile wait here, and go on spread over a part of the pause, so that they do not all come back at once. Each
//! waits once: the answer that it then gets is final, and its caller decides about another try.

use crate::retry::jitter;
use headstart_block::Error;
use parking_lot::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The part of the pause over which reads come back behind it.
const SPREAD: f64 = 0.25;

pub(super) struct Rest {
    /// The longest pause that is kept to: longer waits are not worthwhile for reads.
    most: Duration,
    state: Mutex<Option<Pause>>,
}

#[derive(Clone, Copy)]
struct Pause {
    end: Instant,
    len: Duration,
}

impl Rest {
    pub(super) fn new(most: Duration) -> Self {
        Self { most, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, Option<Pause>> {
        // Every change of it is a single assignment.
        self.state.lock()
    }

    /// Notes a failed read: if the store asked for a pause, that begins now.
    pub(super) fn note(&self, error: &Error) {
        let Some(len) = error.asked_pause().map(|pause| pause.min(self.most)) else { return };
        let Some(end) = Instant::now().checked_add(len) else { return };
        let mut state = self.state();
        // The answers to reads that were under way do not shorten it.
        if state.is_none_or(|pause| pause.end < end) {
            *state = Some(Pause { end, len });
        }
    }

    /// Waits until the store may be asked again.
    pub(super) async fn over(&self) {
        let pause = *self.state();
        if let Some(Pause { end, len }) = pause.filter(|pause| Instant::now() < pause.end) {
            sleep_until(end + len.mul_f64(SPREAD * jitter())).await;
        }
    }
}
