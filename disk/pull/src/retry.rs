//! The times of retries after failures.

use crate::Retry;
use headstart_block::random::Random;
use headstart_block::saturating;
use std::time::Duration;

/// Draws pauses: doubled with each failure up to a maximum, each from the upper half of its span, so that many disks
/// that lost the same store do not come back to it at once.
#[derive(Debug)]
pub(crate) struct BackOff {
    random: Random,
}

impl BackOff {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed) }
    }

    /// The pause after the `failures`-th failure in a row; the first is 1.
    pub(crate) fn pause(&mut self, retry: &Retry, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let span = retry.first.saturating_mul(1 << doublings).min(retry.most);
        let micros = saturating::<u64>(span.as_micros());
        Duration::from_micros(micros - micros / 2 + self.random.bits() % (micros / 2 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_with_jitter_up_to_the_maximum() {
        let retry = Retry::default();
        let mut back_off = BackOff::new(7);
        for (failures, most) in [(1, 100), (2, 200), (3, 400), (6, 3200), (7, 5000), (u32::MAX, 5000)] {
            let most = Duration::from_millis(most);
            let pauses: Vec<_> = (0..100).map(|_| back_off.pause(&retry, failures)).collect();
            assert!(pauses.iter().all(|pause| *pause >= most / 2 && *pause <= most), "{failures}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{failures}");
        }
        assert_eq!(BackOff::new(1).pause(&retry, 3), BackOff::new(1).pause(&retry, 3));
    }
}
