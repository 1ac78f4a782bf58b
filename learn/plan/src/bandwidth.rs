//! Bandwidths, and the bins (ranges of bandwidths) that plans are made for (ThinkAhead paper, section 5.3).

use headstart_block::{ByteRate, saturating};

/// A duration, or a moment since the creation of the disk, in nanoseconds: the unit of all evaluators. Because the
/// numbers are whole, independent simulators agree to the last digit.
pub type RawNanos = u64;

/// The bandwidth of a link, in bytes a second; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// Makes a bandwidth of `bytes` bytes a second; 0 is taken as 1.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(if bytes == 0 { 1 } else { bytes })
    }

    /// Makes a bandwidth of `rate` MB/s, each 10^6 bytes a second, as links are rated.
    #[must_use]
    pub const fn mb(rate: u64) -> Self {
        Self::new(rate.saturating_mul(1_000_000))
    }

    /// Makes a bandwidth of `rate` MiB/s, each 2^20 bytes a second. The simulator of the ThinkAhead paper
    /// calls this unit MB/s.
    #[must_use]
    pub const fn mib(rate: u64) -> Self {
        Self::new(rate.saturating_mul(1 << 20))
    }

    /// Returns the bandwidth in bytes a second; never 0.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the duration of a transfer of `len` bytes, in nanoseconds, rounded up; 2^64 - 1 if it is longer. All
    /// models of a link use this rule, and therefore agree to the last digit.
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

/// A range of bandwidths, in MB/s of 10^6 bytes. Plans are made for some bandwidths of each range
/// ([`representatives`](Self::representatives)). The lower bound is included, the upper bound is not.
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
    /// All bins, in ascending order of bandwidth.
    pub const ALL: [Self; 6] = [Self::To10, Self::To30, Self::To50, Self::To70, Self::To90, Self::Above];

    /// Returns the bin that contains a bandwidth; bandwidths below 2 MB/s are in the first bin.
    #[must_use]
    pub fn of(bandwidth: Bandwidth) -> Self {
        let starts = |bin: &&Self| Bandwidth::mb(bin.start()) <= bandwidth;
        Self::ALL.iter().rev().find(starts).copied().unwrap_or(Self::To10)
    }

    /// Returns the lower bound of the bin in MB/s. The first bin starts at 2 and also takes all smaller
    /// bandwidths.
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

    /// Returns the bandwidths, in MB/s, for which plans of this bin are made and scored. Of the plans of all bins, an
    /// attached disk uses the one for the highest bandwidth that is not above the estimated bandwidth of its link, or
    /// the slowest plan if all are above.
    ///
    /// The slowest bin has four, because a little more bandwidth makes a great difference there: a plan for 2
    /// MB/s leaves out blocks that a plan for 8 MB/s preloads.
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

    /// Returns the name of the bin, made of its bounds in MB/s: for example `2-10` or `90-inf`.
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
