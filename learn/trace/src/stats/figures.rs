//! The numbers that the figures of the ThinkAhead paper take from all traces of a data set.

use super::boot::{BootCounts, CROSS};
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
/// The cosine of read counts from which on the ThinkAhead paper considers two traces similar.
pub const ALIKE: f64 = 0.9;

/// The numbers of figures 2, 8, 12, 13, 15, 18, 20, 22 and 23 of the ThinkAhead paper, and of the disorder in traces:
/// reordering, loss and outliers. Traces of one image on disks of different sizes count as traces of different images,
/// except in [`jaccard`](Self::jaccard).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// The number of traces of each kind of image.
    pub traces: ByKind<u64>,
    /// The percentage of reads that are in more than one block, for several sizes of block (figure 2 of the
    /// ThinkAhead paper).
    pub cross_percent: ByKind<Vec<CrossRate>>,
    /// The percentage of reads among a trace's requests in its first three minutes (figure 8 of the
    /// ThinkAhead paper).
    pub read_percent: ByKind<Distribution>,
    /// The cosine of the read counts, by block, of two traces of an image, 0 to 1 (figure 12 of the
    /// ThinkAhead paper). The pairs are of up to 50 traces of each of the 100 images with the most traces.
    pub cosine: ByKind<Distribution>,
    /// The percentage of the pairs in [`cosine`](Self::cosine) with a cosine of at least [`ALIKE`].
    pub alike_percent: ByKind<f64>,
    /// Reordering: the correlation, -1 to 1, of the orders in which two traces of an image first read the
    /// blocks that both read; 1 for the same order. The pairs are those of [`cosine`](Self::cosine).
    pub order: ByKind<Distribution>,
    /// Loss: the percentage of an image's usual blocks (read by more than half of its traces) that a trace
    /// does not read. Only images with at least five traces count.
    pub lost_percent: ByKind<Distribution>,
    /// Outliers: the percentage of traces that read less than half or more than one and a half times as many
    /// blocks as the median trace of their image. Only images with at least five traces count.
    pub outlier_percent: ByKind<f64>,
    /// The percentage of the disk's blocks (2 MiB) that a trace reads in six minutes (figure 13 of the
    /// ThinkAhead paper).
    pub access_percent: ByKind<Distribution>,
    /// The time from the creation of the disk to its first read, in seconds (figure 15 of the ThinkAhead
    /// paper).
    pub grace_s: ByKind<Distribution>,
    /// The time from a read to the next, in microseconds (figure 18 of the ThinkAhead paper).
    pub interval_us: ByKind<Intervals>,
    /// The number of distinct blocks (2 MiB) that a trace reads, over all images (figure 20 of the ThinkAhead paper).
    pub unique_blocks: Distribution,
    /// The numbers of distinct blocks that the traces of an image read, for the two images with the most
    /// traces (figure 20 of the ThinkAhead paper).
    pub unique_blocks_of: Vec<UniqueBlocks>,
    /// The standard deviations, between the traces of an image, of the numbers that a block's score is made
    /// of (figure 22 of the ThinkAhead paper).
    pub deviation: Deviations,
    /// Jaccard's index (common blocks divided by all blocks, 0 to 1) of typical traces of two images, by the
    /// metadata that the images share (figure 23 of the ThinkAhead paper).
    pub jaccard: SimilarityTiers,
}

/// A point of figure 2 of the ThinkAhead paper: the reads that are in more than one block, for one size of
/// block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CrossRate {
    /// The size of a block, in bytes.
    pub block: u64,
    /// The percentage of reads that are in more than one block of this size.
    pub percent: f64,
}

/// Percentiles of the times from a read to the next, each rounded down by less than a sixteenth of its value; all 0
/// without values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Intervals {
    /// The number of times, each from a read to the next.
    pub count: u64,
    /// The 25th percentile of the times from a read to the next, in microseconds; 0 without values.
    pub p25: u64,
    /// The median of the times from a read to the next, in microseconds; 0 without values.
    pub p50: u64,
    /// The 75th percentile of the times from a read to the next, in microseconds; 0 without values.
    pub p75: u64,
    /// The 95th percentile of the times from a read to the next, in microseconds; 0 without values.
    pub p95: u64,
    /// The 99th percentile of the times from a read to the next, in microseconds; 0 without values.
    pub p99: u64,
}

/// The numbers of distinct blocks that the traces of one image read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UniqueBlocks {
    /// The name of the image.
    pub image: String,
    /// The size of the disks that were made from the image, in bytes.
    pub size: u64,
    /// The number of distinct blocks (2 MiB) that each trace reads.
    pub blocks: Vec<u32>,
}

/// Standard deviations, between the traces of an image, of three metrics of a block. Each value is the mean over those
/// blocks of an image that at least two traces read. The number of reads is divided by the greatest number in that
/// image, and both times by the greatest mean time. The distributions are over images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Deviations {
    /// The standard deviation of the number of reads of a block.
    pub count: Distribution,
    /// The standard deviation of the mean time of the reads of a block.
    pub mean_time: Distribution,
    /// The standard deviation of the time of the first read of a block.
    pub first_time: Distribution,
}

/// The similarity of the blocks that boots of two images read, by the metadata that the images share: Jaccard's index
/// (common blocks divided by all blocks, 0 to 1) of one typical trace of each image, the one with the median number of
/// blocks. Images without a family are left out.
///
/// The configuration of an image is its label `meta_info`; if it has no such label, the options of the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SimilarityTiers {
    /// The index of pairs of images with the same family, but not the same user.
    pub family: Distribution,
    /// The index of pairs of images with the same family and user, but not the same configuration.
    pub user: Distribution,
    /// The index of pairs of images with the same family, user and configuration.
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

/// Collects the figures of a data set, trace by trace.
#[derive(Default)]
pub struct Collector {
    samples: ByKind<Samples>,
    group: Option<Group>,
    done: Vec<Done>,
}

impl Collector {
    /// Adds a trace: its metadata and its counts. Traces of one image and one size of disk must be added one after
    /// another, as a [`DataSet`](crate::DataSet) orders them; otherwise they count as traces of different images.
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    pub fn add(&mut self, creation: &Creation, boot: &BootCounts) {
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

    /// Returns the figures of all added traces.
    #[must_use]
    pub fn finish(mut self) -> Figures {
        self.end_group();
        self.figures(&self.compare())
    }

    /// Returns the figures of all added traces, and the curves of their plots.
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

/// The indices of pairs of the same family, user, metadata (figure 23 of the ThinkAhead paper). Of each
/// image, the group with the most traces stands for it.
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
