//! The place of the next page: open blocks, placements, and their outcome.

use super::change::{Change, ChangeKind};
use super::map::{Entry, Spot};
use super::open::Fill;
use super::space::{ChannelPool, LOG, State, Stream};
use super::{FlashBlock, Vssd};
use crate::{Error, ErrorKind, Result};
use headstart_block::exact;

/// Free blocks that only the collector may take.
pub(super) const RESERVE: u32 = 2;
/// Per cent of a data block's pages that a write may skip, at its start and at each step after that. Skipped pages stay
/// unused until the block is collected.
const GAP: u32 = 6;
/// Placements after which a data block that waits for its next page makes room for another, for each that is open.
const FILL_IDLE_MAX: u64 = 32;

/// A page of flash that is reserved for a page of the disk. Each placement is answered exactly once: by
/// [`Vssd::commit`], [`Vssd::failed`], [`Vssd::unread`] or [`Vssd::lose`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it keeps its flash block from being collected until it is committed or failed"]
pub struct Placement {
    /// The page of the disk, by its number from 0.
    pub page: u32,
    /// The flash block to program.
    pub block: FlashBlock,
    /// The page to program, by its number within the block.
    pub at: u32,
    pub(super) spot: Spot,
    /// The source of the copy, by the collector.
    pub(super) from: Option<Spot>,
}

/// The result of [`Vssd::place`].
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// The page of flash that is reserved.
    At(Placement),
    /// No page is free at present. The driver does some steps of [`Vssd::collect_next`], then tries again.
    Collect,
    /// No page is free because too many of the vSSD's own blocks are lent. The driver has some of them given back
    /// ([`Vssd::take_back`]), then tries again.
    Recall,
}

/// The numbers of blocks that may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Widths {
    user: usize,
    pub(super) collect: usize,
    fill: usize,
}

impl Vssd {
    /// Reserves a page of flash for page `page` of the disk, which is to be written whole. Readers see no
    /// change before [`Vssd::commit`].
    ///
    /// # Errors
    /// Invalid for a page beyond the disk. NoSpace if the blocks are full and no own block is lent that could be
    /// taken back.
    pub fn place(&mut self, page: u32) -> Result<Place> {
        self.check(page, 1)?;
        let (block, offset) = self.stripe.locate(page);
        if self.map.lookup(block, offset).is_none() && self.stored + self.open.users >= self.space.capacity()
        {
            return self.refuse();
        }
        let follows = self.sequence.saw(page);
        let in_place = self.fill_spot(block, offset, follows);
        let Some(spot) = in_place.or_else(|| self.log_spot(Stream::User, None, false)) else {
            // Too many blocks went bad, or the last free ones at once: collecting does not help, lent blocks may.
            let short = self.stored > self.space.capacity() || self.is_stuck();
            return if short { self.refuse() } else { Ok(Place::Collect) };
        };
        self.open.users += 1;
        Ok(Place::At(self.placement(page, spot, None)))
    }

    /// Returns `true` if all earlier placements in the same flash block have been answered. Before that, the driver
    /// must not program the page of this placement.
    #[must_use]
    pub fn turn(&self, placement: &Placement) -> bool {
        let first = Spot { page: 0, ..placement.spot };
        self.open.flights.range(first..placement.spot).next().is_none()
    }

    /// Maps the disk's page to the page of flash that was programmed. Returns the change to write to the journal.
    /// `None` if nothing is mapped. Either the page is beyond the present size of the disk, or the placement was for a
    /// copy by the collector that is of no use: the disk's page was written, trimmed or moved meanwhile, or the copy is
    /// in a slot that is being given up.
    #[expect(clippy::needless_pass_by_value, reason = "it is given up: nobody answers it twice")]
    pub fn commit(&mut self, placement: Placement) -> Option<Change> {
        let Placement { page, spot, from, .. } = placement;
        self.land(spot, from);
        let (block, at) = self.stripe.locate(page);
        let current = if page < self.pages { self.map.lookup(block, at) } else { None };
        // A copy to a slot that is given up would lose a page that is safe in its place.
        let void = from.is_some() && (current != from || self.space.is_closed(spot.entry));
        let change = if page >= self.pages || void {
            None
        } else {
            self.space.fill(spot, page);
            self.map.set(block, at, Some(spot));
            self.lost.remove(page..page + 1);
            let what = ChangeKind::Map { page, block: self.space.block(spot.entry), at: spot.page };
            let change = self.next_change(what);
            match current {
                Some(old) => self.forget(old.entry, 1),
                None => self.stored += 1,
            }
            Some(change)
        };
        self.file_away(spot.entry);
        if let Some(from) = from {
            self.file_away(from.entry);
        }
        change
    }

    /// Gives up a placement that was not programmed, or perhaps only in part. `bad` is `true` if the flash
    /// reported the block as bad ([`crate::device::FlashError::Bad`]): the block is written no more, and its
    /// valid pages are copied elsewhere later. Returns the change to write to the journal; `None` if `bad` is `false`,
    /// or if the block was known to be bad.
    #[expect(clippy::needless_pass_by_value, reason = "it is given up: nobody answers it twice")]
    pub fn failed(&mut self, placement: Placement, bad: bool) -> Option<Change> {
        let Placement { spot, from, block, .. } = placement;
        self.land(spot, from);
        let news = bad && !self.space.info(spot.entry).failing;
        if bad {
            self.space.fail(spot.entry);
            self.seal(spot.entry);
        }
        self.file_away(spot.entry);
        if let Some(from) = from {
            self.file_away(from.entry);
        }
        news.then(|| self.next_change(ChangeKind::Failing { block }))
    }

    /// Makes the disk's `count` pages from `first` on read as zeros and discards their content. Returns the change
    /// to write to the journal, or `None` if all of them were zeros already. The time is proportional to the number
    /// of whole logical blocks in the range, and to the number of pages at its two ends that fill no whole group of
    /// logical blocks (256 MiB for the default geometry).
    ///
    /// # Errors
    /// Invalid if a page is beyond the disk.
    pub fn trim(&mut self, first: u32, count: u32) -> Result<Option<Change>> {
        self.check(first, count)?;
        let before = (self.stored, self.lost.count());
        let change = self.next_change(ChangeKind::Unmap { first, count });
        self.unmap(first..first + count);
        if (self.stored, self.lost.count()) == before {
            self.last -= 1;
            return Ok(None);
        }
        Ok(Some(change))
    }

    /// Unmaps pages: whole logical blocks at once.
    pub(super) fn unmap(&mut self, run: std::ops::Range<u32>) {
        self.lost.remove(run.clone());
        let (blocks, whole) = self.stripe.whole_groups(&run);
        for block in blocks {
            let (base, patches) = self.map.clear(block);
            if let Some((entry, count)) = base {
                self.stored -= u64::from(count);
                self.forget(entry, count);
            }
            for spot in patches.into_iter().filter_map(super::map::Patch::spot) {
                self.stored -= 1;
                self.forget(spot.entry, 1);
            }
        }
        for page in (run.start..whole.start).chain(whole.end..run.end) {
            let (block, at) = self.stripe.locate(page);
            if self.map.lookup(block, at).is_some()
                && let Some(old) = self.map.set(block, at, None)
            {
                self.stored -= 1;
                self.forget(old.entry, 1);
            }
        }
    }

    /// Uses an own channel again that is being drained: writes go first. `true` if there is one, or one that is
    /// closed, which comes back by itself.
    pub(super) fn keep_own_channel(&mut self) -> bool {
        if self.space.is_slot_draining(0) {
            for pool in self.space.pools_of(0, None) {
                if !self.space.pool(pool).closed {
                    self.space.set_draining(pool, false);
                }
            }
            return true;
        }
        self.space.is_slot_closed(0)
    }

    fn refuse(&mut self) -> Result<Place> {
        if self.keep_own_channel() {
            return Ok(Place::Collect);
        }
        if self.space.lent() > 0 {
            return Ok(Place::Recall);
        }
        let cause = if self.stored < self.space.capacity() {
            "no flash block is left to collect with".to_owned()
        } else {
            format!("{} pages are stored, {} fit its flash blocks", self.stored, self.space.capacity())
        };
        Err(Error::new(ErrorKind::NoSpace, cause).remedy("trim data that is not needed, or harvest more"))
    }

    /// `true` if no block is left to collect with: the last free blocks went with a slot that was given up, or bad.
    /// Trimming helps.
    fn is_stuck(&self) -> bool {
        let idle = self.space.coming() == 0 && self.open.flights.is_empty() && self.open.logs[1].is_empty();
        idle && !self.space.is_anything_left()
    }

    /// Blocks beyond those of the stored pages.
    pub(super) fn slack(&self) -> u32 {
        let stored = self.stored.div_ceil(u64::from(self.settings.geometry.pages));
        exact(
            u64::from(self.space.usable()).saturating_sub(stored),
            "it is at most the number of usable blocks",
        )
    }

    /// The widths: half of the spare blocks may be open, and no more of a kind than can be programmed at once.
    pub(super) fn widths(&self) -> Widths {
        let most = (self.slack().saturating_sub(4) / 2).max(2);
        let dies = self.space.active().saturating_mul(self.settings.geometry.dies.into()).max(1);
        let user = (most / 4).clamp(1, dies);
        let collect = (most / 8).clamp(1, dies);
        let fill = most.saturating_sub(user + collect).min(self.settings.width().saturating_mul(4));
        Widths { user: user as usize, collect: collect as usize, fill: fill as usize }
    }

    /// Makes a placement of a spot that was taken.
    pub(super) fn placement(&mut self, page: u32, spot: Spot, from: Option<Spot>) -> Placement {
        self.open.flights.insert(spot);
        let block = self.space.block(spot.entry);
        Placement { page, block, at: spot.page.into(), spot, from }
    }

    /// Ends a placement.
    fn land(&mut self, spot: Spot, from: Option<Spot>) {
        self.open.flights.remove(&spot);
        self.space.landed(spot.entry);
        self.space.change(spot.entry, |info| info.holds = info.holds.saturating_sub(1));
        match from {
            Some(from) => {
                self.space.landed(from.entry);
                self.space.change(from.entry, |info| info.holds = info.holds.saturating_sub(1));
            }
            None => self.open.users = self.open.users.saturating_sub(1),
        }
    }

    /// Makes pages of a block invalid.
    pub(super) fn forget(&mut self, entry: Entry, count: u16) {
        self.space.invalidate(entry, count);
        if self.space.info(entry).valid == 0 {
            self.file_away(entry);
        }
    }

    /// Checks if a sealed block without placements or copies is dead, or the new base of its logical block.
    pub(super) fn file_away(&mut self, entry: Entry) {
        let info = *self.space.info(entry);
        if self.replaying || info.state != State::Sealed || info.holds > 0 {
            return;
        }
        if info.valid == 0 {
            self.end_task(entry);
        }
        match (info.valid, info.failing) {
            (0, true) => self.space.put(entry, State::Bad),
            (0, false) => {
                self.space.die(entry, self.last);
                // There may have been no write since the last durable one: then it waits for none.
                self.space.durable(self.durable);
            }
            _ if info.owner != LOG => drop(self.map.rebase(info.owner, entry)),
            _ => {}
        }
    }

    /// Seals a block: it is written no more.
    pub(super) fn seal(&mut self, entry: Entry) {
        if self.space.info(entry).state != State::Open {
            return;
        }
        self.open.logs.iter_mut().for_each(|logs| logs.retain(|&log| log != entry));
        let owner = self.space.info(entry).owner;
        if self.open.fills.get(&owner).is_some_and(|fill| fill.entry == entry) {
            self.open.fills.remove(&owner);
        }
        self.tasks.sealed(entry);
        self.space.put(entry, State::Sealed);
        self.file_away(entry);
    }

    /// Takes a page of an open block, which is sealed with its last.
    pub(super) fn take(&mut self, entry: Entry, page: u16) -> Spot {
        self.space.change(entry, |info| {
            info.next = page + 1;
            info.holds += 1;
        });
        self.space.placed(entry);
        if u32::from(page) + 1 == self.settings.geometry.pages {
            self.seal(entry);
        }
        Spot { entry, page }
    }

    /// Opens a block; the collector names the block that it copies from. Only the collector may take the last ones, for
    /// room. It also keeps one for each that it writes to, from the user: with all taken it could write to one only,
    /// and be as slow as a die as long as the user goes on.
    pub(super) fn open(
        &mut self,
        stream: Stream,
        owner: u32,
        from: Option<Entry>,
        last: bool,
    ) -> Option<Entry> {
        if !last && self.space.free() <= self.kept(from) {
            return None;
        }
        let quick = self.has_quick(from);
        // No write waits for a data block on a slow one then.
        if !quick && stream == Stream::Fill && self.space.is_any_slow() {
            return None;
        }
        let share =
            self.widths().user.max(self.widths().collect).div_ceil(self.space.active().max(1) as usize);
        let hogs =
            |pool: &ChannelPool| owner == LOG && pool.is_slow() && pool.opens(stream) as usize >= share;
        // Pages of a slow channel are collected there: they would use up the room on quick ones.
        let slow = !quick || from.is_some_and(|from| self.space.is_slow(from));
        let fits = |pool: &ChannelPool| if pool.is_slow() { slow } else { quick || last };
        self.space.open(stream, owner, |pool| !pool.draining && fits(pool) && !hogs(pool))
    }

    /// The number of free blocks that are the collector's, for pages that are copied from a block, or written.
    fn kept(&self, from: Option<Entry>) -> u32 {
        let collect: u32 = exact(self.widths().collect, "it is at most the number of blocks");
        RESERVE + if from.is_none() { collect.saturating_sub(1) } else { 0 }
    }

    /// `true` if quick channels have a free block for that. The last ones are for their own pages, while that pays.
    fn has_quick(&self, from: Option<Entry>) -> bool {
        let kept = match from {
            Some(from) if !self.space.is_slow(from) => 0,
            _ if self.pays() => self.kept(from),
            _ => RESERVE,
        };
        self.space.quick() > kept
    }

    /// The page in the data block that the logical block is being written to, or in one that is begun for it.
    fn fill_spot(&mut self, block: u32, offset: u16, follows: bool) -> Option<Spot> {
        self.open.clock += 1;
        let gap = self.settings.geometry.pages * GAP / 100;
        if let Some(fill) = self.open.fills.get_mut(&block) {
            let next = self.space.info(fill.entry).next;
            let entry = fill.entry;
            if offset < next || u32::from(offset - next) > gap {
                if follows && offset > next {
                    // The stream has gone on without it, and does not come back.
                    self.seal(entry);
                }
                return None;
            }
            fill.used = self.open.clock;
            return (!self.is_late(entry)).then(|| self.take(entry, offset));
        }
        let whole = self.stripe.is_whole(block, self.pages);
        let width = self.widths().fill;
        if !follows || !whole || u32::from(offset) > gap || width == 0 {
            return None;
        }
        if self.open.fills.len() >= width {
            let (_, oldest) = self.open.fills.iter().min_by_key(|(_, fill)| fill.used)?;
            let (entry, used) = (oldest.entry, oldest.used);
            if self.open.clock - used < FILL_IDLE_MAX * self.open.fills.len() as u64 {
                return None;
            }
            self.seal(entry);
        }
        let entry = self.open(Stream::Fill, block, None, false)?;
        self.open.fills.insert(block, Fill { entry, used: self.open.clock });
        Some(self.take(entry, offset))
    }

    /// `true` if a data block's channel became slow since it was opened: the rest of it goes to the log.
    fn is_late(&self, entry: Entry) -> bool {
        self.space.is_slow(entry) && self.has_quick(None)
    }

    /// The next page of a log block: of those that will be through with their placements the soonest, the one in turn.
    /// `None` if there are only blocks on slow channels, which are busy: it is sooner elsewhere.
    pub(super) fn log_spot(&mut self, stream: Stream, from: Option<Entry>, last: bool) -> Option<Spot> {
        let widths = self.widths();
        let (kind, width) = if stream == Stream::User { (0, widths.user) } else { (1, widths.collect) };
        while self.open.logs[kind].len() < width {
            // Only the first may come from the last free blocks.
            let last = last && self.open.logs[kind].is_empty();
            let Some(entry) = self.open(stream, LOG, from, last) else { break };
            self.open.logs[kind].push(entry);
        }
        if last && self.open.logs[kind].is_empty() {
            return self.last_resort();
        }
        let logs = &self.open.logs[kind];
        let (count, turn) = (logs.len(), self.open.turns[kind]);
        let order = (0..count).map(|step| (turn + step) % count);
        let quick = self.has_quick(from);
        let later = |entry: Entry| quick && self.space.is_slow(entry);
        let load = |entry: Entry| (later(entry), self.space.wait(entry), self.space.info(entry).holds);
        let index = order.min_by_key(|&index| load(logs[index]))?;
        let entry = logs[index];
        if !last && self.space.is_busy(entry) && logs.iter().all(|&log| self.space.is_slow(log)) {
            return None;
        }
        self.open.turns[kind] = index + 1;
        let page = self.space.info(entry).next;
        Some(self.take(entry, page))
    }

    /// A page for the collector if its own blocks failed, or all free ones are being drained: the user's log, or a
    /// block that is being drained and not given up, from which it moves on once there is another.
    fn last_resort(&mut self) -> Option<Spot> {
        let entry = match self.open.logs[0].first() {
            Some(&log) => log,
            None => {
                let entry = self.space.open(Stream::Collect, LOG, |pool| pool.draining)?;
                self.open.logs[1].push(entry);
                entry
            }
        };
        let page = self.space.info(entry).next;
        Some(self.take(entry, page))
    }

    /// Seals a block that was opened as a last resort, once it is needed no more.
    pub(super) fn leave_drained(&mut self) {
        if self.space.free() > 0 {
            let logs: Vec<_> =
                self.open.logs[1].iter().copied().filter(|&log| self.space.is_draining(log)).collect();
            logs.into_iter().for_each(|log| self.seal(log));
        }
    }

    /// Seals open blocks beyond the number of spare ones: they are collected then.
    pub(super) fn shed(&mut self) {
        let widths = self.widths();
        while self.open.fills.len() > widths.fill {
            let Some((_, oldest)) = self.open.fills.iter().min_by_key(|(_, fill)| fill.used) else { break };
            self.seal(oldest.entry);
        }
        for (kind, width) in [(0, widths.user), (1, widths.collect)] {
            while self.open.logs[kind].len() > width {
                self.seal(self.open.logs[kind][0]);
            }
        }
    }

    /// `true` if the user is writing a logical block from its beginning on.
    pub(super) fn is_filling(&self, block: u32) -> bool {
        self.open.fills.contains_key(&block)
    }

    /// Seals data blocks of logical blocks that are no longer wholly on the disk.
    pub(super) fn seal_short_fills(&mut self) {
        let fills = self.open.fills.iter();
        let short = fills.filter(|(block, _)| !self.stripe.is_whole(**block, self.pages));
        let entries: Vec<_> = short.map(|(_, fill)| fill.entry).collect();
        entries.into_iter().for_each(|entry| self.seal(entry));
    }

    /// User placements under way.
    pub(super) fn users(&self) -> u64 {
        self.open.users
    }
}
