//! The gain of a harvest VM and the loss of a regular one: tables and a picture of the runs in virtual time.

use headstart_plot::{Axis, Chart, Picture, Series};
use headstart_sim::harvest::performance::fio::Owner;
use headstart_sim::harvest::performance::{PerformanceReport, beside, fio, reclaim, regular};
use std::fmt;

/// The tables.
pub(super) fn write(report: &PerformanceReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    fio_rows(&report.fio, f)?;
    regular_rows(&report.regular, f)?;
    reclaim_rows(&report.reclaim, f)?;
    beside_rows(&report.beside, f)
}

fn fio_rows(rows: &[fio::Row], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "\n\n{:26}   8 own  12 own  4 unsold  4 half busy  4 busy half the time", "fio, MB/s")?;
    for row in rows {
        write!(f, "\n{:26} {:>7.1} {:>7.1}", row.pattern.name(), row.home, row.owned)?;
        write!(f, " {:>9.1} {:>12.1} {:>22.1}", row.unsold, row.steady, row.bursts)?;
    }
    Ok(())
}

fn regular_rows(rows: &[regular::Row], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "\n\n{:40}      loss  P95, ms     with  harvest VM, MB/s", "regular VM (figure 20)")?;
    for row in rows {
        let regular::Case { channels, think, full, aged } = row.case;
        let aged = if aged { ", aged" } else { "" };
        let case = format!("{channels} channels, pauses {think:?}, {:.0}% full{aged}", full * 100.0);
        write!(f, "\n{case:40} {:>8.1}% {:>8.2} {:>8.2}", row.loss() * 100.0, row.without.p95, row.with.p95)?;
        write!(f, " {:>17.1}", row.harvest.read + row.harvest.written)?;
    }
    Ok(())
}

fn reclaim_rows(rows: &[reclaim::Row], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "\n\n{:40}   blocks  erased       s", "a channel of 64 GiB, reclaimed")?;
    for row in rows {
        let meanwhile = format!("meanwhile {:?}", row.meanwhile).to_lowercase();
        write!(f, "\n{meanwhile:40} {:>8} {:>6.0}% {:>7.1}", row.blocks, row.erased * 100.0, row.seconds)?;
    }
    Ok(())
}

fn beside_rows(pairs: &[beside::Pair], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "\n\n{:40}   apart    with", "a store beside a sort")?;
    for pair in pairs {
        write!(f, "\n{:40} {:>7.0} {:>7.0}", "store, requests/s", pair.store.rate, pair.store_with.rate)?;
        let total = |figures: &headstart_sim::harvest::performance::VmFigures| figures.read + figures.written;
        write!(f, "\n{:40} {:>7.1} {:>7.1}", "sort, MB/s", total(&pair.sort), total(&pair.sort_with))?;
    }
    if let Some(wear) = pairs.first().map(|pair| pair.wear) {
        write!(f, "\nwear, of what flash lasts in five years: {:.2}%", wear.share * 100.0)?;
        write!(f, ", {:.2}% where all that is leased is written", wear.all_written * 100.0)?;
    }
    Ok(())
}

/// Read bandwidth over time after a harvest (figure 19).
pub(super) fn picture(report: &PerformanceReport) -> Picture {
    let mut picture = Picture::new("Read bandwidth after a harvest").columns(2);
    for writes in [25, 100] {
        let x = Axis::linear("seconds").from(0.0);
        let title = format!("{writes} blocks written for each 100 read");
        let mut chart = Chart::new(x, Axis::linear("MB/s").from(0.0)).titled(title);
        for course in report.spread.iter().filter(|course| course.writes == writes) {
            let name = match course.owner {
                Owner::None => "nothing harvested",
                Owner::Unsold => "from unsold channels",
                Owner::Steady => "from half busy ones",
                Owner::Bursts => "from ones busy half of the time",
            };
            chart = chart.with(Series::line(name, course.read.clone()));
        }
        picture = picture.with(chart);
    }
    picture
}
