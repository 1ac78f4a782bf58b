//! The results of training: for an image the groups of its boots, each with plans for some bandwidths.
//!
//! These are plain values. `artifact` writes and reads them, `train` makes them,
//! the switcher of `headstart-preload` goes from one to another while a disk boots.

use crate::policy::Weights;
use crate::zero_shot::ChoiceReason;
use headstart_block::{PlanItem, SLICE_SIZE};
use std::sync::Arc;

/// The plans of one image, and the reason for their choice.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagePlans {
    /// The source of the traces that they were made from.
    pub reason: ChoiceReason,
    /// The groups, the largest first: the first is used while nothing is known of a boot. Empty for a reason of
    /// [`ChoiceReason::None`].
    pub groups: Vec<GroupPlans>,
}

/// The plans of one group of an image's boots.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupPlans {
    /// The number of its category, counted from the one that reads the least.
    pub category: u32,
    /// The number of traces that it was made from.
    pub traces: u64,
    /// The most central boot: a running boot is compared with it.
    pub centroid: Centroid,
    /// The plans, by bandwidth, ascending; at least one.
    pub plans: Vec<RatedPlan>,
    /// The times at which the blocks of the plans are read first: by block, ascending, each once. Blocks with unknown
    /// times are left out.
    pub first_reads: Arc<[FirstRead]>,
}

/// The time at which boots read a block for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstRead {
    /// The number of the block.
    pub block: u64,
    /// Milliseconds after the boot's first read, on the average of those that read it.
    pub ms: u32,
}

impl ImagePlans {
    /// The plans of an unknown image.
    #[must_use]
    pub fn none() -> Self {
        Self { reason: ChoiceReason::None, groups: Vec::new() }
    }

    /// The plans of an image's own groups; without groups, none.
    #[must_use]
    pub fn of_own(groups: Vec<GroupPlans>) -> Self {
        let reason = if groups.is_empty() { ChoiceReason::None } else { ChoiceReason::Trained };
        Self { reason, groups }
    }
}

impl GroupPlans {
    /// The plan for a bandwidth in bytes a second: that of the nearest rate that is not above it, or the slowest.
    #[must_use]
    pub fn at(&self, bandwidth: u64) -> Option<&RatedPlan> {
        self.plans.get(self.index_at(bandwidth))
    }

    /// The time at which a block of its plans is read first, in milliseconds after the boot's first read, on the
    /// average; `None` if it is unknown.
    #[must_use]
    pub fn first_read_ms(&self, block: u64) -> Option<u32> {
        let at = self.first_reads.binary_search_by_key(&block, |read| read.block).ok()?;
        self.first_reads.get(at).map(|read| read.ms)
    }

    /// The index of that plan in `plans`.
    #[must_use]
    pub fn index_at(&self, bandwidth: u64) -> usize {
        self.plans.partition_point(|plan| plan.rate <= bandwidth).saturating_sub(1)
    }
}

/// The blocks that plans name, ascending, each once.
pub(crate) fn named(plans: &[RatedPlan]) -> Vec<u64> {
    let mut blocks: Vec<u64> =
        plans.iter().flat_map(|plan| plan.items.iter().map(|item| item.block)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// A plan for one bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct RatedPlan {
    /// The bandwidth that it was made for, in bytes a second.
    pub rate: u64,
    /// The policy that made it.
    pub policy: String,
    /// The weights that a policy that scores blocks found, to be reused for similar images.
    pub weights: Option<Weights>,
    /// The result that the policy expects on its own training traces: the hit rate, or the delay of a boot in seconds,
    /// negative, as its objective says.
    pub score: f64,
    /// The items to pull, in order.
    pub items: Arc<[PlanItem]>,
}

impl RatedPlan {
    /// Bytes of its slices.
    #[must_use]
    pub fn hot_bytes(&self) -> u64 {
        self.items.iter().map(|item| u64::from(item.mask.count_ones()) * SLICE_SIZE).sum()
    }
}

/// The most central boot of a group: blocks of the disk in the order of first access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Centroid {
    /// Block numbers of the disk, each once.
    pub order: Vec<u64>,
}
