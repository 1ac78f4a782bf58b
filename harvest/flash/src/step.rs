//! The steps by which flash blocks go from holder to holder. The broker journals each step before it is carried out.

use crate::device::FlashBlock;
use crate::micros;
use crate::{GssdId, Time, VssdId, VssdKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A run of consecutive flash blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRun {
    /// The first block of the run.
    pub first: FlashBlock,
    /// The number of blocks in the run.
    pub count: u32,
}

impl BlockRun {
    /// Groups blocks into runs: blocks that follow each other in `blocks` and whose numbers are consecutive form one
    /// run. So the result is shortest if `blocks` ascends.
    #[must_use]
    pub fn gather(blocks: impl IntoIterator<Item = FlashBlock>) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some(run) if run.first.0.checked_add(run.count) == Some(block.0) => run.count += 1,
                _ => runs.push(Self { first: block, count: 1 }),
            }
        }
        runs
    }

    /// Returns `true` if `block` is in the run.
    #[must_use]
    pub fn contains(&self, block: FlashBlock) -> bool {
        block.0.checked_sub(self.first.0).is_some_and(|offset| offset < self.count)
    }

    /// Returns the blocks of the run, in ascending order. Ends at the largest block number if `count` goes
    /// beyond it.
    pub fn blocks(self) -> impl Iterator<Item = FlashBlock> {
        (self.first.0..self.first.0.saturating_add(self.count)).map(FlashBlock)
    }
}

/// The reason for which a lease of a gSSD (lent flash) ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// The harvest VM gave the gSSD back.
    Released,
    /// The lender needs the blocks now.
    SpacePressure,
    /// The lender is forecast to need the blocks.
    Forecast,
    /// The time for which the lender could spare the gSSD is over.
    Expired,
    /// The time for which the harvest VM requested the gSSD is over, and so is the time for which it may keep the
    /// gSSD beyond that.
    Over,
    /// The lender is being deleted, or was unsold and has been sold.
    LenderDeleted,
    /// Another gSSD of the same borrower was taken back before its data was moved, so that data is lost. The disk is
    /// striped over all gSSDs of the borrower, so the data on this one is of no use either.
    Evicted,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "it was given back",
            Self::SpacePressure => "its owner needs it now",
            Self::Forecast => "its owner is forecast to need it",
            Self::Expired => "the time that its owner could do without it is over",
            Self::Over => "the time asked for is over",
            Self::LenderDeleted => "its owner is gone, or it was unsold and is sold",
            Self::Evicted => "other storage of the same disk was lost",
        })
    }
}

/// A decision of the broker, as the journal records it. The steps of a journal, applied in order up to any one of
/// them, give the broker's state after that step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerStep {
    /// A vSSD was made.
    Created {
        /// The number of the vSSD.
        vssd: VssdId,
        /// The kind of the vSSD.
        kind: VssdKind,
        /// Number of channels that the vSSD owns.
        bandwidth: u16,
        /// Number of flash blocks that the vSSD owns.
        capacity: u32,
        /// The numbers of the channels that the vSSD owns.
        channels: Vec<u16>,
    },
    /// The deletion of a vSSD has begun.
    Deleting {
        /// The vSSD.
        vssd: VssdId,
    },
    /// A vSSD was deleted, and its channels were erased.
    Deleted {
        /// The vSSD.
        vssd: VssdId,
        /// Blocks of the vSSD that could not be erased, and are bad from now on.
        bad: Vec<FlashBlock>,
    },
    /// Blocks were taken from their lender and made a gSSD, which is to be erased.
    Carved {
        /// The number of the new gSSD.
        gssd: GssdId,
        /// The vSSD that owns the blocks.
        lender: VssdId,
        /// Number of channels that the blocks are on.
        bandwidth: u16,
        /// Number of blocks.
        capacity: u32,
        /// The time until which the lender is expected to spare the gSSD.
        #[serde(with = "micros")]
        expire: Time,
        /// The blocks of the gSSD.
        blocks: Vec<BlockRun>,
    },
    /// The blocks of a gSSD were erased.
    Erased {
        /// The gSSD.
        gssd: GssdId,
        /// Blocks that could not be erased. They are bad, and no longer part of the gSSD.
        bad: Vec<FlashBlock>,
    },
    /// A gSSD was leased to a harvest VM.
    Leased {
        /// The gSSD.
        gssd: GssdId,
        /// The name of the harvest VM.
        vm: String,
        /// The vSSD of the harvest VM.
        borrower: VssdId,
        /// The slot of that vSSD that the gSSD is attached as.
        slot: u8,
        /// The time until which the harvest VM requested the gSSD.
        #[serde(with = "micros")]
        until: Time,
    },
    /// The evacuation of a leased gSSD has begun: its data is being moved to the borrower's other slots. With the
    /// reasons `SpacePressure`, `Forecast` and `LenderDeleted` the lender also wants the gSSD back, as after
    /// [`BrokerStep::Withdrawn`]. With any other reason, a step `Withdrawn` follows if the lender wants it back
    /// meanwhile.
    Evacuating {
        /// The gSSD.
        gssd: GssdId,
        /// The reason for which the lease ends.
        why: Why,
    },
    /// The data of a gSSD could not be moved. The borrower keeps the gSSD.
    Kept {
        /// The gSSD.
        gssd: GssdId,
    },
    /// Leased gSSDs of one borrower are being detached from its vSSD, all together.
    Leaving {
        /// The gSSDs.
        gssds: Vec<GssdId>,
        /// The reason for which the first of them is taken back. In an eviction the reason of the others is
        /// [`Why::Evicted`].
        why: Why,
        /// `true` if the gSSDs still hold data, which is lost.
        lost: bool,
    },
    /// A gSSD is no longer attached to a borrower's vSSD, and is to be erased.
    Detached {
        /// The gSSD.
        gssd: GssdId,
    },
    /// The lender wants a gSSD back as soon as it is erased.
    Withdrawn {
        /// The gSSD.
        gssd: GssdId,
    },
    /// A gSSD's blocks went back to their lender. The gSSD does not exist any more.
    Returned {
        /// The gSSD.
        gssd: GssdId,
    },
    /// gSSDs have new times of expiry.
    Redated {
        /// The gSSDs, each with its time of expiry in microseconds.
        expire: Vec<(GssdId, u64)>,
    },
    /// Blocks were found to be bad. No vSSD may use them, whatever other steps say of their channels and
    /// gSSDs.
    Bad {
        /// The bad blocks.
        blocks: Vec<BlockRun>,
    },
    /// Numbers below this one are not given to new gSSDs.
    Next {
        /// The lowest number that the next gSSD may have.
        gssd: GssdId,
    },
    /// Two channels changed owners. Both had been erased, and no block of them was lent.
    Swapped {
        /// An owner, and the channel that it gave away.
        one: (VssdId, u16),
        /// The other owner, and the channel that it gave away.
        other: (VssdId, u16),
        /// Blocks of both channels that could not be erased, and are bad from now on.
        bad: Vec<FlashBlock>,
    },
}
