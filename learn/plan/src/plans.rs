//! The results of training: for an image the groups of its boots, each with plans for some bandwidths.
//!
//! These are plain values. `train` makes them, and `artifact` writes them to files and reads them. While a disk boots,
//! the switcher of `headstart-preload` goes from one plan to another.

use crate::policy::Weights;
use crate::zero_shot::ChoiceReason;
use headstart_block::{Error, ErrorKind, PlanItem, Result, SLICE_SIZE};
use std::cmp::Reverse;
use std::sync::Arc;

/// The preload plans of one image, and the source of the traces that they were made from.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagePlans {
    /// The source of the traces that the plans were made from, or [`ChoiceReason::None`] if there are no
    /// plans.
    pub reason: ChoiceReason,
    /// The groups of similar boots, the largest first. The first is used until a boot can be compared with
    /// the groups. Empty if the reason is [`ChoiceReason::None`].
    pub groups: Vec<GroupPlans>,
}

/// The preload plans of one group of similar boots of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupPlans {
    /// The number of the category that the group is in. Categories divide boots by the number of blocks that
    /// they read; category 0 reads the fewest.
    pub category: u32,
    /// The entrypoint of the containers whose starts are in the group; empty for boots of machines, and for starts of
    /// programs that are not known. In files, the image's name has it.
    pub entrypoint: String,
    /// The number of traces that the plans were made from.
    pub traces: u64,
    /// The most typical boot of the group, with which running boots are compared; empty if the plans were made from
    /// layers, or from several images together.
    pub centroid: Centroid,
    /// The plans of the group, one for each bandwidth, in ascending order of bandwidth. Training makes at least one.
    pub plans: Vec<RatedPlan>,
    /// The average times at which boots first read the blocks of the plans, in ascending order of block, each block
    /// once. Blocks for which this time is unknown are left out.
    pub first_reads: Arc<[FirstRead]>,
}

/// The average time at which boots read a block for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstRead {
    /// The number of the block on the disk (offset divided by 2 MiB).
    pub block: u64,
    /// Milliseconds from the boot's first read to the first read of the block, averaged over the traces that read the
    /// block. In plans that were made from layers: the least of the averages of the layers' images.
    pub ms: u32,
}

impl ImagePlans {
    /// Returns the plans of an image that nothing is known of: no groups.
    #[must_use]
    pub fn none() -> Self {
        Self { reason: ChoiceReason::None, groups: Vec::new() }
    }

    /// Makes the plans of an image from the groups of its own boots. Without groups, the reason is
    /// [`ChoiceReason::None`].
    #[must_use]
    pub fn of_own(groups: Vec<GroupPlans>) -> Self {
        let reason = if groups.is_empty() { ChoiceReason::None } else { ChoiceReason::Trained };
        Self { reason, groups }
    }

    /// Joins the plans of an image's starts, each with its entrypoint: the groups become one list, the largest first.
    #[must_use]
    pub fn of_starts<'a>(starts: impl Iterator<Item = (&'a str, Arc<Self>)>) -> Self {
        let mut groups: Vec<GroupPlans> = Vec::new();
        for (entrypoint, plans) in starts {
            let named = |group| GroupPlans { entrypoint: entrypoint.to_owned(), ..group };
            groups.extend(Arc::unwrap_or_clone(plans).groups.into_iter().map(named));
        }
        groups.sort_by_key(|group| Reverse(group.traces));
        Self::of_own(groups)
    }

    /// Puts the groups of starts with this entrypoint before all others. Without such a group, nothing changes.
    #[must_use]
    pub fn beginning_with(mut self, entrypoint: &str) -> Self {
        self.groups.sort_by_key(|group| group.entrypoint != entrypoint);
        self
    }

    /// Returns the items of all plans, one plan after another, in the order of the groups and of their bandwidths. A
    /// block may occur several times.
    #[must_use]
    pub fn items(&self) -> Vec<PlanItem> {
        let plans = self.groups.iter().flat_map(|group| &group.plans);
        plans.flat_map(|plan| plan.items.iter().copied()).collect()
    }

    /// Returns the group with this number; 0 is the largest.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such group.
    pub fn group(&self, number: usize) -> Result<&GroupPlans> {
        self.groups.get(number).ok_or_else(|| match self.groups.len() {
            0 => Error::new(ErrorKind::NotFound, "there is no plan for this image")
                .remedy("train with boots of it: see `headstart train --help`"),
            1 => Error::new(ErrorKind::NotFound, format!("there is no group {number}"))
                .remedy("there is one group: name 0"),
            groups => Error::new(ErrorKind::NotFound, format!("there is no group {number}"))
                .remedy(format!("name one of 0 to {}", groups - 1)),
        })
    }
}

impl GroupPlans {
    /// Returns the plan for a bandwidth in bytes a second: the plan with the highest rate that is not above
    /// `bandwidth`, otherwise the plan with the lowest rate. `None` if the group has no plans.
    #[must_use]
    pub fn at(&self, bandwidth: u64) -> Option<&RatedPlan> {
        self.plans.get(self.index_at(bandwidth))
    }

    /// Returns the average time of the first read of a block, in milliseconds after the boot's first read;
    /// `None` if the time is unknown. `block` is the block's number on the disk.
    #[must_use]
    pub fn first_read_ms(&self, block: u64) -> Option<u32> {
        let at = self.first_reads.binary_search_by_key(&block, |read| read.block).ok()?;
        self.first_reads.get(at).map(|read| read.ms)
    }

    /// Returns the index in [`plans`](Self::plans) of the plan that [`at`](Self::at) chooses for a bandwidth in
    /// bytes a second; 0 if the group has no plans.
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

/// A preload plan made for one bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct RatedPlan {
    /// The bandwidth that the plan was made for, in bytes a second.
    pub rate: u64,
    /// The name of the policy that made the plan.
    pub policy: String,
    /// The weights of the blocks' scores that the policy found, to be reused for similar images; `None` if
    /// there are none.
    pub weights: Option<Weights>,
    /// The result on up to ten of the training traces; higher is better. Depending on the objective, the average hit
    /// rate, or the average delay of a boot in seconds as a negative number; 0 for plans of layers.
    pub score: f64,
    /// The blocks to preload, each with its slices, in order.
    pub items: Arc<[PlanItem]>,
}

impl RatedPlan {
    /// Returns the total length of the plan's slices, in bytes; each slice counts as 64 KiB.
    #[must_use]
    pub fn hot_bytes(&self) -> u64 {
        self.items.iter().map(|item| u64::from(item.mask.count_ones()) * SLICE_SIZE).sum()
    }
}

/// The most typical boot of a group, reduced to the blocks that it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Centroid {
    /// The numbers of the blocks on the disk, in the order of first access, each once.
    pub order: Vec<u64>,
}
