//! All predictors of one vSSD together: samples in, forecasts out.
//!
//! Every three minutes the vSSD is sampled; each predictor sees the sample and learns from it. A forecast gives the
//! amount that will be needed (demand) or can be spared (supply) and its duration, as in the paper's figure 13:
//!
//! ```text
//! sample -> bandwidth's predictor -> level -> its sub-predictor -> duration \
//!                                                                            longest (demand), shortest (supply)
//!        -> capacity's predictor  -> level -> its sub-predictor -> duration /
//! ```
//!
//! [`Kind`] chooses the predictors: [`Kind::Steps`] are those that [`choose`](super::score::choose) selects on the
//! public series. A learned one ships only if it wastes at least 10% less than every plain one at equal coverage on
//! series that it has not seen:
//!
//! | quantity | horizon | ships | reason |
//! |---|---|---|---|
//! | bandwidth | 3 minutes | the highest of 2 steps | at 95% the learned one wastes about as much (-1 to 11% less) |
//! | bandwidth | 15 minutes | the last level and 2 more | at 95% the learned one wastes more |
//! | capacity | 3 minutes | [`Counts`], a miss worth 12 | at 99% it wastes 57-71% less than every plain one |
//! | capacity | 15 minutes | [`Counts`], a miss worth 24 | at 99% it wastes 18-37% less than every plain one |
//! | durations | | a quantile of the last 100 lengths | at 93% the LSTM wastes 5-13% more (supply) |
//!
//! Bandwidth is to be covered 95 times of 100: if it is not, the regular VM's I/O still goes first. Capacity is to be
//! covered 99 times: if it is not, blocks have to be migrated. Further than one step ahead the highest need until then
//! is forecast, because a lease has to bear that. The paper's LSTMs ([`Kind::Paper`]) are far behind the plain ones on
//! these series: they learn from one sample each three minutes, and a level changes every half hour.
//!
//! One of eight scores of durations is in favour of an LSTM: the duration for which capacity is enough, for demand, at
//! 80% coverage (12-29% less waste); at 93% and 95% it is not, so the quantile ships there too.
//!
//! The duration of spare storage is as certain as requested: of forecasts for a vSSD with the load of one public series
//! of each kind, with `certainty` 0.5, 0.8, 0.9, 0.95 there lasted 47-56%, 79-82%, 89-91%, 94-96% as long as forecast.
//! It is dear: 97-98%, 68-81%, 50-62%, 31-44% of those forecasts were of 30 minutes or more. Of those that were, 93-97%
//! did last 30 minutes, whatever the certainty: the limit is in the levels, not in the durations.
//!
//! Therefore [`Kind::Default`] does not lend by these forecasts, but by the storage that was spare for weeks
//! ([`spare`](super::spare)).

use super::counts::{Counts, Need, RECENT};
use super::duration::{Lasting, LengthLstm, LengthQuantile, NETWORKS, Stretches};
use super::level::{HIGHEST, Level, Predictor, Reading, Side, Stat, level_above};
use super::lstm::{LevelLstm, Quantity, Rule};
use super::plain::{Added, Highest};
use super::series::STEP;
use super::spare::{LASTS, Peak};
use std::time::Duration;

/// The measurements of a vSSD during one step of three minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Bandwidth used, in channels' worth of it.
    pub bandwidth: Stat,
    /// Operations a second.
    pub iops: Stat,
    /// Capacity used, in flash blocks.
    pub used: Stat,
}

/// The amount that will be needed, or can be spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Channels' worth of bandwidth.
    pub bandwidth: u16,
    /// Flash blocks.
    pub capacity: u32,
    /// The time for which that lasts: no more will be needed, or as much can be spared.
    pub lasts: Duration,
}

/// The kind of predictors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Supply: the storage that was spare for weeks. Demand: as `Steps`.
    #[default]
    Default,
    /// The predictors that are best on series that they have not seen, some steps ahead.
    Steps,
    /// The paper's predictors: LSTMs, with 5% of margin.
    Paper,
    /// Predictors that do not learn: the last level, with a margin.
    Plain,
}

/// The settings of a forecaster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Channels of the vSSD.
    pub channels: u16,
    /// Flash blocks of the vSSD.
    pub blocks: u32,
    /// Flash blocks in a unit of capacity: forecasts are whole numbers of units. At least one; the least is used with
    /// which there are no more than [`HIGHEST`] of them.
    pub unit: u32,
    /// Steps that it forecasts ahead: 1 (3 minutes) or more (5 are 15 minutes).
    pub horizon: usize,
    /// The kind of predictors.
    pub kind: Kind,
    /// The share of durations that are to be covered, 0 to 1.
    pub certainty: f32,
    /// The time for which [`Kind::Default`] looks back for spare storage, in steps.
    pub window: usize,
    /// The share of that which it keeps back, 0 to 1: the paper's 5% (section 4.4.3) are for minutes.
    pub kept_back: f32,
    /// The seed of random weights.
    pub seed: u64,
}

impl Default for Settings {
    /// A device of 16 channels and 1 TiB (BlockFlex, section 4.6), units of 16 GiB, 15 minutes ahead, four weeks back.
    fn default() -> Self {
        Self {
            channels: 16,
            blocks: 16 * 4 * 4 * 1024,
            unit: 4 * 1024,
            horizon: 5,
            kind: Kind::Default,
            certainty: 0.95,
            window: FOUR_WEEKS,
            kept_back: 0.2,
            seed: 1,
        }
    }
}

/// Four weeks, in steps.
const FOUR_WEEKS: usize = 28 * 24 * 20;
/// Bandwidth that can be spared: the highest of 15 minutes.
const RECENT_STEPS: usize = 5;

/// The paper's margin.
const MARGIN: f32 = 0.05;
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

/// The predictors of one quantity.
struct Half {
    level: Box<dyn Predictor + Send>,
    setting: f32,
    lasting: Box<dyn Lasting + Send>,
    stretches: Stretches,
    /// The most that there is of it.
    highest: Level,
}

/// The predictors of one vSSD.
pub struct Forecaster {
    settings: Settings,
    bandwidth: Half,
    capacity: Half,
    /// The most channels, and blocks, used of late.
    peaks: [Peak; 2],
}

impl Half {
    fn new(quantity: Quantity, highest: Level, settings: &Settings) -> Self {
        let (horizon, seed, near) = (settings.horizon.max(1), settings.seed, settings.horizon <= 1);
        let need = Need::Within;
        let (level, setting): (Box<dyn Predictor + Send>, f32) = match (settings.kind, quantity) {
            (Kind::Paper, _) => {
                let lstm = LevelLstm::new(quantity, Rule::Likeliest, highest, horizon, need, seed);
                (Box::new(lstm), MARGIN)
            }
            (Kind::Default | Kind::Steps, Quantity::Capacity) => {
                (Box::new(Counts::new(horizon, need)), if near { PRICE_NEAR } else { PRICE_FAR })
            }
            (Kind::Plain, Quantity::Capacity) => (Box::<Added>::default(), 1.0),
            (_, Quantity::Bandwidth) if near => (Box::new(Highest::new(RECENT)), STEPS_NEAR),
            (_, Quantity::Bandwidth) => (Box::<Added>::default(), MORE_FAR),
        };
        let lasting: Box<dyn Lasting + Send> = match settings.kind {
            Kind::Paper => Box::new(LengthLstm::new(quantity, NETWORKS, seed)),
            Kind::Default | Kind::Steps | Kind::Plain => Box::new(LengthQuantile::new(LENGTHS)),
        };
        Self { level, setting, lasting, stretches: Stretches::new(highest), highest }
    }

    fn observe(&mut self, reading: &Reading) {
        self.level.observe(reading);
        let level = level_above(reading.level.max).min(self.highest);
        self.stretches.needed(level, STEP, |level, length| self.lasting.ended(level, length));
    }

    /// The level that will be needed, and the time for which no more will be.
    fn forecast(&self, care: f32) -> (Level, Duration) {
        let level = self.level.forecast(self.setting).min(self.highest);
        (level, self.lasting.forecast(level, self.stretches.age(level), care))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.level.bytes()
            + self.lasting.bytes()
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
    /// A forecaster that has seen nothing.
    #[must_use]
    pub fn new(mut settings: Settings) -> Self {
        settings.unit = settings.unit.max(settings.blocks.div_ceil(HIGHEST.into())).max(1);
        let units = Level::try_from(settings.blocks.div_ceil(settings.unit)).unwrap_or(HIGHEST);
        Self {
            bandwidth: Half::new(Quantity::Bandwidth, settings.channels.min(HIGHEST), &settings),
            capacity: Half::new(Quantity::Capacity, units, &settings),
            peaks: [RECENT_STEPS, settings.window].map(Peak::new),
            settings,
        }
    }

    /// Takes the sample of the next step, and learns from it.
    #[expect(clippy::cast_precision_loss, reason = "samples are f32")]
    pub fn observe(&mut self, sample: &Sample) {
        let iops = scaled(sample.iops, 1.0);
        for (peak, used) in self.peaks.iter_mut().zip([sample.bandwidth, sample.used]) {
            peak.push(scaled(used, 1.0).max);
        }
        self.bandwidth.observe(&Reading { level: scaled(sample.bandwidth, 1.0), iops });
        self.capacity.observe(&Reading { level: scaled(sample.used, 1.0 / self.settings.unit as f32), iops });
    }

    /// The forecast of this vSSD's need, or its spare storage, one horizon from now, with its duration.
    ///
    /// Before the first sample nothing is needed, all is spare, and nothing lasts.
    #[must_use]
    pub fn forecast(&self, side: Side) -> Forecast {
        self.forecast_with(side, self.settings.certainty)
    }

    /// The same forecast with the share `certainty` (0 to 1) of durations to be covered, instead of the settings'.
    #[must_use]
    pub fn forecast_with(&self, side: Side, certainty: f32) -> Forecast {
        if (self.settings.kind, side) == (Kind::Default, Side::Supply) {
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

    /// The memory of all predictors, in bytes.
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

    fn told(settings: Settings, steps: u16) -> Forecaster {
        let mut forecaster = Forecaster::new(settings);
        // An hour of each of two loads.
        (0..steps).for_each(|step| {
            let busy = step / 20 % 2 == 1;
            forecaster.observe(&if busy { sample(4.0, 80_000.0) } else { sample(1.0, 40_000.0) });
        });
        forecaster
    }

    #[test]
    fn all_kinds_say_something_sensible() {
        for kind in [Kind::Steps, Kind::Plain, Kind::Paper] {
            for horizon in [0, 1, 5] {
                let forecaster = told(Settings { kind, horizon, ..Settings::default() }, 390);
                let demand = forecaster.forecast(Side::Demand);
                // The paper's predictors learn too slowly to promise anything after these few steps.
                if kind != Kind::Paper {
                    assert!((4..8).contains(&demand.bandwidth), "{kind:?} {horizon}: {demand:?}");
                    assert!((80_000..100_000).contains(&demand.capacity), "{kind:?} {horizon}: {demand:?}");
                }
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
        let settings = Settings { kind: Kind::Plain, horizon: 1, ..Settings::default() };
        let mut forecaster = told(settings, 600);
        (0..4).for_each(|_| forecaster.observe(&sample(1.0, 40_000.0)));
        let (level, lasts) = forecaster.bandwidth.forecast(0.5);
        assert_eq!((level, lasts), (1, Duration::from_secs(48 * 60)));
    }

    #[test]
    fn the_wildest_load_fits_in_memory() {
        let settings = Settings { channels: 64, unit: 1, ..Settings::default() };
        let mut forecaster = Forecaster::new(settings);
        let mut random = headstart_block::random::Random::new(3);
        for _ in 0..50_000 {
            let mut level = || f32::from(u8::try_from(random.below(65)).unwrap());
            forecaster.observe(&sample(level(), level() * 4096.0));
        }
        assert!(forecaster.bytes() < 1_700_000, "{}", forecaster.bytes());
    }

    #[test]
    fn what_was_free_for_weeks_is_lent_but_for_a_fifth() {
        let settings = Settings { window: 390, ..Settings::default() };
        let supply = told(settings, 390).forecast(Side::Supply);
        assert_eq!(supply.capacity, (262_144 - 80_000) * 4 / 5);
        assert_eq!((supply.bandwidth, supply.lasts), (12, LASTS));
        // Use before the window does not count.
        let short = Settings { window: 10, kept_back: 0.0, ..settings };
        assert_eq!(told(short, 420).forecast(Side::Supply).capacity, 262_144 - 40_000);
    }

    #[test]
    fn who_has_seen_nothing_promises_nothing() {
        for kind in [Kind::Default, Kind::Steps, Kind::Plain, Kind::Paper] {
            let forecaster = Forecaster::new(Settings { kind, ..Settings::default() });
            assert_eq!(forecaster.forecast(Side::Supply).lasts, Duration::ZERO);
        }
    }

    #[test]
    fn odd_settings_and_samples_do_no_harm() {
        for (channels, blocks, unit) in [(0, 0, 0), (u16::MAX, u32::MAX, 1), (16, 100, 1000), (1, 64, 1)] {
            for kind in [Kind::Default, Kind::Steps, Kind::Plain, Kind::Paper] {
                let settings = Settings { channels, blocks, unit, kind, horizon: 2, ..Settings::default() };
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
