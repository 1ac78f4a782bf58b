//! The figures as pictures.

use super::Gathered;
use super::arguments::Disk;
use super::contenders::Contender;
use super::replay::Route;
use super::report::{DiskReport, Row, name};
use crate::plots::{PlotDirectory, PlotFormat};
use headstart_block::Result;
use headstart_plot::{Axis, Chart, Picture, Series};
use std::path::Path;

/// One of a row's figures.
type Measure = fn(&Row) -> f64;

pub(super) fn open(dir: &Path) -> Result<PlotDirectory> {
    PlotDirectory::open(dir, &[PlotFormat::Svg, PlotFormat::Png])
}

/// Draws the pictures that there are data for; returns the files.
pub(super) fn draw(
    disk: &Disk,
    report: &DiskReport,
    list: &[Contender],
    routes: &[Route],
    gathered: &Gathered,
    directory: &PlotDirectory,
) -> Result<Vec<String>> {
    let mut files = Vec::new();
    if disk.link.is_some() {
        files.extend(directory.save("recorded-link", &recorded_link(list, gathered))?);
    } else {
        let figure = match (disk.hide_own, disk.min_traces > 0) {
            (true, _) => "zero-shot",
            (false, true) => "enough-traces",
            (false, false) => "bandwidth",
        };
        files.extend(directory.save(figure, &bandwidths(report, list))?);
    }
    if !disk.without.is_empty() {
        files.extend(directory.save("ablation", &ablation(report, list, routes))?);
    }
    Ok(files)
}

/// The names of the groups, in their order.
fn groups(report: &DiskReport) -> Vec<Option<String>> {
    let mut groups: Vec<Option<String>> = Vec::new();
    for row in report.rows() {
        if groups.last() != Some(&row.group) {
            groups.push(row.group.clone());
        }
    }
    groups
}

fn titled(what: &str, group: Option<&String>) -> String {
    group.map_or_else(|| what.to_owned(), |group| format!("{what}: {group}"))
}

/// Hit rate, accuracy, P50 and P99 of waits by bandwidth, a column for each group (the paper's figures 24 to 26).
fn bandwidths(report: &DiskReport, list: &[Contender]) -> Picture {
    let groups = groups(report);
    let mut picture = Picture::new("By bandwidth").columns(groups.len().max(1));
    let seconds = |label| Axis::linear(label).from(0.0);
    let measures: [(Axis, Measure); 4] = [
        (Axis::share("hit rate"), |row| row.summary.hit_rate),
        (Axis::share("accuracy (the artifact's)"), |row| row.summary.accuracy_artifact),
        (seconds("median wait [s]"), |row| row.summary.wait_p50),
        (seconds("99th percentile of waits [s]"), |row| row.summary.wait_p99),
    ];
    for (y, measure) in measures {
        for group in &groups {
            let title = titled(&y.label, group.as_ref());
            let mut chart = Chart::new(Axis::log("bandwidth [MB/s]"), y.clone()).titled(title);
            for (style, contender) in list.iter().filter(|contender| contender.without.is_none()).enumerate()
            {
                let rows = report.rows().iter().filter(|row| row.group == *group && row.without.is_none());
                let rows = rows.filter(|row| row.policy == contender.name);
                let points = rows.filter_map(|row| Some((row.bandwidth?.0, measure(row)))).collect();
                chart = chart.with(Series::line(&contender.name, points).style(style));
            }
            picture = picture.with(chart);
        }
    }
    picture
}

/// Hit rates as bars, and the distribution of waits (figure 28).
fn recorded_link(list: &[Contender], gathered: &Gathered) -> Picture {
    let mut picture = Picture::new("Over a recorded link");
    for (group, results) in gathered {
        let group = Some(group).filter(|group| !group.is_empty());
        let names = list.iter().map(|contender| name(&contender.name, contender.without));
        let rates = results.cells.iter().map(|cell| cell.gatherer.summary().hit_rate).collect();
        let bars = Chart::new(Axis::categories("", names.clone()), Axis::share("hit rate"));
        picture = picture.with(bars.titled(titled("hit rate", group)).with(Series::bars("", rates)));
        let mut waits = Chart::new(Axis::linear("wait [s]").from(0.0), Axis::share("share of reads"));
        for (name, cell) in names.zip(&results.cells) {
            waits = waits.with(Series::steps(name, cell.gatherer.waits().curve()));
        }
        picture = picture.with(waits.titled(titled("waits", group)));
    }
    picture
}

/// Hit rates as bars and the 99th percentiles of waits as a line, with parts left out (figure 29): means over the
/// bandwidths and groups.
fn ablation(report: &DiskReport, list: &[Contender], routes: &[Route]) -> Picture {
    let parted = |policy: &str| list.iter().any(|one| one.name == policy && one.without.is_some());
    let shown: Vec<_> = list.iter().filter(|one| parted(&one.name)).collect();
    let mean = |contender: &Contender, measure: Measure| {
        let rows = report.rows().iter();
        let rows = rows.filter(|row| row.policy == contender.name && row.without == contender.without);
        let values: Vec<_> = rows.map(measure).collect();
        #[expect(clippy::cast_precision_loss, reason = "a number of rows")]
        let count = values.len().max(1) as f64;
        values.iter().sum::<f64>() / count
    };
    let names = shown.iter().map(|contender| name(&contender.name, contender.without));
    let rates = shown.iter().map(|contender| mean(contender, |row| row.summary.hit_rate)).collect();
    let waits = shown.iter().map(|contender| mean(contender, |row| row.summary.wait_p99));
    #[expect(clippy::cast_precision_loss, reason = "a number of bars")]
    let waits = waits.enumerate().map(|(at, wait)| (at as f64, wait)).collect();
    let chart = Chart::new(Axis::categories("", names), Axis::share("hit rate"))
        .second(Axis::linear("99th percentile of waits [s]").from(0.0))
        .with(Series::bars("hit rate", rates))
        .with(Series::line("99th percentile of waits", waits).on_second());
    let note = format!("means over {}", headstart_block::words::count(routes.len() as u64, "link"));
    Picture::new("With parts left out").note(note).columns(1).panel(900.0, 320.0).with(chart)
}
