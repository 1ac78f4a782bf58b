//! Figures 3 to 7 and 14: the users that make disks of images, the clusters and the times.

use super::{Drawn, Material, kind_name};
use headstart_plot::{Axis, Chart, Color, Legend, Picture, Rule, Series};
use headstart_trace::Creation;

/// Hours of a day.
const DAY: f64 = 24.0;

/// The colour of the cumulative line: no kind of image has it.
const SHARE: Color = Color(0x40, 0x40, 0x40);

/// The number of hours from which on days are shown.
const DAYS_FROM: usize = 48;

/// `true` if a column of the table has a value.
fn known(material: &Material<'_>, column: impl Fn(&Creation) -> &str) -> bool {
    material.set.creations().iter().any(|creation| !column(creation).is_empty())
}

fn one(chart: Chart) -> Picture {
    Picture::new("").panel(520.0, 320.0).with(chart)
}

/// Figure 3.
pub(super) fn sizes(material: &Material<'_>) -> Drawn {
    let curve = &material.creation_curves.size_gib;
    if curve.is_empty() {
        return Err("no disk's size is known");
    }
    let below = format!("{:.1}% are below 64 GiB", material.creations.below_64_gib_percent);
    let chart = Chart::new(Axis::log("size of the disk [GiB]"), Axis::share("share of the disks"))
        .with(Series::steps("disks", curve.clone()))
        .rule(Rule::x(64.0, below));
    Ok(one(chart))
}

/// Figure 4.
pub(super) fn ratios(material: &Material<'_>) -> Drawn {
    let axes = (Axis::share("size of the image / size of the disk"), Axis::share("share of the disks"));
    let mut chart = Chart::new(axes.0, axes.1);
    for (kind, curve) in material.creation_curves.image_ratio.each() {
        let (name, style) = kind_name(kind);
        if !curve.is_empty() {
            chart = chart.with(Series::steps(name, curve.clone()).style(style));
        }
    }
    if chart.series.is_empty() {
        return Err("no creation says how large its image is (image_size in its metadata)");
    }
    Ok(one(chart))
}

/// Figure 5.
pub(super) fn users(material: &Material<'_>) -> Drawn {
    if !known(material, |creation| &creation.user) {
        return Err("no creation says whose disk it was");
    }
    let single = format!("{:.1}% of the users use one image.", material.creations.one_image_percent);
    let chart =
        Chart::new(Axis::log("images of which a user makes disks"), Axis::share("share of the users"))
            .with(Series::steps("users", material.creation_curves.images_per_user.clone()));
    Ok(one(chart).note(single))
}

/// Figure 6.
pub(super) fn clusters(material: &Material<'_>) -> Drawn {
    if !known(material, |creation| &creation.cluster) {
        return Err("no creation says in which cluster it was");
    }
    let curve = material.creation_curves.clusters_per_image.clone();
    let axes = (
        Axis::linear("clusters in which an image is used").from(0.0).whole(),
        Axis::share("share of the images"),
    );
    Ok(one(Chart::new(axes.0, axes.1).with(Series::steps("images", curve))))
}

/// Figure 7.
pub(super) fn hours(material: &Material<'_>) -> Drawn {
    let clusters = &material.creations.images_by_hour;
    if !known(material, |creation| &creation.cluster) || clusters.is_empty() {
        return Err("no creation says when and in which cluster it was");
    }
    let used = |hour: usize| clusters.iter().any(|cluster| cluster.images.get(hour).is_some_and(|n| *n > 0));
    let last = clusters.iter().map(|cluster| cluster.images.len()).max().unwrap_or_default();
    if (0..last).filter(|hour| used(*hour)).count() < 2 {
        return Err("all creations are of one hour");
    }
    let (unit, since) = if last > DAYS_FROM { (DAY, "days since a noon") } else { (1.0, "hours since noon") };
    let axes = (Axis::linear(since).from(0.0), Axis::linear("images in use in an hour").from(0.0).whole());
    let chart = clusters.iter().fold(Chart::new(axes.0, axes.1), |chart, cluster| {
        // The axis ends at the last hour of any cluster: later there are no creations.
        let hours = cluster.images.iter().chain(std::iter::repeat(&0)).take(last).enumerate();
        #[expect(clippy::cast_precision_loss, reason = "a plot")]
        let points = hours.map(|(hour, images)| (hour as f64 / unit, *images as f64)).collect();
        chart.with(Series::line(format!("cluster {}", cluster.cluster), points))
    });
    let shared = material.creations.next_day_percent;
    let note = format!("{shared:.1}% of the images of two days in a row are used on both.");
    Ok(Picture::new("").note(note).panel(720.0, 320.0).with(chart))
}

/// Figure 14.
pub(super) fn popular(material: &Material<'_>) -> Drawn {
    let mut picture = Picture::new("").columns(2).panel(460.0, 320.0);
    for (kind, top) in material.creations.top_images.each().into_iter().filter(|(_, top)| !top.is_empty()) {
        let (name, style) = kind_name(kind);
        let all = match kind {
            "public" => material.creations.creations_by_kind.public,
            "user" => material.creations.creations_by_kind.user,
            _ => material.creations.creations_by_kind.other,
        };
        let (mut sum, mut shares) = (0, vec![(0.5, 0.0)]);
        #[expect(clippy::cast_precision_loss, reason = "a plot")]
        for (rank, creations) in top.iter().enumerate() {
            sum += creations;
            shares.push((rank as f64 + 1.5, sum as f64 / all.max(1) as f64));
        }
        #[expect(clippy::cast_precision_loss, reason = "a plot")]
        let heights = top.iter().map(|creations| *creations as f64).collect();
        let mut title: String = name.to_owned();
        if let Some(first) = title.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        #[expect(clippy::cast_precision_loss, reason = "a plot")]
        let ranks = Axis::linear("images, the most used first").from(0.5).to(top.len() as f64 + 0.5).whole();
        let chart = Chart::new(ranks, Axis::log("creations").from(1.0))
            .titled(title)
            .second(Axis::share("share of all creations of the kind"))
            .with(Series::histogram("creations", 0.5, 1.0, heights).style(style))
            .with(Series::line("share", shares).style(0).color(SHARE).small().on_second())
            .legend(Legend::Above);
        picture = picture.with(chart);
    }
    if picture.charts.is_empty() {
        return Err("there are no creations");
    }
    Ok(Picture { columns: picture.charts.len().min(2), ..picture })
}
