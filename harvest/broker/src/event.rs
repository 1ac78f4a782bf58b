//! The input and output of a broker.

use super::report::BrokerReport;
use crate::VssdKind;
use crate::{GssdId, Time, VssdId};
use headstart_flash::device::FlashBlock;
use headstart_flash::step::{BlockRun, BrokerStep};
use std::time::Duration;

/// The number of a request. The driver (the code that calls the broker) chooses the number, and never uses a number
/// twice in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BrokerRequestId(pub u64);

/// An input of the broker: [`Broker::on_event`](super::Broker::on_event). Events that come too late, or name unknown
/// objects, are counted and have no other effect; but every [`Self::Request`] is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerEvent {
    /// A vSSD was made. One of kind [`VssdKind::Harvest`] is a borrower.
    Created {
        /// The number of the vSSD, never used before.
        vssd: VssdId,
        /// The kind of the vSSD.
        kind: VssdKind,
        /// Number of channels that the vSSD owns.
        bandwidth: u16,
        /// Number of flash blocks that the vSSD owns.
        capacity: u32,
        /// The numbers of the channels that the vSSD owns. Empty in simulated fleets, which have no flash.
        channels: Vec<u16>,
    },
    /// A vSSD is to be deleted, and its data is not needed any more. Flash that it lends is taken back, flash
    /// that it has on lease is returned, and its channels are erased; the deletion ends with
    /// [`BrokerStep::Deleted`]. An unsold vSSD is deleted in this way when it is sold.
    Deleted {
        /// The vSSD.
        vssd: VssdId,
    },
    /// A forecast, with all margins applied. For a regular or unsold vSSD it gives the part of the vSSD's own
    /// flash that the vSSD does not need, lent or not; for a harvest VM's vSSD, all the flash that it needs.
    /// A host sends one for each vSSD every three minutes (by default).
    Forecast {
        /// The vSSD.
        vssd: VssdId,
        /// Number of channels that the vSSD can spare or will need.
        bandwidth: u16,
        /// Number of flash blocks that the vSSD can spare or will need.
        capacity: u32,
        /// The duration, from now on, for which the forecast holds.
        lasts: Duration,
    },
    /// The time that [`super::Broker::next`] returned has come.
    Tick,
    /// A harvest VM requests flash. Answered at once by [`BrokerAction::Answer`].
    Request(BrokerRequest),
    /// A harvest VM gives leased flash back.
    Release {
        /// The vSSD of the harvest VM.
        borrower: VssdId,
        /// The gSSD to give back. Its data moves to the vSSD's other flash. If the data does not fit there, the lease
        /// is kept; but if the lender needs the flash by then, the harvest VM is evicted. `None`: all gSSDs are given
        /// back, and all data on them is lost.
        gssd: Option<GssdId>,
    },
    /// A regular VM's vSSD needs part of its lent flash at once, whatever was forecast.
    SpacePressure {
        /// The vSSD that needs its flash.
        lender: VssdId,
        /// Number of channels needed, at least.
        bandwidth: u16,
        /// Number of flash blocks needed, at least.
        capacity: u32,
    },
    /// The answer to [`BrokerAction::Carve`]: the blocks were taken from the lender.
    Carved {
        /// The gSSD made of the blocks.
        gssd: GssdId,
        /// Number of channels that the blocks are on.
        bandwidth: u16,
        /// Number of blocks: as requested, or fewer. 0 if none could be taken: no gSSD is made then.
        capacity: u32,
        /// The blocks. Empty in simulated fleets, which have no flash.
        blocks: Vec<BlockRun>,
    },
    /// The answer to [`BrokerAction::Erase`]: the gSSD was erased, durably.
    Erased {
        /// The gSSD.
        gssd: GssdId,
        /// Blocks of the gSSD that could not be erased, and are never used again.
        bad: Vec<FlashBlock>,
    },
    /// The answer to [`BrokerAction::Evacuate`]: the slot's data was moved to other slots, and is durable
    /// there.
    Evacuated {
        /// The gSSD.
        gssd: GssdId,
    },
    /// The other answer to [`BrokerAction::Evacuate`]: the slot's data could not be moved.
    EvacuationFailed {
        /// The gSSD.
        gssd: GssdId,
        /// The cause, in words for the harvest VM's user.
        cause: String,
    },
    /// The answer to [`BrokerAction::Detach`]: no I/O to the gSSD's blocks is under way, and none will begin.
    Detached {
        /// The gSSD.
        gssd: GssdId,
    },
    /// A lender takes back those of its gSSDs that are not on lease, although it does not need the flash. It may lend
    /// that flash again.
    Unpool {
        /// The lender.
        lender: VssdId,
    },
    /// Two channels were erased, and no block of them is lent: they are to change owners, so that both wear
    /// evenly. The broker answers with [`BrokerStep::Swapped`], by which they change owners, or with
    /// [`BrokerAction::Keep`].
    Swapped {
        /// The owner of the one channel, and the channel.
        one: (VssdId, u16),
        /// The owner of the other channel, and the channel.
        other: (VssdId, u16),
        /// Blocks of both channels that could not be erased.
        bad: Vec<FlashBlock>,
    },
    /// The answer to [`BrokerAction::Wipe`]: the channels of a vSSD were erased.
    Wiped {
        /// The vSSD.
        vssd: VssdId,
        /// Blocks of the vSSD that could not be erased.
        bad: Vec<FlashBlock>,
    },
}

/// A request of a harvest VM for flash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerRequest {
    /// The number of the request, repeated in its answer.
    pub request: BrokerRequestId,
    /// The name of the harvest VM, for reports to its user.
    pub vm: String,
    /// The harvest VM's vSSD, which the flash is added to.
    pub borrower: VssdId,
    /// Number of channels requested, at least; 0 if only capacity matters.
    pub bandwidth: u16,
    /// Number of flash blocks requested, at least; 0 if only channels matter.
    pub capacity: u32,
    /// The duration for which the flash is requested, from now on.
    pub lasts: Duration,
    /// `true` to accept less than requested if there is not enough.
    pub partial: bool,
    /// `true` to add gSSDs without another request when the borrower is forecast to need more than it has.
    pub grow: bool,
}

/// An action that the broker decided on, and that its driver carries out.
///
/// **The rule of the journal**: a driver carries an action out only after all earlier
/// [`BrokerAction::Journal`] steps are durable and were passed to
/// [`headstart_flash::custody::Custody::apply`]. A driver that collects the actions of many events appends
/// all their steps, syncs once, applies the steps, and then carries out the rest in order.
///
/// After a crash the broker may give out actions that were carried out already: each must be safe to do
/// twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerAction {
    /// Append this step to the journal.
    Journal(BrokerStep),
    /// Take free blocks from a lender's FTL, spread over `bandwidth` of its channels, then answer with
    /// [`BrokerEvent::Carved`]. The FTL's own record of the loan must be in the journal before
    /// [`BrokerStep::Carved`]. After a crash between the two, the blocks belong to no gSSD, and the driver gives them
    /// back to the lender's FTL.
    Carve {
        /// The number of the gSSD to make.
        gssd: GssdId,
        /// The lender.
        lender: VssdId,
        /// Number of channels.
        bandwidth: u16,
        /// Number of flash blocks.
        capacity: u32,
    },
    /// Erase all blocks of a gSSD, on all its channels at the same time, then answer with
    /// [`BrokerEvent::Erased`].
    Erase {
        /// The gSSD.
        gssd: GssdId,
    },
    /// Give the blocks of an erased gSSD to a borrower's FTL as a slot.
    Attach {
        /// The gSSD.
        gssd: GssdId,
        /// The vSSD of the borrower.
        borrower: VssdId,
        /// The number of the slot, 1 to 255; slot 0 has the borrower's own flash.
        slot: u8,
    },
    /// Move the data of a slot to the borrower's other slots, then answer with [`BrokerEvent::Evacuated`] or
    /// [`BrokerEvent::EvacuationFailed`]. Slots that were added to make room are attached already. If the
    /// slot is detached meanwhile, no answer is expected.
    Evacuate {
        /// The gSSD in the slot.
        gssd: GssdId,
        /// The vSSD of the borrower.
        borrower: VssdId,
        /// The number of the slot.
        slot: u8,
    },
    /// Remove a slot from the borrower's FTL, with all data that is still in it, wait for I/O under way, then
    /// answer with [`BrokerEvent::Detached`].
    Detach {
        /// The gSSD in the slot.
        gssd: GssdId,
        /// The vSSD of the borrower.
        borrower: VssdId,
        /// The number of the slot.
        slot: u8,
    },
    /// Give the erased blocks of a gSSD back to the lender's FTL. The gSSD does not exist any more.
    Return {
        /// The gSSD.
        gssd: GssdId,
        /// The lender.
        lender: VssdId,
    },
    /// Use two channels again that were emptied and erased for a swap of owners ([`BrokerEvent::Swapped`]). The
    /// swap does not take place, because one of the owners is being deleted or has lost its channel.
    Keep {
        /// The owner of the one channel, and the channel.
        one: (VssdId, u16),
        /// The owner of the other channel, and the channel.
        other: (VssdId, u16),
    },
    /// Erase all blocks of the channels that a vSSD owns and no longer uses, then answer with
    /// [`BrokerEvent::Wiped`].
    Wipe {
        /// The vSSD.
        vssd: VssdId,
    },
    /// Answer a request. The granted slots were attached by earlier actions.
    Answer {
        /// The number of the request.
        request: BrokerRequestId,
        /// The answer.
        answer: BrokerAnswer,
    },
    /// Give this message to the user of a VM.
    Report(BrokerReport),
}

/// The broker's answer to a [`BrokerRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerAnswer {
    /// The request was granted in full, by these gSSDs.
    Granted(Grant),
    /// The request was granted in part, by these gSSDs.
    Partly(Grant),
    /// The request was refused, because the pool does not have enough, or because the borrower has no free slot. The
    /// fields count the gSSDs in the pool that last for the requested duration.
    Short {
        /// Number of channels of these gSSDs together.
        channels: u64,
        /// Number of flash blocks of these gSSDs together.
        blocks: u64,
    },
    /// The request was refused, because the borrower does not exist, is not a harvest VM's, or is being
    /// deleted.
    NoBorrower,
    /// The request was refused, because it asked for neither channels nor capacity.
    Nothing,
}

/// The gSSDs (lent flash) that a harvest VM received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The gSSDs, each with the slot of the borrower's vSSD that it is attached as.
    pub slots: Vec<(u8, GssdId)>,
    /// Number of channels of all the gSSDs together.
    pub bandwidth: u32,
    /// Number of flash blocks of all the gSSDs together.
    pub capacity: u32,
    /// The earliest time at which one of the gSSDs is expected to go back to its lender.
    pub expire: Time,
}
