//! The figures of a fleet as pictures.

use super::Ran;
use super::arguments::PatternName;
use crate::plots::PlotDirectory;
use clap::ValueEnum;
use headstart_block::Result;
use headstart_plot::{Axis, Chart, Picture, Series};
use headstart_replay::Nanos;
use headstart_sim::fleet::FleetOutcome;

/// Draws a pattern; returns the files.
pub(super) fn draw(
    pattern: PatternName,
    ran: &[Ran],
    warm: Option<&FleetOutcome>,
    directory: &PlotDirectory,
) -> Result<Vec<String>> {
    let name = pattern.to_possible_value().map_or(String::new(), |name| name.get_name().to_owned());
    let names = || ran.iter().map(|ran| ran.way.clone());
    let picture = Picture::new(name.clone())
        .columns(2)
        .with(completions(ran, warm))
        .with(throughputs(ran))
        .with(bars("from the store [MB]", ran, names(), |outcome| outcome.summary().store_bytes))
        .with(transfers(ran, names()));
    directory.save(&format!("fleet-{name}"), &picture)
}

/// The share of complete disks over time.
fn completions(ran: &[Ran], warm: Option<&FleetOutcome>) -> Chart {
    let mut chart =
        Chart::new(Axis::linear("seconds").from(0.0), Axis::share("complete disks")).titled("completion");
    for ran in ran {
        chart = chart.with(Series::steps(ran.way.clone(), curve(&ran.outcome)));
    }
    if let Some(warm) = warm {
        chart = chart.with(Series::steps("warm", curve(warm)));
    }
    chart
}

#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn curve(outcome: &FleetOutcome) -> Vec<(f64, f64)> {
    let complete = outcome.disks.iter().filter(|disk| disk.completed < Nanos::NEVER);
    let mut ends: Vec<_> = complete.map(|disk| disk.completed.as_secs()).collect();
    ends.sort_by(f64::total_cmp);
    let all = outcome.disks.len().max(1) as f64;
    let steps = ends.iter().enumerate().map(|(n, end)| (*end, (n + 1) as f64 / all));
    std::iter::once((0.0, 0.0)).chain(steps).collect()
}

/// The bytes that each disk read in a second, slowest first.
#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn throughputs(ran: &[Ran]) -> Chart {
    let mut chart =
        Chart::new(Axis::linear("disk, slowest first"), Axis::linear("MB/s").from(0.0)).titled("fairness");
    for ran in ran {
        let mut rates: Vec<_> = ran.outcome.disks.iter().map(|disk| disk.throughput() / 1e6).collect();
        rates.sort_by(f64::total_cmp);
        let points = rates.into_iter().enumerate().map(|(n, rate)| (n as f64, rate)).collect();
        chart = chart.with(Series::line(ran.way.clone(), points));
    }
    chart
}

#[expect(clippy::cast_precision_loss, reason = "a picture")]
fn bars(
    label: &str,
    ran: &[Ran],
    names: impl Iterator<Item = String>,
    of: impl Fn(&FleetOutcome) -> u64,
) -> Chart {
    let heights = ran.iter().map(|ran| of(&ran.outcome) as f64 / 1e6).collect();
    Chart::new(Axis::categories("", names), Axis::linear(label).from(0.0)).with(Series::bars("", heights))
}

/// The sources of a host's bytes, on average.
fn transfers(ran: &[Ran], names: impl Iterator<Item = String>) -> Chart {
    type Part = (&'static str, fn(&headstart_sim::fleet::FleetSummary) -> f64);
    let summaries: Vec<_> = ran.iter().map(|ran| ran.outcome.summary()).collect();
    let mut chart = Chart::new(Axis::categories("", names), Axis::linear("MB of a host").from(0.0))
        .titled("where a host's bytes came from");
    let kinds: [Part; 4] = [
        ("store", |summary| summary.from_store),
        ("peers, on demand", |summary| summary.on_demand),
        ("peers, ahead", |summary| summary.prefetched),
        ("of that unread", |summary| summary.unread),
    ];
    for (name, of) in kinds {
        chart = chart.with(Series::bars(name, summaries.iter().map(|summary| of(summary) / 1e6).collect()));
    }
    chart
}
