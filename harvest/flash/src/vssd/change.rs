//! The records of a vSSD for the journal, and its recovery from them.
//!
//! A journal is a snapshot and the changes after it, in the order of their numbers. To recover a vSSD, a driver calls
//! [`Vssd::restore`] (or [`Vssd::new`]), then [`Vssd::apply`] for each change, then [`Vssd::recovered`]. Pages that
//! were programmed and not recorded are lost, and erased before their block is used again.

use super::map::{Entry, Patch, Spot};
use super::open::Open;
use super::space::{LOG, State};
use super::{FlashBlock, Vssd};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// A change of a vSSD's state, as the journal records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The change's sequence number: counted from 1 for each vSSD, without gaps.
    pub number: u64,
    /// The kind of the change, with its data.
    pub what: ChangeKind,
}

/// The kinds of [`Change`]. The journal stores a kind by its number in this order, so new ones are added at
/// the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// A page of the disk is stored in this page of flash from now on.
    Map {
        /// The page of the disk.
        page: u32,
        /// The flash block.
        block: FlashBlock,
        /// The page within the flash block.
        at: u16,
    },
    /// A range of pages of the disk reads as zeros.
    Unmap {
        /// The first page of the range.
        first: u32,
        /// The number of pages.
        count: u32,
    },
    /// A flash block is not written any more. As soon as no valid page is left in it, it is bad.
    Failing {
        /// The flash block.
        block: FlashBlock,
    },
    /// Some of the vSSD's own blocks were lent.
    Lent {
        /// The lent blocks.
        blocks: Vec<FlashBlock>,
    },
    /// Lent blocks came back.
    Returned {
        /// The blocks that came back.
        blocks: Vec<FlashBlock>,
    },
    /// Borrowed blocks were added as a slot.
    Added {
        /// The number of the slot.
        slot: u8,
        /// The blocks of the slot.
        blocks: Vec<FlashBlock>,
    },
    /// A slot was removed, or only its blocks on one channel.
    Removed {
        /// The number of the slot.
        slot: u8,
        /// The channel; `None` for the whole slot.
        channel: Option<u16>,
    },
    /// The size of the disk was changed.
    Resized {
        /// The new size in bytes.
        size: u64,
    },
    /// All pages that were stored in a slot are lost.
    Abandoned {
        /// The number of the slot.
        slot: u8,
    },
    /// A page of the disk is lost, because its page of flash cannot be read any more.
    Lost {
        /// The page of the disk.
        page: u32,
    },
    /// One of the vSSD's own channels was replaced by another channel.
    Replaced {
        /// The channel that was given up.
        channel: u16,
        /// The blocks of the new channel.
        blocks: Vec<FlashBlock>,
        /// The blocks of the new channel that are bad.
        bad: Vec<FlashBlock>,
    },
}

impl Vssd {
    /// Applies a change from the journal during recovery, before [`Vssd::recovered`]. A change that the
    /// restored snapshot includes already is skipped.
    ///
    /// # Errors
    /// Corrupt if the number does not follow that of the change before, or if the change contradicts the
    /// state.
    pub fn apply(&mut self, change: &Change) -> Result<()> {
        let about = |error: Error| error.about(format!("change {} of a vSSD", change.number));
        if change.number <= self.last {
            return Ok(());
        }
        if change.number != self.last + 1 {
            return Err(about(Error::corrupt(format!("follows change {}", self.last))));
        }
        self.replaying = true;
        self.apply_what(&change.what).map_err(about)?;
        self.last = change.number;
        Ok(())
    }

    fn apply_what(&mut self, what: &ChangeKind) -> Result<()> {
        let entry = |vssd: &Self, block: FlashBlock| {
            let found = vssd.space.find(block);
            found.ok_or_else(|| Error::corrupt(format!("flash block {} is not there", block.0)))
        };
        match *what {
            ChangeKind::Map { page, block, at } => self.apply_map(page, entry(self, block)?, at)?,
            ChangeKind::Unmap { first, count } => {
                self.check(first, count).map_err(|_| Error::corrupt("is beyond the disk"))?;
                self.unmap(first..first + count);
            }
            ChangeKind::Failing { block } => {
                let entry = entry(self, block)?;
                if self.space.info(entry).state == State::Lent {
                    self.space.put(entry, State::Bad);
                } else {
                    self.space.fail(entry);
                }
            }
            ChangeKind::Lent { ref blocks } | ChangeKind::Returned { ref blocks } => {
                let lent = matches!(what, ChangeKind::Lent { .. });
                for &block in blocks {
                    let entry = entry(self, block)?;
                    let right =
                        if lent { self.is_here(entry) } else { self.space.info(entry).state == State::Lent };
                    if !right || self.space.info(entry).valid > 0 {
                        return Err(Error::corrupt("moves blocks that it cannot"));
                    }
                    self.space.put(entry, if lent { State::Lent } else { State::Free });
                }
            }
            ChangeKind::Added { slot, ref blocks } => {
                let blocks: Vec<_> = blocks.iter().map(|&block| (block, 0)).collect();
                self.space
                    .add(slot, &blocks)
                    .map_err(|error| Error::corrupt("adds an impossible slot").caused_by(error))?;
            }
            ChangeKind::Removed { slot, channel } => {
                for pool in self.space.pools_of(slot, channel) {
                    if self.space.pool(pool).entries().any(|entry| self.space.info(entry).valid > 0) {
                        return Err(Error::corrupt("removes what holds something"));
                    }
                    self.space.remove_pool(pool);
                }
            }
            ChangeKind::Abandoned { slot } => self.abandon(slot),
            ChangeKind::Lost { page } => {
                if page >= self.pages || self.lose_page(page).is_none() {
                    return Err(Error::corrupt("loses what is not there"));
                }
            }
            ChangeKind::Replaced { channel, ref blocks, ref bad } => {
                let blocks: Vec<_> =
                    blocks.iter().map(|block| (*block, (!bad.contains(block)).then_some(0))).collect();
                self.replace(channel, &blocks)?;
            }
            ChangeKind::Resized { size } => self.apply_resized(size)?,
        }
        Ok(())
    }

    fn apply_map(&mut self, page: u32, entry: Entry, at: u16) -> Result<()> {
        if page >= self.pages || u32::from(at) >= self.settings.geometry.pages || !self.is_here(entry) {
            return Err(Error::corrupt("maps what is not there"));
        }
        let spot = Spot { entry, page: at };
        self.claim(spot, page)?;
        let (block, offset) = self.stripe.locate(page);
        self.lost.remove(page..page + 1);
        match self.map.set(block, offset, Some(spot)) {
            Some(old) => self.forget(old.entry, 1),
            None => self.stored += 1,
        }
        Ok(())
    }

    fn apply_resized(&mut self, size: u64) -> Result<()> {
        let pages = self
            .settings
            .pages_of(size)
            .map_err(|error| Error::corrupt("has a size that cannot be").caused_by(error))?;
        if pages > self.pages
            && !self.settings.thin
            && self.settings.blocks_needed(size) > self.space.entries().len() as u64
        {
            return Err(Error::corrupt("has a size that its blocks cannot hold"));
        }
        self.set_size(size, pages);
        Ok(())
    }

    /// Ends the recovery: the vSSD is ready for use afterwards. The caller must have applied all changes of the
    /// journal before. `wear` returns the number of erasures of a block, `is_clean` returns `true` if a block is
    /// certainly erased. Blocks without valid pages that are not certainly erased are erased before use; blocks with
    /// valid pages are not written before their next erasure.
    pub fn recovered(&mut self, wear: impl Fn(FlashBlock) -> u32, is_clean: impl Fn(FlashBlock) -> bool) {
        self.replaying = false;
        self.durable = self.last;
        self.open = Open::default();
        self.space.forget_dead();
        for entry in self.space.entries() {
            let info = *self.space.info(entry);
            if matches!(info.state, State::Lent | State::Bad | State::Vacant) {
                continue;
            }
            let block = self.space.block(entry);
            // Out of the list of free ones first, which is by wear.
            self.space.put(entry, State::Sealed);
            self.space.change(entry, |info| (info.wear, info.holds, info.next) = (wear(block), 0, u16::MAX));
            match (info.valid, info.failing) {
                (0, true) => self.space.put(entry, State::Bad),
                (0, false) if is_clean(block) => self.space.put(entry, State::Free),
                (0, false) => self.space.put(entry, State::Dirty),
                _ => {}
            }
        }
        for block in 0..self.map.blocks() {
            self.compress(block);
        }
    }

    /// Maps a logical block by the flash block that holds most of it, if that holds nothing else.
    fn compress(&mut self, block: u32) {
        let mut best = (0, Entry::NONE);
        let overlay = self.map.overlay(block);
        for list in in_place(overlay).chunk_by(|a, b| a == b) {
            best = best.max((list.len(), list[0]));
        }
        let (count, entry) = best;
        if count == 0 || usize::from(self.space.info(entry).valid) != count {
            return;
        }
        if self.map.rebase(block, entry) {
            self.space.set_owner(entry, block, &self.stripe);
        }
    }

    /// `true` for a block that can hold pages.
    pub(super) fn is_here(&self, entry: Entry) -> bool {
        let there = self.space.has(entry);
        there && !matches!(self.space.info(entry).state, State::Lent | State::Bad | State::Vacant)
    }

    /// Notes that a spot holds a logical page, which may belong to any block, if the spot is not taken.
    pub(super) fn claim(&mut self, spot: Spot, page: u32) -> Result<()> {
        if self.holder(spot).is_some() {
            return Err(Error::corrupt("maps two pages to one place"));
        }
        let (block, at) = self.stripe.locate(page);
        let owner = self.space.info(spot.entry).owner;
        if owner != LOG && (owner != block || at != spot.page) {
            self.space.set_owner(spot.entry, LOG, &self.stripe);
        }
        self.space.fill(spot, page);
        Ok(())
    }
}

/// The flash blocks of patches that are at their own numbers, sorted.
fn in_place(overlay: &[Patch]) -> Vec<Entry> {
    let here = overlay.iter().filter_map(|patch| patch.spot().filter(|spot| spot.page == patch.page));
    let mut entries: Vec<_> = here.map(|spot| spot.entry).collect();
    entries.sort_unstable();
    entries
}
