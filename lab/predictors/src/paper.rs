//! The product's forecaster with the predictors of BlockFlex: LSTMs, with a margin of 5% (section 4.4 of the paper).

use super::duration::{LengthLstm, NETWORKS};
use super::lstm::{LevelLstm, LevelRule};
use headstart_forecast::{ForecastSettings, Forecaster, Need, Predictors};

/// The paper's margin.
const MARGIN: f32 = 0.05;

/// Creates the product's forecaster with BlockFlex's predictors (LSTMs, OSDI 2022), untrained and with random
/// weights from `seed`. The kind of predictor in `settings` is ignored.
#[must_use]
pub fn forecaster(settings: ForecastSettings, seed: u64) -> Forecaster {
    let horizon = settings.horizon.max(1);
    Forecaster::with_predictors(settings, |quantity, highest| Predictors {
        level: Box::new(LevelLstm::new(quantity, LevelRule::Likeliest, highest, horizon, Need::Within, seed)),
        setting: MARGIN,
        lasting: Box::new(LengthLstm::new(quantity, NETWORKS, seed)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_forecast::{Sample, Side, Stat};
    use std::time::Duration;

    fn sample(bandwidth: f32, used: f32) -> Sample {
        let flat = |level| Stat { max: level, min: level, mean: level };
        Sample { bandwidth: flat(bandwidth), iops: flat(100.0 * bandwidth), used: flat(used) }
    }

    #[test]
    fn supply_is_what_demand_leaves() {
        for horizon in [0, 1, 5] {
            let mut forecaster = forecaster(ForecastSettings { horizon, ..ForecastSettings::default() }, 1);
            // An hour of each of two loads.
            for step in 0..390 {
                let busy = step / 20 % 2 == 1;
                forecaster.observe(&if busy { sample(4.0, 80_000.0) } else { sample(1.0, 40_000.0) });
            }
            // The LSTMs learn too slowly to promise anything after these few steps.
            let (demand, supply) = (forecaster.forecast(Side::Demand), forecaster.forecast(Side::Supply));
            assert_eq!(supply.bandwidth, 16 - demand.bandwidth);
            assert_eq!(supply.capacity, 262_144 - demand.capacity);
            assert!(supply.lasts <= demand.lasts);
            assert!(forecaster.bytes() < 1_700_000, "{}", forecaster.bytes());
        }
    }

    #[test]
    fn no_supply_is_promised_before_the_first_sample() {
        let forecaster = forecaster(ForecastSettings::default(), 1);
        assert_eq!(forecaster.forecast(Side::Supply).lasts, Duration::ZERO);
    }

    #[test]
    fn odd_settings_and_samples_do_no_harm() {
        for (channels, blocks, unit) in [(0, 0, 0), (u16::MAX, u32::MAX, 1), (16, 100, 1000), (1, 64, 1)] {
            let settings =
                ForecastSettings { channels, blocks, unit, horizon: 2, ..ForecastSettings::default() };
            let mut forecaster = forecaster(settings, 1);
            for level in [0.0, 3.0, f32::MAX, f32::NAN, -1.0, f32::INFINITY, 7.0, 1e9, 2.0, 0.5] {
                forecaster.observe(&sample(level, level));
                for side in [Side::Demand, Side::Supply] {
                    let forecast = forecaster.forecast(side);
                    assert!(forecast.bandwidth <= channels && forecast.capacity <= blocks, "{forecast:?}");
                }
            }
        }
    }
}
