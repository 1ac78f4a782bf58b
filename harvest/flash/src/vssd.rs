//! A vSSD's flash translation layer (FTL): it knows the flash page of each page of the disk, and decides on the next
//! reads, programs and erasures. It handles no bytes, accesses no flash and has no clock: its *driver* (the code that
//! calls it) does the I/O.
//!
//! # Mapping
//!
//! BlockFlex maps vSSDs by flash block (sections 4.3.1 and 4.3.2), which costs 9 bytes for 4 MiB but would rewrite 4
//! MiB for 4 KiB. Here every page may be anywhere. The usual case, a logical block whose pages are stored in one flash
//! block in order, takes 8 bytes: 4 for a slot and a number within the slot, and 4 for the flash block that the slot
//! has at this number. A page that is stored elsewhere takes a *patch* of 8 bytes. So there are two kinds of flash
//! blocks: *data blocks*, which belong to a logical block and hold its pages at their own numbers, and *log blocks*,
//! which hold any pages in the order of writing and record the logical page of each. Writes that follow each other
//! (`sequence`) fill data blocks in place; all others go to the log. The collector treats both kinds alike, as blocks
//! with a number of valid pages.
//!
//! A page in a log block costs 8 bytes for its patch, 4 for its entry in the log block, and a part of the 32 bytes of
//! its logical block's table: some 34 bytes a page where few pages of a logical block are in the log, 12 to 20 where
//! many are. A page in a data block costs none.
//!
//! # A page's way
//!
//! 1. [`Vssd::place`] reserves a page of an open block. Readers see no change yet.
//! 2. The driver programs that page, without any lock. The placements in one block must be programmed in the order in
//!    which they were made: [`Vssd::turn`] is `true` when all earlier ones have been answered.
//! 3. [`Vssd::commit`] maps the page, and returns the [`Change`] to write to the journal. If the program failed, the
//!    driver calls [`Vssd::failed`] instead, and places the page again.
//!
//! Any number of placements may be under way, for any pages, and be committed in any order. *The order of commits is
//! the order of writes*: of two commits for one page the later wins. (A driver that writes part of a page reads the
//! rest first; it must let no other write of that page come between its read and its commit.) A copy by the collector
//! names its source, and its commit has no effect if the page has moved since: it loses against every write.
//!
//! # Duties of a driver
//!
//! * Changes must go to the journal in the order of their numbers: the driver appends a change under the lock under
//!   which the change was made.
//! * A change may be *written* only once the page that it maps is durable. Otherwise the change could survive a crash
//!   that the page does not survive, and if the page was a copy, data that had long been safe would be lost. So the
//!   driver keeps changes in memory; to write them, it takes the present changes, flushes the flash, writes and syncs
//!   the journal, and calls [`Vssd::durable`].
//! * A read looks up and [pins](Pins::pin) its blocks under one (shared) lock, reads without the lock, and unpins. No
//!   block is erased while it is pinned.
//! * The driver answers every placement and every step, once. A thread that has several placements programs them in the
//!   order in which they were made, or all at once: then no threads wait for each other in a circle.
//! * [`Place::Collect`] and [`Place::Recall`] are not errors: the driver does steps of [`Vssd::collect_next`], or has
//!   lent blocks given back, and places again. If there is neither a step nor a lent block, operations under way
//!   (programs, erasures, reads that pin) will free room.
//!
//! # A flash block's life
//!
//! ```text
//! free -> open -> sealed -> dead -> dirty -> erasing -> free        lent: to others, from free or dirty
//!            `----> failing (a program failed) -> bad <-' (the erase failed)
//! ```
//!
//! *Dead*: no page of the block is valid, but the change that made the last one invalid is not durable: after a crash
//! that page may be valid again. *Dirty*: the block may be erased. After recovery nothing is known of pages that were
//! programmed but not recorded. So open blocks are sealed, and all blocks without valid pages are dirty, whatever they
//! were before.
//!
//! # Space
//!
//! With B blocks in use and P pages each, at most (B - 6) P pages are stored. Two blocks are kept free for the
//! collector, and at least one is open for it and one for the user. So more blocks are sealed than the stored pages
//! would fill, and the one with the fewest valid pages has fewer than P: to collect it gains at least a page. Therefore
//! a write that is within the bound always finds a place in the end. More blocks are open only as far as there are
//! spare ones (`widths` in `place`). Blocks of slots that are drained and blocks that fail do not count in B, though
//! their pages count as stored: [`Vssd::drain_slot`] checks the bound without the blocks to be drained before it
//! begins. Pages that leave a drained or failing block may not use up the collector's two blocks, because moving such
//! pages gains no room. If failures did use them up, or if all free blocks are being drained, the collector may write
//! to the user's log or to a drained slot as an exception.
//!
//! # Slow channels
//!
//! Another VM may use a channel, too: the owner of harvested flash. A long transfer is as slow as the slowest channel
//! that it is spread over, so pages are placed by their expected wait: [`Vssd::set_program_times`] gives the duration
//! of a program on each channel, and the number of programs under way is known here. The slower a channel is, the fewer
//! data blocks are opened on it. A page of a data block whose channel has fallen behind goes to the log on another
//! channel, and a few pages of other blocks go to the log on a slow channel that has time for them. Free blocks on slow
//! channels do not count as room when the collector decides if collecting pays: otherwise in the end all free blocks
//! would be there, and all writes would wait for these channels.
//!
//! | module | content |
//! |---|---|
//! | `settings` | the choices with which a vSSD is made |
//! | `stripe` | logical pages to pages of logical blocks |
//! | `map` | pages of logical blocks to pages of flash blocks |
//! | `space` | slots, channels, the states of flash blocks, free lists |
//! | `sequence` | writes that follow each other |
//! | `place` | open blocks; place, commit, failed, trim |
//! | `collect` | garbage collection, evacuation, folding, erasing |
//! | `slots` | blocks that come and go: harvested, drained, lent, taken back; resizing |
//! | `lost` | pages that were lost with a slot, or cannot be read any more |
//! | `change` | journal records, recovery |
//! | `snapshot` | the whole state at once |
//! | `read` | the pieces of a range of the disk |
//! | `pins` | blocks that are read right now |
//! | `wear` | the channels to swap |

mod change;
mod collect;
mod lost;
mod map;
mod open;
mod pins;
mod place;
mod read;
mod sequence;
mod settings;
mod slots;
mod snapshot;
mod space;
mod stripe;
#[cfg(test)]
mod tests;
mod wear;

pub use change::{Change, ChangeKind};
pub use collect::{CollectStep, Effort};
pub use pins::{Pins, ReadPin};
pub use place::{Place, Placement};
pub use read::{Piece, Pieces};
pub use settings::VssdSettings;
pub use slots::{Fit, Leaving};
pub use snapshot::Snapshot;
pub use wear::{ChannelWear, SWAP_PERIOD, Swap, plan_swap};

use crate::device::FlashBlock;
use crate::{Error, Result};
use headstart_block::exact;
use map::{Map, Spot};
use sequence::Sequence;
use space::Space;
use std::sync::Arc;
use stripe::Stripe;

/// The flash translation layer (FTL) of one vSSD: it knows the flash page of each page of the disk, on its own and on
/// borrowed flash. Its flash blocks are in *slots*: slot 0 has its own, each other slot those that it has borrowed by
/// one lease.
#[derive(Debug)]
pub struct Vssd {
    settings: VssdSettings,
    /// Logical pages of the disk.
    pages: u32,
    stripe: Stripe,
    map: Map,
    space: Space,
    sequence: Sequence,
    open: open::Open,
    tasks: collect::Tasks,
    pins: Arc<Pins>,
    /// Pages mapped.
    stored: u64,
    /// The number of the last change made, and of the last that is durable.
    last: u64,
    durable: u64,
    /// `true` while changes are being applied: nothing dies, nothing is open.
    replaying: bool,
    lost: lost::Lost,
}

/// The space of a vSSD, used and free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Number of pages of the disk.
    pub pages: u32,
    /// Number of pages of the disk that are stored on flash; the others read as zeros or are lost.
    pub stored: u64,
    /// Number of pages that can be stored at present. Less than `pages` while much flash is lent.
    pub capacity: u64,
    /// Number of flash blocks that can be used: without those that are lent, failed, or in slots that are
    /// being drained.
    pub blocks: u32,
    /// Number of flash blocks that are erased and ready to be written.
    pub free: u32,
    /// Number of flash blocks without needed content that are to be erased.
    pub dirty: u32,
    /// Number of the vSSD's own flash blocks that are lent.
    pub lent: u32,
}

/// The memory that a vSSD takes, in bytes, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes for the block map: the place of each logical block, and the flash block of each place.
    pub map: usize,
    /// Bytes for the map of pages that are stored outside of their logical block's flash block.
    pub overlays: usize,
    /// Bytes for the inverse map of log blocks: the disk's page that each of their pages stores.
    pub logs: usize,
    /// Bytes for the state of each flash block, the counts of valid pages, and the free lists.
    pub blocks: usize,
}

impl Vssd {
    /// Makes a vSSD on `blocks`, its own flash blocks: erased, in any order, each with its number of erasures.
    ///
    /// # Errors
    /// Invalid if a setting is out of range, if there is no block, or if a block is listed twice or is not of this
    /// flash. NoSpace if there are too few blocks, unless the vSSD is [thin](VssdSettings::thin).
    pub fn new(settings: &VssdSettings, blocks: &[(FlashBlock, u32)]) -> Result<Self> {
        let pages = settings.check()?;
        let needed = settings.blocks_needed(settings.size);
        if !settings.thin && (blocks.len() as u64) < needed {
            let cause =
                format!("{} bytes take {needed} flash blocks, there are {}", settings.size, blocks.len());
            let error = Error::new(crate::ErrorKind::NoSpace, cause);
            return Err(error.remedy("give it more channels, or a smaller size"));
        }
        let mut vssd = Self::empty(settings, pages);
        vssd.space.add(0, blocks)?;
        Ok(vssd)
    }

    /// A vSSD without any block. From here on the interleave is the chosen one, whatever the size becomes.
    fn empty(settings: &VssdSettings, pages: u32) -> Self {
        let settings = VssdSettings { interleave: settings.width(), ..settings.clone() };
        let stripe = Stripe::new(settings.interleave, settings.unit, settings.geometry.pages);
        let block_pages = exact(settings.geometry.pages, "settings with more pages a block are refused");
        Self {
            pages,
            stripe,
            map: Map::new(block_pages, stripe.blocks(pages)),
            space: Space::new(settings.geometry),
            settings,
            sequence: Sequence::default(),
            open: open::Open::default(),
            tasks: collect::Tasks::default(),
            pins: Arc::default(),
            stored: 0,
            last: 0,
            durable: 0,
            replaying: false,
            lost: lost::Lost::default(),
        }
    }

    /// Returns the settings with which the vSSD was made, with its present size.
    #[must_use]
    pub fn settings(&self) -> &VssdSettings {
        &self.settings
    }

    /// Returns the size of the disk, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.settings.size
    }

    /// Returns the number of pages of the disk.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the pins, which keep blocks from being erased while they are read. The pins can be used without the lock
    /// that protects this vSSD.
    #[must_use]
    pub fn pins(&self) -> Arc<Pins> {
        Arc::clone(&self.pins)
    }

    /// Returns the used and the free space. The call takes time in proportion to the number of channels.
    #[must_use]
    pub fn usage(&self) -> SpaceUsage {
        SpaceUsage {
            pages: self.pages,
            stored: self.stored,
            capacity: self.space.capacity(),
            blocks: self.space.usable(),
            free: self.space.free(),
            dirty: self.space.dirty(),
            lent: self.space.lent(),
        }
    }

    /// Returns the memory that the vSSD takes. The call takes time in proportion to the number of logical blocks.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let (bases, overlays) = self.map.memory();
        let (numbers, logs, blocks) = self.space.memory();
        Memory { map: bases + numbers, overlays, logs, blocks }
    }

    /// The logical page of a spot, if it is still valid there.
    fn holder(&self, spot: Spot) -> Option<u32> {
        let page = self.space.owner_of(spot, &self.stripe)?;
        let (block, at) = self.stripe.locate(page);
        (page < self.pages && self.map.lookup(block, at) == Some(spot)).then_some(page)
    }

    /// The number of the next change.
    fn next_change(&mut self, what: ChangeKind) -> Change {
        self.last += 1;
        Change { number: self.last, what }
    }

    /// Refuses pages beyond the disk.
    fn check(&self, first: u32, count: u32) -> Result<()> {
        if first.checked_add(count).is_none_or(|end| end > self.pages) {
            let cause = format!("{count} pages from {first} on are beyond the disk's {}", self.pages);
            return Err(Error::invalid(cause));
        }
        Ok(())
    }
}
