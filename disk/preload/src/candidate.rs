//! Plans that were found for a disk, and their origins.

use crate::PilotReport;
use headstart_plan::ImagePlans;
use std::fmt;
use std::sync::Arc;

/// The origin of preload plans. An earlier variant is preferred to a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A plan that the caller of the attach gave.
    Given,
    /// An artifact that belongs to the image, in the image's store.
    Artifact,
    /// A file of plans on this host that was learned from boots of this image.
    File,
    /// The order in which the image's boot layer stores its slices (64 KiB each).
    BootLayer,
    /// A trace in a layer of the image, in the format of OverlayBD's prefetcher.
    TraceLayer,
    /// A file of plans on this host that was learned from images that share layers with this one or resemble
    /// it.
    ZeroShot,
    /// The recent reads of this image's disks on other hosts.
    Hints,
}

impl Origin {
    /// The origin's name in output for programs, such as `boot-layer`.
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

/// The preload plans that one origin has for a disk.
#[derive(Clone, Debug)]
pub struct PlanCandidate {
    /// The origin of the plans.
    pub origin: Origin,
    /// The plans: each group of similar boots has one plan for each bandwidth.
    pub plans: Arc<ImagePlans>,
    /// A phrase for people that names the data from which the plans were made: `5 boots of this image`.
    pub why: String,
}

/// The results of preloading a disk so far.
#[derive(Clone, Debug, Default)]
pub struct Preloaded {
    /// The origin of the plans that are followed; `None` if the disk follows no plan and fetches only on
    /// reads.
    pub origin: Option<Origin>,
    /// A phrase for people that names the data from which the followed plans were made. Empty if no plan is followed,
    /// or if the caller of the attach gave the plan itself.
    pub why: String,
    /// The figures of the plans that are followed. Of plans that the disk followed before, only the switches
    /// are included.
    pub report: PilotReport,
    /// The number of errors in the search for plans: a location that could not be read, or something in it that is not
    /// a usable plan. One location can have several.
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
