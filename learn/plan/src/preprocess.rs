//! The division of an image's traces into groups of similar ones (ThinkAhead paper, section 5.2). The numbers here are
//! the defaults of [`ModelSettings`].
//!
//! 1. Traces with fewer than ten reads are *outliers*; so are the 2.5% of the traces that read the fewest blocks, and
//!    the 2.5% that read the most. They are left out, and counted by reason.
//! 2. The density of the numbers of distinct blocks that traces read has peaks. The traces around one peak are a
//!    *category*; categories are cut at the lowest density between neighbouring peaks ([`density`]). So categories
//!    divide boots by the amount that they read.
//! 3. Within a category, traces that correlate are a *group*. Up to 256 traces are compared pair by pair and divided
//!    into communities ([`louvain`]); each other trace joins the group with the nearest centroid. Groups divide boots
//!    by the order of their reads, which the compared vectors ([`Vector`]) therefore contain.
//! 4. The *centroid* of a group is the trace with the highest sum of similarities to the others.
//!
//! [`ImageModel`] keeps the result, and takes further traces without the earlier ones.

use crate::best::first_best;
use crate::block_table::BlockTable;
use crate::compact_trace::{CompactTrace, Packed};
use crate::policy::Training;
use crate::similarity::{Feature, Similarities, Vector};
use crate::statistics::Statistics;
use headstart_block::random::Random;
use std::ops::RangeInclusive;

pub mod density;
pub mod louvain;
mod stored;

/// The settings for grouping the traces of an image. The defaults are those of the ThinkAhead paper where it
/// gives any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelSettings {
    /// The minimum number of reads of a trace. Traces with fewer are outliers.
    pub reads_min: usize,
    /// The share of traces, 0 to 0.4, that are outliers at each end in the order of their number of distinct
    /// blocks. Greater values count as 0.4.
    pub trim: f64,
    /// The maximum number of traces of a category that are compared with each other, pair by pair. 0 puts all
    /// boots into one group, regardless of the order and the amount of their reads.
    pub compared_max: usize,
    /// The maximum number of traces of a group that are kept whole, to evaluate orders on; 0 counts as 1.
    pub kept_max: usize,
    /// The correlation, -1 to 1, below which two traces do not count as similar. The default is the correlation above
    /// which, in the ThinkAhead paper, a running boot counts as a boot of another group.
    pub alike: f64,
    /// The kind of number that stands for each block when traces are compared.
    pub feature: Feature,
    /// The seed for drawing the traces that are compared and those that are kept.
    pub seed: u64,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            reads_min: 10,
            trim: 0.025,
            compared_max: 256,
            kept_max: 256,
            alike: 0.7,
            feature: Feature::Order,
            seed: 0,
        }
    }
}

impl ModelSettings {
    /// Returns settings that put all boots into one group and leave out no boot as an outlier (the ablation in
    /// section 7.2 of the ThinkAhead paper).
    #[must_use]
    pub fn none() -> Self {
        Self { reads_min: 0, trim: 0.0, compared_max: 0, ..Self::default() }
    }

    /// The cuts between categories of traces with these numbers of distinct blocks, ascending.
    fn cuts(&self, counts: &[usize]) -> Vec<usize> {
        if self.compared_max == 0 { Vec::new() } else { density::cuts(inner(counts, self.trim)) }
    }
}

/// The numbers of traces that were left out as outliers, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The number of traces with fewer reads than [`ModelSettings::reads_min`].
    pub few_reads: u64,
    /// The number of traces that were cut off by [`ModelSettings::trim`] because they read too few blocks.
    pub few_blocks: u64,
    /// The number of traces that were cut off by [`ModelSettings::trim`] because they read too many blocks.
    pub many_blocks: u64,
}

impl Dropped {
    /// The number of all outliers.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.few_reads.saturating_add(self.few_blocks).saturating_add(self.many_blocks)
    }

    /// Adds the outliers of other traces.
    pub fn add(&mut self, other: &Self) {
        self.few_reads = self.few_reads.saturating_add(other.few_reads);
        self.few_blocks = self.few_blocks.saturating_add(other.few_blocks);
        self.many_blocks = self.many_blocks.saturating_add(other.many_blocks);
    }
}

/// The form in which a group keeps traces: [`CompactTrace`], or [`Packed`] to save memory.
pub trait Kept: Clone {
    /// Converts a trace to this form.
    fn keep(trace: &CompactTrace) -> Self;
}

impl Kept for CompactTrace {
    fn keep(trace: &CompactTrace) -> Self {
        trace.clone()
    }
}

impl Kept for Packed {
    fn keep(trace: &CompactTrace) -> Self {
        Self::of(trace)
    }
}

/// A group of similar traces of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Group<K = CompactTrace> {
    /// The number of the category that the group is in. Categories divide traces by the number of blocks that
    /// they read; category 0 reads the fewest.
    pub category: usize,
    /// The statistics of all traces of the group.
    pub statistics: Statistics,
    /// The most typical trace, as a vector: the one with the highest sum of similarities to the others.
    pub centroid: Vector,
    /// Traces of the group, at most [`ModelSettings::kept_max`]. The first is the most typical one; the
    /// others are a random sample.
    pub kept: Vec<K>,
}

/// The traces of one image, divided into groups of similar ones.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageModel<K = CompactTrace> {
    settings: ModelSettings,
    /// The first number of distinct blocks of each category but the first.
    cuts: Vec<usize>,
    /// The fewest and the most distinct blocks of a trace that is no outlier.
    bounds: (usize, usize),
    groups: Vec<Group<K>>,
    dropped: Dropped,
}

impl<K: Kept> ImageModel<K> {
    /// Divides the traces of one image into groups. Outliers are left out, and counted by reason. All traces must
    /// have been made with the same block table.
    #[must_use]
    pub fn learn(mut traces: Vec<CompactTrace>, settings: ModelSettings) -> Self {
        let mut dropped = Dropped::default();
        traces.retain(|trace| {
            let says_something = trace.reads().len() >= settings.reads_min;
            dropped.few_reads += u64::from(!says_something);
            says_something
        });
        traces.sort_by_key(distinct);
        let counts: Vec<_> = traces.iter().map(distinct).collect();
        let bounds = bounds(inner(&counts, settings.trim));
        let cuts = settings.cuts(&counts);
        let mut model = Self { settings, cuts, bounds, groups: Vec::new(), dropped };
        let mut categories: Vec<Vec<CompactTrace>> = (0..=model.cuts.len()).map(|_| Vec::new()).collect();
        for trace in traces {
            if !model.drops(&trace) {
                categories[model.category(&trace)].push(trace);
            }
        }
        for (category, traces) in categories.into_iter().enumerate() {
            model.group(category, traces);
        }
        // The largest first: it is used when nothing is known of a boot.
        model.groups.sort_by_key(|group| std::cmp::Reverse(group.statistics.traces));
        model
    }

    /// Adds a trace to a group, and returns the index of the group. Of the groups of the trace's category, the one with
    /// the most similar centroid is taken; if the category has no groups, all groups are compared. An outlier joins no
    /// group and is only counted. `None` for an outlier, and if there are no groups. The traces that were added before
    /// are not needed.
    pub fn add(&mut self, trace: &CompactTrace) -> Option<usize> {
        if self.drops(trace) {
            return None;
        }
        let (vector, category) = (Vector::of(trace, self.settings.feature), self.category(trace));
        let of_category = nearest(&vector, &self.groups, |group| group.category == category);
        let group = of_category.or_else(|| nearest(&vector, &self.groups, |_| true))?;
        self.groups[group].take(trace, &self.settings);
        Some(group)
    }

    /// The groups, in descending order of the number of traces that they had when they were made.
    #[must_use]
    pub fn groups(&self) -> &[Group<K>] {
        &self.groups
    }

    /// Returns the number of outliers, by reason.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Returns the number of categories, at least 1. A category is a range of the number of blocks that a
    /// trace reads.
    #[must_use]
    pub fn categories(&self) -> usize {
        self.cuts.len() + 1
    }

    /// Returns the number of traces in all groups.
    #[must_use]
    pub fn traces(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.statistics.traces)).sum()
    }

    /// `true` if the trace is an outlier; it is counted then. A trace that equals the outermost kept one is not
    /// outside.
    fn drops(&mut self, trace: &CompactTrace) -> bool {
        let reason = if trace.reads().len() < self.settings.reads_min {
            &mut self.dropped.few_reads
        } else if distinct(trace) < self.bounds.0 {
            &mut self.dropped.few_blocks
        } else if distinct(trace) > self.bounds.1 {
            &mut self.dropped.many_blocks
        } else {
            return false;
        };
        *reason = reason.saturating_add(1);
        true
    }

    fn category(&self, trace: &CompactTrace) -> usize {
        self.cuts.partition_point(|cut| *cut <= distinct(trace))
    }

    /// Makes the groups of a category.
    fn group(&mut self, category: usize, traces: Vec<CompactTrace>) {
        let sample = Random::new(self.settings.seed).sample(self.settings.compared_max.max(1), traces.len());
        let vectors: Vec<_> =
            sample.iter().map(|at| Vector::of(&traces[*at], self.settings.feature)).collect();
        let similarities = Similarities::of(&vectors);
        let first = self.groups.len();
        let mut places = vec![None; traces.len()];
        for members in louvain::communities(&similarities, self.settings.alike) {
            let Some(centroid) = similarities.centroid(&members) else { continue };
            for member in &members {
                places[sample[*member]] = Some((self.groups.len(), *member == centroid));
            }
            let (statistics, kept) = (Statistics::default(), Vec::new());
            self.groups.push(Group { category, statistics, centroid: vectors[centroid].clone(), kept });
        }
        // The centroids first, so that each is the first of its group.
        let mut rest = Vec::new();
        for (trace, place) in traces.into_iter().zip(places) {
            match place {
                Some((group, true)) => self.groups[group].take(&trace, &self.settings),
                place => rest.push((trace, place.map(|(group, _)| group))),
            }
        }
        for (trace, place) in rest {
            let near = || {
                let vector = Vector::of(&trace, self.settings.feature);
                nearest(&vector, &self.groups[first..], |_| true).map(|group| first + group)
            };
            if let Some(group) = place.or_else(near) {
                self.groups[group].take(&trace, &self.settings);
            }
        }
    }
}

impl<K: Kept> Group<K> {
    /// Adds a trace. Each kept trace but the centroid's gives way to a later one with the chance that
    /// makes all equally likely to be kept.
    fn take(&mut self, trace: &CompactTrace, settings: &ModelSettings) {
        self.statistics.add(trace);
        let kept_max = settings.kept_max.max(1);
        if self.kept.len() < kept_max {
            self.kept.push(K::keep(trace));
            return;
        }
        let traces = self.statistics.traces;
        let place = Random::new(settings.seed ^ u64::from(traces)).below(traces as usize);
        if (1..kept_max).contains(&place) {
            self.kept[place] = K::keep(trace);
        }
    }
}

impl Group {
    /// Returns the group as the input of policies; `block_table` is the table that its traces were made with. `kept`,
    /// which may be empty, is overwritten with references to the group's kept traces, and must live as long as the
    /// result.
    #[must_use]
    pub fn training<'a>(
        &'a self,
        block_table: &'a BlockTable,
        kept: &'a mut Vec<&'a CompactTrace>,
    ) -> Training<'a> {
        kept.clear();
        kept.extend(&self.kept);
        Training { block_table, statistics: &self.statistics, traces: kept }
    }
}

/// The numbers, ascending, without a share at either end.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a number of traces"
)]
fn inner(counts: &[usize], trim: f64) -> &[usize] {
    let cut = (counts.len() as f64 * trim.clamp(0.0, 0.4)) as usize;
    &counts[cut..counts.len() - cut]
}

/// The least and the largest of the remaining numbers.
fn bounds(inner: &[usize]) -> (usize, usize) {
    (inner.first().copied().unwrap_or(0), inner.last().copied().unwrap_or(usize::MAX))
}

/// The fewest and the most distinct blocks of traces that [`ImageModel::learn`] keeps, for traces with these numbers.
pub(crate) fn bounds_of(mut counts: Vec<usize>, settings: &ModelSettings) -> RangeInclusive<usize> {
    counts.sort_unstable();
    let (least, most) = bounds(inner(&counts, settings.trim));
    least..=most
}

/// Returns the number of categories into which [`ImageModel::learn`] divides traces with these numbers of
/// distinct blocks; at least 1.
#[must_use]
pub fn categories(mut counts: Vec<usize>, settings: &ModelSettings) -> usize {
    counts.sort_unstable();
    settings.cuts(&counts).len() + 1
}

fn distinct(trace: &CompactTrace) -> usize {
    trace.first_accesses().len()
}

/// The group whose centroid is most like this; the first of equals.
fn nearest<K>(vector: &Vector, groups: &[Group<K>], of: impl Fn(&Group<K>) -> bool) -> Option<usize> {
    let groups = groups.iter().enumerate().filter(|(_, group)| of(group));
    first_best(groups, |(_, group)| vector.correlation(&group.centroid)).map(|((at, _), _)| at)
}

#[cfg(test)]
mod tests;
