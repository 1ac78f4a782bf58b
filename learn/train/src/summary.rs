//! The result of training for an image, in numbers.

use headstart_plan::knowledge::{ImageKnowledge, Knowledge, RecordedImage};
use headstart_plan::{Bandwidth, Bin, GroupPlans, Plans, RatedPlan};
use serde::Serialize;

/// An image that was trained.
#[derive(Clone, Debug, Serialize)]
pub struct TrainedImage {
    /// The name that the boots have for the image.
    pub image: String,
    /// The size of the image's disk in bytes; 0 if it is unknown.
    pub size: u64,
    /// The number of traces that were learned from. Until the groups of the image are final, it includes those that are
    /// also counted in `outliers` as reading too few or too many blocks.
    pub traces: u64,
    /// The numbers of traces that were left out, by reason.
    pub outliers: Outliers,
    /// The groups of boots that have plans, the largest first. If the image has no groups of its own, these are the
    /// groups of similar images.
    pub groups: Vec<TrainedGroup>,
}

/// The numbers of traces of an image that were left out as outliers, by reason.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Outliers {
    /// The number of traces with too few reads.
    pub few_reads: u64,
    /// The number of traces that read too few blocks.
    pub few_blocks: u64,
    /// The number of traces that read too many blocks.
    pub many_blocks: u64,
}

impl Outliers {
    /// The number of all outliers.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.few_reads + self.few_blocks + self.many_blocks
    }
}

/// A group of boots with plans.
#[derive(Clone, Debug, Serialize)]
pub struct TrainedGroup {
    /// The number of the category that the group is in. Categories divide boots by the number of blocks that they
    /// read; category 0 reads the fewest.
    pub category: u32,
    /// The number of traces in the group.
    pub traces: u64,
    /// The plans of the group, in ascending order of bandwidth.
    pub plans: Vec<TrainedPlan>,
}

/// A plan for one bandwidth.
#[derive(Clone, Debug, Serialize)]
pub struct TrainedPlan {
    /// The bandwidth that the plan was made for, in bytes a second.
    pub rate: u64,
    /// The name of the range of bandwidths (in MB/s) that this bandwidth is in, such as `2-10`.
    pub bin: &'static str,
    /// The number of blocks in the plan.
    pub blocks: usize,
    /// The total length of the plan's hot slices, in bytes.
    pub bytes: u64,
    /// The result of the plan on up to ten of the boots that it was made from; higher is better. Depending on the
    /// objective, the average hit rate (0 to 1), or the average delay of a boot in seconds as a negative number.
    pub worth: f64,
}

/// Returns a summary of each image in `knowledge`, with the plans that were made from it, in the order of the images'
/// names and sizes.
#[must_use]
pub fn of_all(knowledge: &Knowledge, plans: &Plans) -> Vec<TrainedImage> {
    knowledge.images().map(|(key, image)| of_image(key, image, plans)).collect()
}

fn of_image(key: &RecordedImage, image: &ImageKnowledge, plans: &Plans) -> TrainedImage {
    let dropped = image.dropped();
    let chosen = plans.choose(key, &image.metadata());
    TrainedImage {
        image: key.image.clone(),
        size: key.size,
        traces: image.traces(),
        outliers: Outliers {
            few_reads: dropped.few_reads,
            few_blocks: dropped.few_blocks,
            many_blocks: dropped.many_blocks,
        },
        groups: chosen.groups.iter().map(of_group).collect(),
    }
}

fn of_group(group: &GroupPlans) -> TrainedGroup {
    let plan = |plan: &RatedPlan| TrainedPlan {
        rate: plan.rate,
        bin: Bin::of(Bandwidth::new(plan.rate)).name(),
        blocks: plan.items.len(),
        bytes: plan.hot_bytes(),
        worth: plan.score,
    };
    TrainedGroup {
        category: group.category,
        traces: group.traces,
        plans: group.plans.iter().map(plan).collect(),
    }
}
