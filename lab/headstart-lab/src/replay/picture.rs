//! Waits as a picture: each read at its time, and the distribution of waits.

use super::player::Played;
use super::report::ReplayReport;
use crate::plots::{PlotFormat, write_picture};
use headstart_block::Result;
use headstart_image::export::OutputFile;
use headstart_plot::{Axis, Chart, Picture, Rule, Series};

/// The least wait that is drawn, in milliseconds: the axis is logarithmic.
const LEAST: f64 = 0.01;

pub(super) fn save(
    file: OutputFile,
    format: PlotFormat,
    report: &ReplayReport,
    played: &Played,
) -> Result<()> {
    write_picture(file, &format.bytes(&draw(report, played))?)
}

fn draw(report: &ReplayReport, played: &Played) -> Picture {
    let millis = |wait: headstart_replay::Nanos| (wait.as_secs() * 1e3).max(LEAST);
    let points = played.done.iter().map(|done| (done.due.as_secs(), millis(done.waited))).collect();
    let mut over_time =
        Chart::new(Axis::linear("time since the connection [s]").from(0.0), Axis::log("wait [ms]"))
            .titled("waits of reads")
            .with(Series::points("", points).small());
    over_time = over_time.rule(Rule::y(report.hit_bound * 1e3, "hits"));
    let mut waits: Vec<_> = played.done.iter().map(|done| millis(done.waited)).collect();
    waits.sort_unstable_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "a picture")]
    let share = |n: usize| (n + 1) as f64 / waits.len() as f64;
    let curve = waits.iter().enumerate().map(|(n, wait)| (*wait, share(n))).collect();
    let shares = Chart::new(Axis::log("wait [ms]"), Axis::share("share of reads that wait at most so long"))
        .titled("distribution")
        .with(Series::steps("", curve));
    Picture::new(format!("{}: {} reads", report.trace, report.reads)).columns(1).with(over_time).with(shares)
}
