//! Figures 2, 8, 12, 13, 15, 18, 20, 22 and 23: the figures of all traces together.

use super::{Drawn, Material, kind_name, style_of};
use headstart_block::ByteSize;
use headstart_plot::{Axis, Chart, Picture, Rule, Series};
use headstart_trace::stats::ByKind;
use headstart_trace::stats::curves::Curve;
use headstart_trace::stats::figures::{ALIKE, UniqueBlocks};

/// The approximate number of classes in figure 20.
const CLASSES: f64 = 100.0;

/// A distribution of each kind of image.
fn by_kind(x: Axis, y: &str, curves: &ByKind<Curve>) -> Chart {
    let curves = curves.each().into_iter().filter(|(_, curve)| !curve.is_empty());
    curves.fold(Chart::new(x, Axis::share(y)), |chart, (kind, curve)| {
        let (name, style) = kind_name(kind);
        chart.with(Series::steps(name, curve.clone()).style(style))
    })
}

/// A picture of a chart, unless the chart is empty.
fn one(chart: Chart, reason: &'static str) -> Drawn {
    if chart.series.is_empty() { Err(reason) } else { Ok(Picture::new("").panel(520.0, 320.0).with(chart)) }
}

/// Figure 2.
pub(super) fn cross_blocks(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let rates = &material.figures.cross_percent;
    let sizes = rates.public.iter().map(|rate| ByteSize(rate.block).to_string());
    let axes =
        (Axis::categories("size of a block", sizes), Axis::linear("reads in several blocks [%]").from(0.0));
    let mut chart = Chart::new(axes.0, axes.1);
    for ((kind, rates), (_, traces)) in rates.each().iter().zip(material.figures.traces.each()) {
        if *traces > 0 {
            let (name, style) = kind_name(kind);
            let points = (0..).map(f64::from).zip(rates.iter().map(|rate| rate.percent)).collect();
            chart = chart.with(Series::line(name, points).style(style));
        }
    }
    one(chart, "there are no reads")
}

/// Figure 8.
pub(super) fn reads(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let axis = Axis::linear("reads among the requests of the first 3 minutes [%]").from(0.0).to(100.0);
    one(by_kind(axis, "share of the traces", &material.curves.read_percent), "there are no requests")
}

/// Figure 12.
pub(super) fn cosines(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let axis = Axis::share("cosine of two boots' reads of each block");
    let chart = by_kind(axis, "share of the pairs", &material.curves.cosine);
    let alike: Vec<_> = material.figures.alike_percent.each().into_iter().collect();
    let some = alike.iter().zip(material.figures.cosine.each()).filter(|(_, (_, cosine))| cosine.count > 0);
    let alike: Vec<_> =
        some.map(|((kind, alike), _)| format!("{alike:.1}% of the pairs of {}", kind_name(kind).0)).collect();
    let picture = one(chart.rule(Rule::x(ALIKE, "0.9")), "no image has two boots on disks of one size")?;
    Ok(picture.note(format!("0.9 and more have {}.", alike.join(", "))))
}

/// Figure 13.
pub(super) fn accesses(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let axis = Axis::linear("blocks of the disk read in 6 minutes [%]").from(0.0);
    one(by_kind(axis, "share of the traces", &material.curves.access_percent), "no disk's size is known")
}

/// Figure 15.
pub(super) fn grace(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let axis = Axis::linear("time from the creation to the first read [s]").from(0.0);
    let chart = by_kind(axis, "share of the traces", &material.curves.grace_s);
    one(chart, "no creation's time is known")
}

/// Figure 18.
pub(super) fn intervals(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let axis = Axis::log("time from a read to the next [\u{b5}s]").from(1.0);
    let chart = by_kind(axis, "share of the reads", &material.curves.interval_us);
    one(chart, "no trace has two reads")
}

/// Figure 20.
pub(super) fn unique_blocks(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let shown: Vec<_> =
        material.figures.unique_blocks_of.iter().filter(|image| image.blocks.len() > 1).collect();
    let mut picture = Picture::new("").columns(shown.len().max(1)).panel(440.0, 300.0);
    for image in shown {
        picture = picture.with(histogram(image));
    }
    if picture.charts.is_empty() { Err("no image has two boots on disks of one size") } else { Ok(picture) }
}

/// The numbers of an image's boots by the blocks that they read.
fn histogram(image: &UniqueBlocks) -> Chart {
    let most = f64::from(image.blocks.iter().max().copied().unwrap_or_default());
    let width = headstart_plot::round_step((most + 1.0) / CLASSES).max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 101")]
    let class = |blocks: u32| (f64::from(blocks) / width) as usize;
    let mut heights = vec![0.0; class(image.blocks.iter().max().copied().unwrap_or_default()) + 1];
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    let part = 100.0 / image.blocks.len().max(1) as f64;
    for blocks in &image.blocks {
        if let Some(height) = heights.get_mut(class(*blocks)) {
            *height += part;
        }
    }
    let size = if image.size > 0 { format!(" on {}", ByteSize(image.size)) } else { String::new() };
    let axes =
        (Axis::linear("distinct blocks of 2 MiB read").from(0.0), Axis::linear("share of the boots [%]"));
    let series = Series::histogram("", 0.0, width, heights).style(style_of(&image.image));
    Chart::new(axes.0, axes.1).titled(format!("{}{size}", image.image)).with(series)
}

/// Figure 22.
pub(super) fn deviations(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let axis = Axis::linear("standard deviation between boots, of the image's largest").from(0.0);
    let names = ["reads of a block", "mean time of its reads", "time of its first read"];
    let curves = names.into_iter().zip(&material.curves.deviation).enumerate();
    let curves = curves.filter(|(_, (_, curve))| !curve.is_empty());
    let chart = curves
        .fold(Chart::new(axis, Axis::share("share of the images")), |chart, (style, (name, curve))| {
            chart.with(Series::steps(name, curve.clone()).style(style))
        });
    one(chart, "no image has two boots that read a block in common")
}

/// Figure 23.
pub(super) fn likeness(material: &Material<'_>) -> Drawn {
    material.readable()?;
    let axis = Axis::share("Jaccard's index of the blocks that boots of two images read");
    let names = ["same family", "same family and user", "same family, user, metadata"];
    let mut chart = Chart::new(axis, Axis::share("share of the pairs"));
    let mut missing = Vec::new();
    for (style, (name, curve)) in names.into_iter().zip(&material.curves.jaccard).enumerate() {
        if curve.is_empty() {
            missing.push(name);
        } else {
            chart = chart.with(Series::steps(name, curve.clone()).style(style));
        }
    }
    let picture = one(chart, "no two images are of one family")?;
    if missing.is_empty() {
        return Ok(picture);
    }
    Ok(picture.note(format!("No pairs of: {}.", missing.join("; "))))
}
