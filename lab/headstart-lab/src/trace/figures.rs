//! The paper's figures as tables.

use headstart_block::words::count;
use headstart_trace::stats::distribution::Distribution;
use headstart_trace::stats::figures::{Figures, Intervals};
use headstart_trace::stats::{ByKind, CreationFigures};
use std::fmt;

/// Width of the first column.
const NAME: usize = 50;

/// A line of numbers of a distribution, under [`heading`].
fn line(f: &mut fmt::Formatter<'_>, name: &str, numbers: &Distribution) -> fmt::Result {
    if numbers.count == 0 {
        return Ok(());
    }
    let Distribution { count, mean, p5, p50, p95, p99, max, .. } = *numbers;
    write!(f, "\n{name:NAME$} {count:>9}")?;
    [mean, p5, p50, p95, p99, max].iter().try_for_each(|number| write!(f, " {}", Short(*number)))
}

fn heading(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    write!(f, "{name:NAME$} {:>9}", "count")?;
    ["mean", "p5", "p50", "p95", "p99", "max"].iter().try_for_each(|name| write!(f, " {name:>8}"))
}

/// A number in eight columns, with the significant digits.
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0.abs() {
            size if size >= 1000.0 => 0,
            size if size >= 100.0 => 1,
            size if size >= 10.0 => 2,
            _ => 3,
        };
        write!(f, "{:>8.digits$}", self.0)
    }
}

fn each_kind(f: &mut fmt::Formatter<'_>, name: &str, numbers: &ByKind<Distribution>) -> fmt::Result {
    numbers.each().iter().try_for_each(|(kind, numbers)| line(f, &format!("{name}, {kind}"), numbers))
}

/// The figures from the table of creations.
pub(super) struct Creations<'a>(pub(super) &'a CreationFigures);

impl fmt::Display for Creations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.0;
        heading(f, "creations")?;
        line(f, "disk size, GiB", &figures.size_gib)?;
        each_kind(f, "image size / disk size", &figures.image_ratio)?;
        line(f, "images per user", &figures.images_per_user)?;
        line(f, "clusters per image", &figures.clusters_per_image)?;
        line(f, "creations per image", &figures.creations_per_image)?;
        let CreationFigures { images, families, users, clusters, .. } = figures;
        let (images, users, clusters) =
            (count(*images, "image"), count(*users, "user"), count(*clusters, "cluster"));
        let families = if *families == 1 { "1 family".to_owned() } else { format!("{families} families") };
        write!(f, "\n{images} of {families}, {users}, {clusters}")?;
        write!(f, "\n{:.1}% of the disks are smaller than 64 GiB", figures.below_64_gib_percent)?;
        let (one, single) = (figures.one_image_percent, figures.one_creation_percent);
        write!(f, "\n{one:.1}% of the users use one image, {single:.1}% of them once")?;
        write!(f, "\n{:.1}% of the images of two days in a row are used on both", figures.next_day_percent)?;
        for hours in &figures.images_by_hour {
            let most = hours.images.iter().max().copied().unwrap_or_default();
            let cluster = hours.cluster.escape_debug();
            write!(f, "\ncluster {cluster}: up to {most} images in an hour")?;
        }
        Ok(())
    }
}

/// The figures from the traces.
pub(super) struct Traces<'a>(pub(super) &'a Figures);

impl fmt::Display for Traces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.0;
        heading(f, "traces")?;
        each_kind(f, "% of requests that read (3 min)", &figures.read_percent)?;
        each_kind(f, "% of the disk's 2 MiB blocks read (6 min)", &figures.access_percent)?;
        each_kind(f, "s to the first read", &figures.grace_s)?;
        each_kind(f, "cosine of two traces", &figures.cosine)?;
        each_kind(f, "agreement of their orders (1: the same)", &figures.order)?;
        each_kind(f, "% of the image's usual blocks not read", &figures.lost_percent)?;
        line(f, "2 MiB blocks read", &figures.unique_blocks)?;
        line(f, "deviation of reads of a block", &figures.deviation.count)?;
        line(f, "deviation of their mean time", &figures.deviation.mean_time)?;
        line(f, "deviation of the first's time", &figures.deviation.first_time)?;
        line(f, "Jaccard, same family", &figures.jaccard.family)?;
        line(f, "Jaccard, same family and user", &figures.jaccard.user)?;
        line(f, "Jaccard, same metadata", &figures.jaccard.metadata)?;
        for ((kind, alike), (_, cosine)) in figures.alike_percent.each().iter().zip(figures.cosine.each()) {
            if cosine.count > 0 {
                write!(f, "\n{alike:.1}% of the pairs have a cosine of 0.9 or more, {kind}")?;
            }
        }
        for ((kind, outliers), (_, lost)) in
            figures.outlier_percent.each().iter().zip(figures.lost_percent.each())
        {
            if lost.count > 0 {
                write!(
                    f,
                    "\n{outliers:.1}% of the traces read far fewer or more blocks than their image's, {kind}"
                )?;
            }
        }
        cross_rates(f, figures)?;
        intervals(f, &figures.interval_us)
    }
}

fn cross_rates(f: &mut fmt::Formatter<'_>, figures: &Figures) -> fmt::Result {
    write!(f, "\n\n{:NAME$}", "% of reads in more than one block of")?;
    for rate in &figures.cross_percent.public {
        write!(f, " {:>8}", headstart_block::ByteSize(rate.block).to_string())?;
    }
    for ((kind, rates), (_, traces)) in figures.cross_percent.each().iter().zip(figures.traces.each()) {
        if *traces > 0 {
            write!(f, "\n{kind:NAME$}")?;
            rates.iter().try_for_each(|rate| write!(f, " {}", Short(rate.percent)))?;
        }
    }
    Ok(())
}

fn intervals(f: &mut fmt::Formatter<'_>, intervals: &ByKind<Intervals>) -> fmt::Result {
    write!(f, "\n\n{:NAME$}", "microseconds between reads")?;
    ["count", "p25", "p50", "p75", "p95", "p99"].iter().try_for_each(|name| write!(f, " {name:>9}"))?;
    for (kind, Intervals { count, p25, p50, p75, p95, p99 }) in intervals.each() {
        if *count > 0 {
            write!(f, "\n{kind:NAME$} {count:>9} {p25:>9} {p50:>9} {p75:>9} {p95:>9} {p99:>9}")?;
        }
    }
    Ok(())
}
