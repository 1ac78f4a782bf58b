//! What a harvest VM's user is told: what happened, when, why, and what can be done.

use super::step::Why;
use crate::{GssdId, Time, VssdId};
use std::fmt;

/// Something a harvest VM's user has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The harvest VM.
    pub vm: String,
    /// Its vSSD.
    pub ghost: VssdId,
    /// When, on the driver's clock.
    pub at: Time,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The harvest VM lost its harvested storage, and with it its disk.
    Evicted {
        /// The gSSD that was taken back.
        gssd: GssdId,
        /// Why.
        why: Why,
        /// Whether that was before the time asked for was over.
        early: bool,
        /// All gSSDs that it had.
        lost: Vec<GssdId>,
        /// Flash blocks of them together.
        capacity: u64,
        /// Why the data could not be moved elsewhere.
        cause: String,
    },
    /// The harvest VM needs more than there is. What it has it keeps.
    UnderHarvest {
        /// Channels and flash blocks that it is forecast to need.
        needs: (u16, u32),
        /// Channels and flash blocks that it has.
        has: (u32, u64),
    },
    /// A gSSD that was to be given back holds what its other slots have no space for. It keeps it.
    Kept {
        /// The gSSD.
        gssd: GssdId,
        /// Why.
        cause: String,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "it was given back",
            Self::Pressed => "its owner needs it now",
            Self::Forecast => "its owner is forecast to need it",
            Self::Expired => "the time that its owner could do without it is over",
            Self::Over => "the time asked for is over",
            Self::HomeDeleted => "its owner is gone, or it was unsold and is sold",
            Self::Evicted => "other storage of the same disk was lost",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "harvest VM {}: ", self.vm)?;
        match &self.what {
            What::Evicted { gssd, why, early, lost, capacity, cause } => write!(
                f,
                "evicted{}: gSSD {} was taken back because {why}, and its data could not be moved ({cause}); {} gSSD{} \
                 of {capacity} flash blocks are lost with the disk on them; run the job again from its last \
                 checkpoint, with a request for less or for a shorter time if this is refused",
                if *early { " before its time" } else { "" },
                gssd.0,
                lost.len(),
                if lost.len() == 1 { "" } else { "s" },
            ),
            What::UnderHarvest { needs, has } => write!(
                f,
                "needs {} channels and {} flash blocks and has {} and {}: no more can be harvested now; nothing was \
                 lost; write less, wait, or move to a host with more to spare before the disk is full",
                needs.0, needs.1, has.0, has.1
            ),
            What::Kept { gssd, cause } => write!(
                f,
                "gSSD {} was not given back, for its data fits nowhere else ({cause}); nothing was lost; delete data \
                 and make the disk smaller, then release it again",
                gssd.0
            ),
        }
    }
}
