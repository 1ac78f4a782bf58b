//! All predictors of one vSSD together: samples in, forecasts out.
//!
//! Every three minutes the vSSD is sampled; each predictor sees the sample and learns from it. A forecast gives the
//! amount that will be needed (demand) or can be spared (supply) and its duration, as in figure 13 of the BlockFlex
//! paper (Reidys et al., OSDI 2022). The longer of the two durations counts for demand, the shorter for supply:
//!
//! ```text
//! sample -> bandwidth's predictor -> level -> its sub-predictor -> duration \
//!                                                                            longest (demand), shortest (supply)
//!        -> capacity's predictor  -> level -> its sub-predictor -> duration /
//! ```
//!
//! [`PredictorKind`] chooses the predictors: [`PredictorKind::Steps`] are those that the scores of `lab/predictors`
//! (`score::choose`) select on public series of demand. A forecast *covers* if it is not below the need, and its excess
//! above the need is *waste*. A learned predictor is chosen only if, at the same share of forecasts that cover, it
//! wastes at least 10% less than every plain one on series that it has not seen. In the table, "at 95%" means: with a
//! setting at which 95% of the forecasts cover.
//!
//! | quantity | horizon | chosen predictor | reason |
//! |---|---|---|---|
//! | bandwidth | 3 minutes | the highest of 2 steps | at 95% the learned one wastes about as much (-1 to 11% less) |
//! | bandwidth | 15 minutes | the last level and 2 more | at 95% the learned one wastes more |
//! | capacity | 3 minutes | [`DemandCounts`], setting 12 | at 99% it wastes 57-71% less than every plain one |
//! | capacity | 15 minutes | [`DemandCounts`], setting 24 | at 99% it wastes 18-37% less than every plain one |
//! | durations | | a quantile of the last 100 lengths | at 93% the LSTM wastes 5-13% more (supply) |
//!
//! A forecast of bandwidth must cover the need 95 times of 100: if it does not, the regular VM's I/O still goes first.
//! A forecast of capacity must cover it 99 times: if it does not, blocks have to be migrated. For a horizon of more
//! than one step, the forecast is of the highest need until the horizon, because a lease has to meet that need. The
//! paper's LSTMs (`lab/predictors`) are far behind the plain predictors on these series: they learn from one sample
//! each three minutes, and a level changes every half hour. So they are not in this crate;
//! [`Forecaster::with_predictors`] runs them, or any others, in place of the product's.
//!
//! In one of eight comparisons of durations an LSTM is better than the quantile: the time for which capacity is enough,
//! on the side of demand, at 80% coverage (12-29% less waste). At 93% and 95% coverage it is not better, so the
//! quantile is chosen in that case too.
//!
//! The duration of spare storage is about as certain as requested. For a vSSD with the load of one public series of
//! each kind, of the forecasts with `certainty` 0.5, 0.8, 0.9 and 0.95, storage stayed spare for as long as forecast in
//! 47-56%, 79-82%, 89-91% and 94-96%. The price is in the length: 97-98%, 68-81%, 50-62% and 31-44% of these forecasts
//! were of 30 minutes or more. Of those, 93-97% did last 30 minutes, whatever the certainty: the limit is in the
//! forecasts of levels, not of durations.
//!
//! Therefore [`PredictorKind::Default`] does not lend by these forecasts, but lends the storage that was spare for
//! weeks ([`spare`](super::spare)).

use super::counts::{DemandCounts, Need, RECENT};
use super::duration::{Lasting, LengthQuantile, Stretches};
use super::level::{HIGHEST, Level, Predictor, Quantity, Reading, Side, Stat, level_above};
use super::plain::{Added, Highest};
use super::spare::{LASTS, Peak};
use headstart_block::exact;
use std::time::Duration;

/// The length of a step, the interval at which vSSDs are measured and predictors learn: three minutes
/// (BlockFlex paper, section 4.4.2).
pub const STEP: Duration = Duration::from_secs(3 * 60);

/// The measurements of a vSSD during one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Bandwidth used, in multiples of one channel's bandwidth.
    pub bandwidth: Stat,
    /// I/O operations a second.
    pub iops: Stat,
    /// Capacity used, in flash blocks.
    pub used: Stat,
}

/// A forecast: the bandwidth and capacity that a vSSD will need or can spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Bandwidth, as a number of channels.
    pub bandwidth: u16,
    /// Capacity, in flash blocks.
    pub capacity: u32,
    /// The duration, from now on, for which no more is needed or for which this much can be spared.
    pub lasts: Duration,
}

/// The choice of the predictors that a [`Forecaster`] uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PredictorKind {
    /// For spare capacity, the flash blocks that were not used in any of the latest [`ForecastSettings::window`] steps
    /// (four weeks by default), less the share [`ForecastSettings::kept_back`]. For spare bandwidth, the channels that
    /// were not used in the latest 5 steps. For needs, the same predictors as [`Self::Steps`].
    #[default]
    Default,
    /// The predictors with the best scores on series that they had not seen, for forecasts of some steps (of
    /// [`STEP`] each) ahead.
    Steps,
    /// For capacity, a predictor of levels that does not learn: the last level and one more. For bandwidth and for
    /// durations, the same predictors as [`Self::Steps`].
    Plain,
}

/// The settings of a [`Forecaster`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForecastSettings {
    /// Number of channels that the vSSD owns or may use at most.
    pub channels: u16,
    /// Number of flash blocks that the vSSD owns or may use at most.
    pub blocks: u32,
    /// Number of flash blocks in a unit of capacity; forecasts of need are whole units. Raised if it is 0, or
    /// so small that there would be more than [`HIGHEST`] units.
    pub unit: u32,
    /// Number of steps that forecasts look ahead: 1 is three minutes, 5 are 15 minutes. 0 counts as 1.
    pub horizon: usize,
    /// The choice of predictors.
    pub kind: PredictorKind,
    /// The share of past durations that a forecast's duration must suit, 0 to 1. At 0.95, spare flash lasted at least
    /// as long as the forecast's duration in 95% of the past cases, and a need lasted no longer than that in 95%.
    /// Without effect on the spare flash that [`PredictorKind::Default`] forecasts.
    pub certainty: f32,
    /// Number of latest steps in which [`PredictorKind::Default`] looks for flash that was never used. Such flash
    /// counts as spare.
    pub window: usize,
    /// The share of spare capacity that [`PredictorKind::Default`] keeps back as a margin, 0 to 1. The 5% of the
    /// BlockFlex paper (section 4.4.3) are for forecasts of minutes, so the default is higher.
    pub kept_back: f32,
}

impl Default for ForecastSettings {
    /// A device of 16 channels and 1 TiB (BlockFlex, section 4.6), units of 16 GiB, 15 minutes ahead, four weeks back.
    fn default() -> Self {
        Self {
            channels: 16,
            blocks: 16 * 4 * 4 * 1024,
            unit: 4 * 1024,
            horizon: 5,
            kind: PredictorKind::Default,
            certainty: 0.95,
            window: FOUR_WEEKS,
            kept_back: 0.2,
        }
    }
}

/// Four weeks, in steps.
const FOUR_WEEKS: usize = 28 * 24 * 20;
/// Bandwidth that can be spared: the highest of 15 minutes.
const RECENT_STEPS: usize = 5;

/// Bandwidth, one step ahead: the number of steps whose highest is forecast.
const STEPS_NEAR: f32 = 2.0;
/// Bandwidth, further ahead: the number of levels above the last.
const MORE_FAR: f32 = 2.0;
/// Capacity, one step ahead: the number of levels of waste that a miss is worth.
const PRICE_NEAR: f32 = 12.0;
/// The same further ahead.
const PRICE_FAR: f32 = 24.0;
/// Durations: the number of lengths that are looked at.
const LENGTHS: usize = 100;

/// The predictors of one quantity, bandwidth or capacity.
pub struct Predictors {
    /// The predictor of the level that will be needed.
    pub level: Box<dyn Predictor + Send>,
    /// The setting that the level's predictor is called with; each predictor defines its meaning.
    pub setting: f32,
    /// The predictor of the duration for which that level will be enough.
    pub lasting: Box<dyn Lasting + Send>,
}

impl Predictors {
    /// The product's predictors of a quantity, by the settings' kind.
    fn of_the_product(quantity: Quantity, settings: &ForecastSettings) -> Self {
        let (horizon, near) = (settings.horizon.max(1), settings.horizon <= 1);
        let (level, setting): (Box<dyn Predictor + Send>, f32) = match (settings.kind, quantity) {
            (PredictorKind::Default | PredictorKind::Steps, Quantity::Capacity) => {
                let price = if near { PRICE_NEAR } else { PRICE_FAR };
                (Box::new(DemandCounts::new(horizon, Need::Within)), price)
            }
            (PredictorKind::Plain, Quantity::Capacity) => (Box::<Added>::default(), 1.0),
            (_, Quantity::Bandwidth) if near => (Box::new(Highest::new(RECENT)), STEPS_NEAR),
            (_, Quantity::Bandwidth) => (Box::<Added>::default(), MORE_FAR),
        };
        Self { level, setting, lasting: Box::new(LengthQuantile::new(LENGTHS)) }
    }
}

/// The predictors of one quantity, and the state of the level that they predict.
struct Half {
    predictors: Predictors,
    stretches: Stretches,
    /// The most that there is of it.
    highest: Level,
}

/// Forecasts the need and the spare flash of one vSSD from its measurements.
pub struct Forecaster {
    settings: ForecastSettings,
    /// `true` if supply is the storage that was spare for weeks, and not what the predictors leave.
    supplies_spare: bool,
    bandwidth: Half,
    capacity: Half,
    /// The most channels, and blocks, used of late.
    peaks: [Peak; 2],
}

impl Half {
    fn new(predictors: Predictors, highest: Level) -> Self {
        Self { predictors, stretches: Stretches::new(highest), highest }
    }

    fn observe(&mut self, reading: &Reading) {
        let Predictors { level, lasting, .. } = &mut self.predictors;
        level.observe(reading);
        let level = level_above(reading.level.max).min(self.highest);
        self.stretches.needed(level, STEP, |level, length| lasting.ended(level, length));
    }

    /// The level that will be needed, and the time for which no more will be.
    fn forecast(&self, care: f32) -> (Level, Duration) {
        let Predictors { level, setting, lasting } = &self.predictors;
        let level = level.forecast(*setting).min(self.highest);
        (level, lasting.forecast(level, self.stretches.age(level), care))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.predictors.level.bytes()
            + self.predictors.lasting.bytes()
            + (usize::from(self.highest) + 1) * size_of::<Duration>()
    }
}

/// The highest number that a sample may hold; NaN counts as 0. A network would never recover from either.
const MOST: f32 = 1e9;

fn scaled(stat: Stat, by: f32) -> Stat {
    let scaled = |number: f32| if number.is_nan() { 0.0 } else { number.clamp(0.0, MOST) * by };
    Stat { max: scaled(stat.max), min: scaled(stat.min), mean: scaled(stat.mean) }
}

impl Forecaster {
    /// Returns a forecaster with the predictors of `settings.kind`, before any measurement.
    #[must_use]
    pub fn new(settings: ForecastSettings) -> Self {
        let of_the_product = |quantity, _highest| Predictors::of_the_product(quantity, &settings);
        let supplies_spare = settings.kind == PredictorKind::Default;
        Self { supplies_spare, ..Self::with_predictors(settings, of_the_product) }
    }

    /// Returns a forecaster with predictors of the caller's choice, before any measurement. `settings.kind`,
    /// `settings.window` and `settings.kept_back` have no effect.
    ///
    /// `predictors` is called once for each quantity, with the quantity and its highest level, and returns the
    /// predictors of that quantity.
    pub fn with_predictors(
        mut settings: ForecastSettings,
        mut predictors: impl FnMut(Quantity, Level) -> Predictors,
    ) -> Self {
        settings.unit = settings.unit.max(settings.blocks.div_ceil(HIGHEST.into())).max(1);
        let units =
            exact(settings.blocks.div_ceil(settings.unit), "the unit is so large that HIGHEST are enough");
        let mut half = |quantity, highest| Half::new(predictors(quantity, highest), highest);
        Self {
            supplies_spare: false,
            bandwidth: half(Quantity::Bandwidth, settings.channels.min(HIGHEST)),
            capacity: half(Quantity::Capacity, units),
            peaks: [RECENT_STEPS, settings.window].map(Peak::new),
            settings,
        }
    }

    /// Records the measurements of the next step; the predictors learn from it.
    #[expect(clippy::cast_precision_loss, reason = "samples are f32")]
    pub fn observe(&mut self, sample: &Sample) {
        let iops = scaled(sample.iops, 1.0);
        for (peak, used) in self.peaks.iter_mut().zip([sample.bandwidth, sample.used]) {
            peak.push(scaled(used, 1.0).max);
        }
        self.bandwidth.observe(&Reading { level: scaled(sample.bandwidth, 1.0), iops });
        self.capacity.observe(&Reading { level: scaled(sample.used, 1.0 / self.settings.unit as f32), iops });
    }

    /// Forecasts this vSSD's need ([`Side::Demand`]) or spare flash ([`Side::Supply`]) over the horizon of
    /// the settings.
    ///
    /// Before the first measurement the duration of the forecast is zero. [`PredictorKind::Default`] forecasts spare
    /// flash for [`LASTS`], whatever the horizon.
    #[must_use]
    pub fn forecast(&self, side: Side) -> Forecast {
        self.forecast_with(side, self.settings.certainty)
    }

    /// Does the same as [`Self::forecast`], with `certainty` (0 to 1) in place of that of the settings. For the spare
    /// flash of [`PredictorKind::Default`] it makes no difference.
    #[must_use]
    pub fn forecast_with(&self, side: Side, certainty: f32) -> Forecast {
        if self.supplies_spare && side == Side::Supply {
            return self.spare();
        }
        let certainty = certainty.clamp(0.0, 1.0);
        // Supply is promised for the time that all but a few lasted; demand, for the time until all but a few had
        // ended.
        let care = if side == Side::Supply { certainty } else { 1.0 - certainty };
        let (channels, channels_last) = self.bandwidth.forecast(care);
        let (units, units_last) = self.capacity.forecast(care);
        let blocks = u32::from(units).saturating_mul(self.settings.unit).min(self.settings.blocks);
        match side {
            Side::Demand => {
                Forecast { bandwidth: channels, capacity: blocks, lasts: channels_last.max(units_last) }
            }
            Side::Supply => Forecast {
                bandwidth: self.settings.channels.saturating_sub(channels),
                capacity: self.settings.blocks - blocks,
                lasts: channels_last.min(units_last),
            },
        }
    }

    /// The storage that was not used of late, less the part that is kept back.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within what there is")]
    fn spare(&self) -> Forecast {
        let [Some(channels), Some(blocks)] = [&self.peaks[0], &self.peaks[1]].map(Peak::get) else {
            return Forecast { bandwidth: 0, capacity: 0, lasts: Duration::ZERO };
        };
        let free = f64::from(self.settings.blocks) - f64::from(blocks);
        let less = 1.0 - f64::from(self.settings.kept_back.clamp(0.0, 1.0));
        Forecast {
            bandwidth: self.settings.channels.saturating_sub(channels.ceil() as u16),
            capacity: (free.max(0.0) * less) as u32,
            lasts: LASTS,
        }
    }

    /// Returns the memory that all predictors take, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let peaks: usize = self.peaks.iter().map(Peak::bytes).sum();
        size_of::<Self>() + self.bandwidth.bytes() + self.capacity.bytes() + peaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(bandwidth: f32, used: f32) -> Sample {
        let flat = |level| Stat { max: level, min: level, mean: level };
        Sample { bandwidth: flat(bandwidth), iops: flat(100.0 * bandwidth), used: flat(used) }
    }

    fn told(settings: ForecastSettings, steps: u16) -> Forecaster {
        let mut forecaster = Forecaster::new(settings);
        // An hour of each of two loads.
        (0..steps).for_each(|step| {
            let busy = step / 20 % 2 == 1;
            forecaster.observe(&if busy { sample(4.0, 80_000.0) } else { sample(1.0, 40_000.0) });
        });
        forecaster
    }

    #[test]
    fn every_kind_of_forecaster_stays_near_its_samples() {
        for kind in [PredictorKind::Steps, PredictorKind::Plain] {
            for horizon in [0, 1, 5] {
                let forecaster = told(ForecastSettings { kind, horizon, ..ForecastSettings::default() }, 390);
                let demand = forecaster.forecast(Side::Demand);
                assert!((4..8).contains(&demand.bandwidth), "{kind:?} {horizon}: {demand:?}");
                assert!((80_000..100_000).contains(&demand.capacity), "{kind:?} {horizon}: {demand:?}");
                let supply = forecaster.forecast(Side::Supply);
                assert_eq!(supply.bandwidth, 16 - demand.bandwidth);
                assert_eq!(supply.capacity, 262_144 - demand.capacity);
                assert!(supply.lasts <= demand.lasts);
                assert!(forecaster.bytes() < 1_700_000, "{kind:?}: {}", forecaster.bytes());
            }
        }
    }

    #[test]
    fn spare_lasts_until_the_owner_comes_back() {
        // Twelve minutes into the quiet hour, at one channel: 48 are left.
        let settings =
            ForecastSettings { kind: PredictorKind::Plain, horizon: 1, ..ForecastSettings::default() };
        let mut forecaster = told(settings, 600);
        (0..4).for_each(|_| forecaster.observe(&sample(1.0, 40_000.0)));
        let (level, lasts) = forecaster.bandwidth.forecast(0.5);
        assert_eq!((level, lasts), (1, Duration::from_secs(48 * 60)));
    }

    #[test]
    fn the_wildest_load_fits_in_memory() {
        let settings = ForecastSettings { channels: 64, unit: 1, ..ForecastSettings::default() };
        let mut forecaster = Forecaster::new(settings);
        let mut random = headstart_block::random::Random::new(3);
        for _ in 0..50_000 {
            let mut level = || f32::from(u8::try_from(random.below(65)).unwrap());
            forecaster.observe(&sample(level(), level() * 4096.0));
        }
        assert!(forecaster.bytes() < 1_700_000, "{}", forecaster.bytes());
    }

    #[test]
    fn four_fifths_of_long_free_flash_are_lent() {
        let settings = ForecastSettings { window: 390, ..ForecastSettings::default() };
        let supply = told(settings, 390).forecast(Side::Supply);
        assert_eq!(supply.capacity, (262_144 - 80_000) * 4 / 5);
        assert_eq!((supply.bandwidth, supply.lasts), (12, LASTS));
        // Use before the window does not count.
        let short = ForecastSettings { window: 10, kept_back: 0.0, ..settings };
        assert_eq!(told(short, 420).forecast(Side::Supply).capacity, 262_144 - 40_000);
    }

    #[test]
    fn a_forecaster_without_samples_promises_nothing() {
        for kind in [PredictorKind::Default, PredictorKind::Steps, PredictorKind::Plain] {
            let forecaster = Forecaster::new(ForecastSettings { kind, ..ForecastSettings::default() });
            assert_eq!(forecaster.forecast(Side::Supply).lasts, Duration::ZERO);
        }
    }

    #[test]
    fn odd_settings_and_samples_do_no_harm() {
        for (channels, blocks, unit) in [(0, 0, 0), (u16::MAX, u32::MAX, 1), (16, 100, 1000), (1, 64, 1)] {
            for kind in [PredictorKind::Default, PredictorKind::Steps, PredictorKind::Plain] {
                let settings = ForecastSettings {
                    channels,
                    blocks,
                    unit,
                    kind,
                    horizon: 2,
                    ..ForecastSettings::default()
                };
                let mut forecaster = Forecaster::new(settings);
                for level in [0.0, 3.0, f32::MAX, f32::NAN, -1.0, f32::INFINITY, 7.0, 1e9, 2.0, 0.5] {
                    forecaster.observe(&sample(level, level));
                    for side in [Side::Demand, Side::Supply] {
                        let forecast = forecaster.forecast(side);
                        assert!(
                            forecast.bandwidth <= channels && forecast.capacity <= blocks,
                            "{forecast:?}"
                        );
                    }
                }
            }
        }
    }
}
