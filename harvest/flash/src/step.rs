//! The steps that a broker journals, each before it is acted on: flash blocks go from holder to holder by these.

use crate::device::FlashBlock;
use crate::micros;
use crate::{GssdId, Time, VssdId, VssdKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Adjacent flash blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRun {
    /// The first.
    pub first: FlashBlock,
    /// The number of blocks.
    pub count: u32,
}

impl BlockRun {
    /// Blocks in ascending order as runs; in any other order there are only more runs.
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

    /// `true` if `block` is one of them.
    #[must_use]
    pub fn contains(&self, block: FlashBlock) -> bool {
        block.0.checked_sub(self.first.0).is_some_and(|offset| offset < self.count)
    }

    /// The blocks. Never beyond the largest number, whatever `count` says.
    pub fn blocks(self) -> impl Iterator<Item = FlashBlock> {
        (self.first.0..self.first.0.saturating_add(self.count)).map(FlashBlock)
    }
}

/// The reason that a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Its harvest VM gave it back.
    Released,
    /// Its lender needs the blocks now.
    SpacePressure,
    /// Its lender is forecast to need the blocks.
    Forecast,
    /// The time for which its lender could do without it is over.
    Expired,
    /// The time that its harvest VM asked for is over, and so is the time that it may stay beyond.
    Over,
    /// Its lender is deleted, or was unsold and is sold.
    LenderDeleted,
    /// Another gSSD of the same borrower had to go with its data, and the rest of the disk is of no use.
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

/// One step. Applying a journal's steps in order, up to any of them, gives the broker's state at that point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerStep {
    /// A vSSD is there.
    Created {
        /// Its number.
        vssd: VssdId,
        /// Its kind.
        kind: VssdKind,
        /// Channels that it owns.
        bandwidth: u16,
        /// Flash blocks that it owns.
        capacity: u32,
        /// Its channels.
        channels: Vec<u16>,
    },
    /// A vSSD is to go.
    Deleting {
        /// The vSSD.
        vssd: VssdId,
    },
    /// A vSSD is gone, and its channels are clean.
    Deleted {
        /// The vSSD.
        vssd: VssdId,
        /// Its blocks that could not be erased: bad.
        bad: Vec<FlashBlock>,
    },
    /// Blocks left their lender and are a gSSD, to be erased.
    Carved {
        /// The gSSD.
        gssd: GssdId,
        /// Its lender.
        lender: VssdId,
        /// Channels.
        bandwidth: u16,
        /// Flash blocks.
        capacity: u32,
        /// The time of its expiry.
        #[serde(with = "micros")]
        expire: Time,
        /// Its blocks.
        blocks: Vec<BlockRun>,
    },
    /// All of a gSSD's blocks are clean.
    Erased {
        /// The gSSD.
        gssd: GssdId,
        /// Except these, which are bad and no longer part of it.
        bad: Vec<FlashBlock>,
    },
    /// A borrower has a gSSD.
    Leased {
        /// The gSSD.
        gssd: GssdId,
        /// The harvest VM.
        vm: String,
        /// Its vSSD.
        borrower: VssdId,
        /// The slot there.
        slot: u8,
        /// The time until which the harvest VM wants it.
        #[serde(with = "micros")]
        until: Time,
    },
    /// The data of a leased gSSD is being moved to the borrower's other slots. If its lender needs it, it is withdrawn
    /// too.
    Evacuating {
        /// The gSSD.
        gssd: GssdId,
        /// The reason.
        why: Why,
    },
    /// The gSSD's data could not be moved, and stays in its place.
    Kept {
        /// The gSSD.
        gssd: GssdId,
    },
    /// Leased gSSDs are being detached, all or none of them.
    Leaving {
        /// gSSDs of one borrower.
        gssds: Vec<GssdId>,
        /// The reason that the first goes; with an eviction it takes the others along ([`Why::Evicted`]).
        why: Why,
        /// `true` if they still hold data, which is lost.
        lost: bool,
    },
    /// No borrower has the gSSD any more; it is to be erased.
    Detached {
        /// The gSSD.
        gssd: GssdId,
    },
    /// The lender wants the gSSD back as soon as it is clean.
    Withdrawn {
        /// The gSSD.
        gssd: GssdId,
    },
    /// The gSSD's blocks are the lender's again, and there is no such gSSD any more.
    Returned {
        /// The gSSD.
        gssd: GssdId,
    },
    /// gSSDs have new times of expiry.
    Redated {
        /// The gSSDs, and their times in microseconds.
        expire: Vec<(GssdId, u64)>,
    },
    /// These blocks are bad: they have no holder, whatever other steps say of their channels and gSSDs.
    Bad {
        /// The blocks.
        blocks: Vec<BlockRun>,
    },
    /// No gSSD below this number is made any more: numbers are used once.
    Next {
        /// The next number.
        gssd: GssdId,
    },
    /// Two channels changed owners. Both were erased, and nothing of either was lent.
    Swapped {
        /// An owner, and the channel that was its own.
        one: (VssdId, u16),
        /// The other owner, and its channel.
        other: (VssdId, u16),
        /// Flash blocks of both that could not be erased: bad.
        bad: Vec<FlashBlock>,
    },
}
