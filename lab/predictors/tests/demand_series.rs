//! The scores of predictors on the public demand series, and the check that the shipped ones are those that the rule
//! selects.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use headstart_forecast::{Need, Quantity, STEP};
use headstart_predictors::DemandSeries;
use headstart_predictors::score::{self, Choice, PredictorScore};
use std::io::Write;
use std::path::Path;

/// The series of a kind, or `None` if there are none.
fn series(kind: &str) -> Option<Vec<DemandSeries>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/harvest").join(kind);
    let Ok(files) = std::fs::read_dir(&path) else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: there are no series at {}", path.display());
        return None;
    };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    Some(paths.iter().map(|path| std::fs::read_to_string(path).unwrap().parse().unwrap()).collect())
}

fn points(
    kind: &str,
    horizon: usize,
    need: Need,
    wanted: fn(&str) -> bool,
) -> Option<Vec<Vec<PredictorScore>>> {
    let (quantity, highest) =
        if kind == "bandwidth" { (Quantity::Bandwidth, 16) } else { (Quantity::Capacity, 6) };
    let frontier = |series: &DemandSeries| {
        let steps: Vec<_> = series.steps(STEP).collect();
        score::frontier_of(wanted, &steps, quantity, highest, horizon, need)
    };
    Some(series(kind)?.iter().map(frontier).collect())
}

/// The share that the last level times 1.05 covers, at least and at most.
fn reference(points: &[Vec<PredictorScore>]) -> (f64, f64) {
    let margin = |point: &&PredictorScore| point.predictor == "last-times" && point.setting == 0.05;
    let covered = points.iter().map(|points| points.iter().find(margin).unwrap().coverage);
    (covered.clone().fold(1.0, f64::min), covered.fold(0.0, f64::max))
}

fn choice(kind: &str, horizon: usize, need: Need, coverage: f64) -> Option<Choice> {
    Some(score::choose(&points(kind, horizon, need, |name| !name.starts_with("lstm"))?, coverage).unwrap())
}

#[test]
fn the_plainest_covers_what_the_data_says_it_does() {
    for (kind, horizon, least, most) in [
        ("bandwidth", 1, 0.965, 0.981),
        ("bandwidth", 5, 0.860, 0.921),
        ("capacity", 1, 0.999, 1.0),
        ("capacity", 5, 0.999, 1.0),
    ] {
        let Some(points) = points(kind, horizon, Need::At, |name| name == "last-times") else { return };
        let (lowest, highest) = reference(&points);
        assert!(least <= lowest && highest <= most, "{kind} {horizon}: {lowest} to {highest}");
    }
}

#[test]
fn the_rule_selects_the_predictors_that_ship() {
    for (kind, horizon, coverage, learned, predictor, setting) in [
        ("bandwidth", 1, 0.95, false, "highest", 2.0),
        ("bandwidth", 5, 0.95, false, "last-plus", 2.0),
        ("capacity", 1, 0.99, true, "counts", 12.0),
        ("capacity", 5, 0.99, true, "counts", 24.0),
    ] {
        let Some(choice) = choice(kind, horizon, Need::Within, coverage) else { return };
        assert_eq!(
            (choice.learned, choice.predictor, choice.setting),
            (learned, predictor, setting),
            "{kind} {horizon}"
        );
    }
}
