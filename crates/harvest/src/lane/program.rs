//! How long harvest VMs' programs take on a channel, as of late.

use std::time::Duration;

/// How much one program counts.
const PART: f64 = 1.0 / 32.0;

/// How many times as long a program takes than alone where nobody knows better: only what a channel does proves that
/// it is quick.
const UNPROVEN: f64 = 3.0;

/// Half of what is known to be worse is forgotten in so long without a program: the channel may be free by now.
const FORGET: Duration = Duration::from_secs(2);

/// A mean of the latest programs: how long each took, for each that could be done at a time of those that were there
/// when it came. So it says how slow the channel is, however many are sent there.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramTime {
    /// In seconds, as the others.
    alone: f64,
    mean: f64,
    told: Duration,
}

impl ProgramTime {
    /// Of a channel of which nothing is known but how long a program takes where nobody else is.
    pub(super) fn new(alone: Duration) -> Self {
        let alone = alone.as_secs_f64();
        Self { alone, mean: alone * UNPROVEN, told: Duration::ZERO }
    }

    /// One took so long, `rounds` after those before it.
    pub(super) fn add(&mut self, now: Duration, took: Duration, rounds: f64) {
        let mean = self.at(now);
        self.mean = mean + (took.as_secs_f64() / rounds - mean) * PART;
        self.told = now;
    }

    /// What to expect now, in seconds.
    pub(super) fn at(&self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.told).as_secs_f64() / FORGET.as_secs_f64();
        let known = self.alone * UNPROVEN;
        (self.mean.min(known) + (self.mean - known).max(0.0) * (-passed).exp2()).max(self.alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_was_is_forgotten() {
        let mut time = ProgramTime::new(Duration::from_millis(1));
        (0..200).for_each(|_| time.add(Duration::from_secs(1), Duration::from_millis(45), 5.0));
        assert!((time.at(Duration::from_secs(1)) - 0.009).abs() < 1e-4, "{time:?}");
        assert!((time.at(Duration::from_secs(3)) - 0.006).abs() < 1e-4, "{time:?}");
        // But not that it was slow, until it is quick.
        let later = Duration::from_secs(3600);
        assert!((time.at(later) - 0.003).abs() < 1e-9, "{time:?}");
        (0..200).for_each(|_| time.add(later, Duration::from_millis(2), 2.0));
        assert!((time.at(later * 2) - 0.001).abs() < 1e-4, "{time:?}");
    }
}
