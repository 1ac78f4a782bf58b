//! The predictors that any engineer would try first: they learn nothing.
//!
//! Each takes one *setting*, the argument of [`Predictor::forecast`], which trades coverage for waste. So a predictor
//! that has seen a series once can forecast for every setting, and one pass over the series gives its whole curve of
//! coverage and waste.

use super::level::{Level, Predictor, Reading, level_above};
use std::collections::VecDeque;

/// A predictor that forecasts the last step's highest level times `1 + setting`, rounded up. In BlockFlex the setting
/// is 0.05.
#[derive(Clone, Debug, Default)]
pub struct Margin(f32);

/// A predictor that forecasts the last step's highest level, rounded up, plus `setting` levels.
#[derive(Clone, Debug, Default)]
pub struct Added(f32);

/// A predictor that forecasts the highest level of the last `setting` steps (at least 1).
#[derive(Clone, Debug)]
pub struct Highest(Window);

/// A predictor that forecasts a quantile: the share `setting` (0 to 1) of the steps in a window had a highest level no
/// greater than the forecast.
#[derive(Clone, Debug)]
pub struct Quantile {
    window: Window,
    /// Its levels, ascending.
    sorted: Vec<f32>,
}

/// A predictor that forecasts the exponentially weighted mean of the level plus `setting` times its standard deviation,
/// rounded up.
#[derive(Clone, Debug)]
pub struct Smooth {
    /// The weight of a new level, 0 to 1.
    weight: f32,
    mean: Option<f32>,
    variance: f32,
}

/// The last levels, up to a number of them.
#[derive(Clone, Debug)]
struct Window {
    levels: VecDeque<f32>,
    length: usize,
}

impl Window {
    /// A window of at most `length` steps, at least one.
    fn new(length: usize) -> Self {
        Self { levels: VecDeque::new(), length: length.max(1) }
    }

    /// Takes a level; returns the one that leaves for it.
    fn push(&mut self, level: f32) -> Option<f32> {
        let left = if self.levels.len() == self.length { self.levels.pop_front() } else { None };
        self.levels.push_back(level);
        left
    }

    fn bytes(&self) -> usize {
        self.levels.capacity() * size_of::<f32>()
    }
}

impl Highest {
    /// Returns a predictor that remembers `length` steps, at least 1. A setting above `length` has the effect
    /// of `length`.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self(Window::new(length))
    }
}

impl Quantile {
    /// Returns a predictor over the last `length` steps, at least 1.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { window: Window::new(length), sorted: Vec::new() }
    }

    /// The place of a level in the order, present or not.
    fn place(&self, level: f32) -> usize {
        self.sorted.partition_point(|other| other.total_cmp(&level).is_lt())
    }
}

impl Smooth {
    /// Returns a predictor in which each new level has `weight`, 0 to 1; the mean so far has the rest.
    #[must_use]
    pub fn new(weight: f32) -> Self {
        Self { weight: weight.clamp(0.0, 1.0), mean: None, variance: 0.0 }
    }
}

impl Predictor for Margin {
    fn observe(&mut self, reading: &Reading) {
        self.0 = reading.level.max;
    }

    fn forecast(&self, setting: f32) -> Level {
        level_above(self.0 * (1.0 + setting))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}

impl Predictor for Added {
    fn observe(&mut self, reading: &Reading) {
        self.0 = reading.level.max;
    }

    fn forecast(&self, setting: f32) -> Level {
        level_above(self.0.ceil() + setting)
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}

impl Predictor for Highest {
    fn observe(&mut self, reading: &Reading) {
        self.0.push(reading.level.max);
    }

    fn forecast(&self, setting: f32) -> Level {
        let steps = usize::from(level_above(setting)).max(1);
        level_above(self.0.levels.iter().rev().take(steps).copied().fold(0.0, f32::max))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.0.bytes()
    }
}

impl Predictor for Quantile {
    fn observe(&mut self, reading: &Reading) {
        let level = reading.level.max;
        if let Some(left) = self.window.push(level) {
            let place = self.place(left);
            self.sorted.remove(place);
        }
        let place = self.place(level);
        self.sorted.insert(place, level);
    }

    #[expect(clippy::cast_precision_loss, reason = "a window's length")]
    fn forecast(&self, setting: f32) -> Level {
        let rank = usize::from(level_above(setting.clamp(0.0, 1.0) * self.sorted.len() as f32)).max(1) - 1;
        self.sorted.get(rank).or(self.sorted.last()).map_or(0, |level| level_above(*level))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.window.bytes() + self.sorted.capacity() * size_of::<f32>()
    }
}

impl Predictor for Smooth {
    fn observe(&mut self, reading: &Reading) {
        let level = reading.level.max;
        let mean = self.mean.unwrap_or(level);
        let off = level - mean;
        self.mean = Some(mean + self.weight * off);
        self.variance = (1.0 - self.weight) * (self.variance + self.weight * off * off);
    }

    fn forecast(&self, setting: f32) -> Level {
        level_above(self.mean.unwrap_or(0.0) + setting * self.variance.sqrt())
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(mut predictor: impl Predictor, levels: &[f32], setting: f32) -> Level {
        for &level in levels {
            predictor.observe(&Reading::flat(level));
        }
        predictor.forecast(setting)
    }

    #[test]
    fn each_says_what_it_is() {
        assert_eq!(told(Margin::default(), &[1.0, 4.0], 0.05), 5);
        assert_eq!(told(Margin::default(), &[4.0, 0.0], 0.05), 0);
        assert_eq!(told(Margin::default(), &[20.0], 0.05), 21);
        assert_eq!(told(Added::default(), &[1.0, 4.0], 2.0), 6);
        assert_eq!(told(Highest::new(10), &[7.0, 4.0, 5.0, 1.0], 3.0), 5);
        assert_eq!(told(Highest::new(2), &[7.0, 4.0, 5.0, 1.0], 3.0), 5);
        assert_eq!(told(Quantile::new(4), &[9.0, 4.0, 1.0, 2.0, 3.0], 0.5), 2);
        assert_eq!(told(Quantile::new(4), &[9.0, 4.0, 1.0, 2.0, 3.0], 1.0), 4);
        assert_eq!(told(Smooth::new(0.5), &[2.0, 2.0], 3.0), 2);
        assert_eq!(told(Smooth::new(0.5), &[0.0, 4.0], 0.0), 2);
        assert_eq!(told(Smooth::new(0.5), &[0.0, 4.0], 1.0), 4);
    }

    #[test]
    fn plain_predictors_without_samples_forecast_zero() {
        assert_eq!(Margin::default().forecast(0.05), 0);
        assert_eq!(Quantile::new(3).forecast(0.9), 0);
        assert_eq!(Highest::new(3).forecast(2.0), 0);
        assert_eq!(Smooth::new(0.1).forecast(2.0), 0);
    }
}
