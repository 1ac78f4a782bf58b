//! The differences between two files of plans.

use crate::knowledge::RecordedImage;
use crate::plans::{GroupPlans, ImagePlans, RatedPlan};
use crate::train::Plans;
use headstart_block::PlanItem;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// An image whose plans differ between two files of plans.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageDifference {
    /// The id of the image, as its traces have it.
    pub image: String,
    /// The size of the image's disk in bytes; 0 if it is unknown.
    pub size: u64,
    /// The change of the image's plans from the old file to the new one.
    #[serde(flatten)]
    pub changes: PlanChanges,
}

/// The change of an image's plans.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "lowercase")]
pub enum PlanChanges {
    /// Only the new file has the image.
    Added,
    /// Only the old file has the image.
    Removed,
    /// Both files have the image, with different plans.
    Changed {
        /// The number of the image's groups in the old file, and in the new one.
        groups: (usize, usize),
        /// The plans that differ in their policy or their items, in groups that both files have.
        plans: Vec<PlanDifference>,
    },
}

impl PlanChanges {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Changed { groups, plans } if groups.0 == groups.1 && plans.is_empty())
    }
}

/// The difference between the old and the new plan for the same group and bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanDifference {
    /// The number of the group; 0 is the largest.
    pub group: usize,
    /// The bandwidth that the plans were made for, in bytes a second.
    pub rate: u64,
    /// The names of the policies of the old and the new plan; empty for a plan that does not exist.
    pub policies: (String, String),
    /// The number of blocks that only the new plan has.
    pub added: usize,
    /// The number of blocks that only the old plan has.
    pub removed: usize,
    /// The number of blocks in both plans that moved. Places count among the blocks of both plans alone, so that
    /// added and removed blocks move no others.
    pub moved: usize,
    /// The mean number of places by which the moved blocks moved, in either direction; 0 if none moved.
    pub places: f64,
    /// The number of blocks in both plans whose slices differ.
    pub other_slices: usize,
    /// The total length of the hot slices of the old and the new plan, in bytes; 0 for a plan that does not exist.
    pub bytes: (u64, u64),
}

/// Returns the images whose plans differ, in the order of their names and sizes. If `image` is given, only images
/// with this name are compared.
#[must_use]
pub fn differences(old: &Plans, new: &Plans, image: Option<&str>) -> Vec<ImageDifference> {
    let wanted = |(key, _): &(&RecordedImage, _)| image.is_none_or(|image| image == key.image);
    let keys: BTreeSet<_> =
        old.images().filter(wanted).chain(new.images().filter(wanted)).map(|(key, _)| key).collect();
    let of = |plans: &Plans, key: &RecordedImage| plans.images.get(key).cloned();
    let images = keys.into_iter().filter_map(|key| {
        let (image, size) = (key.image.clone(), key.size);
        let changes = match (of(old, key), of(new, key)) {
            (Some(old), Some(new)) => changes(&old, &new),
            (None, _) => PlanChanges::Added,
            (_, None) => PlanChanges::Removed,
        };
        (!changes.is_empty()).then_some(ImageDifference { image, size, changes })
    });
    images.collect()
}

fn changes(old: &ImagePlans, new: &ImagePlans) -> PlanChanges {
    let groups = (old.groups.len(), new.groups.len());
    let both = old.groups.iter().zip(&new.groups).enumerate();
    let plans = both.flat_map(|(at, (old, new))| group(at, old, new)).collect();
    PlanChanges::Changed { groups, plans }
}

fn group(at: usize, old: &GroupPlans, new: &GroupPlans) -> Vec<PlanDifference> {
    let by_rate = |group: &GroupPlans| -> BTreeMap<u64, RatedPlan> {
        group.plans.iter().map(|plan| (plan.rate, plan.clone())).collect()
    };
    let (old, new) = (by_rate(old), by_rate(new));
    let rates: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
    let differs = |rate: &u64| {
        let parts = |plan: &RatedPlan| (plan.policy.clone(), plan.items.clone());
        old.get(rate).map(parts) != new.get(rate).map(parts)
    };
    rates.into_iter().filter(differs).map(|rate| plan(at, rate, old.get(&rate), new.get(&rate))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "an average of places")]
fn plan(group: usize, rate: u64, old: Option<&RatedPlan>, new: Option<&RatedPlan>) -> PlanDifference {
    let masks = |plan: Option<&RatedPlan>| -> BTreeMap<u64, u32> {
        plan.iter().flat_map(|plan| plan.items.iter().map(|item| (item.block, item.mask))).collect()
    };
    let (before, after) = (masks(old), masks(new));
    // Places among the blocks of both: added or removed blocks move nothing.
    let places = |plan: Option<&RatedPlan>| -> BTreeMap<u64, usize> {
        let both = |item: &&PlanItem| before.contains_key(&item.block) && after.contains_key(&item.block);
        let items = plan.iter().flat_map(|plan| plan.items.iter()).filter(both);
        items.enumerate().map(|(place, item)| (item.block, place)).collect()
    };
    let (old_places, new_places) = (places(old), places(new));
    let distances = old_places.iter().map(|(block, place)| new_places[block].abs_diff(*place));
    let moved: Vec<_> = distances.filter(|distance| *distance > 0).collect();
    let policy = |plan: Option<&RatedPlan>| plan.map(|plan| plan.policy.clone()).unwrap_or_default();
    let bytes = |plan: Option<&RatedPlan>| plan.map_or(0, RatedPlan::hot_bytes);
    PlanDifference {
        group,
        rate,
        policies: (policy(old), policy(new)),
        added: after.keys().filter(|block| !before.contains_key(block)).count(),
        removed: before.keys().filter(|block| !after.contains_key(block)).count(),
        moved: moved.len(),
        places: moved.iter().sum::<usize>() as f64 / moved.len().max(1) as f64,
        other_slices: before
            .iter()
            .filter(|(block, mask)| after.get(block).is_some_and(|m| m != *mask))
            .count(),
        bytes: (bytes(old), bytes(new)),
    }
}
