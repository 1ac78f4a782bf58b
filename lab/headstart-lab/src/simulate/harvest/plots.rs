//! The figures of a harvested fleet as pictures.

use super::report::{HarvestReport, Ran};
use crate::plots::PlotDirectory;
use headstart_block::Result;
use headstart_plot::{Axis, Chart, Picture, Series};
use headstart_sim::harvest::accuracy::RATIOS;
use headstart_sim::harvest::availability::Available;
use headstart_sim::harvest::statistics::DemandStatistics;

/// Draws the pictures that there are data for; returns the files.
pub(super) fn draw(
    report: &HarvestReport,
    statistics: Option<&DemandStatistics>,
    directory: &PlotDirectory,
) -> Result<Vec<String>> {
    let mut files = Vec::new();
    if let Some(statistics) = statistics {
        files.extend(directory.save("harvest-used", &used(statistics))?);
    }
    if let Some(available) = &report.availability {
        let picture = Picture::new("What could be harvested, and for how long")
            .columns(3)
            .with(lasting("servers that can spare", &available.hours, &available.allocated))
            .with(lasting("servers with so much unsold", &available.hours, &available.unallocated))
            .with(lasting("unsold VMs that stay so", &available.hours, &available.unsold_vms));
        files.extend(directory.save("harvest-availability", &picture)?);
    }
    if !report.accuracy.is_empty() {
        files.extend(directory.save("harvest-accuracy", &accuracy(report))?);
    }
    if let Some(measured) = &report.performance {
        files.extend(directory.save("harvest-spread", &super::performance::picture(measured))?);
    }
    for source in ["regular", "unsold"] {
        let runs: Vec<_> = report.runs.iter().filter(|ran| ran.source == source).collect();
        if !runs.is_empty() {
            files.extend(directory.save(&format!("harvest-{source}"), &utilisation(source, &runs))?);
        }
    }
    Ok(files)
}

/// Figures 1 to 3.
fn used(of: &DemandStatistics) -> Picture {
    let chart = |title: &str, x: &str| Chart::new(Axis::share(x), Axis::share("share of them")).titled(title);
    Picture::new("What is used and sold")
        .columns(3)
        .with(
            chart("bandwidth", "used on average")
                .with(Series::line("VMs", of.vm_bandwidth.curve()))
                .with(Series::line("servers", of.server_bandwidth.curve())),
        )
        .with(
            chart("capacity", "used")
                .with(Series::line("on average", of.vm_capacity.curve()))
                .with(Series::line("at most", of.vm_capacity_max.curve())),
        )
        .with(chart("servers", "unsold on average").with(Series::line("", of.unsold.curve())))
}

fn lasting(title: &str, hours: &[u32], lines: &[Available]) -> Chart {
    let mut chart = Chart::new(Axis::log("for so many hours"), Axis::share("share of them")).titled(title);
    for line in lines {
        let points = hours.iter().map(|hours| f64::from(*hours)).zip(line.share.iter().copied()).collect();
        chart = chart.with(Series::line(line.request.clone(), points));
    }
    chart
}

/// Figure 14.
fn accuracy(report: &HarvestReport) -> Picture {
    let mut picture = Picture::new("Accuracy by provisioning ratio").columns(2);
    for what in ["bandwidth", "capacity", "bandwidth duration", "capacity duration"] {
        let x = Axis::linear("provisioning ratio").from(0.0);
        let mut chart = Chart::new(x, Axis::share("covered")).titled(what);
        for line in report.accuracy.iter().filter(|line| line.what == what) {
            let ratios = RATIOS.iter().map(|ratio| f64::from(*ratio));
            let points = ratios.zip(line.covered.iter().copied()).collect();
            let name = match line.minutes {
                0 => line.predictor.to_owned(),
                minutes => format!("{}, {minutes} min", line.predictor),
            };
            chart = chart.with(Series::line(name, points));
        }
        picture = picture.with(chart);
    }
    picture
}

/// Figures 15 to 17, and harvested storage over time.
fn utilisation(source: &str, runs: &[&Ran]) -> Picture {
    let mut picture = Picture::new(format!("Utilisation: {source}")).columns(3);
    let count = runs.first().map_or(0, |ran| ran.groups().len());
    for group in 0..count {
        let of = |ran: &Ran| ran.groups().get(group).copied();
        let Some((title, first)) = runs.first().and_then(|ran| of(ran)) else { continue };
        let names = std::iter::once("without".to_owned()).chain(runs.iter().map(|ran| ran.foresight.clone()));
        let with = |figure: fn(&headstart_sim::harvest::utilisation::Utilisation) -> f64, base: f64| {
            let each = runs.iter().filter_map(|ran| of(ran)).map(|(_, group)| figure(&group));
            std::iter::once(base).chain(each).collect::<Vec<_>>()
        };
        let chart = Chart::new(Axis::categories("", names), Axis::share("used"))
            .titled(title)
            .with(Series::bars("average", with(|group| group.with, first.base)))
            .with(Series::bars("maximum", with(|group| group.with_max, first.base_max)));
        picture = picture.with(chart);
    }
    if let Some(first) = runs.first() {
        let thing = if source == "regular" { "VM" } else { "server" };
        let y = Axis::share(format!("share of {thing}s"));
        let mut chart = Chart::new(Axis::share("capacity used on average"), y);
        chart = chart
            .titled(format!("each {thing}"))
            .with(Series::line("without", first.outcome.averages.0.curve()));
        for ran in runs {
            chart = chart.with(Series::line(ran.foresight.clone(), ran.outcome.averages.1.curve()));
        }
        picture = picture.with(chart);
    }
    picture.with(over_time(runs))
}

/// The used part of all owned storage.
fn over_time(runs: &[&Ran]) -> Chart {
    let days = |seconds: u32| f64::from(seconds) / 86_400.0;
    let y = Axis::share("capacity used, of all");
    let mut chart = Chart::new(Axis::linear("days"), y).titled("over time");
    if let Some(first) = runs.first() {
        let points = first.outcome.points.iter().map(|point| (days(point.seconds), point.used / point.owned));
        chart = chart.with(Series::line("without", points.collect()));
    }
    for ran in runs {
        let points = ran.outcome.points.iter();
        let points = points.map(|at| (days(at.seconds), (at.used + at.harvested) / at.owned));
        chart = chart.with(Series::line(ran.foresight.clone(), points.collect()));
    }
    chart
}
