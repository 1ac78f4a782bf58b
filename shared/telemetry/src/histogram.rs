//! Latency distributions, cheap enough for every read.
//!
//! Each count is an atomic number. A snapshot reads the counts and the sum one after the other. If durations are
//! recorded meanwhile, each of these numbers is right at the moment when it is read, but those moments differ: the sum
//! may include a duration that no count includes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of buckets of a [`Histogram`]. Their upper bounds are 1 µs, 2 µs, 4 µs ... 2^26 µs (67 s), and the
/// last bucket has no bound.
pub const BUCKETS: usize = 28;

/// Counts durations in buckets whose upper bounds are powers of two of a microsecond. Any thread may record
/// at any time.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    /// Sum of all values in nanoseconds.
    sum: AtomicU64,
}

/// A copy of the counts of a [`Histogram`], taken by [`Histogram::snapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyDistribution {
    /// Number of durations in each bucket: `counts[0]` of at most 1 µs, `counts[i]` of more than `2^(i-1)`
    /// and at most `2^i` microseconds, and the last element of all longer ones.
    pub counts: [u64; BUCKETS],
    /// The sum of all recorded durations.
    pub sum: Duration,
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns a copy of the counts so far.
    #[must_use]
    pub fn snapshot(&self) -> LatencyDistribution {
        LatencyDistribution {
            counts: std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.sum.load(Ordering::Relaxed)),
        }
    }
}

/// The bucket of a value: the logarithm of its microseconds, rounded up.
fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000);
    let log = u64::BITS - micros.saturating_sub(1).leading_zeros();
    (log as usize).min(BUCKETS - 1)
}

impl LatencyDistribution {
    /// The upper bound of the bucket with this number, from 0, in seconds. `None` for the last bucket, which has
    /// no bound, and for numbers from [`BUCKETS`] on.
    #[must_use]
    pub fn bound_s(bucket: usize) -> Option<f64> {
        (bucket + 1 < BUCKETS).then(|| f64::from(1u32 << bucket) * 1e-6)
    }

    /// Number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Estimates a quantile: returns the upper bound of the bucket that holds it, so at least a fraction
    /// `part` (0 to 1) of the durations is no longer than that. For the last bucket the result is 2^27 µs,
    /// which its durations may exceed. Zero if nothing was recorded.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let wanted = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(1 << i);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_bucket_that_it_does_not_exceed() {
        for (nanos, expected) in [
            (0, 0),
            (1000, 0),
            (1001, 1),
            (2000, 1),
            (2001, 2),
            (4000, 2),
            (67_108_864_000, 26),
            (67_108_864_001, 27),
            (u64::MAX, 27),
        ] {
            assert_eq!(bucket(nanos), expected, "{nanos}");
        }
    }

    #[test]
    fn quantiles_bound_their_values() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().quantile(0.5), Duration::ZERO);
        for micros in [3, 3, 3, 100] {
            histogram.record(Duration::from_micros(micros));
        }
        let seen = histogram.snapshot();
        assert_eq!((seen.count(), seen.sum), (4, Duration::from_micros(109)));
        assert_eq!(seen.quantile(0.5), Duration::from_micros(4));
        assert_eq!(seen.quantile(0.99), Duration::from_micros(128));
    }
}
