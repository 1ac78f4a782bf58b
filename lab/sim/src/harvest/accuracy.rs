//! The share of forecasts that cover the need, by provisioning ratio (BlockFlex, section 4.4.3, figure 14).
//!
//! A forecast of a level covers the need if the level that was needed is not higher. A forecast of a duration covers it
//! if the level lasted for at least that duration. The provisioning ratio is a share of the forecast: a level is raised
//! by that share of itself, a duration is shortened by it. Levels count a VM's own channels (bandwidth) or units of 16
//! GB (capacity).

use super::course::{Course, STEP, Seconds};
use super::fleet::Fleet;
use headstart_block::exact;
use headstart_forecast::duration::{LastLength, Lasting};
use headstart_forecast::level::level_above;
use headstart_forecast::plain::Margin;
use headstart_forecast::{Level, Need, Predictor, Quantity, Reading, Stat};
use headstart_predictors::{LengthLstm, LevelLstm, LevelRule, NETWORKS};
use serde::Serialize;
use std::time::Duration;

/// Provisioning ratios of figure 14 (BlockFlex, OSDI 2022): the margin that is added to forecast levels and
/// taken off forecast durations, as a share.
pub const RATIOS: [f32; 6] = [0.0, 0.05, 0.10, 0.15, 0.20, 0.30];
/// Horizons of the forecasts of levels, in steps of three minutes: 3 and 15 minutes.
pub const HORIZONS: [usize; 2] = [1, 5];

/// Accuracy of one predictor for one quantity: a line of figure 14 (BlockFlex, OSDI 2022).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictorAccuracy {
    /// The predicted quantity: `bandwidth` or `capacity` for levels, `bandwidth duration` or `capacity duration` for
    /// the durations of levels.
    pub what: &'static str,
    /// Name of the predictor: `last value` or `lstm`.
    pub predictor: &'static str,
    /// Horizon of the forecast in minutes; 0 for durations.
    pub minutes: usize,
    /// Share of the forecasts that cover the need, 0 to 1, for each of [`RATIOS`].
    pub covered: Vec<f64>,
    /// Waste of the forecasts that cover the need, relative to the sum of all needs, for each of [`RATIOS`]. The
    /// waste is the amount by which a forecast level is above the need, or a forecast duration below the real one.
    pub waste: Vec<f64>,
}

/// Counts for each ratio.
#[derive(Default)]
struct Sums {
    count: f64,
    needed: f64,
    covered: [f64; RATIOS.len()],
    waste: [f64; RATIOS.len()],
}

impl Sums {
    fn add(&mut self, needed: f64, said: impl Fn(f32) -> f64, covers: impl Fn(f64, f64) -> bool) {
        self.count += 1.0;
        self.needed += needed;
        for ((ratio, covered), waste) in RATIOS.into_iter().zip(&mut self.covered).zip(&mut self.waste) {
            let said = said(ratio);
            let right = covers(said, needed);
            *covered += f64::from(u8::from(right));
            *waste += if right { (said - needed).abs() } else { 0.0 };
        }
    }

    fn line(&self, what: &'static str, predictor: &'static str, minutes: usize) -> PredictorAccuracy {
        let share = |sums: &[f64], of: f64| sums.iter().map(|sum| sum / of.max(1e-9)).collect();
        let (covered, waste) = (share(&self.covered, self.count), share(&self.waste, self.needed));
        PredictorAccuracy { what, predictor, minutes, covered, waste }
    }
}

/// Measures the product's simplest predictor (the last value) and BlockFlex's predictors (LSTM networks) on the first
/// `vms` regular VMs of a fleet. Returns a line for each predictor, for each of bandwidth and capacity at each of
/// [`HORIZONS`], and for the duration of each.
#[must_use]
pub fn accuracy(fleet: &Fleet, vms: usize) -> Vec<PredictorAccuracy> {
    let span = fleet.settings.span();
    let mut lines = Vec::new();
    for (what, lasting, quantity) in [
        ("bandwidth", "bandwidth duration", Quantity::Bandwidth),
        ("capacity", "capacity duration", Quantity::Capacity),
    ] {
        let courses: Vec<(&Course, Level)> = fleet
            .vms
            .iter()
            .take(vms)
            .map(|vm| match quantity {
                Quantity::Bandwidth => (&vm.bandwidth, vm.channels),
                Quantity::Capacity => (&vm.capacity, vm.channels * 4),
            })
            .collect();
        for horizon in HORIZONS {
            let lstm =
                |highest| LevelLstm::new(quantity, LevelRule::Likeliest, highest, horizon, Need::At, 1);
            let plain = levels(&courses, span, horizon, |_| Margin::default());
            lines.push(plain.line(what, "last value", horizon * 3));
            lines.push(levels(&courses, span, horizon, lstm).line(what, "lstm", horizon * 3));
        }
        let plain = lengths(&courses, span, LastLength::default);
        lines.push(plain.line(lasting, "last value", 0));
        let lstm = || LengthLstm::new(quantity, NETWORKS, 1);
        lines.push(lengths(&courses, span, lstm).line(lasting, "lstm", 0));
    }
    lines
}

fn levels<P: Predictor>(
    courses: &[(&Course, Level)],
    span: Seconds,
    horizon: usize,
    make: impl Fn(Level) -> P,
) -> Sums {
    let mut sums = Sums::default();
    for (course, highest) in courses {
        let mut predictor = make(*highest);
        let owned = f32::from(*highest);
        let reading = |step: Seconds| {
            let window = course.over(step * STEP, (step + 1) * STEP);
            Stat { max: window.max * owned, min: window.min * owned, mean: window.mean * owned }
        };
        let ahead = exact(horizon, "steps are fewer than seconds, which have 32 bits");
        for step in 0..(span / STEP).saturating_sub(ahead) {
            let level = reading(step);
            predictor.observe(&Reading { level, iops: level });
            let needed = level_above(reading(step + ahead).max).min(*highest);
            let said = |ratio| f64::from(predictor.forecast(ratio).min(*highest));
            sums.add(needed.into(), said, |said, needed| said >= needed);
        }
    }
    sums
}

fn lengths<L: Lasting>(courses: &[(&Course, Level)], span: Seconds, make: impl Fn() -> L) -> Sums {
    let mut sums = Sums::default();
    for (course, highest) in courses {
        let mut lasting = make();
        let mut runs: Vec<(Level, Seconds)> = Vec::new();
        for (at, level) in course.steps().iter().filter(|(at, _)| *at < span) {
            let level = level_above(level * f32::from(*highest));
            if runs.last().is_none_or(|(last, _)| *last != level) {
                runs.push((level, *at));
            }
        }
        for two in runs.windows(2) {
            let [(level, from), (_, until)] = two else { continue };
            let length = Duration::from_secs(u64::from(until - from));
            let said = |ratio| lasting.forecast(*level, Duration::ZERO, ratio).as_secs_f64();
            sums.add(length.as_secs_f64(), said, |said, lasted| lasted >= said);
            lasting.ended(*level, length);
        }
    }
    sums
}
