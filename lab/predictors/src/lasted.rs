//! The quality of predictors of durations: the real duration against the forecast.
//!
//! As for levels ([`score`](super::score)), a forecast covers or not, and has waste. A forecast for *supply* covers if
//! the storage lasted at least as long as forecast; waste is the time by which it lasted longer, because that time
//! could have been promised. A forecast for *demand* covers if the need lasted no longer than forecast; waste is the
//! time by which it was shorter. Waste is given as a mean in seconds, and as a share of the real durations.
//!
//! With [`Ends::Other`], the forecast at the start of each run of a trace is scored: the time until the level changes.
//! BlockFlex's sub-predictors (one for each level) are trained on that. With [`Ends::More`], a forecast every 15
//! minutes is scored: the time for which no more will be needed than now: a lease that is large enough now is enough
//! for that time. Durations that have not ended by the end of the series are left out.

use super::duration::{LengthLstm, NETWORKS};
use super::score::{PredictorScore, Sums};
use super::series::LevelRun;
use headstart_forecast::duration::{LastLength, Lasting, LengthQuantile, Stretches};
use headstart_forecast::level::{HIGHEST, level_above};
use headstart_forecast::{Level, Quantity, STEP, Side};
use std::time::Duration;

/// The event that ends a duration when durations are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The level changes, up or down.
    Other,
    /// The level rises above the level at the time of the forecast.
    More,
}

/// The interval of forecasts of [`Ends::More`]: gSSDs are dated again every 15 minutes.
const APART: Duration = Duration::from_secs(5 * STEP.as_secs());

/// Shares of the last length that are taken off; negative ones are added, for demand.
const CUTS: &[f32] = &[
    -50.0, -20.0, -10.0, -4.0, -2.0, -1.0, -0.5, -0.2, -0.05, 0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98,
    1.0,
];
/// The care of a quantile.
const CARES: &[f32] = &[
    0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99,
    1.0,
];

/// A predictor that is scored.
struct Candidate {
    name: &'static str,
    learned: bool,
    settings: &'static [f32],
    lasting: Box<dyn Lasting>,
}

fn candidates(quantity: Quantity) -> Vec<Candidate> {
    let plain = |name, settings, lasting| Candidate { name, learned: false, settings, lasting };
    vec![
        plain("last-length", CUTS, Box::<LastLength>::default() as Box<dyn Lasting>),
        plain("quantile-10", CARES, Box::new(LengthQuantile::new(10))),
        plain("quantile-30", CARES, Box::new(LengthQuantile::new(30))),
        plain("quantile-100", CARES, Box::new(LengthQuantile::new(100))),
        Candidate {
            name: "lstm",
            learned: true,
            settings: CUTS,
            lasting: Box::new(LengthLstm::new(quantity, NETWORKS, 1)),
        },
    ]
}

/// Scores each predictor of durations with each of its settings, on a series of runs (levels with their durations) of
/// `quantity`. `ends` says which event ends a duration, `side` if forecasts are for supply or for demand. Returns one
/// score for each predictor and setting. Durations that have not ended by the end of the series do not count.
#[must_use]
pub fn frontier(runs: &[LevelRun], quantity: Quantity, ends: Ends, side: Side) -> Vec<PredictorScore> {
    let runs: Vec<(Level, Duration)> =
        runs.iter().map(|run| (level_above(run.level).min(HIGHEST), run.length)).collect();
    let mut points = Vec::new();
    for mut candidate in candidates(quantity) {
        let mut sums = vec![Sums::default(); candidate.settings.len()];
        match ends {
            Ends::Other => score_runs(&runs, &mut candidate, side, &mut sums),
            Ends::More => score_stretches(&runs, &mut candidate, side, &mut sums),
        }
        let settings = sums.into_iter().zip(candidate.settings);
        points
            .extend(settings.map(|(sums, setting)| sums.point(candidate.name, candidate.learned, *setting)));
    }
    points
}

/// Asks for a level that has lasted `age` and was to last `left` more.
fn ask(
    candidate: &Candidate,
    (level, age, left): (Level, Duration, Duration),
    side: Side,
    sums: &mut [Sums],
) {
    for (sums, setting) in sums.iter_mut().zip(candidate.settings) {
        let said = candidate.lasting.forecast(level, age, *setting);
        let (covered, waste) = match side {
            Side::Supply => (left >= said, left.saturating_sub(said)),
            Side::Demand => (said >= left, said.saturating_sub(left)),
        };
        sums.add(covered, waste.as_secs_f64(), left.as_secs_f64(), left.as_secs_f64());
    }
}

fn score_runs(runs: &[(Level, Duration)], candidate: &mut Candidate, side: Side, sums: &mut [Sums]) {
    // The last may go on after the trace.
    for &(level, length) in runs.split_last().map_or(&[][..], |(_, runs)| runs) {
        ask(candidate, (level, Duration::ZERO, length), side, sums);
        candidate.lasting.ended(level, length);
    }
}

fn score_stretches(runs: &[(Level, Duration)], candidate: &mut Candidate, side: Side, sums: &mut [Sums]) {
    let mut stretches = Stretches::new(HIGHEST);
    let mut next = Duration::ZERO;
    for (at, &(level, length)) in runs.iter().enumerate() {
        let more = runs.iter().skip(at).position(|(other, _)| *other > level);
        stretches.needed(level, Duration::ZERO, |level, age| candidate.lasting.ended(level, age));
        let age = stretches.age(level);
        if let Some(more) = more {
            let lasts: Duration = runs.iter().skip(at).take(more).map(|(_, length)| *length).sum();
            while next < length {
                ask(candidate, (level, age + next, lasts.saturating_sub(next)), side, sums);
                next += APART;
            }
        }
        while next < length {
            next += APART;
        }
        next -= length;
        stretches.needed(level, length, |_, _| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(minutes: &[(u64, u8)]) -> Vec<LevelRun> {
        let run = |&(minutes, level): &(u64, u8)| LevelRun {
            length: Duration::from_secs(60 * minutes),
            level: f32::from(level),
        };
        minutes.iter().map(run).collect()
    }

    fn point(points: &[PredictorScore], predictor: &str, setting: f32) -> PredictorScore {
        *points.iter().find(|point| point.predictor == predictor && point.setting == setting).unwrap()
    }

    #[test]
    fn a_shorter_forecast_is_kept_more_often() {
        let runs = runs(&[(60, 1), (10, 2), (40, 1), (10, 2), (80, 1), (5, 2)]);
        let points = frontier(&runs, Quantity::Bandwidth, Ends::Other, Side::Supply);
        // Lasted 60 10 40 10 80, forecast 0 60 60 10 40 (of all levels if one is new).
        let last = point(&points, "last-length", 0.0);
        assert_eq!(last.coverage, 0.6);
        assert_eq!(last.waste, 60.0 * (60.0 + 40.0) / 5.0);
        assert_eq!(last.of_supply, 100.0 / 200.0);
        let none = point(&points, "last-length", 1.0);
        assert_eq!((none.coverage, none.of_supply), (1.0, 1.0));
        let points = frontier(&runs, Quantity::Bandwidth, Ends::Other, Side::Demand);
        assert_eq!(point(&points, "last-length", 0.0).coverage, 0.6);
    }

    #[test]
    fn a_lease_ends_when_more_is_needed() {
        // Until more than 1 is needed: 45 minutes from the start, asked at 0, 15, 30; then 2 is enough for ever.
        let runs = runs(&[(15, 1), (15, 0), (15, 1), (30, 2), (15, 1), (15, 2)]);
        let points = frontier(&runs, Quantity::Bandwidth, Ends::More, Side::Supply);
        let none = point(&points, "last-length", 1.0);
        // At 0: 45 left. At 15 (level 0): 15. At 30: 15. At 75 (level 1): 15. Asked for 2: never more, left out.
        assert_eq!((none.coverage, none.waste), (1.0, 60.0 * (45.0 + 15.0 + 15.0 + 15.0) / 4.0));
    }
}
