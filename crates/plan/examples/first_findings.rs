//! Hit rates and boot delays of all policies on a data set of the FAST'26 layout, with an honest split per image:
//! of each seven boots five train and two test, rotating.
//!
//! `cargo run --release -p headstart-plan --example first_findings -- DIR [FASTER [MBPS,...]]`

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "an example"
)]
#![allow(clippy::cast_precision_loss, clippy::too_many_lines, reason = "an example")]

use headstart_plan::evaluate::{BootEvaluator, BootScore, Evaluator, Link, Misses, Score, replay};
use headstart_plan::policy::{Aim, History, NAMES, Objective, Policy, Training, by_name};
use headstart_plan::preprocess::{ImageModel, Settings};
use headstart_plan::{Bandwidth, Condensed, Vocabulary};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

struct Boot {
    trace: Condensed,
    normal: bool,
}

struct Image {
    vocabulary: Vocabulary,
    boots: Vec<Boot>,
}

/// What a boot was is for evaluation only: nothing that trains sees it.
fn labels(dir: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(dir.join("labels.csv")).unwrap_or_default();
    let row = |line: &str| {
        let mut fields = line.split(',').map(|field| field.trim().to_owned());
        fields.next().zip(fields.next())
    };
    text.lines().filter_map(row).collect()
}

fn images(dir: &Path, faster: u32) -> Vec<Image> {
    let labels = labels(dir);
    let mut images: BTreeMap<(String, u64), Image> = BTreeMap::new();
    headstart_trace::fast26::import(dir, &headstart_trace::file::ReadLimits::default(), |trace| {
        let key = (trace.creation.image.clone(), trace.creation.size);
        let vocabulary = Vocabulary::new(trace.creation.size);
        let image = images.entry(key).or_insert(Image { vocabulary, boots: Vec::new() });
        let mut condensed = Condensed::of(&trace, &mut image.vocabulary);
        if faster > 1 {
            condensed = condensed.faster(faster, &image.vocabulary);
        }
        let normal = labels.get(&trace.creation.volume).is_none_or(|label| label == "normal");
        image.boots.push(Boot { trace: condensed, normal });
        Ok(())
    })
    .unwrap();
    images.into_values().collect()
}

#[derive(Default)]
struct Row {
    hits: Vec<Score>,
    blocks: BootScore,
    ranges: BootScore,
    seconds: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let faster = arguments.get(1).map_or(1, |faster| faster.parse().unwrap());
    let images = images(Path::new(&arguments[0]), faster);
    let boots: Vec<_> = images.iter().map(|image| image.boots.len()).collect();
    let normal = images.iter().flat_map(|image| &image.boots).filter(|boot| boot.normal).count();
    println!("{} images and sizes, boots {boots:?}, {normal} of them normal", images.len());
    let names: Vec<&str> = NAMES.iter().copied().chain(["history"]).collect();
    let rates = arguments.get(2).map_or(vec![2, 4, 6, 8, 10, 30], |rates| {
        rates.split(',').map(|rate| rate.parse().unwrap()).collect()
    });
    for rate in rates {
        let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
        for image in images.iter().filter(|image| image.boots.len() >= 5) {
            for turn in 0..image.boots.len().div_ceil(2) {
                let is_test = |at: usize| (at + image.boots.len() - 2 * turn) % image.boots.len() < 2;
                let train: Vec<_> = (0..image.boots.len())
                    .filter(|at| !is_test(*at))
                    .map(|at| &image.boots[at].trace)
                    .collect();
                // What a product would do: outliers go, and the largest group is what is known of a boot.
                let model = ImageModel::learn(train.into_iter().cloned().collect(), Settings::default());
                let Some(group) = model.groups().first() else { continue };
                let mut kept = Vec::new();
                let training = group.training(&image.vocabulary, &mut kept);
                for at in (0..image.boots.len()).filter(|at| is_test(*at) && image.boots[*at].normal) {
                    for name in &names {
                        one(
                            name,
                            rate,
                            image,
                            &training,
                            &image.boots[at].trace,
                            rows.entry(name).or_default(),
                        );
                    }
                }
            }
        }
        println!(
            "{rate} MB/s             hits   accuracy  artifact's | delay blocks, s   ranges, s | training, s"
        );
        measure(&images, rate);
        for name in &names {
            let row = &rows[name];
            let mut sum = Score::default();
            row.hits.iter().for_each(|score| sum.add(score));
            let mean = row.hits.iter().map(Score::hit_rate).sum::<f64>() / row.hits.len() as f64;
            println!(
                "  {name:12} {:3} {mean:10.4} {:10.3} {:10.3}  | {:10.2} {:15.2}   | {:8.2}",
                row.hits.len(),
                sum.accuracy().unwrap_or(f64::NAN),
                sum.artifact_accuracy().unwrap_or(f64::NAN),
                row.blocks.delay_s(),
                row.ranges.delay_s(),
                row.seconds,
            );
        }
    }
}

/// How fast the evaluator is: all traces, each with its own order, many times.
fn measure(images: &[Image], rate: u64) {
    let (mut reads, start) = (0, Instant::now());
    for image in images {
        let mut evaluator = Evaluator::new(&image.vocabulary, Bandwidth::mib(rate));
        for boot in &image.boots {
            for _ in 0..50 {
                reads += evaluator.evaluate(boot.trace.first_accesses(), &boot.trace).reads;
            }
        }
    }
    println!("  {:.0} million reads a second", reads as f64 / 1e6 / start.elapsed().as_secs_f64());
}

fn one(name: &str, rate: u64, image: &Image, training: &Training<'_>, test: &Condensed, row: &mut Row) {
    let policy: Box<dyn Policy + '_> =
        if name == "history" { Box::new(History { test }) } else { by_name(name).unwrap() };
    let start = Instant::now();
    let bandwidth = Bandwidth::mib(rate);
    let order = policy.order(training, &Aim { objective: Objective::Hits, bandwidth, seed: 1 });
    let score = match policy.online() {
        Some(mut online) => replay(&mut *online, test, &image.vocabulary, bandwidth).0,
        None => Evaluator::new(&image.vocabulary, bandwidth).evaluate(&order, test),
    };
    row.hits.push(score);
    let (bandwidth, round_trip) = (Bandwidth::mb(rate), 20_000_000);
    for (hot, misses, sum) in
        [(false, Misses::Block, &mut row.blocks), (true, Misses::RangeThenRest, &mut row.ranges)]
    {
        let objective = Objective::Boot { round_trip, misses, hot };
        let mut items = policy.propose(training, &Aim { objective, bandwidth, seed: 1 }).items;
        if !hot {
            items.iter_mut().for_each(|(_, mask)| *mask = u32::MAX);
        }
        let link = Link { bandwidth, round_trip, misses };
        sum.add(&BootEvaluator::new(&image.vocabulary, link).evaluate(&items, test));
    }
    row.seconds += start.elapsed().as_secs_f64();
}
