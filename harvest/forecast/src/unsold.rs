//! The time for which unsold storage stays unsold: histograms of past times (BlockFlex, section 4.4.1).
//!
//! An unsold VM has no load to learn from. But the time for which VMs of one size stay unsold is stable, so a histogram
//! of the past times for each size predicts the next one. The paper tags gSSDs of unsold VMs with 12, 6 and 1 hours, in
//! proportion to the VMs that stayed unsold for so long. Here each VM has a forecast of its own: [`Unsold::lasts`]
//! takes the time for which the VM has been unsold, and returns the further time for which the VM stays unsold with a
//! given certainty.
//!
//! As long as fewer than [`ENOUGH`] times of a size are recorded, the histogram of all sizes is used.

use std::collections::BTreeMap;
use std::time::Duration;

/// The number of recorded durations of a VM size from which on the histogram of that size is used. With fewer, the
/// histogram of all sizes is used.
pub const ENOUGH: u32 = 20;

/// Buckets of a histogram: the first up to a minute, each four a factor of two more; the last 45 days and more.
const BUCKETS: usize = 65;

/// A histogram is halved when it holds this many, so that it follows the times.
const FULL: u32 = 10_000;

/// The most sizes that are told apart; others are only counted among all.
const SIZES: usize = 64;

/// Histograms of the durations for which VMs of each size were unsold. They predict for how long unsold flash can be
/// lent. At most 64 sizes have a histogram of their own; VMs of further sizes count only in the histogram of all sizes.
#[derive(Clone, Debug, Default)]
pub struct Unsold {
    sizes: BTreeMap<u64, Size>,
    all: Size,
}

/// The data of one size.
#[derive(Clone, Debug)]
struct Size {
    buckets: [u32; BUCKETS],
    sum: u32,
}

impl Default for Size {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum: 0 }
    }
}

/// The bucket of a time.
fn bucket(time: Duration) -> usize {
    let octaves = (time.as_secs_f32() / 60.0).max(1.0).log2();
    (0..BUCKETS - 1).find(|at| octaves < quarter(*at)).unwrap_or(BUCKETS - 1)
}

/// The upper end of a bucket, in octaves of minutes.
#[expect(clippy::cast_precision_loss, reason = "few buckets")]
fn quarter(bucket: usize) -> f32 {
    bucket as f32 / 4.0
}

impl Size {
    fn add(&mut self, time: Duration) {
        self.buckets[bucket(time)] += 1;
        self.sum += 1;
        if self.sum >= FULL {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.sum = self.buckets.iter().sum();
        }
    }
}

impl Unsold {
    /// Records that a VM of `size` bytes was unsold for the duration `time`.
    pub fn ended(&mut self, size: u64, time: Duration) {
        self.all.add(time);
        if self.sizes.len() < SIZES || self.sizes.contains_key(&size) {
            self.sizes.entry(size).or_default().add(time);
        }
    }

    /// The histogram that answers for a size.
    fn of(&self, size: u64) -> &Size {
        self.sizes.get(&size).filter(|size| size.sum >= ENOUGH).unwrap_or(&self.all)
    }

    /// Returns the number of recorded VMs that were unsold for longer than `age`: [`Self::lasts`] is based on these for
    /// a VM of `size` bytes. Durations are recorded in buckets, four for each doubling; VMs in the bucket of `age` are
    /// not counted, unless `age` is zero. All counts of a histogram are halved when it has 10,000 VMs.
    #[must_use]
    pub fn known(&self, size: u64, age: Duration) -> u32 {
        self.longer(size, age).1.iter().sum()
    }

    /// The first bucket of VMs that were unsold for longer than `age`, and the counts from there on.
    fn longer(&self, size: u64, age: Duration) -> (usize, &[u32]) {
        let from = if age.is_zero() { 0 } else { bucket(age) + 1 };
        (from, self.of(size).buckets.get(from..).unwrap_or_default())
    }

    /// Returns the further duration for which a VM of `size` bytes that has been unsold for `age` will stay
    /// unsold with probability `cover` (0 to 1). Of the recorded VMs that were unsold for longer than `age`, the share
    /// `cover` stayed unsold for at least that much longer. Zero if there are no such VMs.
    #[must_use]
    pub fn lasts(&self, size: u64, age: Duration, cover: f32) -> Duration {
        let (from, longer) = self.longer(size, age);
        #[expect(clippy::cast_precision_loss, reason = "shares")]
        let needed = cover.clamp(0.0, 1.0) * longer.iter().sum::<u32>() as f32;
        let mut left: u32 = longer.iter().sum();
        let mut lasts = Duration::ZERO;
        for (at, count) in (from..).zip(longer) {
            #[expect(clippy::cast_precision_loss, reason = "shares")]
            if left == 0 || (left as f32) < needed {
                break;
            }
            // A VM in this bucket or a later one lasted at least to its lower end.
            let lower = if at == 0 { 0.0 } else { 60.0 * quarter(at - 1).exp2() };
            lasts = Duration::try_from_secs_f32(lower).unwrap_or_default();
            left -= count;
        }
        lasts.saturating_sub(age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn one_lasts_as_long_as_most_did() {
        let mut unsold = Unsold::default();
        assert_eq!(unsold.lasts(1, HOUR, 0.9), Duration::ZERO);
        for hours in 1..=100 {
            unsold.ended(64, hours * HOUR);
        }
        let within = |lasts: Duration, hours: u32| lasts <= hours * HOUR && lasts * 10 >= hours * HOUR * 8;
        assert!(
            within(unsold.lasts(64, Duration::ZERO, 0.9), 11),
            "{:?}",
            unsold.lasts(64, Duration::ZERO, 0.9)
        );
        assert!(
            within(unsold.lasts(64, Duration::ZERO, 0.5), 51),
            "{:?}",
            unsold.lasts(64, Duration::ZERO, 0.5)
        );
        assert!(unsold.lasts(64, 50 * HOUR, 0.5) < 30 * HOUR);
        assert_eq!(unsold.lasts(64, 1000 * HOUR, 0.5), Duration::ZERO);
        // The promised time was reached by this share.
        for cover in [0.1, 0.5, 0.9, 0.99] {
            let lasts = unsold.lasts(64, Duration::ZERO, cover);
            let kept: f32 =
                (1..=100_u16).map(|hours| if u32::from(hours) * HOUR >= lasts { 0.01 } else { 0.0 }).sum();
            assert!(kept >= cover - 1e-4, "{cover}: {lasts:?}, {kept}");
        }
    }

    #[test]
    fn old_durations_fade() {
        let mut unsold = Unsold::default();
        (0..15_000).for_each(|_| unsold.ended(1, HOUR));
        (0..15_000).for_each(|_| unsold.ended(1, 20 * HOUR));
        assert!(unsold.lasts(1, Duration::ZERO, 0.6) > 10 * HOUR);
    }
}
