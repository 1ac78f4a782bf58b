//! The measured numbers of generated data sets against the published ones; the same seed, the same bytes.

#![expect(clippy::cast_precision_loss, reason = "measurements")]

use super::*;
use crate::stats::boot::first_blocks;
use crate::stats::distribution::Distribution;
use crate::stats::{BootCounts, Collector, CreationFigures, Figures};
use crate::{Creation, DataSet, data_set};
use headstart_testkit::soak;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// The results of [`stats`](crate::stats) for a data set that was never written.
fn measure(settings: SynthesisSettings) -> (CreationFigures, Figures) {
    let synthesizer = Synthesizer::new(settings).unwrap();
    let mut collector = Collector::default();
    let mut creations: Vec<Creation> = Vec::new();
    let mut boots: Vec<_> = Vec::new();
    let work = |trace: &Trace| Ok((trace.creation.clone(), BootCounts::of(trace)));
    let take = |_, (creation, boot): (Creation, BootCounts)| {
        boots.push((creation, boot));
        Ok(())
    };
    synthesizer.each(work, take).unwrap();
    boots.sort_by(|(a, _), (b, _)| (&a.image, a.size, a.created_us).cmp(&(&b.image, b.size, b.created_us)));
    for (creation, boot) in boots {
        collector.add(&creation, &boot);
        creations.push(creation);
    }
    (CreationFigures::of(&creations), collector.finish())
}

#[track_caller]
fn about(what: &str, found: f64, published: f64, off: f64) {
    assert!((found - published).abs() <= off, "{what}: {found}, published {published}");
}

#[test]
fn traces_have_the_published_figures() {
    (1..=if soak::is_on() { 2 } else { 1 }).for_each(published);
}

fn published(seed: u64) {
    let settings = SynthesisSettings { seed, images: 172, traces: 4000, ..SynthesisSettings::default() };
    let (creations, figures) = measure(settings);
    // Section 3.2 and figures 3 to 7.
    about("traces", f64::from(u32::try_from(creations.creations).unwrap()), 4000.0, 200.0);
    about("disks below 64 GiB", creations.below_64_gib_percent, 80.0, 4.0);
    assert!((1024.0..=4096.0).contains(&creations.size_gib.max), "{:?}", creations.size_gib);
    about("image size, public", creations.image_ratio.public.p50, 0.5, 0.06);
    about("image size, user", creations.image_ratio.user.p50, 0.55, 0.06);
    let by_kind = &creations.creations_by_kind;
    about("of users to public", by_kind.user as f64 / by_kind.public as f64, 1.26, 0.1);
    about("one image", creations.one_image_percent, 57.9, 4.0);
    about("one creation", creations.one_creation_percent, 95.0, 3.0);
    about("days in common", creations.next_day_percent, 2.5, 2.5);
    // Figures 2, 8, 12, 13, 15, 18.
    let cross = |rates: &[crate::stats::figures::CrossRate]| rates[5].percent;
    about("cross-block, public", cross(&figures.cross_percent.public), 2.5, 0.4);
    about("cross-block, user", cross(&figures.cross_percent.user), 2.1, 0.4);
    about("reads, public", figures.read_percent.public.mean, 84.9, 1.5);
    about("reads, user", figures.read_percent.user.mean, 62.3, 2.0);
    about("alike, public", figures.alike_percent.public, 84.8, 5.0);
    about("alike, user", figures.alike_percent.user, 72.7, 5.0);
    about("accessed, public", figures.access_percent.public.mean, 2.67, 0.25);
    about("accessed, user", figures.access_percent.user.mean, 4.55, 0.4);
    about("grace, public", figures.grace_s.public.p50, 4.5, 0.5);
    about("grace, user", figures.grace_s.user.p50, 4.5, 0.5);
    about("interval, public", figures.interval_us.public.p50 as f64, 200.0, 25.0);
    about("interval, user", figures.interval_us.user.p50 as f64, 200.0, 25.0);
    // Figures 20, 22, 23.
    let of = &figures.unique_blocks_of[0].blocks;
    let of = Distribution::of(&of.iter().map(|blocks| f64::from(*blocks)).collect::<Vec<_>>());
    assert!(of.max > 2.0 * of.p50 && figures.unique_blocks.min < 20.0, "no outliers: {of:?}");
    assert!((250.0..1500.0).contains(&of.p50), "{of:?}");
    let deviation = figures.deviation;
    assert!(deviation.first_time.p50 > 2.0 * deviation.count.p50, "{deviation:?}");
    about("same metadata", figures.jaccard.metadata.p50, 0.87, 0.05);
    about("same user", figures.jaccard.user.p50, 0.82, 0.05);
    about("same family", figures.jaccard.family.p50, 0.08, 0.03);
}

/// Clusters need more creations: of 21 for an image, each has to have one.
#[test]
fn creations_have_the_published_clusters_and_hours() {
    let settings = SynthesisSettings { images: 172, traces: 31_000, ..SynthesisSettings::default() };
    let population = Population::of(&settings);
    let mut clusters = BTreeMap::<usize, std::collections::BTreeSet<u64>>::new();
    let mut hours = [0_u64; 24];
    for disk in &population.disks {
        clusters.entry(disk.image).or_default().insert(disk.cluster);
        hours[usize::try_from(disk.created_s / 3600 % 24).unwrap()] += 1;
    }
    let counts: Vec<_> = clusters.values().map(|clusters| clusters.len() as f64).collect();
    let counts = Distribution::of(&counts);
    about("clusters", counts.p50, 21.0, 3.0);
    assert!((60.0..=133.0).contains(&counts.max), "{counts:?}");
    assert!(hours[17] > 7 * hours[3] && 10 * hours[17] > 9 * hours.iter().max().unwrap(), "{hours:?}");
    about("traces", population.disks.len() as f64, 31_000.0, 200.0);
    let least = population.images.iter().map(|image| image.creations).min().unwrap();
    assert!(least >= 10, "the paper's hundred have ten creations at least, here {least}");
}

/// The number of places, in per cent, by which a block comes earlier or later than in the boot before, on average.
fn moved(settings: SynthesisSettings) -> f64 {
    let synthesizer = Synthesizer::new(settings).unwrap();
    let traces: Vec<_> = (0..synthesizer.len()).filter_map(|index| synthesizer.trace(index)).collect();
    let mut moves = Vec::new();
    for pair in traces.windows(2).filter(|pair| pair[0].creation.image == pair[1].creation.image) {
        let ranks = [&pair[0], &pair[1]].map(|trace| {
            let order = first_blocks(trace, usize::MAX);
            let places = order.len() as f64 / 100.0;
            order
                .into_iter()
                .enumerate()
                .map(|(rank, block)| (block, rank as f64 / places))
                .collect::<BTreeMap<_, _>>()
        });
        let both = ranks[0].iter().filter_map(|(block, rank)| Some((rank - ranks[1].get(block)?).abs()));
        moves.extend(both);
    }
    Distribution::of(&moves).mean
}

/// More of each kind of disorder makes traces less alike, or more of them outliers.
#[test]
fn disorder_can_be_turned_up() {
    let calm = SynthesisSettings {
        images: 12,
        traces: 150,
        reordering: 0.0,
        loss: 0.0,
        outliers: 0.0,
        ..SynthesisSettings::default()
    };
    let (_, base) = measure(calm);
    let (_, lost) = measure(SynthesisSettings { loss: 0.3, ..calm });
    assert!(lost.unique_blocks.mean < 0.95 * base.unique_blocks.mean);
    assert!(lost.deviation.count.mean > 1.2 * base.deviation.count.mean);
    assert!(lost.lost_percent.user.mean > base.lost_percent.user.mean + 5.0, "{:?}", lost.lost_percent.user);
    let (_, other_order) = measure(SynthesisSettings { reordering: 0.8, ..calm });
    assert!(other_order.order.user.mean < base.order.user.mean - 0.05, "{:?}", other_order.order.user);
    let (reordered, base_order) = (moved(SynthesisSettings { reordering: 0.8, ..calm }), moved(calm));
    assert!(reordered > 3.0 * base_order, "{reordered} places of a hundred, {base_order} without");
    let (_, outliers) = measure(SynthesisSettings { outliers: 0.3, ..calm });
    assert!(outliers.alike_percent.user < 0.8 * base.alike_percent.user);
    assert!(outliers.unique_blocks.max > 2.0 * base.unique_blocks.max);
    let share = outliers.outlier_percent.user;
    assert!((20.0..40.0).contains(&share) && base.outlier_percent.user < 5.0, "{share}");
}

/// All files below `dir` and their contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![dir.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                files.insert(path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, seed, layout| {
        let settings = SynthesisSettings { seed, images: 4, traces: 24, ..SynthesisSettings::default() };
        let made =
            Synthesizer::new(settings).unwrap().write(&dir.path().join(name), layout, || Ok(())).unwrap();
        (made, files(&dir.path().join(name)))
    };
    for (name, layout) in [("table", Layout::Fast26), ("parquet", Layout::Parquet)] {
        let first = write(&format!("{name} 1"), 7, layout);
        assert!(first == write(&format!("{name} 2"), 7, layout));
        assert!(first.1 != write(&format!("{name} 3"), 8, layout).1);
    }
    // Both layouts hold the same, nothing of it is skipped, and it is not all one boot.
    let read = |name: &str| {
        let mut traces = Vec::new();
        let set = DataSet::open(&dir.path().join(name), &data_set::DataSetLimits::default()).unwrap();
        let skipped = set.for_each(0, |_, trace| {
            traces.push(trace?);
            Ok(())
        });
        assert!(skipped.unwrap().is_empty() && set.skipped().is_empty());
        traces
    };
    let traces = read("table 1");
    assert!(traces == read("parquet 1"));
    assert!(traces.len() >= 20 && traces[0].records != traces[1].records);
    assert!(traces.iter().all(|trace| trace.records[0].range.offset() == 0 && trace.records.len() > 2));
}

#[test]
fn impossible_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |settings: SynthesisSettings| Synthesizer::new(settings).err().unwrap().kind();
    let default = SynthesisSettings::default();
    assert_eq!(refused(SynthesisSettings { images: 0, ..default }), ErrorKind::Invalid);
    assert_eq!(refused(SynthesisSettings { images: 10, traces: 9, ..default }), ErrorKind::Invalid);
    assert_eq!(refused(SynthesisSettings { loss: 1.5, ..default }), ErrorKind::Invalid);
    assert_eq!(refused(SynthesisSettings { outliers: f64::NAN, ..default }), ErrorKind::Invalid);
    let one = Synthesizer::new(SynthesisSettings { images: 1, traces: 1, ..default }).unwrap();
    assert!(!one.is_empty() && one.trace(one.len()).is_none());
    fs::write(dir.path().join("file"), "").unwrap();
    let full = one.write(dir.path(), Layout::Parquet, || Ok(())).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Conflict);
    let stopped = one.write(&dir.path().join("new"), Layout::Fast26, || Err(Error::invalid("enough")));
    assert_eq!(stopped.unwrap_err().to_string(), "enough");
    // Every setting at its limit: the remaining requests are still a trace.
    let worst =
        SynthesisSettings { images: 3, traces: 40, reordering: 1.0, loss: 1.0, outliers: 1.0, seed: 3 };
    let worst = Synthesizer::new(worst).unwrap();
    assert!((0..worst.len()).all(|index| worst.trace(index).is_some_and(|trace| !trace.records.is_empty())));
}
