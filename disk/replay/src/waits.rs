//! The waits of any number of reads in little memory, for percentiles.
//!
//! Waits are counted in buckets, 128 for each doubling of the wait, so a percentile is at most 0.8% too long, and never
//! too short. A wait of zero and the longest wait are exact. Only buckets that have reads take memory.

use crate::time::Nanos;
use std::collections::BTreeMap;

/// Buckets of a doubling, as a power of two.
const BITS: u32 = 7;

/// A distribution of the waits of any number of reads, in little memory. Percentiles are at most 0.8% too
/// long and never too short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadWaits {
    reads: u64,
    /// By bucket; reads that did not wait are in none.
    counts: BTreeMap<u16, u64>,
    longest: u64,
}

impl ReadWaits {
    /// Adds the wait of one read.
    pub fn add(&mut self, wait: Nanos) {
        self.reads += 1;
        if wait.0 > 0 {
            *self.counts.entry(bucket(wait.0)).or_default() += 1;
            self.longest = self.longest.max(wait.0);
        }
    }

    /// Adds the waits of all reads that `other` has.
    pub fn merge(&mut self, other: &Self) {
        self.reads += other.reads;
        for (bucket, count) in &other.counts {
            *self.counts.entry(*bucket).or_default() += count;
        }
        self.longest = self.longest.max(other.longest);
    }

    /// The number of reads that were added.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// The longest wait of a read; 0 if there are no reads.
    #[must_use]
    pub fn longest(&self) -> Nanos {
        Nanos(self.longest)
    }

    /// Returns the cumulative distribution: pairs of a wait in seconds, ascending, and the share of reads (0
    /// to 1) that wait at most that long. The first pair is that of the wait 0.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a picture")]
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let waiting: u64 = self.counts.values().sum();
        let mut so_far = self.reads - waiting;
        let share = |count: u64| count as f64 / self.reads.max(1) as f64;
        let mut curve = vec![(0.0, share(so_far))];
        for (bucket, count) in &self.counts {
            so_far += count;
            curve.push((Nanos(largest(*bucket).min(self.longest)).as_secs(), share(so_far)));
        }
        curve
    }

    /// Returns the wait that `percent` percent (0 to 100) of the reads do not exceed; 0 if there are no
    /// reads.
    #[must_use]
    pub fn percentile(&self, percent: u8) -> Nanos {
        let place = (u128::from(self.reads) * u128::from(percent)).div_ceil(100);
        let mut longer = u128::from(self.reads) - place.min(u128::from(self.reads));
        // From the longest, since most do not wait at all.
        for (bucket, count) in self.counts.iter().rev() {
            if longer < u128::from(*count) {
                return Nanos(largest(*bucket).min(self.longest));
            }
            longer -= u128::from(*count);
        }
        Nanos(0)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "at most 64 - BITS doublings of 2^BITS buckets")]
fn bucket(wait: u64) -> u16 {
    let shift = wait.max(1).ilog2().saturating_sub(BITS);
    ((u64::from(shift) << BITS) + (wait >> shift)) as u16
}

/// The largest wait in a bucket.
fn largest(bucket: u16) -> u64 {
    let shift = (u32::from(bucket) >> BITS).saturating_sub(1);
    let start = u64::from(bucket) - (u64::from(shift) << BITS);
    (start << shift) | ((1 << shift) - 1)
}

/// Returns the value that `percent` percent (0 to 100) of the values do not exceed, by the nearest-rank method; 0 if
/// there are no values. `ascending` must be sorted in ascending order.
#[must_use]
pub fn percentile(ascending: &[f64], percent: usize) -> f64 {
    let rank = (ascending.len() * percent).div_ceil(100).max(1) - 1;
    ascending.get(rank).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_narrow(wait in prop_oneof![1_u64..1000, any::<u64>(), (0_u32..64).prop_map(|bit| 1 << bit)]) {
            let wait = wait.max(1);
            let largest = largest(bucket(wait));
            prop_assert!(largest >= wait && largest - wait <= wait / 128, "{} {}", wait, largest);
            prop_assert_eq!(bucket(largest), bucket(wait));
        }

        /// The percentiles equal those of the sorted list, however the reads are divided.
        #[test]
        fn percentiles_are_those_of_the_list(
            waits in prop::collection::vec(0_u64..1_000_000, 1..200), percent in 0_u8..=100, at in 0_usize..200,
        ) {
            let (mut all, mut rest) = (ReadWaits::default(), ReadWaits::default());
            for (n, wait) in waits.iter().enumerate() {
                if n < at { all.add(Nanos(*wait)) } else { rest.add(Nanos(*wait)) }
            }
            all.merge(&rest);
            let mut sorted = waits.clone();
            sorted.sort_unstable();
            let place = (sorted.len() * usize::from(percent)).div_ceil(100).max(1) - 1;
            let (exact, found) = (sorted[place], all.percentile(percent).0);
            prop_assert!(percent == 0 || (found >= exact && found - exact <= exact / 128), "{} {}", exact, found);
            let longest = sorted.last().copied().unwrap_or(0);
            prop_assert_eq!((all.longest().0, all.percentile(100).0), (longest, longest));
            let curve = all.curve();
            prop_assert!(curve.is_sorted() && curve.last().is_some_and(|(at, share)| {
                *at == Nanos(longest).as_secs() && *share == 1.0
            }), "{:?}", curve);
        }
    }

    #[test]
    fn waits_of_no_reads_are_zeros() {
        assert_eq!(ReadWaits::default().percentile(99), Nanos(0));
    }
}
