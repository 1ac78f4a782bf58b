//! Quantiles of numbers.

use headstart_block::to_usize;
use serde::Serialize;

/// The mean, the extremes and percentiles of some numbers; all 0 if there are no numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// The number of values in the distribution.
    pub count: u64,
    /// The arithmetic mean; 0 without values.
    pub mean: f64,
    /// The smallest value; 0 without values.
    pub min: f64,
    /// The 5th percentile; 0 without values.
    pub p5: f64,
    /// The 25th percentile; 0 without values.
    pub p25: f64,
    /// The median; 0 without values.
    pub p50: f64,
    /// The 75th percentile; 0 without values.
    pub p75: f64,
    /// The 95th percentile; 0 without values.
    pub p95: f64,
    /// The 99th percentile; 0 without values.
    pub p99: f64,
    /// The greatest value; 0 without values.
    pub max: f64,
}

impl Distribution {
    /// Computes the distribution of these numbers, which may be in any order.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn of(numbers: &[f64]) -> Self {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let at = |percent| quantile(&sorted, percent);
        Self {
            count: sorted.len() as u64,
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            min: *min,
            p5: at(5),
            p25: at(25),
            p50: at(50),
            p75: at(75),
            p95: at(95),
            p99: at(99),
            max: *max,
        }
    }
}

/// The number at a percentage of sorted numbers: the nearest rank from above.
fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Returns the cumulative distribution of some numbers for a plot, at most `points` pairs: a number, and the
/// share (0 to 1) of the numbers that are not greater. `points` of 0 counts as 1; empty without numbers.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a share")]
pub fn cumulative(numbers: &[f64], points: usize) -> Vec<(f64, f64)> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let len = sorted.len();
    let points = points.clamp(1, len.max(1));
    let rank = |point: usize| (point * len).div_ceil(points);
    let ranks = (1..=points).map(rank).filter(|rank| *rank > 0);
    ranks.filter_map(|rank| Some((*sorted.get(rank - 1)?, rank as f64 / len as f64))).collect()
}

/// Returns the percentage of the numbers for which `holds` returns `true`; 0 without numbers.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a percentage")]
pub fn percent(numbers: &[f64], holds: impl Fn(f64) -> bool) -> f64 {
    let held = numbers.iter().filter(|number| holds(**number)).count();
    held as f64 * 100.0 / numbers.len().max(1) as f64
}

/// A histogram of whole numbers, which takes the same memory however many numbers are added. Its quantiles are rounded
/// down by less than a sixteenth of their value.
///
/// Numbers below 16 have a counter each; all others share a counter for each sixteenth of a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHistogram {
    counts: Vec<u64>,
}

const PARTS_BITS: u32 = 4;
const PARTS: u64 = 1 << PARTS_BITS;

impl Default for LogHistogram {
    fn default() -> Self {
        Self { counts: vec![0; Self::index(u64::MAX) + 1] }
    }
}

impl LogHistogram {
    /// The counter of a number.
    fn index(number: u64) -> usize {
        let index = if number < PARTS {
            number
        } else {
            let octave = number.ilog2() - PARTS_BITS;
            u64::from(octave) * PARTS + (number >> octave)
        };
        // Below 16 * 64.
        to_usize(index)
    }

    /// The least number of a counter.
    fn least(index: usize) -> u64 {
        let index = index as u64;
        if index < 2 * PARTS {
            return index;
        }
        let octave = index / PARTS - 1;
        (index - octave * PARTS) << octave
    }

    /// Adds a number to the histogram.
    pub fn add(&mut self, number: u64) {
        if let Some(count) = self.counts.get_mut(Self::index(number)) {
            *count += 1;
        }
    }

    /// Returns the number of numbers that were added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the quantile at `percent` (0 to 100), rounded down by less than a sixteenth of its value; 0 without
    /// numbers.
    #[must_use]
    pub fn quantile(&self, percent: f64) -> u64 {
        #[expect(clippy::cast_precision_loss, reason = "a quantile that is known to a sixteenth")]
        let wanted = self.count() as f64 * percent / 100.0;
        let mut seen = 0_u64;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "as above")]
            if *count > 0 && seen as f64 >= wanted {
                return Self::least(index);
            }
        }
        0
    }

    /// Returns the cumulative distribution for a plot, a pair for each counter that has counted a number: the smallest
    /// number that the counter stands for, and the share (0 to 1) of added numbers in this counter or below.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn cumulative(&self) -> Vec<(u64, f64)> {
        let (mut seen, all) = (0_u64, self.count().max(1));
        let mut points = Vec::new();
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            seen += count;
            points.push((Self::least(index), seen as f64 / all as f64));
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_of_a_hundred_are_their_ranks() {
        let numbers: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let all = Distribution::of(&numbers);
        assert_eq!((all.count, all.min, all.max, all.mean), (100, 1.0, 100.0, 50.5));
        assert_eq!(
            (all.p5, all.p25, all.p50, all.p75, all.p95, all.p99),
            (5.0, 25.0, 50.0, 75.0, 95.0, 99.0)
        );
        assert_eq!(Distribution::of(&[]), Distribution::default());
        assert_eq!(Distribution::of(&[7.0]).p99, 7.0);
        assert_eq!(percent(&numbers, |n| n > 90.0), 10.0);
        assert_eq!(cumulative(&numbers, 4), [(25.0, 0.25), (50.0, 0.5), (75.0, 0.75), (100.0, 1.0)]);
        assert_eq!((cumulative(&[], 4), cumulative(&[3.0], 4)), (vec![], vec![(3.0, 1.0)]));
        assert_eq!(LogHistogram::default().quantile(50.0), 0);
    }

    proptest! {
        #[test]
        fn a_histogram_knows_quantiles_to_a_sixteenth(
            numbers in prop::collection::vec((0_u32..64).prop_flat_map(|bits| 0..=u64::MAX >> bits), 1..200),
            percent in 1_usize..=100,
        ) {
            let mut histogram = LogHistogram::default();
            numbers.iter().for_each(|number| histogram.add(*number));
            let mut sorted = numbers.clone();
            sorted.sort_unstable();
            let exact = sorted[(sorted.len() * percent).div_ceil(100) - 1];
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let found = histogram.quantile(percent as f64);
            prop_assert!(found <= exact && exact - found <= exact / 16, "{} for {}", found, exact);
            prop_assert_eq!(histogram.count(), numbers.len() as u64);
            let points = histogram.cumulative();
            prop_assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
        }
    }
}
