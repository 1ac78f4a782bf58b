//! What goes into a broker and what comes out of it.

use super::report::Report;
use super::step::{Run, Step};
use crate::VssdKind;
use crate::flash::FlashBlock;
use crate::{GssdId, Time, VssdId};
use std::time::Duration;

/// A request, by a number that the driver gives and uses once while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Something happened. What comes too late, or names what is not there, is counted and otherwise ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A vSSD was created. A ghost is one of kind [`VssdKind::Harvest`].
    Created {
        /// Its number, new.
        vssd: VssdId,
        /// Whose it is.
        kind: VssdKind,
        /// Channels that it owns.
        bandwidth: u16,
        /// Flash blocks that it owns.
        capacity: u32,
        /// Which channels. Empty where no flash is behind it (simulated fleets).
        channels: Vec<u16>,
    },
    /// A vSSD is to go, and nobody needs its data any more. What it lent is taken back, what it borrowed goes back, its
    /// own channels are wiped; it is gone with [`Step::Deleted`]. An unsold one goes this way when it is sold.
    Deleted {
        /// The vSSD.
        vssd: VssdId,
    },
    /// A forecast, with its margin already applied by whoever made it (section 4.4.3): of a regular or unsold vSSD,
    /// what of all that it owns it does not need, lent or not; of a ghost, what it needs in all. For an unsold one once
    /// is enough, for others one comes every three minutes.
    Forecast {
        /// The vSSD.
        vssd: VssdId,
        /// Channels.
        bandwidth: u16,
        /// Flash blocks.
        capacity: u32,
        /// How long, from now on, that stays so.
        lasts: Duration,
    },
    /// Time has passed: due by [`super::Broker::next`].
    Tick,
    /// A harvest VM wants more storage. Answered at once by [`Action::Answer`].
    Request(Request),
    /// A harvest VM gives storage back.
    Release {
        /// Its vSSD.
        ghost: VssdId,
        /// One gSSD, whose data goes to the vSSD's others, and which it keeps if there is no space; or all, with all
        /// data.
        gssd: Option<GssdId>,
    },
    /// A regular vSSD needs so much of what it lent now, whatever was forecast.
    Pressed {
        /// The vSSD.
        home: VssdId,
        /// Channels, at least.
        bandwidth: u16,
        /// Flash blocks, at least.
        capacity: u32,
    },
    /// [`Action::Carve`] is done.
    Carved {
        /// The gSSD.
        gssd: GssdId,
        /// Channels that its blocks lie on.
        bandwidth: u16,
        /// How many blocks: what was asked for, or less; 0: none, and there is no such gSSD.
        capacity: u32,
        /// Which. Empty where no flash is behind it.
        blocks: Vec<Run>,
    },
    /// [`Action::Erase`] is done, and what was erased is so durably.
    Erased {
        /// The gSSD.
        gssd: GssdId,
        /// Its blocks whose erasure failed: nobody gets them any more.
        bad: Vec<FlashBlock>,
    },
    /// [`Action::Evacuate`] is done: what was in the slot is elsewhere, and durable there (the flash was flushed).
    Evacuated {
        /// The gSSD.
        gssd: GssdId,
    },
    /// [`Action::Evacuate`] cannot be done.
    EvacuationFailed {
        /// The gSSD.
        gssd: GssdId,
        /// Why: for the harvest VM's user.
        cause: String,
    },
    /// [`Action::Detach`] is done: no I/O to the gSSD's blocks runs, and none will begin.
    Detached {
        /// The gSSD.
        gssd: GssdId,
    },
    /// A home wants back what it lent and nobody uses, though it needs nothing. It may lend again.
    Unpool {
        /// The home.
        home: VssdId,
    },
    /// Nothing is left on these two channels, of which nothing is lent, and both were erased: they are to change
    /// owners, so that both wear alike. With [`Step::Swapped`] they have.
    Swapped {
        /// A vSSD and a channel of it.
        one: (VssdId, u16),
        /// Another vSSD and a channel of it.
        other: (VssdId, u16),
        /// Flash blocks of both whose erasure failed.
        bad: Vec<FlashBlock>,
    },
    /// [`Action::Wipe`] is done.
    Wiped {
        /// The vSSD.
        vssd: VssdId,
        /// Its blocks whose erasure failed.
        bad: Vec<FlashBlock>,
    },
}

/// What a harvest VM asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub request: RequestId,
    /// The harvest VM.
    pub vm: String,
    /// Its vSSD.
    pub ghost: VssdId,
    /// Channels.
    pub bandwidth: u16,
    /// Flash blocks.
    pub capacity: u32,
    /// How long.
    pub lasts: Duration,
    /// Whether less is better than nothing.
    pub partial: bool,
    /// Whether gSSDs are added by themselves when a forecast says that the ghost needs more (under-harvest).
    pub grow: bool,
}

/// Something to do.
///
/// **The rule of the journal**: nothing is done before all [`Action::Journal`] that came before it are durable, and
/// handed to [`crate::custody::Custody::apply`]. Whoever gathers the actions of many events appends all their steps,
/// syncs once, applies them, and then does the rest in order.
///
/// After a crash actions may come that were done already: each may be done twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Append this to the journal.
    Journal(Step),
    /// Take free blocks from a home's FTL, spread over so many of its channels, then [`Event::Carved`]. That it lent
    /// them is in the journal before [`Step::Carved`]; after a crash between the two they are nobody's, and go home.
    Carve {
        /// The gSSD that they will be.
        gssd: GssdId,
        /// The home.
        home: VssdId,
        /// Channels.
        bandwidth: u16,
        /// Flash blocks.
        capacity: u32,
    },
    /// Erase all blocks of a gSSD, its channels in parallel, then [`Event::Erased`].
    Erase {
        /// The gSSD.
        gssd: GssdId,
    },
    /// Give a clean gSSD's blocks to a ghost's FTL, as this slot.
    Attach {
        /// The gSSD.
        gssd: GssdId,
        /// The ghost.
        ghost: VssdId,
        /// The slot, 1 to 255; 0 is what a ghost owns itself.
        slot: u8,
    },
    /// Move what is in this slot to the ghost's other slots (those added for it, if there were any, are attached), then
    /// [`Event::Evacuated`] or [`Event::EvacuationFailed`]. Ends unanswered when the slot is detached meanwhile.
    Evacuate {
        /// The gSSD.
        gssd: GssdId,
        /// The ghost.
        ghost: VssdId,
        /// The slot.
        slot: u8,
    },
    /// Remove this slot from the ghost's FTL, with what is still in it; wait for running I/O; then [`Event::Detached`].
    Detach {
        /// The gSSD.
        gssd: GssdId,
        /// The ghost.
        ghost: VssdId,
        /// The slot.
        slot: u8,
    },
    /// Give a gSSD's blocks, clean, back to its home's FTL; there is no such gSSD any more.
    Return {
        /// The gSSD.
        gssd: GssdId,
        /// The home.
        home: VssdId,
    },
    /// Two channels that were emptied and erased to be swapped keep their owners, as one of those goes: use them again.
    Keep {
        /// A vSSD and its channel.
        one: (VssdId, u16),
        /// Another's.
        other: (VssdId, u16),
    },
    /// Erase all blocks of the channels that this vSSD owns, then [`Event::Wiped`]: it uses nothing any more.
    Wipe {
        /// The vSSD.
        vssd: VssdId,
    },
    /// Answer a request. The slots that it was given were attached before.
    Answer {
        /// The request.
        request: RequestId,
        /// The answer.
        answer: Answer,
    },
    /// Tell a harvest VM's user.
    Report(Report),
}

/// What a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// gSSDs, all that was asked for.
    Granted(Grant),
    /// gSSDs, less than was asked for.
    Partly(Grant),
    /// Nothing, for the pool has not enough: what it has for that long.
    Short {
        /// Channels.
        channels: u64,
        /// Flash blocks.
        blocks: u64,
    },
    /// Nothing, for the ghost does not exist, is not a harvest VM's, or goes.
    NoGhost,
    /// Nothing, for nothing was asked for.
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
    /// When the first of them expires, as far as is known.
    pub expire: Time,
}
