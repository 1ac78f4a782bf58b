//! Numbers that look drawn, and are the same for the same seed.
//!
//! Any seed is as good as any other for this generator. Each drawn thing (an image, a stripe, a trace) therefore
//! has a generator of its own, seeded with the thing's name. The numbers of one thing then change nothing of the
//! others, and threads need no order.

use headstart_block::random::{self, STEP, mix};
use headstart_block::{exact, to_usize};

/// A generator.
#[derive(Clone, Debug)]
pub(super) struct Random(random::Random);

impl Random {
    /// The generator of the thing that these numbers name.
    pub(super) fn of(name: &[u64]) -> Self {
        let seed = name.iter().fold(STEP, |state, part| mix(state ^ part).wrapping_add(STEP));
        Self(random::Random::new(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number from 0 up to `bound`, excluded; 0 for a bound of 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        exact(product >> 64, "64 of 128 bits remain")
    }

    /// As [`Random::below`], for indices.
    pub(super) fn index(&mut self, len: usize) -> usize {
        to_usize(self.below(len as u64))
    }

    /// A number from 0 up to 1, excluded.
    pub(super) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number with this median whose logarithm has this deviation.
    pub(super) fn log_normal(&mut self, median: f64, deviation: f64) -> f64 {
        median * (deviation * self.0.normal()).exp()
    }

    /// A number of the exponential distribution with this mean.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        self.0.exponential(mean)
    }

    /// A number of at least 1, with this mean: the tries until the first success.
    pub(super) fn tries(&mut self, mean: f64, max: u64) -> u64 {
        let mut tries = 1;
        while tries < max && self.chance(1.0 - 1.0 / mean.max(1.0)) {
            tries += 1;
        }
        tries
    }

    /// An index, with a probability in proportion to its weight.
    pub(super) fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut left = self.unit() * weights.iter().sum::<f64>();
        let last = weights.len().saturating_sub(1);
        weights
            .iter()
            .position(|weight| {
                left -= weight;
                left < 0.0
            })
            .unwrap_or(last)
    }

    pub(super) fn shuffle<T>(&mut self, things: &mut [T]) {
        for end in (1..things.len()).rev() {
            things.swap(end, self.index(end + 1));
        }
    }
}

/// A whole number (of microseconds, blocks or requests): rounded, and at least 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts from floats saturate")]
pub(super) fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "means")]
mod tests {
    use super::*;

    #[test]
    fn draws_have_their_means() {
        let mut random = Random::of(&[1, 2]);
        let mut mean = |draw: &dyn Fn(&mut Random) -> f64| {
            (0..20_000).map(|_| draw(&mut random)).sum::<f64>() / 20_000.0
        };
        let about = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 0.03, "{found} for {expected}");
        };
        about(mean(&|random| random.unit()), 0.5);
        about(mean(&|random| random.below(11) as f64), 5.0);
        about(mean(&|random| random.exponential(7.0)), 7.0);
        about(mean(&|random| random.tries(3.5, 1000) as f64), 3.5);
        about(mean(&|random| random.log_normal(2.0, 0.5).ln()), 2.0_f64.ln());
        about(mean(&|random| random.weighted(&[1.0, 0.0, 3.0]) as f64), 1.5);
        assert_ne!(Random::of(&[1, 2]).next(), Random::of(&[2, 1]).next());
        assert_eq!(Random::of(&[7]).next(), Random::of(&[7]).next());
        assert_eq!((Random::of(&[]).below(0), Random::of(&[]).weighted(&[]), whole(-3.0)), (0, 0, 0));
        let mut things: Vec<_> = (0..50).collect();
        Random::of(&[3]).shuffle(&mut things);
        assert_ne!(things, (0..50).collect::<Vec<_>>());
        things.sort_unstable();
        assert_eq!(things, (0..50).collect::<Vec<_>>());
    }
}
