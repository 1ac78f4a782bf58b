//! Scores every predictor on series in `data/harvest`'s layout, and recommends the ones to ship.
//!
//! `cargo run --release -p headstart-predictors --example predictors -- DIRECTORY [FILE.svg]` reads the series below
//! `bandwidth/` and `capacity/` and prints, at 3 and 15 minutes: the waste of each predictor at equal coverage; the
//! predictor that is chosen, each series left out in turn; the same for durations. The cost of predictors in time and
//! memory comes first, and is all that is printed without a directory. With `FILE.svg` as well the frontiers are drawn
//! into that.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a report with timings, for a terminal")]

use headstart_block::{Error, Result};
use headstart_forecast::{
    ForecastSettings, Forecaster, Need, PredictorKind, Quantity, STEP, Sample, Side, Stat,
};
use headstart_plot::{Axis, Chart, Picture, Series as Drawn};
use headstart_predictors::lasted::{self, Ends};
use headstart_predictors::paper;
use headstart_predictors::score::{self, PredictorScore};
use headstart_predictors::series::{DemandSeries, SeriesStep};
use std::path::Path;
use std::time::Instant;

const COVERAGES: [f64; 9] = [0.9, 0.93, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999];
/// Those that are drawn.
const DRAWN: [&str; 8] = [
    "last-times",
    "last-plus",
    "highest",
    "quantile-24h",
    "smooth-0.2",
    "counts",
    "lstm-priced",
    "lstm-replay",
];
const LASTING: [f64; 6] = [0.7, 0.8, 0.9, 0.93, 0.95, 0.98];

fn main() -> Result<()> {
    for kind in [PredictorKind::Steps, PredictorKind::Plain] {
        let settings = ForecastSettings { kind, ..ForecastSettings::default() };
        cost(&format!("{kind:?}"), Forecaster::new(settings));
    }
    cost("Paper", paper::forecaster(ForecastSettings::default(), 1));
    let Some(directory) = std::env::args().nth(1) else { return Ok(()) };
    let drawn = std::env::args().nth(2);
    let mut picture = Picture::new("What predictors waste at equal coverage").panel(380.0, 280.0);
    let mut all = Vec::new();
    for (name, quantity, highest) in
        [("bandwidth", Quantity::Bandwidth, 16), ("capacity", Quantity::Capacity, 6)]
    {
        let series = read(&Path::new(&directory).join(name))?;
        let steps: Vec<Vec<SeriesStep>> =
            series.iter().map(|(_, series)| series.steps(STEP).collect()).collect();
        for (horizon, need) in [(1, Need::At), (5, Need::At), (5, Need::Within)] {
            let begun = Instant::now();
            let points: Vec<Vec<PredictorScore>> =
                steps.iter().map(|steps| score::frontier(steps, quantity, highest, horizon, need)).collect();
            println!("\n## {name}, {} minutes ahead, {need:?} ({:.1?})", 3 * horizon, begun.elapsed());
            for (points, (file, _)) in points.iter().zip(&series) {
                for point in points.iter().filter(|point| point.setting == 0.05) {
                    let PredictorScore { predictor, coverage, waste, of_demand, .. } = point;
                    println!(
                        "{file}: {predictor} with 5% covers {coverage:.4}, wastes {waste:.3} ({of_demand:.3})"
                    );
                }
            }
            table(&points, &COVERAGES);
            if need == Need::At {
                picture = picture.with(frontier(&format!("{name}, {} minutes ahead", 3 * horizon), &points));
            }
            for coverage in [0.93, 0.95, 0.97, 0.99, 0.995] {
                choice(&points, coverage);
            }
        }
        all.push(steps);
        for ends in [Ends::Other, Ends::More] {
            for side in [Side::Supply, Side::Demand] {
                println!("\n## how long {name} lasts until {ends:?}, {side:?}");
                let points: Vec<Vec<PredictorScore>> =
                    series.iter().map(|(_, s)| lasted::frontier(s.runs(), quantity, ends, side)).collect();
                table(&points, &LASTING);
                for coverage in [0.8, 0.93, 0.95] {
                    choice(&points, coverage);
                }
            }
        }
    }
    if let [bandwidth, capacity] = &all[..] {
        println!(
            "\n## spare as forecast, 15 minutes ahead: how often at least 30 minutes, how often it lasted"
        );
        for certainty in [0.5, 0.7, 0.8, 0.9, 0.95, 0.99] {
            bandwidth
                .iter()
                .zip(capacity)
                .for_each(|(bandwidth, capacity)| spare(certainty, bandwidth, capacity));
        }
    }
    if let Some(file) = drawn {
        std::fs::write(file, picture.svg())?;
    }
    Ok(())
}

/// The waste of those of [`DRAWN`] by their coverage.
fn frontier(title: &str, points: &[Vec<PredictorScore>]) -> Chart {
    let mut chart = Chart::new(Axis::linear("covered"), Axis::log("waste / mean need")).titled(title);
    for name in DRAWN {
        let coverages = (0..=40).map(|step| 0.9 + f64::from(step) / 400.0);
        let points = coverages.filter_map(|coverage| Some((coverage, wastes(points, name, coverage)?)));
        chart = chart.with(Drawn::line(name, points.collect()));
    }
    chart
}

/// Prints a forecaster's forecasts for a vSSD that has both loads: the spare storage and its duration, and the outcome.
fn spare(certainty: f32, bandwidth: &[SeriesStep], capacity: &[SeriesStep]) {
    const BLOCKS: u32 = 1000;
    let settings =
        ForecastSettings { blocks: 6 * BLOCKS, unit: BLOCKS, certainty, ..ForecastSettings::default() };
    let mut forecaster = Forecaster::new(settings);
    let (mut asked, mut long, mut lasted, mut half_hour) = (0, 0, 0, 0);
    let (mut channels, mut blocks, mut minutes) = (0.0, 0.0, 0.0);
    for (at, (b, c)) in bandwidth.iter().zip(capacity).enumerate() {
        let stat = |step: &SeriesStep, by: f32| Stat {
            max: step.max * by,
            min: step.min * by,
            mean: step.mean * by,
        };
        forecaster.observe(&Sample { bandwidth: stat(b, 1.0), used: stat(c, 1000.0), ..Sample::default() });
        let spare = forecaster.forecast(Side::Supply);
        let follow = bandwidth.iter().zip(capacity).skip(at + 1);
        let kept = follow
            .take_while(|(b, c)| {
                b.max <= f32::from(16 - spare.bandwidth)
                    && c.max * 1000.0 <= (6 * BLOCKS - spare.capacity) as f32
            })
            .count();
        let kept = STEP * u32::try_from(kept).unwrap_or(u32::MAX);
        asked += 1;
        lasted += usize::from(kept >= spare.lasts);
        if spare.lasts >= 10 * STEP {
            long += 1;
            half_hour += usize::from(kept >= 10 * STEP);
        }
        channels += f64::from(spare.bandwidth);
        blocks += f64::from(spare.capacity) / f64::from(BLOCKS);
        minutes += spare.lasts.as_secs_f64() / 60.0;
    }
    let share = |count: usize, of: usize| count as f64 / of.max(1) as f64;
    println!(
        "certainty {certainty}: {:.3} at least 30 minutes (of these {:.3} did); {:.3} lasted as said; mean {:.1} \
         channels, {:.2} units, {:.0} minutes",
        share(long, asked),
        share(half_hour, long),
        share(lasted, asked),
        channels / asked as f64,
        blocks / asked as f64,
        minutes / asked as f64
    );
}

/// Prints the cost of the predictors of one vSSD, as its load goes up and down over all levels: every step up ends the
/// durations of many levels.
fn cost(name: &str, mut forecaster: Forecaster) {
    let (mut trains, mut infers) = (Vec::new(), Vec::new());
    for step in 0..2000_u16 {
        let share = if step % 2 == 0 { 0.0 } else { f32::from(step % 17) / 16.0 };
        let flat = |most: f32| Stat { max: most * share, min: most * share / 2.0, mean: most * share / 1.5 };
        let sample = Sample { bandwidth: flat(16.0), iops: flat(9000.0), used: flat(262_144.0) };
        let begun = Instant::now();
        forecaster.observe(&sample);
        trains.push(begun.elapsed());
        let begun = Instant::now();
        std::hint::black_box(forecaster.forecast(Side::Supply));
        infers.push(begun.elapsed());
    }
    trains.sort();
    infers.sort();
    let of = |times: &[std::time::Duration]| (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("\n{name}: (median, P99) trains {:.1?}, forecasts {:.1?}", of(&trains), of(&infers));
    println!("    {} KB", forecaster.bytes() / 1024);
}

/// All series of a directory, by name.
fn read(directory: &Path) -> Result<Vec<(String, DemandSeries)>> {
    let mut series = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let parsed = std::fs::read_to_string(&path)?.parse().map_err(|error: Error| error.about(&name))?;
        series.push((name, parsed));
    }
    series.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(series)
}

/// The waste of a predictor at this coverage, as a share of the mean need: the mean of all series, if it reaches the
/// coverage on each of them.
fn wastes(points: &[Vec<PredictorScore>], name: &str, coverage: f64) -> Option<f64> {
    let of = |points: &Vec<PredictorScore>| {
        let some = points.iter().find(|point| point.waste > 0.0)?;
        Some(score::waste_at(points, name, coverage)? * some.of_demand / some.waste)
    };
    let wastes: Option<Vec<f64>> = points.iter().map(of).collect();
    wastes.map(|wastes| wastes.iter().sum::<f64>() / wastes.len() as f64)
}

/// Prints the waste of each predictor at equal coverage.
fn table(points: &[Vec<PredictorScore>], coverages: &[f64]) {
    print!("{:14}", "coverage");
    coverages.iter().for_each(|coverage| print!("{coverage:>8}"));
    println!();
    for learned in [false, true] {
        for name in points.first().map(|points| score::names(points, learned)).unwrap_or_default() {
            print!("{name:14}");
            for coverage in coverages {
                match wastes(points, name, *coverage) {
                    Some(waste) => print!("{waste:8.3}"),
                    None => print!("{:>8}", "-"),
                }
            }
            println!();
        }
    }
}

fn choice(points: &[Vec<PredictorScore>], coverage: f64) {
    let Some(choice) = score::choose(points, coverage) else {
        println!("at {coverage}: none covers as much");
        return;
    };
    println!("at {coverage}: {} with {} (learned: {})", choice.predictor, choice.setting, choice.learned);
    for fold in &choice.folds {
        println!(
            "    {} {:.4} against {} {:.4}: saves {:.3}; default covers {:.4}, wastes {:.4}",
            fold.learned,
            fold.learned_waste,
            fold.plain,
            fold.plain_waste,
            fold.saving(),
            fold.coverage,
            fold.waste
        );
    }
}
