//! The numbers that the figures of the ThinkAhead paper take from the table of creations alone: users, images, clusters
//! and times.

use super::curves::{CreationCurves, curve};
use super::distribution::{Distribution, percent};
use super::{ByKind, MakerKind, image_size};
use crate::trace::Creation;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Images that figure 6 covers: those with the most creations.
const POPULAR: usize = 1000;
/// Images that figure 14 shows of each kind.
const TOP: usize = 100;
/// Clusters that figure 7 shows.
const CLUSTERS: usize = 5;
/// The number of days that figure 7 of the ThinkAhead paper shows.
pub const DAYS: u64 = 7;

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;

/// The numbers of figures 3 to 7 and 14 of the ThinkAhead paper, which need only the creations of disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CreationFigures {
    /// The number of creations.
    pub creations: u64,
    /// The number of distinct images.
    pub images: u64,
    /// The number of distinct families of images; unknown families do not count.
    pub families: u64,
    /// The number of distinct users; all disks without a user count as one user's.
    pub users: u64,
    /// The number of distinct clusters; all disks without a cluster count as one cluster's.
    pub clusters: u64,
    /// The number of creations from each kind of image.
    pub creations_by_kind: ByKind<u64>,
    /// The sizes of disks in GiB (figure 3 of the ThinkAhead paper). Disks of unknown size do not count.
    pub size_gib: Distribution,
    /// The percentage of disks that are smaller than 64 GiB. Disks of unknown size do not count.
    pub below_64_gib_percent: f64,
    /// The size of the image divided by the size of the disk, for creations whose metadata contain both
    /// (figure 4 of the ThinkAhead paper).
    pub image_ratio: ByKind<Distribution>,
    /// The number of distinct images that each user creates disks from (figure 5 of the ThinkAhead paper).
    pub images_per_user: Distribution,
    /// The percentage of users that create disks from only one image.
    pub one_image_percent: f64,
    /// The percentage of users that create only one disk, among the users that create disks from only one image.
    pub one_creation_percent: f64,
    /// The number of clusters in which an image is used, for the thousand images with the most creations
    /// (figure 6 of the ThinkAhead paper).
    pub clusters_per_image: Distribution,
    /// The number of distinct images used in each hour (figure 7 of the ThinkAhead paper), for the five clusters whose
    /// numbers of creations are nearest to the mean; fewer if there are fewer clusters. Only creations of the seven
    /// days in a row with the most creations count; days begin at noon UTC.
    pub images_by_hour: Vec<ClusterHours>,
    /// The number of images from which disks are created on both of two days in a row, as a percentage of the images
    /// from which disks are created on at least one of the two. This is the mean over all pairs of such days that both
    /// have creations, 0 without such a pair. Days begin at noon UTC.
    pub next_day_percent: f64,
    /// The number of creations of each of the hundred images that have the most, in descending order (figure
    /// 14 of the ThinkAhead paper).
    pub top_images: ByKind<Vec<u64>>,
    /// The number of creations of each image.
    pub creations_per_image: Distribution,
}

/// A line of figure 7 of the ThinkAhead paper: one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClusterHours {
    /// The name of the cluster.
    pub cluster: String,
    /// The number of distinct images used in each hour of the seven days, up to the last hour with a
    /// creation.
    pub images: Vec<u64>,
}

/// The numbers whose distributions are figures 3 to 6.
#[derive(Default)]
struct Numbers {
    size_gib: Vec<f64>,
    image_ratio: ByKind<Vec<f64>>,
    images_per_user: Vec<f64>,
    clusters_per_image: Vec<f64>,
}

/// The counts of an image.
#[derive(Default)]
struct Image<'a> {
    /// The first of its names.
    name: &'a str,
    creations: u64,
    clusters: BTreeSet<&'a str>,
}

/// The counts of a user.
#[derive(Default)]
struct User<'a> {
    creations: u64,
    images: BTreeSet<&'a str>,
}

#[expect(clippy::cast_precision_loss, reason = "quantiles of counts")]
fn numbers(counts: impl Iterator<Item = u64>) -> Vec<f64> {
    counts.map(|count| count as f64).collect()
}

impl CreationFigures {
    /// Computes the figures of these creations, which may be in any order.
    #[must_use]
    pub fn of(creations: &[Creation]) -> Self {
        Self::count(creations).0
    }

    /// Computes the figures of these creations, and the curves of their plots.
    #[must_use]
    pub fn with_curves(creations: &[Creation]) -> (Self, CreationCurves) {
        let (figures, numbers) = Self::count(creations);
        let curves = CreationCurves {
            size_gib: curve(&numbers.size_gib),
            image_ratio: numbers.image_ratio.map(|ratios| curve(ratios)),
            images_per_user: curve(&numbers.images_per_user),
            clusters_per_image: curve(&numbers.clusters_per_image),
        };
        (figures, curves)
    }

    #[expect(clippy::cast_precision_loss, reason = "ratios")]
    fn count(creations: &[Creation]) -> (Self, Numbers) {
        let mut images = BTreeMap::<&str, Image<'_>>::new();
        let mut users = BTreeMap::<&str, User<'_>>::new();
        let mut clusters = BTreeSet::<&str>::new();
        let mut figures = Self { creations: creations.len() as u64, ..Self::default() };
        let mut numbers = Numbers::default();
        let mut families = BTreeSet::<&str>::new();
        for creation in creations {
            let kind = MakerKind::of(&creation.image);
            *figures.creations_by_kind.of(kind) += 1;
            families.extend(Some(creation.family.as_str()).filter(|family| !family.is_empty()));
            let image = images.entry(creation.image_id()).or_default();
            if image.creations == 0 {
                image.name = &creation.image;
            }
            image.creations += 1;
            image.clusters.insert(&creation.cluster);
            let user = users.entry(&creation.user).or_default();
            user.creations += 1;
            user.images.insert(creation.image_id());
            clusters.insert(&creation.cluster);
            if let Some(size) = image_size(creation).filter(|_| creation.size > 0) {
                numbers.image_ratio.of(kind).push(size as f64 / creation.size as f64);
            }
        }
        let counts = |len: usize| len as u64;
        (figures.images, figures.users, figures.clusters) =
            (counts(images.len()), counts(users.len()), counts(clusters.len()));
        figures.families = counts(families.len());
        let sized = creations.iter().filter(|creation| creation.size > 0);
        numbers.size_gib = sized.map(|creation| creation.size as f64 / (1_u64 << 30) as f64).collect();
        figures.size_gib = Distribution::of(&numbers.size_gib);
        figures.below_64_gib_percent = percent(&numbers.size_gib, |gib| gib < 64.0);
        figures.image_ratio = numbers.image_ratio.map(|ratios| Distribution::of(ratios));
        figures.of_users(&users, &mut numbers);
        figures.of_images(&images, &mut numbers);
        figures.of_times(creations);
        (figures, numbers)
    }

    fn of_users(&mut self, users: &BTreeMap<&str, User<'_>>, found: &mut Numbers) {
        let images = numbers(users.values().map(|user| user.images.len() as u64));
        self.images_per_user = Distribution::of(&images);
        self.one_image_percent = percent(&images, |images| images <= 1.0);
        found.images_per_user = images;
        let single = users.values().filter(|user| user.images.len() == 1);
        let creations = numbers(single.map(|user| user.creations));
        self.one_creation_percent = percent(&creations, |creations| creations <= 1.0);
    }

    fn of_images(&mut self, images: &BTreeMap<&str, Image<'_>>, found: &mut Numbers) {
        let mut by_use: Vec<_> = images.iter().collect();
        by_use.sort_by_key(|(name, image)| (std::cmp::Reverse(image.creations), **name));
        let popular = by_use.iter().take(POPULAR).map(|(_, image)| image.clusters.len() as u64);
        found.clusters_per_image = numbers(popular);
        self.clusters_per_image = Distribution::of(&found.clusters_per_image);
        self.creations_per_image =
            Distribution::of(&numbers(by_use.iter().map(|(_, image)| image.creations)));
        for (_, image) in by_use {
            let top = self.top_images.of(MakerKind::of(image.name));
            if top.len() < TOP {
                top.push(image.creations);
            }
        }
    }

    fn of_times(&mut self, creations: &[Creation]) {
        let dated = || creations.iter().filter(|creation| creation.created_us > 0);
        let Some(first) = dated().map(|creation| creation.created_us).min() else { return };
        // The paper's days begin at noon.
        let noon = (first + DAY_US / 2) / DAY_US * DAY_US;
        let start = noon.saturating_sub(DAY_US / 2);
        let week = start + busiest(dated().map(|creation| (creation.created_us - start) / DAY_US)) * DAY_US;
        // Clusters by that week alone: one may have had its creations at another time.
        let hour = |creation: &Creation| {
            let since = creation.created_us.checked_sub(week).map(|since| since / HOUR_US);
            since.filter(|hour| *hour < 24 * DAYS)
        };
        let mut clusters = BTreeMap::<&str, u64>::new();
        for creation in dated().filter(|creation| hour(creation).is_some()) {
            *clusters.entry(&creation.cluster).or_default() += 1;
        }
        let mean = clusters.values().sum::<u64>() / (clusters.len() as u64).max(1);
        let mut typical: Vec<_> = clusters.iter().collect();
        typical.sort_by_key(|(name, creations)| (creations.abs_diff(mean), **name));
        for (cluster, _) in typical.into_iter().take(CLUSTERS) {
            let mut hours = BTreeSet::new();
            for creation in dated().filter(|creation| creation.cluster == **cluster) {
                if let Some(hour) = hour(creation) {
                    hours.insert((hour, creation.image_id()));
                }
            }
            let last = hours.last().map_or(0, |(hour, _)| hour + 1);
            let images = (0..last).map(|hour| hours.range((hour, "")..(hour + 1, "")).count() as u64);
            self.images_by_hour
                .push(ClusterHours { cluster: (*cluster).to_owned(), images: images.collect() });
        }
        self.next_day_percent = next_day_percent(dated(), start);
    }
}

/// The first of the [`DAYS`] days in a row with the most of these days.
fn busiest(days: impl Iterator<Item = u64>) -> u64 {
    let mut counts = BTreeMap::<u64, u64>::new();
    days.for_each(|day| *counts.entry(day).or_default() += 1);
    let of_week = |day: u64| counts.range(day..day.saturating_add(DAYS)).map(|(_, count)| count).sum::<u64>();
    counts.keys().max_by_key(|day| (of_week(**day), std::cmp::Reverse(**day))).copied().unwrap_or(0)
}

/// Of the images of two days in a row, the percentage that both have: the mean over all such pairs.
#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn next_day_percent<'a>(creations: impl Iterator<Item = &'a Creation>, start: u64) -> f64 {
    let mut days = BTreeMap::<u64, BTreeSet<&str>>::new();
    for creation in creations {
        days.entry((creation.created_us - start) / DAY_US).or_default().insert(creation.image_id());
    }
    let mut shares = Vec::new();
    for (day, images) in &days {
        if let Some(next) = days.get(&(day + 1)) {
            let both = images.intersection(next).count();
            shares.push(both as f64 * 100.0 / images.union(next).count().max(1) as f64);
        }
    }
    Distribution::of(&shares).mean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn creation(image: &str, user: &str, cluster: &str, hour: u64, gib: u64) -> Creation {
        Creation {
            image: image.to_owned(),
            user: user.to_owned(),
            cluster: cluster.to_owned(),
            // A noon, and the hours from there.
            created_us: (20_000 * 24 + 12 + hour) * HOUR_US + 5,
            size: gib << 30,
            options: format!("image_size={}", gib << 29),
            family: "f".to_owned(),
            ..Creation::default()
        }
    }

    #[test]
    fn creations_are_counted_by_hour() {
        let creations = [
            creation("p-a", "u1", "c1", 0, 40),
            creation("p-a", "u2", "c2", 0, 40),
            creation("p-a", "u2", "c1", 25, 40),
            creation("m-b", "u2", "c1", 1, 100),
            creation("m-c", "u3", "c1", 1, 2048),
            creation("m-c", "u3", "c1", 1, 2048),
        ];
        let figures = CreationFigures::of(&creations);
        assert_eq!((figures.creations, figures.images, figures.users, figures.clusters), (6, 3, 3, 2));
        assert_eq!((figures.families, CreationFigures::of(&creations[..1]).families), (1, 1));
        assert_eq!(figures.creations_by_kind, ByKind { public: 3, user: 3, other: 0 });
        assert_eq!((figures.below_64_gib_percent, figures.size_gib.max), (50.0, 2048.0));
        assert_eq!((figures.image_ratio.public.p50, figures.image_ratio.other.count), (0.5, 0));
        assert_eq!((figures.images_per_user.max, figures.images_per_user.count), (2.0, 3));
        assert!((figures.one_image_percent - 200.0 / 3.0).abs() < 1e-9);
        assert_eq!((figures.one_creation_percent, figures.clusters_per_image.max), (50.0, 2.0));
        assert_eq!(figures.top_images, ByKind { public: vec![3], user: vec![2, 1], other: vec![] });
        let recorded = Creation {
            labels: [("digest".to_owned(), "sha256:1".to_owned())].into(),
            ..creation("p-a", "u", "c", 0, 40)
        };
        let known_by_digest = CreationFigures::of(&[recorded]);
        assert_eq!(known_by_digest.top_images, ByKind { public: vec![1], ..ByKind::default() });
        let hours = &figures.images_by_hour;
        let busy = hours.iter().find(|hours| hours.cluster == "c1").unwrap();
        assert_eq!((busy.images.len(), &busy.images[..2], busy.images[25]), (26, &[1, 2][..], 1));
        assert!((figures.next_day_percent - 100.0 / 3.0).abs() < 1e-9);
        assert_eq!(CreationFigures::of(&[]), CreationFigures::default());
        let (same, curves) = CreationFigures::with_curves(&creations);
        assert_eq!((same, curves.size_gib.last()), (figures, Some(&(2048.0, 1.0))));
        assert_eq!((curves.images_per_user.len(), curves.image_ratio.public.len()), (3, 3));
        assert_eq!(busiest([0, 1, 20, 21, 26, 27, 40].into_iter()), 20);
        let undated = CreationFigures::of(&[Creation::default()]);
        assert_eq!((undated.creations, undated.images_by_hour.len(), undated.size_gib.count), (1, 0, 0));
    }
}
