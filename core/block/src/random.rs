//! Randomness from a seed: the same seed gives the same numbers, on every machine and in every version. The exceptions
//! are [`Random::normal`] and [`Random::exponential`], whose results may differ between systems in the last bit.
//!
//! The crate `rand` does not promise that: its `StdRng` and `SmallRng` may use other algorithms in any version. Even
//! for a generator that is fixed by name (`rand_pcg`), versions have changed the ranges and samples that are drawn from
//! its bits. Trained plans and simulated figures must be reproducible.

use crate::exact;

/// The constant that splitmix64 adds to its state for each number: 2^64 divided by the golden ratio, rounded
/// to an odd number.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of splitmix64: mixes the 64 bits so that each affects all others. A bijection, so
/// distinct inputs give distinct results.
#[must_use]
pub const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// A pseudo-random number generator, splitmix64 (Steele, Lea, Flood 2014): fast, reproducible, not for
/// secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// Makes a generator; the same seed gives the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits, uniformly distributed.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number that is uniformly distributed in [0, 1), with 53 random bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number from the normal distribution with mean 0 and standard deviation 1 (method of Box and
    /// Muller, 1958). Logarithm and cosine come from the system's library, so another system may round the
    /// last bit differently.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Returns a number, at least 0, from the exponential distribution with this mean. The last bit may
    /// differ between systems; see [`Random::normal`].
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Returns a number that is uniformly distributed in `0..below`; 0 if `below` is 0.
    pub fn below(&mut self, below: usize) -> usize {
        let wide = u128::from(self.bits()) * below as u128;
        exact(wide >> 64, "64 of 128 bits remain")
    }

    /// Draws `count` distinct numbers from `0..below`, in ascending order; all of them if `count` is larger
    /// than `below`.
    pub fn sample(&mut self, count: usize, below: usize) -> Vec<usize> {
        let (mut left, mut needed) = (below, count.min(below));
        let mut sample = Vec::with_capacity(needed);
        for number in 0..below {
            if self.below(left) < needed {
                sample.push(number);
                needed -= 1;
            }
            left -= 1;
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_its_published_sequence() {
        let mut random = Random::new(1_234_567);
        assert_eq!([(); 2].map(|()| random.bits()), [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_and_floats_stay_within_their_bounds() {
        let mut random = Random::new(7);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        assert_eq!(random.sample(5, 3), [0, 1, 2]);
        let mut seen = [0; 10];
        (0..1000).flat_map(|_| random.sample(4, 10)).for_each(|number| seen[number] += 1);
        assert!(seen.iter().all(|count| (300..500).contains(count)), "{seen:?}");
    }

    #[test]
    fn samples_have_the_requested_mean_and_variance() {
        let mut random = Random::new(1);
        let many: Vec<_> = (0..20_000).map(|_| random.normal()).collect();
        let mean = |list: &[f64]| list.iter().sum::<f64>() / list.len() as f64;
        assert!(mean(&many).abs() < 0.03);
        assert!((mean(&many.iter().map(|x| x * x).collect::<Vec<_>>()) - 1.0).abs() < 0.05);
        let many: Vec<_> = (0..20_000).map(|_| random.exponential(7.0)).collect();
        assert!((mean(&many) - 7.0).abs() < 0.3);
    }
}
