//! Plans that were found for a disk, and their origins.

use crate::PilotReport;
use headstart_plan::ImagePlans;
use std::fmt;
use std::sync::Arc;

/// The origin of plans; an earlier variant is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The caller gave the plan to follow.
    Given,
    /// An artifact that belongs to the image, in the image's store.
    Artifact,
    /// A file of plans on this host, which knows boots of this image.
    File,
    /// The order in which the image's boot layer stores its slices.
    BootLayer,
    /// A trace in a layer of the image, in the form of OverlayBD's prefetcher.
    TraceLayer,
    /// A file of plans on this host, which knows layers of this image or images like it.
    ZeroShot,
    /// The reads of disks of this image on other hosts in these minutes.
    Hints,
}

impl Origin {
    /// The origin as a word for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Artifact => "artifact",
            Self::File => "file",
            Self::BootLayer => "boot-layer",
            Self::TraceLayer => "trace-layer",
            Self::ZeroShot => "zero-shot",
            Self::Hints => "hints",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Plans that were found for a disk.
#[derive(Clone, Debug)]
pub struct PlanCandidate {
    /// Their origin.
    pub origin: Origin,
    /// The plans.
    pub plans: Arc<ImagePlans>,
    /// The data that they were made from, for people: `5 boots of this image`.
    pub why: String,
}

/// The results of preloading so far.
#[derive(Clone, Debug, Default)]
pub struct Preloaded {
    /// The origin of the plans that are followed; `None` if the disk is lazy.
    pub origin: Option<Origin>,
    /// The data that they were made from, for people; empty if there are none.
    pub why: String,
    /// Their results; of earlier plans it has only the switches.
    pub report: PilotReport,
    /// The number of places that could not be looked at, or had something that is not a plan.
    pub failures: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_origin_comes_first() {
        let order = [
            Origin::Given,
            Origin::Artifact,
            Origin::File,
            Origin::BootLayer,
            Origin::TraceLayer,
            Origin::ZeroShot,
            Origin::Hints,
        ];
        assert!(order.is_sorted());
    }
}
