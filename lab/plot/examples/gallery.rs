//! Draws one picture of each kind into a directory, to look at: `cargo run -p headstart-plot --example gallery -- DIR`.

use headstart_plot::{Axis, Chart, Picture, Quantiles, Rule, Series};
use std::error::Error;
use std::path::Path;

const POLICIES: [&str; 12] = [
    "lazy",
    "leap",
    "random",
    "dadi",
    "vmt-min",
    "vmt-avg",
    "iocnt",
    "iocnt-t",
    "iocnt-2t",
    "history",
    "thinkahead",
    "search",
];

/// A distribution that looks like one.
fn cdf(shape: f64, scale: f64) -> Vec<(f64, f64)> {
    (1..=100)
        .map(|i| f64::from(i) / 100.0)
        .map(|share| (scale * (share / (1.01 - share)).powf(shape), share))
        .collect()
}

fn lines() -> Picture {
    let bandwidths = [2.0, 4.0, 6.0, 8.0, 10.0, 30.0, 50.0, 70.0, 90.0, 150.0];
    let chart = |kind: &str, worth: f64| {
        let chart = Chart::new(Axis::log("bandwidth [MB/s]"), Axis::share("hit rate")).titled(kind);
        POLICIES.iter().zip(1_u32..).fold(chart, |chart, (policy, rank)| {
            let rate = |b: f64| 1.0 - (-b * f64::from(rank) * worth / 60.0_f64).exp();
            let line = Series::line(*policy, bandwidths.iter().map(|b| (*b, rate(*b))).collect());
            chart.with(line)
        })
    };
    Picture::new("Hit rate by bandwidth")
        .note("Made-up numbers")
        .with(chart("Public images", 1.0))
        .with(chart("Images of users", 0.6))
}

fn distributions() -> Picture {
    let two = |chart: Chart, scale: f64| {
        chart
            .with(Series::steps("public", cdf(0.6, scale)))
            .with(Series::steps("user", cdf(0.9, scale * 1.5)))
    };
    let share = || Axis::share("share of the traces");
    let grace = Chart::new(Axis::log("time to the first read [s]"), share()).titled("Grace period");
    let linear = Chart::new(Axis::linear("blocks of 2 MiB"), share()).titled("Blocks read");
    Picture::new("Distributions")
        .with(two(grace, 4.0).rule(Rule::x(4.0, "median 4.0 s")))
        .with(two(linear, 40.0).rule(Rule::y(0.5, "half")))
}

fn bars() -> Picture {
    let names =
        ["none", "without groups", "without centroid switch", "without preprocessing", "without zero-shot"];
    let ablation = Chart::new(Axis::categories("", names), Axis::share("hit rate"))
        .titled("Ablation")
        .second(Axis::linear("wait, 99% [s]").from(0.0))
        .with(Series::bars("public", vec![0.9, 0.8, 0.85, 0.7, 0.88]))
        .with(Series::bars("user", vec![0.8, 0.75, 0.8, 0.5, 0.66]))
        .with(
            Series::line("wait", vec![(0.0, 2.0), (1.0, 3.0), (2.0, 2.5), (3.0, 9.0), (4.0, 4.0)])
                .on_second(),
        );
    let boxed =
        |at: f64| Quantiles { low: at, lower: at * 1.5, median: at * 2.0, upper: at * 3.0, high: at * 5.0 };
    let boxes = Chart::new(Axis::categories("policy", POLICIES), Axis::log("training time [s]"))
        .titled("Training time")
        .with(Series::boxes("", (1..=12).map(|n| boxed(f64::from(n * n) * 0.01)).collect()));
    let classes =
        |shift: f64| (0..40).map(|n| 300.0 * (-(f64::from(n) - shift).powi(2) / 30.0).exp()).collect();
    let histogram = Chart::new(Axis::linear("distinct blocks"), Axis::linear("traces"))
        .titled("Histogram")
        .with(Series::histogram("p-ubuntu", 0.0, 25.0, classes(12.0)))
        .with(Series::histogram("m-windows", 0.0, 25.0, classes(22.0)));
    let dots = (0..6000).map(|n| (f64::from(n) / 50.0, f64::from((n * 7919 + n % 13 * 900) % 20_000)));
    let stripes =
        Chart::new(Axis::linear("time since the first request [s]"), Axis::linear("block of 2 MiB"))
            .titled("Reads of a boot")
            .with(Series::stripes("", dots.filter(|(_, y)| (*y / 2000.0).fract() < 0.2).collect()));
    Picture::new("Bars, boxes, histograms, stripes").with(ablation).with(boxes).with(histogram).with(stripes)
}

fn odd() -> Picture {
    let axis = || (Axis::linear("x"), Axis::linear("y"));
    let chart = |title: &str, points: &[(f64, f64)]| {
        let (x, y) = axis();
        Chart::new(x, y).titled(title).with(Series::line("a", points.to_vec()))
    };
    Picture::new("Odd data")
        .columns(3)
        .panel(300.0, 200.0)
        .with(chart("nothing", &[]))
        .with(chart("one point", &[(3.0, 4.0)]))
        .with(chart("huge", &[(-1e308, -1e308), (1e308, 1e308)]))
        .with(chart(
            "not numbers",
            &[(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, f64::INFINITY), (4.0, 1.0)],
        ))
        .with(chart("tiny", &[(0.0, 1e-300), (1.0, 2e-300)]))
        .with(chart("far from zero", &[(1e9, 1e9 + 1.0), (1e9 + 2.0, 1e9 + 3.0)]))
}

fn letters() -> Picture {
    let text: String = (' '..='~').collect();
    let (a, b) = text.split_at(48);
    Picture::new("The quick brown fox jumps over the lazy dog, 0123456789")
        .note(format!("{a} {b} \u{b5} \u{d7} \u{b7} \u{2212} \u{2013} \u{2026} \u{2264} \u{2265} \u{b0}"))
        .with(Chart::new(Axis::linear("Sphinx of black quartz, judge my vow"), Axis::log("unit [\u{b5}s]")))
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).ok_or("name a directory")?;
    let pictures = [
        ("lines", lines()),
        ("distributions", distributions()),
        ("bars", bars()),
        ("odd", odd()),
        ("letters", letters()),
    ];
    for (name, picture) in pictures {
        std::fs::write(Path::new(&dir).join(format!("{name}.svg")), picture.svg())?;
        std::fs::write(Path::new(&dir).join(format!("{name}.png")), picture.png(2.0)?)?;
    }
    Ok(())
}
