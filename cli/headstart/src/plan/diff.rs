//! `headstart plan diff`.

use super::{mega, read};
use crate::report::{Outcome, count};
use clap::Args;
use headstart_block::{ByteSize, PlanItem, Result};
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::{GroupPlans, ImagePlans, RatedPlan};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart plan diff plans.monday plans.tuesday
  headstart plan diff plans.monday plans.tuesday --image m-nginx --json";

/// The plans to compare.
#[derive(Args)]
pub(crate) struct Diff {
    /// The plans before
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The plans after
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Only those of this image
    #[arg(long, value_name = "KEY")]
    image: Option<String>,
}

impl Diff {
    pub(super) fn run(&self) -> Result<DiffReport> {
        let (old, new) = (read(&self.old)?, read(&self.new)?);
        let wanted =
            |(key, _): &(&RecordedImage, _)| self.image.as_ref().is_none_or(|image| *image == key.image);
        let keys: BTreeSet<_> =
            old.images().filter(wanted).chain(new.images().filter(wanted)).map(|(key, _)| key).collect();
        let images = keys.into_iter().filter_map(|key| {
            let of = |plans: &headstart_plan::train::Plans| {
                plans.images().find(|(known, _)| *known == key).map(|(_, plans)| plans.clone())
            };
            let (image, size) = (key.image.clone(), key.size);
            let changes = match (of(&old), of(&new)) {
                (Some(old), Some(new)) => changes(&old, &new),
                (None, _) => Changes::Added,
                (_, None) => Changes::Removed,
            };
            (!changes.is_empty()).then_some(ImageDiff { image, size, changes })
        });
        Ok(DiffReport { images: images.collect() })
    }
}

/// Images whose plans differ.
#[derive(Serialize)]
pub(super) struct DiffReport {
    images: Vec<ImageDiff>,
}

#[derive(Serialize)]
struct ImageDiff {
    image: String,
    size: u64,
    #[serde(flatten)]
    changes: Changes,
}

/// The change of an image's plans.
#[derive(Serialize)]
#[serde(tag = "change", rename_all = "lowercase")]
enum Changes {
    /// Only the new file has plans for it.
    Added,
    /// Only the old file has plans for it.
    Removed,
    Changed {
        /// Groups before and after.
        groups: (usize, usize),
        plans: Vec<PlanDiff>,
    },
}

impl Changes {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Changed { groups, plans } if groups.0 == groups.1 && plans.is_empty())
    }
}

/// The difference between two plans for the same group and bandwidth.
#[derive(Serialize)]
struct PlanDiff {
    group: usize,
    /// The bandwidth, in bytes a second.
    rate: u64,
    /// The policies before and after; empty if there is no such plan.
    policies: (String, String),
    /// Blocks that only the new one has.
    added: usize,
    /// Blocks that only the old one has.
    removed: usize,
    /// Blocks of both that have another place among the blocks of both.
    moved: usize,
    /// The mean number of places by which they moved.
    places: f64,
    /// Blocks of both with other slices.
    other_slices: usize,
    /// Bytes of the hot slices, before and after.
    bytes: (u64, u64),
}

fn changes(old: &ImagePlans, new: &ImagePlans) -> Changes {
    let groups = (old.groups.len(), new.groups.len());
    let both = old.groups.iter().zip(&new.groups).enumerate();
    let plans = both.flat_map(|(at, (old, new))| group(at, old, new)).collect();
    Changes::Changed { groups, plans }
}

fn group(at: usize, old: &GroupPlans, new: &GroupPlans) -> Vec<PlanDiff> {
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
fn plan(group: usize, rate: u64, old: Option<&RatedPlan>, new: Option<&RatedPlan>) -> PlanDiff {
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
    PlanDiff {
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

impl Outcome for DiffReport {
    fn is_right(&self) -> bool {
        self.images.is_empty()
    }
}

impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.images.is_empty() {
            return write!(f, "the same plans");
        }
        for (at, image) in self.images.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            write!(f, "{newline}{} {}: ", image.image.escape_debug(), ByteSize(image.size))?;
            match &image.changes {
                Changes::Added => write!(f, "only in the new file")?,
                Changes::Removed => write!(f, "only in the old file")?,
                Changes::Changed { groups: (old, new), plans } => {
                    match old == new {
                        true => write!(f, "{}", count(plans.len() as u64, "plan"))?,
                        false => write!(f, "{old} groups, now {new}; {}", count(plans.len() as u64, "plan"))?,
                    }
                    plans.iter().try_for_each(|plan| plan.write(f))?;
                }
            }
        }
        Ok(())
    }
}

impl PlanDiff {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n  group {}, {:>5} MB/s: ", self.group, mega(self.rate))?;
        match (&self.policies.0, &self.policies.1) {
            (_, new) if new.is_empty() => return write!(f, "no longer there"),
            (old, _) if old.is_empty() => return write!(f, "new"),
            (old, new) if old != new => write!(f, "{old}, now {new}; ")?,
            _ => {}
        }
        write!(f, "+{} -{} blocks, {} moved", self.added, self.removed, self.moved)?;
        if self.moved > 0 {
            write!(f, " by {:.1} places", self.places)?;
        }
        let (old, new) = self.bytes;
        write!(f, ", {} with other slices, {:.1} MB, now {:.1}", self.other_slices, mega(old), mega(new))
    }
}
