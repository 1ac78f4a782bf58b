//! `headstart plan diff`.

use super::mega;
use clap::Args;
use headstart_block::words::count;
use headstart_block::{ByteSize, Result};
use headstart_command_line::report::Outcome;
use headstart_plan::difference::{ImageDifference, PlanChanges, PlanDifference, differences};
use headstart_train::plan_files::read_plans;
use serde::Serialize;
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
        let (old, new) = (read_plans(&self.old)?, read_plans(&self.new)?);
        Ok(DiffReport { images: differences(&old, &new, self.image.as_deref()) })
    }
}

/// Images whose plans differ.
#[derive(Serialize)]
pub(super) struct DiffReport {
    images: Vec<ImageDifference>,
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
                PlanChanges::Added => write!(f, "only in the new file")?,
                PlanChanges::Removed => write!(f, "only in the old file")?,
                PlanChanges::Changed { groups: (old, new), plans } => {
                    match old == new {
                        true => write!(f, "{}", count(plans.len() as u64, "plan"))?,
                        false => write!(f, "{old} groups, now {new}; {}", count(plans.len() as u64, "plan"))?,
                    }
                    plans.iter().try_for_each(|plan| write_plan(f, plan))?;
                }
            }
        }
        Ok(())
    }
}

fn write_plan(f: &mut fmt::Formatter<'_>, plan: &PlanDifference) -> fmt::Result {
    write!(f, "\n  group {}, {:>5} MB/s: ", plan.group, mega(plan.rate))?;
    match (&plan.policies.0, &plan.policies.1) {
        (_, new) if new.is_empty() => return write!(f, "no longer there"),
        (old, _) if old.is_empty() => return write!(f, "new"),
        (old, new) if old != new => write!(f, "{old}, now {new}; ")?,
        _ => {}
    }
    write!(f, "+{} -{} blocks, {} moved", plan.added, plan.removed, plan.moved)?;
    if plan.moved > 0 {
        write!(f, " by {:.1} places", plan.places)?;
    }
    let (old, new) = plan.bytes;
    write!(f, ", {} with other slices, {:.1} MB, now {:.1}", plan.other_slices, mega(old), mega(new))
}
