//! The input and output of a broker.

use super::report::BrokerReport;
use crate::VssdKind;
use crate::{GssdId, Time, VssdId};
use headstart_flash::device::FlashBlock;
use headstart_flash::step::{BlockRun, BrokerStep};
use std::time::Duration;

/// A request, by a number that the driver gives and uses once while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BrokerRequestId(pub u64);

/// An event. Events that come too late, or name unknown objects, are counted and otherwise ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerEvent {
    /// A vSSD was created. A borrower is one of kind [`VssdKind::Harvest`].
    Created {
        /// Its number, new.
        vssd: VssdId,
        /// Its kind.
        kind: VssdKind,
        /// Channels that it owns.
        bandwidth: u16,
        /// Flash blocks that it owns.
        capacity: u32,
        /// Its channels. Empty if there is no flash behind it (simulated fleets).
        channels: Vec<u16>,
    },
    /// A vSSD is to go, and its data is no longer needed. Its loans are taken back, its leases go back, its own
    /// channels are wiped; it is gone with [`BrokerStep::Deleted`]. An unsold one goes this way when it is sold.
    Deleted {
        /// The vSSD.
        vssd: VssdId,
    },
    /// A forecast, with its margin already applied by its maker (section 4.4.3): of a regular or unsold vSSD, the part
    /// of all its own storage that it does not need, lent or not; of a borrower, all that it needs. For an unsold one
    /// once is enough, for others one comes every three minutes.
    Forecast {
        /// The vSSD.
        vssd: VssdId,
        /// Channels.
        bandwidth: u16,
        /// Flash blocks.
        capacity: u32,
        /// The time, from now on, for which that holds.
        lasts: Duration,
    },
    /// Time has passed: due by [`super::Broker::next`].
    Tick,
    /// A harvest VM wants more storage. Answered at once by [`BrokerAction::Answer`].
    Request(BrokerRequest),
    /// A harvest VM gives storage back.
    Release {
        /// Its vSSD.
        borrower: VssdId,
        /// One gSSD, whose data goes to the vSSD's others, and which it keeps if there is no space; or all, with all
        /// data.
        gssd: Option<GssdId>,
    },
    /// A regular vSSD needs a part of its lent storage now, whatever was forecast.
    SpacePressure {
        /// The vSSD.
        lender: VssdId,
        /// Channels, at least.
        bandwidth: u16,
        /// Flash blocks, at least.
        capacity: u32,
    },
    /// [`BrokerAction::Carve`] is done.
    Carved {
        /// The gSSD.
        gssd: GssdId,
        /// Channels of its blocks.
        bandwidth: u16,
        /// The number of blocks: the requested number, or less; 0: none, and there is no such gSSD.
        capacity: u32,
        /// Its blocks. Empty if there is no flash behind it.
        blocks: Vec<BlockRun>,
    },
    /// [`BrokerAction::Erase`] is done, and durable.
    Erased {
        /// The gSSD.
        gssd: GssdId,
        /// Its blocks whose erasure failed: they are never used again.
        bad: Vec<FlashBlock>,
    },
    /// [`BrokerAction::Evacuate`] is done: the data of the slot is elsewhere, and durable there (the flash was flushed).
    Evacuated {
        /// The gSSD.
        gssd: GssdId,
    },
    /// [`BrokerAction::Evacuate`] cannot be done.
    EvacuationFailed {
        /// The gSSD.
        gssd: GssdId,
        /// The cause: for the harvest VM's user.
        cause: String,
    },
    /// [`BrokerAction::Detach`] is done: no I/O to the gSSD's blocks runs, and none will begin.
    Detached {
        /// The gSSD.
        gssd: GssdId,
    },
    /// A lender wants its unused gSSDs back, though it needs nothing. It may lend again.
    Unpool {
        /// The lender.
        lender: VssdId,
    },
    /// These two channels are empty and erased, and no part of them is lent: they are to change owners, so that both
    /// wear alike. With [`BrokerStep::Swapped`] they have.
    Swapped {
        /// A vSSD and a channel of it.
        one: (VssdId, u16),
        /// Another vSSD and a channel of it.
        other: (VssdId, u16),
        /// Flash blocks of both whose erasure failed.
        bad: Vec<FlashBlock>,
    },
    /// [`BrokerAction::Wipe`] is done.
    Wiped {
        /// The vSSD.
        vssd: VssdId,
        /// Its blocks whose erasure failed.
        bad: Vec<FlashBlock>,
    },
}

/// A request of a harvest VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerRequest {
    /// Its number.
    pub request: BrokerRequestId,
    /// The harvest VM.
    pub vm: String,
    /// Its vSSD.
    pub borrower: VssdId,
    /// Channels.
    pub bandwidth: u16,
    /// Flash blocks.
    pub capacity: u32,
    /// The time for which it wants the storage.
    pub lasts: Duration,
    /// `true` if less is better than nothing.
    pub partial: bool,
    /// `true` if gSSDs are added by themselves when a forecast says that the borrower needs more (under-harvest).
    pub grow: bool,
}

/// An action that the driver is to do.
///
/// **The rule of the journal**: nothing is done before all [`BrokerAction::Journal`] that came before it are durable, and
/// handed to [`headstart_flash::custody::Custody::apply`]. A driver that gathers the actions of many events appends all
/// their steps, syncs once, applies them, and then does the rest in order.
///
/// After a crash actions may come that were done already: each may be done twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerAction {
    /// Append this to the journal.
    Journal(BrokerStep),
    /// Take free blocks from a lender's FTL, spread over this number of its channels, then [`BrokerEvent::Carved`]. The
    /// lender's own record of the loan is in the journal before [`BrokerStep::Carved`]; after a crash between the two the
    /// blocks have no holder, and go back to the lender.
    Carve {
        /// The gSSD that they will be.
        gssd: GssdId,
        /// The lender.
        lender: VssdId,
        /// Channels.
        bandwidth: u16,
        /// Flash blocks.
        capacity: u32,
    },
    /// Erase all blocks of a gSSD, its channels in parallel, then [`BrokerEvent::Erased`].
    Erase {
        /// The gSSD.
        gssd: GssdId,
    },
    /// Give a clean gSSD's blocks to a borrower's FTL, as this slot.
    Attach {
        /// The gSSD.
        gssd: GssdId,
        /// The borrower.
        borrower: VssdId,
        /// The slot, 1 to 255; 0 is the borrower's own storage.
        slot: u8,
    },
    /// Move the data of this slot to the borrower's other slots (those added for it, if there were any, are attached),
    /// then [`BrokerEvent::Evacuated`] or [`BrokerEvent::EvacuationFailed`]. Ends unanswered when the slot is detached meanwhile.
    Evacuate {
        /// The gSSD.
        gssd: GssdId,
        /// The borrower.
        borrower: VssdId,
        /// The slot.
        slot: u8,
    },
    /// Remove this slot from the borrower's FTL, with the data that is still in it; wait for running I/O; then
    /// [`BrokerEvent::Detached`].
    Detach {
        /// The gSSD.
        gssd: GssdId,
        /// The borrower.
        borrower: VssdId,
        /// The slot.
        slot: u8,
    },
    /// Give a gSSD's blocks, clean, back to its lender's FTL; there is no such gSSD any more.
    Return {
        /// The gSSD.
        gssd: GssdId,
        /// The lender.
        lender: VssdId,
    },
    /// Two channels that were emptied and erased to be swapped keep their owners, because one of the owners goes: use
    /// them again.
    Keep {
        /// A vSSD and its channel.
        one: (VssdId, u16),
        /// Another's.
        other: (VssdId, u16),
    },
    /// Erase all blocks of the channels that this vSSD owns, then [`BrokerEvent::Wiped`]: it uses nothing any more.
    Wipe {
        /// The vSSD.
        vssd: VssdId,
    },
    /// Answer a request. The slots that it was given were attached before.
    Answer {
        /// The request.
        request: BrokerRequestId,
        /// The answer.
        answer: BrokerAnswer,
    },
    /// Tell a harvest VM's user.
    Report(BrokerReport),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerAnswer {
    /// gSSDs that meet the request.
    Granted(Grant),
    /// gSSDs, less than the request.
    Partly(Grant),
    /// Nothing, because the pool has not enough: the storage that it has for that long.
    Short {
        /// Channels.
        channels: u64,
        /// Flash blocks.
        blocks: u64,
    },
    /// Nothing, because the borrower does not exist, is not a harvest VM's, or goes.
    NoGhost,
    /// Nothing, because the request was empty.
    Nothing,
}

/// gSSDs that a harvest VM got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Their slots.
    pub slots: Vec<(u8, GssdId)>,
    /// Channels in all.
    pub bandwidth: u32,
    /// Flash blocks in all.
    pub capacity: u32,
    /// The time at which the first of them expires, as far as is known.
    pub expire: Time,
}
