//! The result of training for an image, in numbers.

use headstart_plan::knowledge::{ImageKnowledge, Knowledge, RecordedImage};
use headstart_plan::{Bandwidth, Bin, GroupPlans, Plans, RatedPlan};
use serde::Serialize;

/// An image that was trained.
#[derive(Clone, Debug, Serialize)]
pub struct TrainedImage {
    /// The name that the boots have for it.
    pub image: String,
    /// The size of its disk in bytes.
    pub size: u64,
    /// The number of traces that were learned from.
    pub traces: u64,
    /// Traces that were left out.
    pub outliers: Outliers,
    /// The groups of its boots, the largest first.
    pub groups: Vec<TrainedGroup>,
}

/// Outliers by reason.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Outliers {
    /// Traces with too few reads.
    pub few_reads: u64,
    /// Traces that read too few blocks.
    pub few_blocks: u64,
    /// Traces that read too many blocks.
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
    /// The number of its category, counted from the one that reads the least.
    pub category: u32,
    /// The number of its traces.
    pub traces: u64,
    /// Its plans, from the slowest link to the fastest.
    pub plans: Vec<TrainedPlan>,
}

/// A plan for one bandwidth.
#[derive(Clone, Debug, Serialize)]
pub struct TrainedPlan {
    /// The bandwidth, in bytes a second.
    pub rate: u64,
    /// The bin of that bandwidth.
    pub bin: &'static str,
    /// The number of its blocks.
    pub blocks: usize,
    /// The bytes of its hot slices.
    pub bytes: u64,
    /// The value for the boots that it was made from: their hit rate, or seconds of waiting, negative.
    pub worth: f64,
}

/// All images of the knowledge, with the plans that were made of it.
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
