//! Messages to a VM's user: the event, its time, its cause, and the remedy.

use crate::{GssdId, Time, VssdId, counted};
use headstart_flash::device::FlashBlock;
use headstart_flash::step::Why;
use std::fmt;

/// A message to a VM's user, mostly a harvest VM's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerReport {
    /// The VM.
    pub vm: String,
    /// Its vSSD.
    pub vssd: VssdId,
    /// The time, on the driver's clock.
    pub at: Time,
    /// The event.
    pub what: Notice,
}

/// The event of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The harvest VM lost its harvested storage, and with it its disk.
    Evicted {
        /// The gSSD that was taken back.
        gssd: GssdId,
        /// The reason.
        why: Why,
        /// `true` if that was before the requested time was over.
        early: bool,
        /// All gSSDs that it had.
        lost: Vec<GssdId>,
        /// Flash blocks of them together.
        capacity: u64,
        /// The reason that the data could not be moved elsewhere.
        cause: String,
    },
    /// The harvest VM needs more than there is. It keeps its present storage.
    UnderHarvest {
        /// Channels and flash blocks that it is forecast to need.
        needs: (u16, u32),
        /// Channels and flash blocks that it has.
        has: (u32, u64),
    },
    /// A gSSD that was to be given back holds data that its other slots have no space for. The VM keeps it.
    Kept {
        /// The gSSD.
        gssd: GssdId,
        /// The reason.
        cause: String,
    },
    /// Flash pages of any VM's vSSD cannot be read any more, and are lost.
    Unreadable {
        /// The number of pages.
        pages: u64,
        /// The offset of the first of them on the disk, in bytes.
        offset: u64,
        /// Its place on flash: the flash block and the page of it.
        at: (FlashBlock, u32),
    },
    /// A lease is over. Its data was moved to the harvest VM's other storage.
    Expired {
        /// The gSSD.
        gssd: GssdId,
        /// The time that is over.
        why: Why,
        /// Its flash blocks.
        capacity: u32,
    },
}

impl fmt::Display for BrokerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if matches!(self.what, Notice::Unreadable { .. }) { "vSSD" } else { "harvest VM" };
        write!(f, "{whose} {}: ", self.vm)?;
        match &self.what {
            Notice::Evicted { gssd, why, early, lost, capacity, cause } => write!(
                f,
                "evicted{}: gSSD {} was taken back because {why}, and its data could not be moved ({cause}); {} gSSD{} \
                 of {capacity} flash blocks are lost with the disk on them; run the job again from its last \
                 checkpoint, with a request for less or for a shorter time if this is refused",
                if *early { " before its time" } else { "" },
                gssd.0,
                lost.len(),
                if lost.len() == 1 { "" } else { "s" },
            ),
            Notice::UnderHarvest { needs, has } => write!(
                f,
                "needs {} and {} flash blocks and has {} and {}: no more can be harvested now; nothing was \
                 lost; write less, wait, or move to a host with more to spare before the disk is full",
                counted(needs.0.into()),
                needs.1,
                has.0,
                has.1
            ),
            Notice::Kept { gssd, cause } => write!(
                f,
                "gSSD {} was not given back, for its data fits nowhere else ({cause}); nothing was lost; delete data \
                 and make the disk smaller, then release it again",
                gssd.0
            ),
            Notice::Unreadable { pages, offset, at: (block, page) } => write!(
                f,
                "the flash cannot read {pages} page{} of it any more, though it was tried again and other flash can be \
                 read: the first is at byte {offset} of the disk (page {page} of flash block {}); they are lost, and \
                 reads of them fail; restore from a copy what was there, by writing it anew, and replace the flash if \
                 more follow",
                if *pages == 1 { "" } else { "s" },
                block.0,
            ),
            Notice::Expired { gssd, why, capacity } => write!(
                f,
                "gSSD {} of {capacity} flash blocks was taken back because {why}; what was on it was moved, nothing \
                 was lost; ask again where the space is needed",
                gssd.0
            ),
        }
    }
}
