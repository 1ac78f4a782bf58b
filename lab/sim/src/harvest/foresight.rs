//! The sources of forecasts for a simulated fleet: the product's predictors, or a clairvoyant that knows the future.
//!
//! The *clairvoyant* knows the future use of a home (a lender), and forecasts the gSSD (loan of storage) with the
//! highest value. For each span that begins now and is no longer than nine days, the value is the capacity that stays
//! free throughout, in whole grains, times the length of the span. The clairvoyant drives the same broker under the
//! same rules, so its gain can be reached; the bound in [`super::ceiling`] cannot be reached.

use super::course::{Course, STEP, Seconds, Window};
use super::fleet::{DAY, HarvestVm};
use super::regular::seconds;
use headstart_block::saturating;
use headstart_forecast::{Forecast, ForecastSettings, Forecaster, PredictorKind, Sample, Side, Stat};
use headstart_predictors::paper;
use std::time::Duration;

/// The number of flash blocks of a channel.
pub const CHANNEL_BLOCKS: u32 = 16_384;
/// The number of flash blocks of a GB.
pub const GB_BLOCKS: u32 = 256;

/// The longest time that any harvest VM asks for.
const FARTHEST: Seconds = 9 * DAY;

/// The source of forecasts of the storage that homes (lenders) can spare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Foresight {
    /// The product's predictors with these settings; channels, blocks and unit of capacity are replaced by
    /// those of each vSSD (virtual SSD).
    Product(ForecastSettings),
    /// BlockFlex's predictors (OSDI 2022) in the product's forecaster; channels, blocks and unit of capacity
    /// are replaced by those of each vSSD (virtual SSD).
    Paper(ForecastSettings),
    /// The future itself: forecasts that always come true.
    Clairvoyant,
}

impl Foresight {
    /// Returns the product's predictors of the given kind, with their shipped settings.
    #[must_use]
    pub fn product(kind: PredictorKind) -> Self {
        Self::Product(ForecastSettings { kind, ..ForecastSettings::default() })
    }
}

/// The forecaster of one vSSD.
pub(super) enum Seer {
    Product(Box<Forecaster>),
    /// The last forecast, and the time until which it holds.
    Clairvoyant(Option<(Forecast, Seconds)>),
}

/// The storage that a vSSD owns, and its use in shares of that.
pub(super) struct Owned<'a> {
    pub(super) channels: u16,
    pub(super) blocks: u32,
    pub(super) bandwidth: &'a Course,
    pub(super) capacity: &'a Course,
}

impl Seer {
    pub(super) fn new(foresight: Foresight, channels: u16, seed: u64) -> Self {
        let (blocks, unit) = (u32::from(channels) * CHANNEL_BLOCKS, 16 * GB_BLOCKS);
        let of = |settings| ForecastSettings { channels, blocks, unit, ..settings };
        match foresight {
            Foresight::Product(settings) => Self::Product(Box::new(Forecaster::new(of(settings)))),
            Foresight::Paper(settings) => Self::Product(Box::new(paper::forecaster(of(settings), seed))),
            Foresight::Clairvoyant => Self::Clairvoyant(None),
        }
    }

    /// Takes the use in the step before `now`.
    pub(super) fn observe(&mut self, owned: &Owned<'_>, now: Seconds) {
        let from = now.saturating_sub(STEP);
        let (bandwidth_used, used) = (owned.bandwidth.over(from, now), owned.capacity.over(from, now));
        match self {
            Self::Product(forecaster) => {
                #[expect(clippy::cast_precision_loss, reason = "samples are f32")]
                let blocks = owned.blocks as f32;
                let channels = f32::from(owned.channels);
                // Demand series have no operations: they are estimated as pages of 16 KiB at a channel's 70 MB/s.
                forecaster.observe(&Sample {
                    bandwidth: stat(bandwidth_used, channels),
                    iops: stat(bandwidth_used, channels * 4272.0),
                    used: stat(used, blocks),
                });
            }
            Self::Clairvoyant(_) => {}
        }
    }

    /// The forecast of the storage that a home can spare.
    pub(super) fn supply(&mut self, owned: &Owned<'_>, now: Seconds, end: Seconds, grain: u32) -> Forecast {
        match self {
            Self::Product(forecaster) => forecaster.forecast(Side::Supply),
            // A lease whose storage stays free gets a new date before it ends.
            Self::Clairvoyant(Some((forecast, until))) if *until > now + 2 * STEP => {
                let left = Duration::from_secs(u64::from(*until - now));
                Forecast { lasts: left, ..*forecast }
            }
            Self::Clairvoyant(said) => {
                let (capacity, lasts) = best(owned, now, end, grain);
                let used = owned.bandwidth.over(now, now + STEP).max * f32::from(owned.channels);
                let used = saturating(seconds(f64::from(used).ceil()));
                let forecast = Forecast {
                    bandwidth: owned.channels.saturating_sub(used),
                    capacity,
                    lasts: Duration::from_secs(u64::from(lasts)),
                };
                *said = Some((forecast, now + lasts));
                forecast
            }
        }
    }
}

fn stat(window: Window, times: f32) -> Stat {
    Stat { max: window.max * times, min: window.min * times, mean: window.mean * times }
}

/// Flash blocks, in whole grains, and seconds of the while from now on with the greatest product of both.
fn best(owned: &Owned<'_>, now: Seconds, end: Seconds, grain: u32) -> (u32, Seconds) {
    let steps = owned.capacity.steps();
    let first = steps.partition_point(|(at, _)| *at <= now).saturating_sub(1);
    let (mut used, mut most) = (0.0_f32, (0, 0));
    let farthest = now + FARTHEST;
    for (n, (at, level)) in steps.iter().enumerate().skip(first) {
        if *at >= farthest {
            break;
        }
        used = used.max(*level);
        let free = seconds(f64::from(owned.blocks) * (1.0 - f64::from(used))) / grain * grain;
        if free == 0 {
            break;
        }
        // After the end of the watched span nothing changes.
        let until = steps.get(n + 1).map_or(farthest, |(next, _)| *next).min(farthest);
        let until = if until >= end { farthest } else { until };
        let lasts = until - now;
        if u64::from(free) * u64::from(lasts) > u64::from(most.0) * u64::from(most.1) {
            most = (free, lasts);
        }
    }
    most
}

/// The size of a harvest VM's request, in flash blocks.
pub(super) fn blocks(request: &HarvestVm) -> u32 {
    request.gigabytes * GB_BLOCKS
}
