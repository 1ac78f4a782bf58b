//! The numbers that the paper's figures take from all traces of a data set.

use super::boot::{Boot, CROSS};
use super::curves::{Curves, curve, curve_of};
use super::distribution::{Distribution, LogHistogram, percent};
use super::group::{Disorder, Group};
use super::similarity::jaccard;
use super::{ByKind, MakerKind};
use crate::fast26::META_INFO;
use crate::trace::Creation;
use serde::Serialize;

/// Groups whose traces figure 12 compares: those with the most traces.
const TOP: usize = 100;
/// Groups that figure 20 shows.
const SHOWN: usize = 2;
/// Pairs of images that are compared at most for each tier.
const PAIRS_MAX: usize = 20_000;
/// The cosine from which on the paper takes traces for alike.
pub const ALIKE: f64 = 0.9;

/// Figures 2, 8, 12, 13, 15, 18, 20, 22 and 23, and the amount of disorder.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Traces.
    pub traces: ByKind<u64>,
    /// Figure 2: percent of reads in more than one block, by size of block.
    pub cross_percent: ByKind<Vec<CrossRate>>,
    /// Figure 8: percent of a trace's requests in its first three minutes that are reads.
    pub read_percent: ByKind<Distribution>,
    /// Figure 12: cosine of two traces of one image, by reads of each block, for up to 50 traces of the 100 images with
    /// the most.
    pub cosine: ByKind<Distribution>,
    /// Percent of those pairs with a cosine of 0.9 or more.
    pub alike_percent: ByKind<f64>,
    /// Reordering: the agreement of the orders of first reads of two traces of one image, over the blocks that both
    /// read: 1 for the same order. Over the pairs of figure 12.
    pub order: ByKind<Distribution>,
    /// Loss: percent of an image's usual blocks (read by more than half of its traces) that a trace does not read. Over
    /// images with five traces or more.
    pub lost_percent: ByKind<Distribution>,
    /// Outliers: percent of the traces that read less than half or more than one and a half times as many blocks as the
    /// middle trace of their image. Over images with five traces or more.
    pub outlier_percent: ByKind<f64>,
    /// Figure 13: percent of the disk's 2 MiB blocks that a trace reads in six minutes.
    pub access_percent: ByKind<Distribution>,
    /// Figure 15: seconds from the creation to the first read.
    pub grace_s: ByKind<Distribution>,
    /// Figure 18: microseconds from a read to the next.
    pub interval_us: ByKind<Intervals>,
    /// Figure 20: distinct blocks that a trace of an image reads; over all images.
    pub unique_blocks: Distribution,
    /// The same of the two images with the most traces.
    pub unique_blocks_of: Vec<UniqueBlocks>,
    /// Figure 22: standard deviation of the terms of the score.
    pub deviation: Deviations,
    /// Figure 23: Jaccard's index of the blocks that traces of two images read, by what the images have in common.
    pub jaccard: SimilarityTiers,
}

/// A point of figure 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CrossRate {
    /// Bytes of a block.
    pub block: u64,
    /// Percent of the reads in more than one block.
    pub percent: f64,
}

/// Quantiles of times between reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Intervals {
    /// The number of times.
    pub count: u64,
    /// The 25th percentile, in microseconds.
    pub p25: u64,
    /// The median, in microseconds.
    pub p50: u64,
    /// The 75th percentile, in microseconds.
    pub p75: u64,
    /// The 95th percentile, in microseconds.
    pub p95: u64,
    /// The 99th percentile, in microseconds.
    pub p99: u64,
}

/// The distinct blocks of an image's traces.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UniqueBlocks {
    /// The image.
    pub image: String,
    /// Bytes of the disks.
    pub size: u64,
    /// The number of blocks of each trace.
    pub blocks: Vec<u32>,
}

/// Standard deviations of the three metrics over the traces of an image, as parts of the largest: over images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Deviations {
    /// Reads of a block.
    pub count: Distribution,
    /// Mean time of a block's reads.
    pub mean_time: Distribution,
    /// Time of a block's first read.
    pub first_time: Distribution,
}

/// Pairs of images by what they have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SimilarityTiers {
    /// The family, and not the user.
    pub family: Distribution,
    /// Family and user, and not the rest.
    pub user: Distribution,
    /// Family, user and the rest of the metadata.
    pub metadata: Distribution,
}

/// The samples of each kind of image.
#[derive(Clone, Debug, Default)]
struct Samples {
    traces: u64,
    reads: u64,
    cross: [u64; CROSS.len()],
    read_percent: Vec<f64>,
    access_percent: Vec<f64>,
    grace_s: Vec<f64>,
    intervals: LogHistogram,
}

/// The numbers of a complete group.
struct Done {
    creation: Creation,
    one_user: bool,
    unique_blocks: Vec<u32>,
    cosines: Vec<f64>,
    disorder: Disorder,
    deviations: Option<[f64; 3]>,
    typical: Vec<u64>,
}

/// The similarities within groups and between them.
#[derive(Default)]
struct Compared {
    cosines: ByKind<Vec<f64>>,
    orders: ByKind<Vec<f64>>,
    lost_percent: ByKind<Vec<f64>>,
    /// The number of outliers, and of the traces that they are among.
    outliers: ByKind<(u64, u64)>,
    deviations: [Vec<f64>; 3],
    tiers: [Vec<f64>; 3],
}

/// The collector of figures over traces that come one after another.
#[derive(Default)]
pub struct Collector {
    samples: ByKind<Samples>,
    group: Option<Group>,
    done: Vec<Done>,
}

impl Collector {
    /// Adds a trace. Those of an image and a size of disk have to come one after another, as a
    /// [`DataSet`](crate::DataSet) gives them: otherwise they count as different images.
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    pub fn add(&mut self, creation: &Creation, boot: &Boot) {
        let samples = self.samples.of(MakerKind::of(&creation.image));
        samples.traces += 1;
        samples.reads += boot.reads;
        samples.cross.iter_mut().zip(boot.cross).for_each(|(sum, cross)| *sum += cross);
        samples.read_percent.extend(boot.read_percent());
        samples.access_percent.extend(boot.access_percent(creation.size));
        samples.grace_s.extend(boot.grace_us.map(|us| us as f64 / 1e6));
        boot.intervals_us.iter().for_each(|us| samples.intervals.add(u64::from(*us)));
        if !self.group.as_ref().is_some_and(|group| group.creation.is_grouped_with(creation)) {
            self.end_group();
        }
        self.group.get_or_insert_with(|| Group::new(creation.clone())).add(boot, &creation.user);
    }

    fn end_group(&mut self) {
        let Some(mut group) = self.group.take() else { return };
        self.done.push(Done {
            cosines: group.cosines(),
            disorder: group.disorder(),
            deviations: group.deviations(),
            typical: group.typical_blocks(),
            one_user: group.one_user,
            creation: group.creation,
            unique_blocks: group.unique_blocks,
        });
    }

    /// The figures.
    #[must_use]
    pub fn finish(mut self) -> Figures {
        self.end_group();
        self.figures(&self.compare())
    }

    /// The figures, and the curves of their plots.
    #[must_use]
    pub fn finish_with_curves(mut self) -> (Figures, Curves) {
        self.end_group();
        let compared = self.compare();
        (self.figures(&compared), self.curves(&compared))
    }

    /// Groups by the number of their traces, the largest first.
    fn by_size(&self) -> Vec<&Done> {
        let mut groups: Vec<_> = self.done.iter().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.unique_blocks.len()));
        groups
    }

    fn compare(&self) -> Compared {
        let mut compared = Compared::default();
        for group in self.by_size().into_iter().take(TOP) {
            let kind = MakerKind::of(&group.creation.image);
            compared.cosines.of(kind).extend_from_slice(&group.cosines);
            compared.orders.of(kind).extend_from_slice(&group.disorder.orders);
        }
        for group in &self.done {
            let kind = MakerKind::of(&group.creation.image);
            compared.lost_percent.of(kind).extend_from_slice(&group.disorder.lost_percent);
            let (outliers, all) = compared.outliers.of(kind);
            *outliers += group.disorder.outliers;
            *all += group.disorder.judged;
        }
        let metric = |at: usize| {
            let deviations = self.done.iter().filter_map(|group| Some(*group.deviations?.get(at)?));
            deviations.collect::<Vec<_>>()
        };
        let deviations = [metric(0), metric(1), metric(2)];
        Compared { deviations, tiers: tiers(&self.done), ..compared }
    }

    fn figures(&self, compared: &Compared) -> Figures {
        let Compared { cosines, deviations, tiers, .. } = compared;
        let all = self.done.iter().flat_map(|group| &group.unique_blocks).copied().map(f64::from);
        let shown = self.by_size().into_iter().take(SHOWN).map(|group| UniqueBlocks {
            image: group.creation.image.clone(),
            size: group.creation.size,
            blocks: group.unique_blocks.clone(),
        });
        let [count, mean_time, first_time] = deviations.each_ref().map(|numbers| Distribution::of(numbers));
        let [family, user, metadata] = tiers.each_ref().map(|indices| Distribution::of(indices));
        Figures {
            traces: self.samples.map(|samples| samples.traces),
            cross_percent: self.samples.map(Samples::cross_rates),
            read_percent: self.samples.map(|samples| Distribution::of(&samples.read_percent)),
            cosine: cosines.map(|cosines| Distribution::of(cosines)),
            alike_percent: cosines.map(|cosines| percent(cosines, |cosine| cosine >= ALIKE)),
            order: compared.orders.map(|orders| Distribution::of(orders)),
            lost_percent: compared.lost_percent.map(|lost| Distribution::of(lost)),
            outlier_percent: compared.outliers.map(share_percent),
            access_percent: self.samples.map(|samples| Distribution::of(&samples.access_percent)),
            grace_s: self.samples.map(|samples| Distribution::of(&samples.grace_s)),
            interval_us: self.samples.map(|samples| Intervals::of(&samples.intervals)),
            unique_blocks: Distribution::of(&all.collect::<Vec<_>>()),
            unique_blocks_of: shown.collect(),
            deviation: Deviations { count, mean_time, first_time },
            jaccard: SimilarityTiers { family, user, metadata },
        }
    }

    fn curves(&self, compared: &Compared) -> Curves {
        Curves {
            read_percent: self.samples.map(|samples| curve(&samples.read_percent)),
            cosine: compared.cosines.map(|cosines| curve(cosines)),
            access_percent: self.samples.map(|samples| curve(&samples.access_percent)),
            grace_s: self.samples.map(|samples| curve(&samples.grace_s)),
            interval_us: self.samples.map(|samples| curve_of(&samples.intervals)),
            deviation: compared.deviations.each_ref().map(|numbers| curve(numbers)),
            jaccard: compared.tiers.each_ref().map(|indices| curve(indices)),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn share_percent((some, all): &(u64, u64)) -> f64 {
    *some as f64 * 100.0 / (*all).max(1) as f64
}

impl Samples {
    #[expect(clippy::cast_precision_loss, reason = "percentages")]
    fn cross_rates(&self) -> Vec<CrossRate> {
        let rate = |(block, cross): (u64, u64)| CrossRate {
            block,
            percent: cross as f64 * 100.0 / self.reads.max(1) as f64,
        };
        CROSS.into_iter().zip(self.cross).map(rate).collect()
    }
}

impl Intervals {
    fn of(histogram: &LogHistogram) -> Self {
        let at = |percent| histogram.quantile(percent);
        Self {
            count: histogram.count(),
            p25: at(25.0),
            p50: at(50.0),
            p75: at(75.0),
            p95: at(95.0),
            p99: at(99.0),
        }
    }
}

/// Figure 23: the indices of pairs of the same family, user, metadata. Of each image, the group with the most traces
/// stands for it.
fn tiers(done: &[Done]) -> [Vec<f64>; 3] {
    let mut images = std::collections::BTreeMap::<&str, &Done>::new();
    for group in done.iter().filter(|group| !group.creation.family.is_empty()) {
        let best = images.entry(group.creation.image_id()).or_insert(group);
        if group.unique_blocks.len() > best.unique_blocks.len() {
            *best = group;
        }
    }
    let images: Vec<_> = images.into_values().collect();
    let [mut family, mut user, mut metadata] = [const { Vec::new() }; 3];
    for (at, a) in images.iter().enumerate() {
        let relatives = images.iter().skip(at + 1).filter(|b| a.creation.family == b.creation.family);
        for b in relatives {
            let same_user = a.one_user && b.one_user && a.creation.user == b.creation.user;
            let same_rest = configuration(&a.creation) == configuration(&b.creation);
            let tier = match (same_user, same_rest) {
                (false, _) => &mut family,
                (true, false) => &mut user,
                (true, true) => &mut metadata,
            };
            tier.push((*a, *b));
        }
    }
    let compare = |pairs: Vec<(&Done, &Done)>| {
        let some = pairs.iter().step_by(pairs.len().div_ceil(PAIRS_MAX).max(1));
        some.map(|(a, b)| jaccard(&a.typical, &b.typical)).collect()
    };
    [family, user, metadata].map(compare)
}

/// The configuration that a disk was made with, by its metadata.
fn configuration(creation: &Creation) -> &str {
    creation.labels.get(META_INFO).unwrap_or(&creation.options)
}

#[cfg(test)]
mod tests;
