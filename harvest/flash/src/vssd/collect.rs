//! Making room: collecting the blocks with the fewest valid pages, evacuating drained or failing ones, folding logical
//! blocks that are in pieces, and erasing.
//!
//! Collection is greedy: the sealed block with the fewest valid pages. Pages that are copied go to log blocks of their
//! own, so that rarely written pages gather; a data block that is nearly whole is copied to a data block. Each step is
//! one page or one block, so that the user's I/O goes on between.

use super::change::{Change, ChangeKind};
use super::map::{Entry, Spot};
use super::place::{Placement, RESERVE};
use super::space::{LOG, State, Stream};
use super::{FlashBlock, Vssd};
use crate::{Error, Result};
use headstart_block::exact;
use std::collections::BTreeSet;

/// Blocks that are evacuated at a time: their copies run on different channels.
const EVACUATIONS: usize = 8;
/// Tasks that turn out to have nothing more to copy, in one search for a step.
const ROUNDS: u32 = 32;
/// Blocks that are put off at a time: if nothing can be read, not the whole disk is tried every second.
const PUT_OFF: usize = 8;
/// Logical blocks looked at in one search for one to fold.
const LOOK: u32 = 256;

/// The kind of work that [`Vssd::collect_next`] may choose: only necessary work, or also work for idle times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Only necessary work: making room, evacuating, erasing.
    Needed,
    /// Also work that is useful while nothing else is to be done: erasing ahead, and copying scattered
    /// logical blocks together (folding).
    Idle,
}

/// A step of garbage collection that the driver is to do, and to answer as each variant says.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "every step is to be answered"]
pub enum CollectStep {
    /// Read page `page` of `from`, program it at `to`, then answer with [`Vssd::commit`] or [`Vssd::failed`]
    /// for `to`. If the page cannot be read, answer with [`Vssd::unread`] or [`Vssd::lose`] for `to`. The block `from`
    /// is not erased before the answer, even if the driver does not pin it.
    Copy {
        /// The flash block to read.
        from: FlashBlock,
        /// The page to read, by its number within the block.
        page: u32,
        /// The placement of the copy.
        to: Placement,
    },
    /// Erase the block, then answer with [`Vssd::erased`], [`Vssd::erase_failed`] or [`Vssd::erase_later`].
    Erase {
        /// The block to erase. No reader has pinned it, and no reader can find it any more.
        block: FlashBlock,
    },
    /// Flush the flash, make the journal durable at least up to this change, then call [`Vssd::durable`]:
    /// more blocks can be erased afterwards.
    Sync {
        /// The number of the change.
        up_to: u64,
    },
}

/// The source of the pages of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// All valid pages of a flash block.
    Block(Entry),
    /// A logical block.
    Fold(u32),
}

/// The reason of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// For room: it may take the last free blocks.
    Room,
    /// The block is drained or failing.
    Leave,
    /// The map gets smaller.
    Tidy,
}

#[derive(Debug)]
struct Task {
    source: Source,
    reason: Reason,
    /// The next page to look at.
    cursor: u16,
    /// The data block of the copies.
    to: Option<Entry>,
    /// `true` if the copies go to a data block, once one is open.
    whole: bool,
}

impl Task {
    /// `true` if it makes room by emptying a block that `such` accepts.
    fn is_room_of(&self, such: impl Fn(Entry) -> bool) -> bool {
        matches!(*self, Self { source: Source::Block(entry), reason: Reason::Room, .. } if such(entry))
    }
}

/// The copies under way.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    list: Vec<Task>,
    turn: usize,
    /// The place at which the search for logical blocks to fold goes on.
    fold: u32,
    /// Blocks with pages that cannot be read just now.
    put_off: BTreeSet<Entry>,
    /// No block on quick channels paid: they are looked at again after this change.
    again: u64,
}

impl Tasks {
    /// Notes that a block is written no more: pages that would be copied to it go to the log. The block may have
    /// another use when it opens next.
    pub(super) fn sealed(&mut self, entry: Entry) {
        for task in self.list.iter_mut().filter(|task| task.to == Some(entry)) {
            (task.to, task.whole) = (None, false);
        }
    }

    /// Lets no task begin with this block for now. One that has begun goes on: its other pages may be readable.
    pub(super) fn put_off(&mut self, entry: Entry) {
        self.put_off.insert(entry);
    }

    /// Lets tasks begin with any block again.
    pub(super) fn look_again(&mut self) {
        self.put_off.clear();
    }
}

impl Vssd {
    /// Returns the next step of garbage collection, evacuation or erasing; `None` if there is none now. Several steps
    /// may be under way at once. A call that chooses a block to collect takes time in proportion to the number of
    /// blocks of the vSSD: some ten microseconds for 128 GB.
    pub fn collect_next(&mut self, effort: Effort) -> Option<CollectStep> {
        if let Some(step) = self.erase_next(effort) {
            return Some(step);
        }
        if self.space.coming() < self.low() {
            self.shed();
        }
        self.leave_drained();
        for _ in 0..ROUNDS {
            self.finish_tasks();
            self.choose(effort);
            if let Some(step) = self.copy_next() {
                return Some(step);
            }
            if self.finish_tasks() == 0 {
                break;
            }
        }
        // A block that was sealed above may hold nothing.
        if let Some(step) = self.erase_next(effort) {
            return Some(step);
        }
        let short = self.space.quick() < self.low() || self.space.is_dry();
        let wanted = effort == Effort::Idle || short || self.space.is_any_draining();
        self.space.waits_for().filter(|_| wanted).map(|up_to| CollectStep::Sync { up_to })
    }

    /// The next page of a task, each having its turn.
    fn copy_next(&mut self) -> Option<CollectStep> {
        let count = self.tasks.list.len();
        (0..count).find_map(|_| {
            self.tasks.turn += 1;
            self.advance(self.tasks.turn % count)
        })
    }

    fn erase_next(&mut self, effort: Effort) -> Option<CollectStep> {
        let all = effort == Effort::Idle || self.space.free() < self.low();
        let entry = self.space.erasable(all, |block| !self.pins.is_pinned(block))?;
        self.space.put(entry, State::Erasing);
        Some(CollectStep::Erase { block: self.space.block(entry) })
    }

    /// Returns `true` if few blocks are free, in all or on one channel: writes may soon have to wait for
    /// garbage collection.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let low = self.low();
        self.space.is_dry() || self.space.free() < low || self.space.quick() < low && self.pays()
    }

    /// Answers [`CollectStep::Erase`]: the block was erased. `wear` is the number of its erasures, this one included.
    ///
    /// # Errors
    /// Invalid if the block was not to be erased.
    pub fn erased(&mut self, block: FlashBlock, wear: u32) -> Result<()> {
        let entry = self.erasing(block)?;
        self.space.change(entry, |info| info.wear = wear);
        self.space.put(entry, State::Free);
        Ok(())
    }

    /// Answers [`CollectStep::Erase`]: the block could not be erased, and is never used again. Returns the
    /// change to write to the journal.
    ///
    /// # Errors
    /// Invalid if the block was not to be erased.
    pub fn erase_failed(&mut self, block: FlashBlock) -> Result<Change> {
        let entry = self.erasing(block)?;
        self.space.put(entry, State::Bad);
        Ok(self.next_change(ChangeKind::Failing { block }))
    }

    /// Answers [`CollectStep::Erase`]: the erasure failed for a reason other than the block. A later step tries again;
    /// until then the block is not used.
    ///
    /// # Errors
    /// Invalid if the block was not to be erased.
    pub fn erase_later(&mut self, block: FlashBlock) -> Result<()> {
        let entry = self.erasing(block)?;
        self.space.put(entry, State::Dirty);
        Ok(())
    }

    /// Notes that all changes with numbers up to `up_to` are durable in the journal, and that the pages of flash that
    /// these changes map are durable as well. Blocks that these changes left empty may be erased from now on.
    pub fn durable(&mut self, up_to: u64) {
        self.durable = self.durable.max(up_to.min(self.last));
        self.space.durable(self.durable);
    }

    fn erasing(&self, block: FlashBlock) -> Result<Entry> {
        let found = self.space.find(block).filter(|&entry| self.space.info(entry).state == State::Erasing);
        found.ok_or_else(|| Error::invalid("was not to be erased").about(format!("flash block {}", block.0)))
    }

    /// The number of free blocks below which the collector makes room.
    pub(super) fn low(&self) -> u32 {
        // A stream that comes to a new group begins as many data blocks as the group is wide.
        let collect = exact(self.widths().collect, "it is at most the number of blocks");
        let most = self.space.active().max(collect).saturating_mul(2).max(self.settings.interleave).max(4);
        RESERVE + (self.slack() / 4).clamp(1, most)
    }

    /// The number of blocks that are collected for room at a time: one for each channel, if there are enough spare
    /// blocks.
    fn rooms(&self) -> usize {
        self.widths().collect.min(self.space.active() as usize).max(1)
    }

    /// Ends the task of a block that holds nothing more, before the block has another use.
    pub(super) fn end_task(&mut self, entry: Entry) {
        self.tasks.put_off.remove(&entry);
        let found = self.tasks.list.iter().position(|task| task.source == Source::Block(entry));
        if let Some(to) = found.and_then(|index| self.tasks.list.remove(index).to) {
            self.seal(to);
        }
    }

    /// Forgets tasks that have nothing more to copy, and seals the blocks that they copied to. Returns their number.
    pub(super) fn finish_tasks(&mut self) -> usize {
        let mut done = 0;
        let pages = self.settings.geometry.pages;
        let mut index = 0;
        while index < self.tasks.list.len() {
            let Task { source, cursor, to, .. } = self.tasks.list[index];
            let gone = match source {
                Source::Block(entry) => self.space.info(entry).state != State::Sealed,
                Source::Fold(block) => block >= self.map.blocks(),
            };
            if gone || u32::from(cursor) >= pages {
                self.tasks.list.remove(index);
                done += 1;
                to.into_iter().for_each(|to| self.seal(to));
            } else {
                index += 1;
            }
        }
        done
    }

    /// `true` if a task with this block cannot begin: there is one, or it is put off.
    fn is_taken(&self, entry: Entry) -> bool {
        let put_off = self.tasks.put_off.contains(&entry);
        put_off || self.tasks.list.iter().any(|task| task.source == Source::Block(entry))
    }

    fn begin(&mut self, source: Source, reason: Reason, whole: bool) {
        self.tasks.list.push(Task { source, reason, cursor: 0, to: None, whole });
    }

    /// `true` if room is short: everywhere, or on quick channels, unless no block there paid a moment ago.
    fn wants_room(&self, low: u32) -> bool {
        self.space.coming() < low || self.space.quick_coming() < low && self.pays()
    }

    /// `true` if collecting may bring room on quick channels.
    pub(super) fn pays(&self) -> bool {
        self.last >= self.tasks.again
    }

    /// Begins the next task.
    fn choose(&mut self, effort: Effort) {
        if self.tasks.put_off.len() >= PUT_OFF {
            return;
        }
        let pages = self.settings.geometry.pages;
        let (low, free) = (self.low(), self.space.free());
        let of = |tasks: &Tasks, reason| tasks.list.iter().filter(|task| task.reason == reason).count();
        let rooms = if free > RESERVE { self.rooms() } else { 1 };
        while self.wants_room(low) && of(&self.tasks, Reason::Room) < rooms {
            // Of different channels: one channel cannot be read as fast as all are written.
            let busy = |entry| {
                self.tasks
                    .list
                    .iter()
                    .any(|task| task.is_room_of(|other| self.space.are_together(entry, other)))
            };
            let slow = self.tasks.list.iter().any(|task| task.is_room_of(|entry| self.space.is_slow(entry)));
            let taken = |entry| self.is_taken(entry) || busy(entry) || slow && self.space.is_slow(entry);
            let short = self.space.coming() < low;
            let pays = |valid: u16| {
                let gain = pages.saturating_sub(valid.into());
                // With room on slow channels it must pay more than writing there.
                let least = if short { pages / 16 } else { pages / 4 };
                gain > 0 && (free <= RESERVE + 1 || gain >= least)
            };
            let fewest = |all: bool| self.space.fewest(false, all, |entry| !taken(entry));
            let find = |all: bool| fewest(all).filter(|&(_, valid)| pays(valid));
            let Some((entry, _)) = find(false).or_else(|| if short { find(true) } else { None }) else {
                self.tasks.again = self.last + u64::from(pages / 4);
                break;
            };
            self.begin(Source::Block(entry), Reason::Room, false);
        }
        while free > RESERVE && of(&self.tasks, Reason::Leave) < EVACUATIONS {
            let failing = |&entry: &Entry| {
                let info = self.space.info(entry);
                info.state == State::Sealed && info.holds == 0 && info.valid > 0 && !self.is_taken(entry)
            };
            let drained =
                || self.space.fewest(true, true, |entry| !self.is_taken(entry)).map(|(entry, _)| entry);
            let found = self.space.failing.iter().copied().find(failing);
            let Some(entry) = found.or_else(drained) else { break };
            let info = self.space.info(entry);
            // Copied to a data block it leaves holes: for one that is whole none, for others few enough with room.
            let most = if free > low { pages / 8 } else { 0 };
            let whole = info.owner != LOG && u32::from(info.valid) + most >= pages;
            self.begin(Source::Block(entry), Reason::Leave, whole);
        }
        let tidy = effort == Effort::Idle && free > low && self.map.patches() > self.settings.overlay_limit;
        if tidy && self.tasks.list.is_empty() && self.tasks.put_off.is_empty() {
            self.choose_fold();
        }
    }

    /// Begins to fold the next logical block that is mostly in the log and is nearly whole.
    fn choose_fold(&mut self) {
        let pages = self.settings.geometry.pages;
        for _ in 0..LOOK.min(self.map.blocks()) {
            let block = self.tasks.fold % self.map.blocks();
            self.tasks.fold = block + 1;
            let logged = self.map.overlay(block).iter().filter(|patch| patch.spot().is_some()).count();
            if logged * 2 >= pages as usize
                && self.map.mapped(block) + pages / 8 >= pages
                && !self.is_filling(block)
            {
                self.begin(Source::Fold(block), Reason::Tidy, true);
                return;
            }
        }
    }

    /// The next page of a task; `None` if there are no more, or no place for it.
    fn advance(&mut self, index: usize) -> Option<CollectStep> {
        let pages: u16 = exact(self.settings.geometry.pages, "settings with more pages a block are refused");
        loop {
            let Task { source, reason, cursor, to, whole } = self.tasks.list[index];
            // The last free blocks are the first's: it needs no more than there are, and makes room for the others.
            let last = self.tasks.list[..index].iter().all(|task| task.reason != Reason::Room);
            if cursor >= pages || reason == Reason::Room && !last && self.space.free() <= RESERVE {
                return None;
            }
            let found = match source {
                Source::Block(entry) => {
                    if self.space.info(entry).state != State::Sealed {
                        self.tasks.list[index].cursor = pages;
                        return None;
                    }
                    if reason == Reason::Room && self.space.is_busy(entry) {
                        return None;
                    }
                    let spot = Spot { entry, page: cursor };
                    self.holder(spot).map(|page| (page, spot))
                }
                Source::Fold(block) if block < self.map.blocks() => {
                    let page = u32::try_from(self.stripe.page(block, cursor)).ok();
                    page.zip(self.map.lookup(block, cursor))
                }
                Source::Fold(_) => None,
            };
            let Some((page, from)) = found else {
                self.tasks.list[index].cursor += 1;
                continue;
            };
            let open = |to: &Entry| self.space.info(*to).state == State::Open;
            let to = to.filter(open).or_else(|| {
                let (block, _) = self.stripe.locate(page);
                // Only from the start: a second block would be as good as the log.
                if whole && to.is_none() {
                    self.open(Stream::Fold, block, Some(from.entry), false)
                } else {
                    None
                }
            });
            let spot = match to {
                Some(to) => self.take(to, cursor),
                None if reason == Reason::Tidy => {
                    self.tasks.list[index].cursor = pages;
                    return None;
                }
                // A page that leaves gives no room here: it must not use up the blocks that make room.
                None if reason == Reason::Leave && self.space.free() <= RESERVE => return None,
                None => self.log_spot(Stream::Collect, Some(from.entry), reason == Reason::Room && last)?,
            };
            // The block is sealed with its last page.
            let open = to.filter(|to| self.space.info(*to).state == State::Open);
            let task = &mut self.tasks.list[index];
            task.cursor += 1;
            (task.to, task.whole) = (open, whole && open.is_some());
            self.space.change(from.entry, |info| info.holds += 1);
            self.space.placed(from.entry);
            let to = self.placement(page, spot, Some(from));
            return Some(CollectStep::Copy {
                from: self.space.block(from.entry),
                page: from.page.into(),
                to,
            });
        }
    }
}
