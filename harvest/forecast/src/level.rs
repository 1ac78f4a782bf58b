//! The input and output of predictors of a level.
//!
//! A level is a whole number of channels (bandwidth) or of units of capacity. A measurement ([`Reading`]) may be
//! between two levels; the need is then the higher one. The same predictors serve both sides. For *demand* (a harvest
//! VM) they forecast the amount that will be needed. For *supply* (a regular VM's spare storage) they forecast the
//! owner's need, and all the rest of the owner's storage is spare. So the forecast spare storage is there exactly if
//! the owner's need was covered.

/// A level: a need rounded up to a whole number, of channels (bandwidth) or of units of capacity.
pub type Level = u16;

/// The highest level that learned predictors distinguish; all higher ones count as this one.
pub const HIGHEST: Level = 64;

/// The quantity that a level measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Quantity {
    /// Bandwidth, in multiples of one channel's.
    Bandwidth,
    /// Capacity, in units of [`ForecastSettings::unit`](super::forecaster::ForecastSettings::unit).
    Capacity,
}

/// The side that a forecast is made for: borrowing or lending flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Flash that a harvest VM needs.
    Demand,
    /// Flash that a regular VM can spare.
    Supply,
}

/// The highest, lowest and mean value of a quantity during one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stat {
    /// The highest value during the step.
    pub max: f32,
    /// The lowest value during the step.
    pub min: f32,
    /// The mean value over the time of the step.
    pub mean: f32,
}

/// The measurements of one step that a predictor of a level learns from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The quantity as a level, before it is rounded up.
    pub level: Stat,
    /// I/O operations a second; zero if not measured. Only the predictor with an LSTM network uses it.
    pub iops: Stat,
}

impl Reading {
    /// Returns a reading in which the level was constant, without I/O operations.
    #[must_use]
    pub fn flat(level: f32) -> Self {
        Self { level: Stat { max: level, min: level, mean: level }, iops: Stat::default() }
    }
}

/// A predictor of the level that will be needed. It learns from one reading for each step.
pub trait Predictor {
    /// Records the next step; a predictor that learns does so now.
    fn observe(&mut self, reading: &Reading);

    /// Returns the level that will be needed, by the steps so far. A higher `setting` never gives a lower
    /// level: it covers more needs and wastes more.
    fn forecast(&self, setting: f32) -> Level;

    /// Returns the memory that the predictor takes, in bytes.
    fn bytes(&self) -> usize;
}

/// Rounds up to a whole level. A value less than 0.001 above a whole level counts as that level, so that
/// rounding errors of sums do not cost a level. 0 for a negative value or NaN; at most 65,535.
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
