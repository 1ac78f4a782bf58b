//! The quality of predictors: coverage against waste.
//!
//! At each step of a series, a predictor that has observed all steps so far forecasts a level. The forecast *covers* if
//! it is at least the need one horizon later. Its excess above the need is *waste*; the waste of a predictor is the
//! mean over all forecasts, in which a forecast below the need counts as 0. Forecasts are limited to the available
//! amount.
//!
//! The need of a step is its highest level, rounded up. With [`Need::At`], a forecast is for the step at the horizon's
//! end. With [`Need::Within`], it is for the highest need from the next step to the horizon's end; 3 minutes (one step)
//! ahead, this is the same. A check with [`Need::At`]: the last level times 1.05, rounded up, covers 96.5-98.0%
//! (bandwidth) and 100% (capacity) of the needs in the series that were published with BlockFlex (OSDI 2022) 3 minutes
//! ahead, and 86.1-92.0% and 99.9-100% of them 15 minutes ahead. These are the reference figures that come with the
//! series.
//!
//! The forecast of supply mirrors that of demand. To forecast that all but `k` is spare is right if `k` covers the
//! owner's need, and wastes the excess of `k` above the need. So one frontier serves both sides; only the base to which
//! waste is compared differs ([`PredictorScore::of_demand`], [`PredictorScore::of_supply`]).
//!
//! A predictor has a setting that trades coverage for waste, so its quality is not one point but a *frontier* of
//! points. By using one setting at some times and another at others, each point on the line between two settings can be
//! reached. So predictors are compared at equal coverage on the lower hull of their points ([`waste_at`]). [`choose`]
//! selects the predictor that should be the product's default.

use super::lstm::{LevelLstm, LevelRule};
use super::series::SeriesStep;
use headstart_forecast::level::{HIGHEST, level_above};
use headstart_forecast::plain::{Added, Highest, Margin, Quantile, Smooth};
use headstart_forecast::{DemandCounts, Level, Need, Predictor, Quantity, Reading};

/// Quality of a predictor with one setting on one series: its coverage and its waste.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictorScore {
    /// The predictor's name.
    pub predictor: &'static str,
    /// `true` if the predictor is trained (an LSTM), `false` if it is a plain rule.
    pub learned: bool,
    /// The predictor's setting, which trades coverage for waste; its meaning depends on the predictor.
    pub setting: f32,
    /// Share of the forecasts that covered the need, 0 to 1.
    pub coverage: f64,
    /// Mean excess of forecasts above the need: in levels, or in seconds for durations. For durations of
    /// supply, it is the time by which storage lasted longer than forecast.
    pub waste: f64,
    /// Waste as a share of the mean need.
    pub of_demand: f64,
    /// Waste as a share of the mean spare amount (the amount that there is minus the need). For durations,
    /// the same as [`PredictorScore::of_demand`].
    pub of_supply: f64,
}

/// A predictor that is scored, with the settings that it is asked for.
struct Candidate {
    name: &'static str,
    learned: bool,
    settings: &'static [f32],
    predictor: Box<dyn Predictor>,
}

/// Iterations on remembered steps of the LSTM that learns again.
const REPLAYS: usize = 8;

/// Margins of the last level, and of the likeliest.
const MARGINS: &[f32] = &[0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0];
/// Levels more than the last.
const MORE: &[f32] = &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0];
/// Numbers of steps of which the highest is taken: up to a day.
const WINDOWS: &[f32] = &[
    1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0, 120.0, 160.0, 200.0, 240.0,
    320.0, 480.0,
];
/// Quantiles of a window.
const QUANTILES: &[f32] = &[0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0];
/// Deviations above a mean.
const DEVIATIONS: &[f32] = &[0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0];
/// Prices of a miss, in levels of waste.
const PRICES: &[f32] = &[
    0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 200.0,
    300.0, 500.0, 1000.0, 2000.0, 4000.0, 10_000.0,
];

/// All candidates that are scored.
fn candidates(quantity: Quantity, highest: Level, horizon: usize, need: Need) -> Vec<Candidate> {
    let seed = 1;
    let lstm = |rule| LevelLstm::new(quantity, rule, highest, horizon, need, seed);
    let plain = |name, settings, predictor| Candidate { name, learned: false, settings, predictor };
    let learned = |name, settings, predictor| Candidate { name, learned: true, settings, predictor };
    vec![
        plain("last-times", MARGINS, Box::<Margin>::default() as Box<dyn Predictor>),
        plain("last-plus", MORE, Box::<Added>::default()),
        plain("highest", WINDOWS, Box::new(Highest::new(480))),
        plain("quantile-1h", QUANTILES, Box::new(Quantile::new(20))),
        plain("quantile-3h", QUANTILES, Box::new(Quantile::new(60))),
        plain("quantile-12h", QUANTILES, Box::new(Quantile::new(240))),
        plain("quantile-24h", QUANTILES, Box::new(Quantile::new(480))),
        plain("smooth-0.05", DEVIATIONS, Box::new(Smooth::new(0.05))),
        plain("smooth-0.1", DEVIATIONS, Box::new(Smooth::new(0.1))),
        plain("smooth-0.2", DEVIATIONS, Box::new(Smooth::new(0.2))),
        plain("smooth-0.5", DEVIATIONS, Box::new(Smooth::new(0.5))),
        learned("counts", PRICES, Box::new(DemandCounts::new(horizon, need))),
        learned("lstm", MARGINS, Box::new(lstm(LevelRule::Likeliest))),
        learned("lstm-priced", PRICES, Box::new(lstm(LevelRule::Cheapest))),
        learned("lstm-replay", PRICES, Box::new(lstm(LevelRule::Cheapest).replaying(REPLAYS))),
    ]
}

/// Sums over forecasts.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sums {
    covered: usize,
    forecasts: usize,
    waste: f64,
    needed: f64,
    spare: f64,
}

impl Sums {
    /// Adds one forecast: its coverage, its waste, the need and the unneeded rest.
    pub(crate) fn add(&mut self, covered: bool, waste: f64, needed: f64, spare: f64) {
        self.covered += usize::from(covered);
        self.forecasts += 1;
        self.waste += waste;
        self.needed += needed;
        self.spare += spare;
    }

    #[expect(clippy::cast_precision_loss, reason = "counts")]
    pub(crate) fn point(self, predictor: &'static str, learned: bool, setting: f32) -> PredictorScore {
        let forecasts = self.forecasts.max(1) as f64;
        PredictorScore {
            predictor,
            learned,
            setting,
            coverage: self.covered as f64 / forecasts,
            waste: self.waste / forecasts,
            of_demand: self.waste / self.needed.max(f64::MIN_POSITIVE),
            of_supply: self.waste / self.spare.max(f64::MIN_POSITIVE),
        }
    }
}

/// Scores each predictor with each of its settings, on a series of steps, `horizon` steps ahead (at least 1).
///
/// `highest` is the available amount, such as 16 channels or 6 units of capacity. If the highest level of the series is
/// greater, that level counts as the available amount. Predictors start untrained and learn as they go. Returns no
/// scores if the series is not longer than the horizon.
#[must_use]
pub fn frontier(
    steps: &[SeriesStep],
    quantity: Quantity,
    highest: Level,
    horizon: usize,
    need: Need,
) -> Vec<PredictorScore> {
    frontier_of(|_| true, steps, quantity, highest, horizon, need)
}

/// Scores like [`frontier`] only those predictors whose names `wanted` accepts. Predictors whose names begin
/// with `lstm` take most of the computing time.
#[must_use]
pub fn frontier_of(
    wanted: impl Fn(&str) -> bool,
    steps: &[SeriesStep],
    quantity: Quantity,
    highest: Level,
    horizon: usize,
    need: Need,
) -> Vec<PredictorScore> {
    let horizon = horizon.max(1);
    let levels: Vec<Level> = steps.iter().map(|step| level_above(step.max)).collect();
    let highest = levels.iter().copied().max().unwrap_or(0).clamp(highest, HIGHEST.max(highest));
    if steps.len() <= horizon {
        return Vec::new();
    }
    let mut points = Vec::new();
    let all = candidates(quantity, highest, horizon, need).into_iter();
    for mut candidate in all.filter(|candidate| wanted(candidate.name)) {
        let mut sums = vec![Sums::default(); candidate.settings.len()];
        for (step, follow) in steps.iter().zip(levels.windows(horizon + 1)) {
            candidate.predictor.observe(&Reading::from(*step));
            let until = &follow[if need == Need::At { horizon } else { 1 }..];
            let needed = until.iter().copied().max().unwrap_or(0).min(highest);
            for (sums, setting) in sums.iter_mut().zip(candidate.settings) {
                let said = candidate.predictor.forecast(*setting).min(highest);
                let waste = said.saturating_sub(needed);
                sums.add(said >= needed, waste.into(), needed.into(), (highest - needed).into());
            }
        }
        let settings = sums.into_iter().zip(candidate.settings);
        points
            .extend(settings.map(|(sums, setting)| sums.point(candidate.name, candidate.learned, *setting)));
    }
    points
}

/// Returns the lower convex hull of the scores of the predictor named `predictor`: for each coverage, the least waste
/// that is reached by using one setting at some times and another at others. The points of the hull are pairs of
/// coverage and waste, and both ascend. Empty without scores of this predictor.
#[must_use]
pub fn hull(points: &[PredictorScore], predictor: &str) -> Vec<(f64, f64)> {
    let own = points.iter().filter(|point| point.predictor == predictor);
    let mut sorted: Vec<(f64, f64)> = own.map(|point| (point.coverage, point.waste)).collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then(b.0.total_cmp(&a.0)));
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for point in sorted {
        if hull.last().is_some_and(|last| point.0 <= last.0) {
            continue;
        }
        while let [.., a, b] = hull[..]
            && (b.1 - a.1) * (point.0 - a.0) >= (point.1 - a.1) * (b.0 - a.0)
        {
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Returns the least waste, in the unit of [`PredictorScore::waste`], with which a predictor reaches the coverage
/// `coverage` (0 to 1) by mixing two settings. `None` if the predictor does not reach that coverage.
#[must_use]
pub fn waste_at(points: &[PredictorScore], predictor: &str, coverage: f64) -> Option<f64> {
    let hull = hull(points, predictor);
    let after = hull.iter().position(|point| point.0 >= coverage)?;
    let (right, Some(left)) = (hull[after], after.checked_sub(1).map(|left| hull[left])) else {
        return Some(hull[after].1);
    };
    Some(left.1 + (right.1 - left.1) * (coverage - left.0) / (right.0 - left.0))
}

/// Returns the names of the trained predictors in `points` if `learned`, otherwise of the plain ones, in the order of
/// `points`. Scores of one predictor must be next to each other.
#[must_use]
pub fn names(points: &[PredictorScore], learned: bool) -> Vec<&'static str> {
    let mut names: Vec<&'static str> =
        points.iter().filter(|point| point.learned == learned).map(|point| point.predictor).collect();
    names.dedup();
    names
}

/// Returns the predictor with the least waste at the coverage `coverage` (0 to 1), and that waste: among
/// trained predictors if `learned`, otherwise among plain ones. `None` if none reaches the coverage.
#[must_use]
pub fn best(points: &[PredictorScore], learned: bool, coverage: f64) -> Option<(&'static str, f64)> {
    let named = names(points, learned).into_iter();
    let wastes = named.filter_map(|name| waste_at(points, name, coverage).map(|waste| (name, waste)));
    wastes.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The share, 0 to 1, by which a trained predictor must waste less than the best plain one to become the default. This
/// must hold on each series of the cross-validation, when the predictor is selected by the other series.
pub const WORTH_IT: f64 = 0.1;

/// Results of one round of cross-validation: the series that is left out is judged with predictors that the
/// others select.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fold {
    /// Name of the trained predictor that wastes least on the other series.
    pub learned: &'static str,
    /// Waste of [`Fold::learned`] on the left-out series at the requested coverage; infinite if the predictor does
    /// not reach that coverage.
    pub learned_waste: f64,
    /// Name of the plain predictor that wastes least on the left-out series. It is selected with knowledge of
    /// the result, which favours plain predictors.
    pub plain: &'static str,
    /// Waste of [`Fold::plain`] on the left-out series at the requested coverage.
    pub plain_waste: f64,
    /// Coverage on the left-out series, 0 to 1, of the predictor of the chosen kind (trained or plain) that is best on
    /// the other series. The predictor's setting is also selected by the other series.
    pub coverage: f64,
    /// Waste on the left-out series of the predictor and setting whose coverage is [`Fold::coverage`].
    pub waste: f64,
}

impl Fold {
    /// Returns the share, up to 1, by which [`Fold::learned`] wastes less than [`Fold::plain`]; negative if it wastes
    /// more, 0 if the plain predictor wastes nothing.
    #[must_use]
    pub fn saving(&self) -> f64 {
        if self.plain_waste > 0.0 { 1.0 - self.learned_waste / self.plain_waste } else { 0.0 }
    }
}

/// The predictor and the setting that should be the product's default.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// `true` if the predictor is a trained one.
    pub learned: bool,
    /// Name of the predictor.
    pub predictor: &'static str,
    /// The predictor's setting with the least waste among those that reach the requested coverage, on average
    /// over the series.
    pub setting: f32,
    /// Results of the cross-validation, one for each series that is left out, in their order.
    pub folds: Vec<Fold>,
}

/// Chooses the default predictor for the coverage `coverage` (0 to 1) by cross-validation: from the scores of
/// several series of a kind, each left out in turn.
///
/// A trained predictor is chosen only if it wastes at least [`WORTH_IT`] less than every plain one on each
/// left-out series; it is selected by the other series, by its waste relative to the best plain one.
/// Otherwise a plain predictor is chosen. In both cases the choice is the one that is best on all series
/// together.
///
/// Returns `None` with fewer than two series, or if too few predictors reach the coverage. Needed are: on each series,
/// a plain predictor; on all series but one, whichever is left out, a trained predictor and one of the chosen kind; on
/// all series together, a predictor of the chosen kind. A predictor of the chosen kind must also have a setting that
/// reaches the coverage on average over these series.
#[must_use]
pub fn choose(series: &[Vec<PredictorScore>], coverage: f64) -> Option<Choice> {
    let mut folds = Vec::new();
    for (left_out, points) in series.iter().enumerate() {
        let others = without(series, left_out);
        let (plain, plain_waste) = best(points, false, coverage)?;
        let (learned, _) = overall(&others, true, coverage)?;
        let learned_waste = waste_at(points, learned, coverage).unwrap_or(f64::INFINITY);
        folds.push(Fold { learned, learned_waste, plain, plain_waste, coverage: 0.0, waste: 0.0 });
    }
    let learned = series.len() > 1 && folds.iter().all(|fold| fold.saving() >= WORTH_IT);
    for (left_out, fold) in folds.iter_mut().enumerate() {
        let others = without(series, left_out);
        let (name, _) = overall(&others, learned, coverage)?;
        let setting = setting(&others, name, coverage)?;
        let point = series[left_out].iter().find(|point| is(point, name, setting))?;
        (fold.coverage, fold.waste) = (point.coverage, point.waste);
    }
    let all: Vec<&Vec<PredictorScore>> = series.iter().collect();
    let (predictor, _) = overall(&all, learned, coverage)?;
    let setting = setting(&all, predictor, coverage)?;
    (series.len() > 1).then_some(Choice { learned, predictor, setting, folds })
}

/// All series except one.
fn without(series: &[Vec<PredictorScore>], left_out: usize) -> Vec<&Vec<PredictorScore>> {
    series.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, points)| points).collect()
}

fn is(point: &PredictorScore, predictor: &str, setting: f32) -> bool {
    point.predictor == predictor && point.setting.total_cmp(&setting).is_eq()
}

/// The predictor that wastes least over several series, each relative to its best plain one.
fn overall(series: &[&Vec<PredictorScore>], learned: bool, coverage: f64) -> Option<(&'static str, f64)> {
    let names = names(series.first()?, learned).into_iter();
    let wastes = names.filter_map(|name| {
        let mut sum = 0.0;
        for points in series {
            // A hundredth of a level in both keeps a series without any waste from deciding all.
            let base = best(points, false, coverage)?.1 + 0.01;
            sum += ((waste_at(points, name, coverage)? + 0.01) / base).ln();
        }
        Some((name, sum))
    });
    wastes.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The setting of a predictor that wastes least among those with enough coverage, on the mean of series.
fn setting(series: &[&Vec<PredictorScore>], predictor: &str, coverage: f64) -> Option<f32> {
    let first = series.first()?.iter().filter(|point| point.predictor == predictor);
    let means = first.filter_map(|first| {
        let (mut covered, mut waste, mut count) = (0.0, 0.0, 0.0);
        for points in series {
            let point = points.iter().find(|point| is(point, predictor, first.setting))?;
            covered += point.coverage;
            waste += point.of_demand;
            count += 1.0;
        }
        (covered >= coverage * count).then_some((first.setting, waste))
    });
    means.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(setting, _)| setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(level: f32) -> SeriesStep {
        SeriesStep { max: level, min: level, mean: level, last: level }
    }

    fn point(
        predictor: &'static str,
        learned: bool,
        setting: f32,
        coverage: f64,
        waste: f64,
    ) -> PredictorScore {
        PredictorScore { predictor, learned, setting, coverage, waste, of_demand: waste, of_supply: waste }
    }

    #[test]
    fn coverage_and_waste_are_what_they_say() {
        let steps: Vec<SeriesStep> = [2.0, 2.0, 3.0, 1.0, 1.0].map(step).to_vec();
        let points = frontier(&steps, Quantity::Bandwidth, 4, 1, Need::At);
        let last = |setting| points.iter().find(|point| is(point, "last-plus", setting)).unwrap();
        // Forecast 2 2 3 1, needed 2 3 1 1.
        assert_eq!((last(0.0).coverage, last(0.0).waste), (0.75, 0.5));
        assert_eq!((last(0.0).of_demand, last(0.0).of_supply), (2.0 / 7.0, 2.0 / 9.0));
        // Forecast 3 3 4 2; four levels are all there is.
        assert_eq!((last(1.0).coverage, last(1.0).waste), (1.0, 1.25));
        assert_eq!(last(8.0).waste, 16.0 / 4.0 - 7.0 / 4.0);
        let points = frontier(&steps, Quantity::Bandwidth, 4, 2, Need::Within);
        // Forecast 2 2 3, needed within two steps 3 3 1.
        let last = points.iter().find(|point| is(point, "last-plus", 0.0)).unwrap();
        assert_eq!((last.coverage, last.waste), (1.0 / 3.0, 2.0 / 3.0));
        assert!(frontier(&steps, Quantity::Capacity, 4, 5, Need::At).is_empty());
    }

    #[test]
    fn equal_coverage_is_found_by_mixing() {
        let points = [
            point("a", false, 0.0, 0.8, 1.0),
            point("a", false, 1.0, 0.9, 3.5),
            point("a", false, 2.0, 0.9, 2.0),
            point("a", false, 3.0, 0.95, 9.0),
            point("a", false, 4.0, 1.0, 4.0),
            point("b", true, 0.0, 0.9, 1.0),
        ];
        assert_eq!(hull(&points, "a"), [(0.8, 1.0), (0.9, 2.0), (1.0, 4.0)]);
        assert_eq!(waste_at(&points, "a", 0.5), Some(1.0));
        assert!((waste_at(&points, "a", 0.95).unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(waste_at(&points, "b", 0.91), None);
        assert_eq!(best(&points, true, 0.9), Some(("b", 1.0)));
        assert_eq!(best(&points, false, 0.9), Some(("a", 2.0)));
    }

    #[test]
    fn a_learned_one_ships_only_where_it_saves_on_each() {
        let with = |learned: f64| {
            vec![
                point("last", false, 0.0, 0.9, 1.0),
                point("last", false, 1.0, 1.0, 2.0),
                point("net", true, 5.0, 0.96, learned),
                point("net", true, 9.0, 1.0, 2.0),
            ]
        };
        let choice = choose(&[with(1.0), with(1.2), with(1.3)], 0.95).unwrap();
        assert!(choice.learned);
        assert_eq!((choice.predictor, choice.setting), ("net", 5.0));
        assert_eq!((choice.folds[1].coverage, choice.folds[1].waste), (0.96, 1.2));
        let choice = choose(&[with(1.0), with(1.0), with(1.4)], 0.95).unwrap();
        assert_eq!((choice.learned, choice.predictor, choice.setting), (false, "last", 1.0));
        assert!((choice.folds[2].saving() - 0.1 / 1.5).abs() < 1e-9);
        assert_eq!(choose(&[with(0.1)], 0.95), None);
        assert_eq!(choose(&[], 0.95), None);
    }
}
