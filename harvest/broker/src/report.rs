//! Messages to the user of a VM: the event, its time and cause, and the remedy.

use crate::{GssdId, Time, VssdId, counted};
use headstart_flash::device::FlashBlock;
use headstart_flash::step::Why;
use std::fmt;

/// A message to the user of a VM, in most cases of a harvest VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerReport {
    /// The name of the VM.
    pub vm: String,
    /// The VM's vSSD.
    pub vssd: VssdId,
    /// The time of the event, on the driver's clock.
    pub at: Time,
    /// The event that is reported.
    pub what: Notice,
}

/// An event that the user of a VM is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The harvest VM lost the data on its leased flash. Its disk is striped over that flash, so it lost the disk.
    Evicted {
        /// The gSSD that was taken back.
        gssd: GssdId,
        /// The reason for which it was taken back.
        why: Why,
        /// `true` if the requested duration was not over when the gSSD was taken back.
        early: bool,
        /// All gSSDs that the VM had on lease, and lost.
        lost: Vec<GssdId>,
        /// Number of flash blocks of the lost gSSDs together.
        capacity: u64,
        /// The reason for which the data could not be moved to other flash.
        cause: String,
    },
    /// The harvest VM is forecast to need more flash than it has, and not enough was added. It keeps its leases.
    UnderHarvest {
        /// Channels and flash blocks that the VM is forecast to need.
        needs: (u16, u32),
        /// Channels and flash blocks that the VM has.
        has: (u32, u64),
    },
    /// A gSSD was to be given back, but its data does not fit in the VM's other slots. The VM keeps the gSSD.
    Kept {
        /// The gSSD.
        gssd: GssdId,
        /// The reason for which the data could not be moved.
        cause: String,
    },
    /// Pages of a vSSD's flash cannot be read any more, and are lost. The vSSD may be of any kind.
    Unreadable {
        /// The number of lost pages.
        pages: u64,
        /// The offset on the disk of the first lost page, in bytes.
        offset: u64,
        /// The location of the first lost page on flash: the flash block, and the page within it.
        at: (FlashBlock, u32),
    },
    /// A lease is over. Its data was moved to the harvest VM's other flash.
    Expired {
        /// The gSSD.
        gssd: GssdId,
        /// The reason for which the lease ended.
        why: Why,
        /// Number of flash blocks of the gSSD.
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
