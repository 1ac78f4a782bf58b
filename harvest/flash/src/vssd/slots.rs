//! Blocks that come and go: harvested and drained, lent and taken back; and the size of the disk.

use super::change::{Change, ChangeKind};
use super::space::State;
use super::{FlashBlock, Vssd};
use crate::{Error, ErrorKind, Result};
use headstart_block::{exact, saturating};
use std::time::Duration;

/// The result of a check whether the stored pages fit if some blocks are taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Number of stored pages in the blocks to be taken away. They are copied when these blocks are evacuated.
    pub there: u64,
    /// Number of stored pages in all blocks, and of pages that are being written.
    pub stored: u64,
    /// Number of pages that the blocks that stay can store.
    pub room: u64,
}

impl Fit {
    /// Returns `true` if all stored pages fit in the blocks that stay.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.stored <= self.room
    }
}

/// The blocks that a vSSD gives up with [`Vssd::remove_slot`]. They are not erased yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The blocks that are not bad.
    pub blocks: Vec<FlashBlock>,
    /// The bad blocks.
    pub bad: Vec<FlashBlock>,
    /// The change to write to the journal.
    pub change: Change,
}

impl Vssd {
    /// Adds borrowed blocks as slot `slot` (from 1 on). The blocks are erased; each comes with its number of erasures.
    /// From now on writes are striped over their channels as well. Returns the change to write to the journal.
    ///
    /// # Errors
    /// Invalid if the slot is in use; if `blocks` is empty, too long for a slot, or has a block twice; or if the vSSD
    /// has one of the blocks already, or the flash does not have it.
    pub fn add_slot(&mut self, slot: u8, blocks: &[(FlashBlock, u32)]) -> Result<Change> {
        self.space.add(slot, blocks)?;
        let blocks = blocks.iter().map(|&(block, _)| block).collect();
        Ok(self.next_change(ChangeKind::Added { slot, blocks }))
    }

    /// Checks whether the stored pages would fit without a slot, or without its blocks on one `channel`. The call takes
    /// time in proportion to the number of these blocks. A slot that does not exist counts as one without blocks.
    #[must_use]
    pub fn fit_without(&self, slot: u8, channel: Option<u16>) -> Fit {
        let mut usable = self.space.usable();
        let mut there = 0;
        for pool in self.space.pools_of(slot, channel) {
            let pool = self.space.pool(pool);
            usable -= if pool.draining { 0 } else { pool.usable() };
            there += pool.entries().map(|entry| u64::from(self.space.info(entry).valid)).sum::<u64>();
        }
        Fit { there, stored: self.stored + self.users(), room: self.space.capacity_of(usable) }
    }

    /// Begins to drain a slot, or its blocks on one `channel`: writes of the disk no longer go there, and
    /// [`Vssd::collect_next`] has the pages copied elsewhere one by one while I/O goes on. [`Vssd::drained`] returns
    /// `true` when that is done. Returns the check of the space ([`Vssd::fit_without`]), which was passed.
    ///
    /// # Errors
    /// NotFound if there is no such slot; NoSpace if the stored pages do not fit elsewhere. Nothing was
    /// changed then.
    pub fn drain_slot(&mut self, slot: u8, channel: Option<u16>) -> Result<Fit> {
        let pools = self.space.pools_of(slot, channel);
        if pools.is_empty() {
            return Err(
                Error::new(ErrorKind::NotFound, "is not there").about(format!("slot {slot} of a vSSD"))
            );
        }
        let fit = self.fit_without(slot, channel);
        if !fit.fits() {
            let cause = format!("{} pages are stored, {} fit elsewhere", fit.stored, fit.room);
            return Err(Error::new(ErrorKind::NoSpace, cause)
                .about(format!("slot {slot} of a vSSD"))
                .remedy("harvest more, or trim data that is not needed"));
        }
        for &pool in &pools {
            self.space.set_draining(pool, true);
            let entries: Vec<_> = self.space.pool(pool).entries().collect();
            entries.into_iter().for_each(|entry| self.seal(entry));
        }
        Ok(fit)
    }

    /// Sets the present duration of a program on each channel, by which channels are compared: `time` returns it for
    /// the number of a channel. A channel on which a program takes a quarter longer than on the fastest one is *slow*,
    /// because other VMs use it. It is slow until a program takes less than a twentieth longer. A long transfer takes
    /// as long as on the slowest channel that it is spread over, so slow channels get only the pages for which there is
    /// no room elsewhere. A driver whose channels are shared should call this often.
    pub fn set_program_times(&mut self, time: impl Fn(u16) -> Duration) {
        self.space.set_program_times(time);
    }

    /// Stops draining a slot, or its blocks on one `channel`: they are used for writes again. Does nothing if there
    /// is no such slot.
    pub fn keep_slot(&mut self, slot: u8, channel: Option<u16>) {
        for pool in self.space.pools_of(slot, channel) {
            self.space.set_draining(pool, false);
            self.space.set_closed(pool, false);
        }
    }

    /// Closes a slot that is [drained](Self::drained), or its blocks on one `channel`, so that they stay drained: the
    /// collector may write to a slot that is not closed if there is no other room. Returns `true` if the blocks were
    /// drained and are closed now; `false`, with nothing changed, if they are not drained.
    pub fn close_slot(&mut self, slot: u8, channel: Option<u16>) -> bool {
        let drained = self.drained(slot, channel);
        if drained {
            for pool in self.space.pools_of(slot, channel) {
                self.space.set_closed(pool, true);
            }
        }
        drained
    }

    /// Returns `true` if a slot that is being drained, or its blocks on one `channel`, store no page that is needed now
    /// or would be needed after a crash, and none of these blocks is being erased or is lent. A reader that looked a
    /// page up earlier may still be reading it. `false` if the slot is not being drained or does not exist. The call
    /// takes time in proportion to the number of these blocks.
    #[must_use]
    pub fn drained(&self, slot: u8, channel: Option<u16>) -> bool {
        let pools = self.space.pools_of(slot, channel);
        let leaves = |entry| {
            matches!(self.space.info(entry).state, State::Free | State::Dirty | State::Bad | State::Vacant)
        };
        pools
            .iter()
            .all(|&pool| self.space.pool(pool).draining && self.space.pool(pool).entries().all(leaves))
            && !pools.is_empty()
    }

    /// Gives up a drained slot, or its blocks on one `channel`. The blocks are not erased. The caller may erase a block
    /// when the change is durable and, after that, [`Pins::is_pinned`](super::Pins::is_pinned) has once been `false`
    /// for it.
    ///
    /// # Errors
    /// Conflict if the slot, or its part on the channel, is not drained.
    pub fn remove_slot(&mut self, slot: u8, channel: Option<u16>) -> Result<Leaving> {
        if !self.drained(slot, channel) {
            return Err(
                Error::new(ErrorKind::Conflict, "is not drained").about(format!("slot {slot} of a vSSD"))
            );
        }
        let (mut blocks, mut bad) = (Vec::new(), Vec::new());
        for pool in self.space.pools_of(slot, channel) {
            for entry in self.space.pool(pool).entries() {
                match self.space.info(entry).state {
                    State::Vacant => {}
                    State::Bad => bad.push(self.space.block(entry)),
                    _ => blocks.push(self.space.block(entry)),
                }
            }
            self.space.remove_pool(pool);
        }
        self.finish_tasks();
        Ok(Leaving { blocks, bad, change: self.next_change(ChangeKind::Removed { slot, channel }) })
    }

    /// Replaces an own channel that is drained by another channel. `blocks` are the other channel's blocks,
    /// erased, each with its number of erasures, or with `None` if it is bad. As many are taken as the old
    /// channel had; bad ones only if there are too few others. Returns the change to write to the journal.
    ///
    /// # Errors
    /// Conflict if the old channel is not drained. Corrupt if the new blocks are too few, are not all on one
    /// channel, or are on one of the vSSD's own.
    pub fn replace_channel(&mut self, channel: u16, blocks: &[(FlashBlock, Option<u32>)]) -> Result<Change> {
        if !self.replaying && !self.drained(0, Some(channel)) {
            let error = Error::new(ErrorKind::Conflict, "is not drained");
            return Err(error.about(format!("channel {channel} of a vSSD")));
        }
        let pools = self.space.pools_of(0, Some(channel));
        let count = pools.first().map_or(0, |&pool| self.space.pool(pool).entries().count());
        let mut taken = blocks.to_vec();
        taken.sort_by_key(|(block, wear)| (wear.is_none(), *block));
        taken.truncate(count);
        taken.sort_unstable_by_key(|(block, _)| *block);
        self.replace(channel, &taken)?;
        let bad = taken.iter().filter(|(_, wear)| wear.is_none()).map(|(block, _)| *block).collect();
        let blocks = taken.into_iter().map(|(block, _)| block).collect();
        Ok(self.next_change(ChangeKind::Replaced { channel, blocks, bad }))
    }

    /// See [`Vssd::replace_channel`].
    pub(super) fn replace(&mut self, channel: u16, blocks: &[(FlashBlock, Option<u32>)]) -> Result<()> {
        let about = |error: Error| error.about(format!("channel {channel} of a vSSD"));
        let [pool] = self.space.pools_of(0, Some(channel))[..] else {
            return Err(about(Error::corrupt("is not one of its own")));
        };
        let geometry = self.settings.geometry;
        let entries: Vec<_> = self.space.pool(pool).entries().collect();
        let holds = |&entry: &super::map::Entry| {
            let info = self.space.info(entry);
            info.valid > 0 || info.holds > 0 || info.state == State::Lent
        };
        let is_one = blocks
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && geometry.channel(pair[0].0) == geometry.channel(pair[1].0));
        let is_new = blocks.iter().all(|(block, _)| {
            block.0 < geometry.total_blocks()
                && self.space.pools_of(0, Some(geometry.channel(*block))).is_empty()
        });
        if entries.iter().any(holds) {
            return Err(about(Error::corrupt("is replaced while it holds something")));
        }
        if blocks.len() != entries.len() || !is_one || !is_new {
            return Err(about(Error::corrupt("is replaced by blocks that cannot be")));
        }
        self.space.replace_pool(pool, blocks);
        self.finish_tasks();
        Ok(())
    }

    /// Returns the numbers of the channels that the vSSD owns.
    #[must_use]
    pub fn own_channels(&self) -> Vec<u16> {
        let pools = self.space.pools_of(0, None);
        pools.into_iter().map(|pool| self.space.pool(pool).channel).collect()
    }

    /// Returns `true` if `channel`, one of the vSSD's own, is being drained; `false` also for any other channel.
    #[must_use]
    pub fn is_channel_draining(&self, channel: u16) -> bool {
        self.space.pools_of(0, Some(channel)).iter().any(|&pool| self.space.pool(pool).draining)
    }

    /// Returns `true` if any block of `channel`, one of the vSSD's own, is lent; `false` also for any other channel.
    #[must_use]
    pub fn lends_of(&self, channel: u16) -> bool {
        let pools = self.space.pools_of(0, Some(channel)).into_iter();
        let mut entries = pools.flat_map(|pool| self.space.pool(pool).entries());
        entries.any(|entry| self.space.info(entry).state == State::Lent)
    }

    /// Counts the blocks that could be lent now while `keep` free blocks stay for new writes. The first value has a
    /// pair for each own channel with such blocks: the number of the channel, and the count of such blocks on it. The
    /// second value is the most blocks that may be lent on all channels together.
    #[must_use]
    pub fn lendable(&self, keep: u32) -> (Vec<(u16, u32)>, u32) {
        let mut pools = self.space.pools_of(0, None);
        pools.retain(|&pool| !self.space.pool(pool).draining);
        let count =
            |pool: usize| exact::<u32>(self.leaving(pool).count(), "a slot has at most SLOT_BLOCKS blocks");
        let channels = pools.into_iter().map(|pool| (self.space.pool(pool).channel, count(pool)));
        (channels.filter(|&(_, count)| count > 0).collect(), self.spare_beyond(keep))
    }

    /// Lends free blocks of the vSSD's own channels: each pair in `wanted` is a channel and the number of blocks of
    /// that channel to lend. Returns these blocks and the change to write to the journal. The blocks are not erased
    /// here: the caller has them erased once the change is durable, before another vSSD uses them.
    ///
    /// `keep` free blocks stay for new writes. If they are enough for the rest of the disk's size, its user
    /// never has to wait for a lent block. With fewer, a write may have to wait until blocks are returned
    /// ([`Place::Recall`](super::Place::Recall)).
    ///
    /// # Errors
    /// NoSpace if fewer blocks can be lent. Nothing was changed then.
    pub fn lend(&mut self, wanted: &[(u16, u32)], keep: u32) -> Result<(Vec<FlashBlock>, Change)> {
        let mut entries = Vec::new();
        for &(channel, count) in wanted {
            let before = entries.len();
            for pool in self.space.pools_of(0, Some(channel)) {
                let left = count as usize - (entries.len() - before);
                entries.extend(self.leaving(pool).take(left));
            }
            if entries.len() - before < count as usize {
                let cause =
                    format!("channel {channel} has {} free blocks, not {count}", entries.len() - before);
                return Err(Error::new(ErrorKind::NoSpace, cause));
            }
        }
        let (total, most) = (entries.len(), self.spare_beyond(keep));
        let mut sorted = entries.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if total > most as usize || sorted.len() < total {
            let cause = format!("{total} blocks are more than the {most} that it can do without");
            return Err(Error::new(ErrorKind::NoSpace, cause));
        }
        for &entry in &entries {
            self.space.put(entry, State::Lent);
        }
        let blocks: Vec<_> = entries.into_iter().map(|entry| self.space.block(entry)).collect();
        let change = self.next_change(ChangeKind::Lent { blocks: blocks.clone() });
        Ok((blocks, change))
    }

    /// Takes lent blocks back. The caller must have erased them before, and passes each with its number of erasures.
    /// Returns the change to write to the journal.
    ///
    /// # Errors
    /// Invalid if one of the blocks was not lent. Nothing was changed then.
    pub fn take_back(&mut self, blocks: &[(FlashBlock, u32)]) -> Result<Change> {
        let mut entries = Vec::with_capacity(blocks.len());
        for &(block, wear) in blocks {
            let entry = self.space.find(block).filter(|&entry| self.space.info(entry).state == State::Lent);
            entries.push((entry.ok_or_else(|| not_lent(block))?, wear));
        }
        for (entry, wear) in entries {
            if self.space.info(entry).state == State::Lent {
                self.space.change(entry, |info| info.wear = wear);
                self.space.put(entry, State::Free);
            }
        }
        Ok(self
            .next_change(ChangeKind::Returned { blocks: blocks.iter().map(|&(block, _)| block).collect() }))
    }

    /// Notes that a lent block is bad and does not come back. Returns the change to write to the journal.
    ///
    /// # Errors
    /// Invalid if the block was not lent.
    pub fn lost_block(&mut self, block: FlashBlock) -> Result<Change> {
        let entry = self.space.find(block).filter(|&entry| self.space.info(entry).state == State::Lent);
        self.space.put(entry.ok_or_else(|| not_lent(block))?, State::Bad);
        Ok(self.next_change(ChangeKind::Failing { block }))
    }

    /// Changes the size of the disk to `size` bytes; content beyond it is discarded. Returns the change to
    /// write to the journal.
    ///
    /// # Errors
    /// Invalid if `size` is 0, not a multiple of the page size, or too large. NoSpace if the disk would grow and need
    /// more blocks than the vSSD has, lent ones included; never for a [thin](super::VssdSettings::thin) vSSD.
    pub fn resize(&mut self, size: u64) -> Result<Change> {
        let pages = self.settings.pages_of(size)?;
        // A channel that is being emptied comes back, or another in its place.
        let own = self.space.pools_of(0, None).into_iter().map(|pool| self.space.pool(pool));
        let emptied: u32 = own.filter(|pool| pool.draining).map(super::space::ChannelPool::usable).sum();
        let there = self.space.usable() + self.space.lent() + emptied;
        let needed = self.settings.blocks_needed(size);
        if size > self.size() && !self.settings.thin && needed > u64::from(there) {
            let cause = format!("{size} bytes take {needed} flash blocks, there are {there}");
            return Err(
                Error::new(ErrorKind::NoSpace, cause).remedy("make a vSSD of more channels and copy it")
            );
        }
        let change = self.next_change(ChangeKind::Resized { size });
        self.set_size(size, pages);
        Ok(change)
    }

    /// Becomes larger or smaller.
    pub(super) fn set_size(&mut self, size: u64, pages: u32) {
        if pages < self.pages {
            self.unmap(pages..self.pages);
        }
        self.map.resize(self.stripe.blocks(pages));
        self.pages = pages;
        self.settings.size = size;
        self.seal_short_fills();
    }

    /// Blocks of an own pool that may leave and are not being read.
    fn leaving(&self, pool: usize) -> impl Iterator<Item = super::map::Entry> {
        self.space.leaving(pool).filter(|&entry| !self.pins.is_pinned(self.space.block(entry)))
    }

    /// Blocks that it can do without, if it keeps `keep` for writes: two are left for open blocks.
    fn spare_beyond(&self, keep: u32) -> u32 {
        let blocks = self.space.usable();
        let stored = (self.stored + self.users()).div_ceil(u64::from(self.settings.geometry.pages));
        let needed = stored + u64::from(keep) + u64::from(super::settings::LEAST_SPARE);
        let ready = (self.space.free() + self.space.dirty()).saturating_sub(super::place::RESERVE);
        saturating::<u32>(u64::from(blocks).saturating_sub(needed)).min(ready)
    }
}

fn not_lent(block: FlashBlock) -> Error {
    Error::invalid("was not lent").about(format!("flash block {}", block.0))
}
