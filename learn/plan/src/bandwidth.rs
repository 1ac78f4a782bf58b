//! Bandwidths, and the bins that plans are made for (paper, section 5.3).

use headstart_block::{ByteRate, saturating};

/// Nanoseconds: the unit of all times of the evaluators, so that they agree to the last digit.
pub type RawNanos = u64;

/// Bytes a second of a link; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// A bandwidth of `bytes` bytes a second; 0 is taken as 1.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(if bytes == 0 { 1 } else { bytes })
    }

    /// A bandwidth of `rate` MB/s: 10^6 bytes, as links and our real model count.
    #[must_use]
    pub const fn mb(rate: u64) -> Self {
        Self::new(rate.saturating_mul(1_000_000))
    }

    /// A bandwidth of `rate` MiB/s: 2^20 bytes, which the paper's simulator calls MB/s.
    #[must_use]
    pub const fn mib(rate: u64) -> Self {
        Self::new(rate.saturating_mul(1 << 20))
    }

    /// Bytes a second.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The time that `len` bytes take, rounded up. All models of a link count by this rule, so that they agree to the
    /// last digit.
    #[must_use]
    pub fn time_of(self, len: u64) -> RawNanos {
        // Replays ask for this millions of times, mostly of few bytes.
        match len.checked_mul(1_000_000_000) {
            Some(product) => product.div_ceil(self.0),
            None => {
                let nanos = (u128::from(len) * 1_000_000_000).div_ceil(u128::from(self.0));
                saturating(nanos)
            }
        }
    }
}

impl From<ByteRate> for Bandwidth {
    fn from(rate: ByteRate) -> Self {
        Self::new(rate.0)
    }
}

/// A range of bandwidths that share a plan; half-open, in MB/s of 10^6 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bin {
    /// Below 10.
    To10,
    /// [10, 30).
    To30,
    /// [30, 50).
    To50,
    /// [50, 70).
    To70,
    /// [70, 90).
    To90,
    /// 90 and more.
    Above,
}

impl Bin {
    /// All bins, the slowest first.
    pub const ALL: [Self; 6] = [Self::To10, Self::To30, Self::To50, Self::To70, Self::To90, Self::Above];

    /// The bin of a bandwidth.
    #[must_use]
    pub fn of(bandwidth: Bandwidth) -> Self {
        let starts = |bin: &&Self| Bandwidth::mb(bin.start()) <= bandwidth;
        Self::ALL.iter().rev().find(starts).copied().unwrap_or(Self::To10)
    }

    /// The lower bound in MB/s; bandwidths below the first bin's count as the first bin's.
    #[must_use]
    pub const fn start(self) -> u64 {
        match self {
            Self::To10 => 2,
            Self::To30 => 10,
            Self::To50 => 30,
            Self::To70 => 50,
            Self::To90 => 70,
            Self::Above => 90,
        }
    }

    /// The bandwidths in MB/s that plans of this bin are made and scored for; attaching takes the nearest below its
    /// estimate.
    ///
    /// The slowest has several, because a little more makes a great difference there: a plan for 2 MB/s gives up
    /// blocks that one for 8 MB/s brings.
    #[must_use]
    pub const fn representatives(self) -> &'static [u64] {
        match self {
            Self::To10 => &[2, 4, 6, 8],
            Self::To30 => &[10],
            Self::To50 => &[30],
            Self::To70 => &[50],
            Self::To90 => &[70],
            Self::Above => &[90, 150],
        }
    }

    /// The name of the bin: `2-10`, `90-inf`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::To10 => "2-10",
            Self::To30 => "10-30",
            Self::To50 => "30-50",
            Self::To70 => "50-70",
            Self::To90 => "70-90",
            Self::Above => "90-inf",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_half_open() {
        let bin = |rate| Bin::of(Bandwidth::new(rate));
        assert_eq!([1, 2_000_000, 9_999_999].map(bin), [Bin::To10; 3]);
        assert_eq!([10_000_000, 29_999_999].map(bin), [Bin::To30; 2]);
        assert_eq!([50_000_000, 90_000_000, u64::MAX].map(bin), [Bin::To70, Bin::Above, Bin::Above]);
        for bin in Bin::ALL {
            assert!(bin.representatives().iter().all(|rate| Bin::of(Bandwidth::mb(*rate)) == bin));
        }
    }

    #[test]
    fn times_round_up_and_never_overflow() {
        assert_eq!(Bandwidth::mib(2).time_of(2 << 20), 1_000_000_000);
        // The product with a second is the last that fits into 64 bits, and the first that does not.
        let most = u64::MAX / 1_000_000_000;
        assert_eq!(Bandwidth::mb(1).time_of(most), most * 1000);
        assert_eq!(Bandwidth::mb(1).time_of(most + 1), (most + 1) * 1000);
        assert_eq!(Bandwidth::new(3).time_of(1), 333_333_334);
        assert_eq!(Bandwidth::new(0).time_of(u64::MAX), u64::MAX);
    }
}
