//! The duration of a level: one sub-predictor for each level (BlockFlex, section 4.4.2).
//!
//! The sub-predictor of a level that has ended is given the time for which the level lasted. The caller decides what
//! the end of a level is. Either a level ends whenever another level is needed. Or a level ends only when a higher one
//! is needed, because the level is enough until then. The second end is the one that matters for a lease: see
//! [`Stretches`]. A forecast is made for a level and the time for which the level has lasted already, and gives the
//! remaining time.
//!
//! Each forecast takes a setting from 0 to 1, the care of the forecast: a higher setting never gives a longer time.

use super::level::{Level, level_above};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of latest durations that are remembered for each level.
pub const REMEMBERED: usize = 100;

/// The most levels that have a sub-predictor; others are predicted from the lengths of all.
const LEVELS: usize = 256;

/// A predictor of the remaining duration of a level (a rounded need for bandwidth or capacity).
pub trait Lasting {
    /// Records that a level has ended after the duration `length`.
    fn ended(&mut self, level: Level, length: Duration);

    /// Returns the remaining duration of a level that has lasted for `age` until now; zero if no level has ended yet
    /// and `age` is zero. `setting` is 0 to 1; a higher one never gives a longer duration.
    fn forecast(&self, level: Level, age: Duration, setting: f32) -> Duration;

    /// Returns the memory that the predictor takes, in bytes.
    fn bytes(&self) -> usize;
}

/// The last [`REMEMBERED`] durations of each level and of all levels together, in seconds, newest last.
#[derive(Clone, Debug, Default)]
pub struct Lengths {
    levels: BTreeMap<Level, VecDeque<f32>>,
    all: VecDeque<f32>,
}

impl Lengths {
    /// Records the duration of a level that has ended. If 256 other levels have durations of their own already, the
    /// duration of a new level counts only among those of all levels together.
    pub fn push(&mut self, level: Level, length: Duration) {
        if self.levels.len() < LEVELS || self.levels.contains_key(&level) {
            remember(self.levels.entry(level).or_default(), length.as_secs_f32());
        }
        remember(&mut self.all, length.as_secs_f32());
    }

    /// Returns the recorded durations of a level, in seconds, newest last. If the level has none of its own, the
    /// result is those of all levels together, which may be empty.
    #[must_use]
    pub fn of(&self, level: Level) -> &VecDeque<f32> {
        self.own(level).unwrap_or(&self.all)
    }

    /// Returns the recorded durations of a level, in seconds, newest last. `None` if the level has never ended, or
    /// if durations of 256 other levels were recorded before it ended.
    #[must_use]
    pub fn own(&self, level: Level) -> Option<&VecDeque<f32>> {
        self.levels.get(&level)
    }

    /// Returns the memory that the durations take, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let lengths: usize = self.levels.values().map(VecDeque::capacity).sum();
        let nodes = self.levels.len() * size_of::<(Level, VecDeque<f32>)>() * 3 / 2;
        size_of::<Self>() + nodes + (lengths + self.all.capacity()) * size_of::<f32>()
    }
}

fn remember(lengths: &mut VecDeque<f32>, length: f32) {
    if lengths.len() == REMEMBERED {
        lengths.pop_front();
    }
    lengths.push_back(length);
}

/// Converts a number of seconds to a duration; zero if the number is negative, NaN or too large.
#[must_use]
pub fn seconds(seconds: f32) -> Duration {
    Duration::try_from_secs_f32(seconds.max(0.0)).unwrap_or_default()
}

/// The most times that a forecast can be as long as the longest.
const FAR: f32 = 100.0;

/// A predictor that takes a level to last as long as it did the last time, times `1 - setting`. The time for which the
/// level has lasted already is subtracted; the result is at least zero. If the level has never ended, the duration of
/// the level that ended last counts; if none has ended, the result is zero.
#[derive(Clone, Debug, Default)]
pub struct LastLength(Lengths);

impl Lasting for LastLength {
    fn ended(&mut self, level: Level, length: Duration) {
        self.0.push(level, length);
    }

    fn forecast(&self, level: Level, age: Duration, setting: f32) -> Duration {
        let last = self.0.of(level).back().copied().unwrap_or(0.0);
        seconds(last * (1.0 - setting) - age.as_secs_f32())
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// A predictor of durations by quantile. Of the level's last durations (of all levels' last durations if the level has
/// none of its own), it looks at those that were longer than the time for which the level has lasted already. It
/// forecasts the duration that the share `setting` (0 to 1) of these reached, less the time already passed.
///
/// The next duration is shorter than the `k`th shortest of `n` such durations with probability `k / (n + 1)`. Between
/// these points the forecast is interpolated, beginning with the time already passed. Longer times than any recorded
/// one are extrapolated: a level that has lasted `t` lasts until `t / p` with probability `p`. The limit is 100 times
/// the longest recorded duration, or 100 times the time already passed if that is longer.
#[derive(Clone, Debug)]
pub struct LengthQuantile {
    lengths: Lengths,
    window: usize,
}

impl LengthQuantile {
    /// Returns a predictor that looks at the last `window` durations of a level. 0 counts as 1, and a number above
    /// [`REMEMBERED`] as [`REMEMBERED`].
    #[must_use]
    pub fn new(window: usize) -> Self {
        Self { lengths: Lengths::default(), window: window.max(1) }
    }
}

impl Lasting for LengthQuantile {
    fn ended(&mut self, level: Level, length: Duration) {
        self.lengths.push(level, length);
    }

    fn forecast(&self, level: Level, age: Duration, setting: f32) -> Duration {
        let (age, missed) = (age.as_secs_f32(), (1.0 - setting).clamp(0.0, 1.0));
        let lengths = self.lengths.of(level).iter().rev().take(self.window);
        let mut longer: Vec<f32> = lengths.copied().filter(|length| *length > age).collect();
        longer.sort_by(f32::total_cmp);
        #[expect(clippy::cast_precision_loss, reason = "a window's length")]
        let count = longer.len() as f32;
        // Among `count` that were longer, and one that is as likely as any: the place of the quantile.
        let place = missed * (count + 1.0);
        if place >= count {
            let longest = longer.last().copied().unwrap_or(age);
            let beyond = (1.0 - missed) * (count + 1.0);
            return seconds(longest / beyond.max(1.0 / FAR) - age);
        }
        let below = usize::from(level_above(place.floor()));
        let shorter = below.checked_sub(1).and_then(|below| longer.get(below)).copied().unwrap_or(age);
        let longer = longer.get(below).copied().unwrap_or(shorter);
        seconds(shorter + (longer - shorter) * (place - place.floor()) - age)
    }

    fn bytes(&self) -> usize {
        self.lengths.bytes()
    }
}

/// The stretches of time in which each level was enough, derived from the level that was needed at each time.
///
/// A stretch of level `k` begins when `k` is enough and ends when more is needed. A single step can therefore
/// end the stretches of several levels, and a stretch of a high level spans many of lower ones.
#[derive(Clone, Debug)]
pub struct Stretches {
    /// For each level, the time for which it has been enough.
    ages: Vec<Duration>,
}

impl Stretches {
    /// Returns the stretches of the levels 0 to `highest`, all of zero length.
    #[must_use]
    pub fn new(highest: Level) -> Self {
        Self { ages: vec![Duration::ZERO; usize::from(highest) + 1] }
    }

    /// Records that `level` was needed for the duration `length`. Calls `ended` for each lower level that had been
    /// enough until then, with that level and the duration for which it had been enough.
    pub fn needed(&mut self, level: Level, length: Duration, mut ended: impl FnMut(Level, Duration)) {
        for (enough, age) in (0..).zip(&mut self.ages) {
            if enough >= level {
                *age += length;
            } else if !age.is_zero() {
                ended(enough, *age);
                *age = Duration::ZERO;
            }
        }
    }

    /// Returns the duration for which `level` has been enough until now. For a level above the highest one, the
    /// result is the highest level's.
    #[must_use]
    pub fn age(&self, level: Level) -> Duration {
        self.ages.get(usize::from(level)).or(self.ages.last()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    fn told(mut lasting: impl Lasting, lengths: &[(Level, u64)]) -> impl Lasting {
        lengths.iter().for_each(|&(level, length)| lasting.ended(level, minutes(length)));
        lasting
    }

    #[test]
    fn plain_duration_predictors_give_their_figure() {
        let last = told(LastLength::default(), &[(1, 100), (2, 10), (1, 20)]);
        assert_eq!(last.forecast(1, Duration::ZERO, 0.0), minutes(20));
        assert_eq!(last.forecast(1, minutes(4), 0.5), minutes(6));
        assert_eq!(last.forecast(1, minutes(40), 0.5), Duration::ZERO);
        assert_eq!(last.forecast(7, Duration::ZERO, 0.0), minutes(20));
        let quantile = told(LengthQuantile::new(3), &[(1, 99), (1, 10), (1, 20), (2, 5), (1, 30)]);
        assert_eq!(quantile.forecast(1, Duration::ZERO, 0.5), minutes(20));
        assert_eq!(quantile.forecast(1, Duration::ZERO, 0.75), minutes(10));
        assert_eq!(quantile.forecast(1, Duration::ZERO, 0.875), minutes(5));
        assert_eq!(quantile.forecast(1, Duration::ZERO, 1.0), minutes(0));
        assert_eq!(quantile.forecast(1, Duration::ZERO, 0.25), minutes(30));
        assert_eq!(quantile.forecast(1, Duration::ZERO, 0.125), minutes(60));
        assert_eq!(quantile.forecast(1, minutes(25), 0.75), Duration::from_secs(150));
        assert_eq!(quantile.forecast(1, minutes(60), 0.5), minutes(60));
        assert_eq!(LengthQuantile::new(3).forecast(1, Duration::ZERO, 0.5), Duration::ZERO);
    }

    proptest! {
        /// Stretches match a model that looks at every minute, and careful forecasts never exceed others.
        #[test]
        fn stretches_are_where_a_level_was_enough(levels in prop::collection::vec(0_u16..5, 1..60)) {
            let mut stretches = Stretches::new(4);
            let mut ended: Vec<(Level, u64)> = Vec::new();
            for level in &levels {
                stretches.needed(*level, minutes(1), |level, age| ended.push((level, age.as_secs() / 60)));
            }
            for level in 0..5 {
                let mut expected: Vec<u64> = levels
                    .split(|other| *other > level)
                    .map(|stretch| stretch.len() as u64)
                    .collect();
                let open = expected.pop().unwrap_or_default();
                prop_assert_eq!(stretches.age(level), minutes(open));
                expected.retain(|length| *length > 0);
                let found: Vec<u64> = ended.iter().filter(|end| end.0 == level).map(|end| end.1).collect();
                prop_assert_eq!(found, expected);
            }
            let lasting = told(LengthQuantile::new(9), &ended);
            for age in [0, 1, 5] {
                let said = [0.0, 0.5, 0.9, 1.0].map(|care| lasting.forecast(2, minutes(age), care));
                prop_assert!(said.is_sorted_by(|a, b| a >= b));
            }
        }
    }
}
