//! The input and output of predictors of a level.
//!
//! A level is a whole number: channels' worth of bandwidth, or units of capacity. A reading may be between two; the
//! need is the next whole one. The same predictors serve both sides. For *demand* (a harvest VM) they give the amount
//! that will be needed; *supply* (a regular VM's spare storage) is its mirror: all its storage, less the need of its
//! owner. So a forecast of supply is kept exactly when the owner's need was covered.

/// A whole level.
pub type Level = u16;

/// The highest level that a learned predictor tells from others; all above count as one.
pub const HIGHEST: Level = 64;

/// The quantity that is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Quantity {
    /// Channels' worth of bandwidth.
    Bandwidth,
    /// Units of capacity.
    Capacity,
}

/// The side that a forecast is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// A harvest VM, which needs storage.
    Demand,
    /// A regular VM, which can spare storage.
    Supply,
}

/// The readings of a quantity during one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stat {
    /// The highest.
    pub max: f32,
    /// The lowest.
    pub min: f32,
    /// The mean over time.
    pub mean: f32,
}

/// The input of a predictor of a level, for one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The level.
    pub level: Stat,
    /// Operations a second, if they count; only the LSTM looks at them.
    pub iops: Stat,
}

impl Reading {
    /// A step with one level, without operations.
    #[must_use]
    pub fn flat(level: f32) -> Self {
        Self { level: Stat { max: level, min: level, mean: level }, iops: Stat::default() }
    }
}

/// A predictor of the level that will be needed, step by step.
pub trait Predictor {
    /// Takes the next step, and learns from it if the predictor learns.
    fn observe(&mut self, reading: &Reading);

    /// The level that will be needed. `setting` trades coverage for waste: a higher one never gives less.
    fn forecast(&self, setting: f32) -> Level;

    /// The memory that it takes, in bytes.
    fn bytes(&self) -> usize;
}

/// The lowest whole level that is not below; a level that hardly exceeds one (by a thousandth) counts as that one, so
/// that sums of rounded numbers do not cost a level.
#[must_use]
pub fn level_above(level: f32) -> Level {
    let above = (level - 1e-3).ceil();
    if above >= f32::from(Level::MAX) {
        return Level::MAX;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let level = above.max(0.0) as Level;
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_rounded_up() {
        for (level, above) in [
            (0.0, 0),
            (0.2, 1),
            (1.0, 1),
            (1.0001, 1),
            (1.01, 2),
            (-3.0, 0),
            (1e9, Level::MAX),
            (f32::NAN, 0),
        ] {
            assert_eq!(level_above(level), above, "{level}");
        }
    }
}
