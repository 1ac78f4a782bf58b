//! The flash blocks of a vSSD: their slots and channels, and the state of each.
//!
//! A *channel pool* is the part of a slot on one channel: it is contiguous, ascending, in the slot's list. Counts over
//! all pools are kept ready; they change with blocks, not with pages.

mod slow;

use super::map::{Entry, SLOT_BLOCKS, Spot, Table, in_slot};
use super::settings::LEAST_SPARE;
use super::stripe::Stripe;
use crate::device::{FlashBlock, Geometry};
use crate::{Error, Result};
use headstart_block::{exact, saturating};
use slow::{LOG_COST, WHOLE};
use std::collections::{BTreeSet, VecDeque};

/// The owner of a log block.
pub(super) const LOG: u32 = u32::MAX;
/// The page that an unused page of a log block belongs to.
const NOBODY: u32 = u32::MAX;

/// The state of a flash block; the life is drawn in the module above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not there any more.
    Vacant,
    Free,
    Open,
    Sealed,
    Dead,
    Dirty,
    Erasing,
    Lent,
    Bad,
}

/// The purpose of an open block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// The user's random writes.
    User,
    /// Collected pages.
    Collect,
    /// A logical block that the user writes from its beginning on.
    Fill,
    /// A logical block that is copied.
    Fold,
}

/// The number of blocks of a channel that one is taken from: the least worn free ones, the first dirty ones.
const AMONG: usize = 64;

/// Kinds of [`Stream`].
const STREAMS: usize = 4;

/// A flash block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Info {
    /// The logical block whose pages it holds at their own numbers; or [`LOG`].
    pub(super) owner: u32,
    pub(super) wear: u32,
    pub(super) valid: u16,
    /// The first page that was not placed yet.
    pub(super) next: u16,
    /// Placements into it and copies out of it that are under way.
    pub(super) holds: u16,
    pool: u16,
    pub(super) state: State,
    stream: Stream,
    /// `true` if a program failed here.
    pub(super) failing: bool,
}

impl Info {
    fn counts(&self) -> bool {
        !self.failing && !matches!(self.state, State::Vacant | State::Lent | State::Bad)
    }
}

/// The blocks that came with one gSSD, or the vSSD's own.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) blocks: Vec<FlashBlock>,
    pub(super) info: Vec<Info>,
}

/// The blocks of a slot on one channel.
#[derive(Debug)]
pub(super) struct ChannelPool {
    pub(super) slot: u8,
    pub(super) channel: u16,
    first: u32,
    count: u32,
    usable: u32,
    lent: u32,
    /// By wear and number.
    free: BTreeSet<(u32, u32)>,
    dirty: BTreeSet<u32>,
    pub(super) draining: bool,
    /// `true` if it is drained for good: nothing is placed here any more, not even if there is no other place.
    pub(super) closed: bool,
    opens: [u32; STREAMS],
    /// The die that a block was opened on last, for each purpose; and erased on.
    dies: [u16; STREAMS + 1],
    /// The turn at which a block was taken here last.
    turn: u64,
    /// The duration of a program here, [`WHOLE`] if it is as long as on the quickest channel or not much longer.
    cost: u32,
    /// Placements under way, and copies from here.
    placed: u32,
    /// Blocks that are being erased.
    erasing: u32,
    /// Dead ones.
    dead: u32,
}

impl ChannelPool {
    /// Blocks that hold or may hold something.
    pub(super) fn usable(&self) -> u32 {
        self.usable
    }

    /// Open blocks of a kind.
    pub(super) fn opens(&self, stream: Stream) -> u32 {
        self.opens[stream as usize]
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + use<> {
        let slot = self.slot;
        (self.first..self.first + self.count).map(move |number| Entry::new(slot, number))
    }
}

#[derive(Debug)]
pub(super) struct Space {
    geometry: Geometry,
    pages: u16,
    slots: Vec<Option<Slot>>,
    pools: Vec<ChannelPool>,
    /// The logical page of each page of log blocks.
    logs: Table<Entry, Box<[u32]>>,
    /// Blocks that are dead, and the change that must be durable first.
    dead: VecDeque<(u64, Entry)>,
    pub(super) failing: Vec<Entry>,
    turn: u64,
    usable: u32,
    free: u32,
    dirty: u32,
    lent: u32,
    active: u32,
    /// Of those that are free or dirty, the ones on channels that are not slow.
    quick: [u32; 2],
    /// `true` if a channel that is not slow is [dry](ChannelPool::is_dry).
    dry: bool,
}

impl Space {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            pages: exact(geometry.pages, "settings with more pages a block are refused"),
            slots: Vec::new(),
            pools: Vec::new(),
            logs: Table::default(),
            dead: VecDeque::new(),
            failing: Vec::new(),
            turn: 0,
            usable: 0,
            free: 0,
            dirty: 0,
            lent: 0,
            active: 0,
            quick: [0; 2],
            dry: false,
        }
    }

    /// Adds a slot of clean blocks.
    pub(super) fn add(&mut self, slot: u8, blocks: &[(FlashBlock, u32)]) -> Result<()> {
        let mut blocks = blocks.to_vec();
        blocks.sort_unstable();
        self.add_ordered(slot, &blocks)
    }

    /// Adds a slot of blocks that are contiguous by channel, ascending in each: their order is their numbers.
    pub(super) fn add_ordered(&mut self, slot: u8, blocks: &[(FlashBlock, u32)]) -> Result<()> {
        let mut sorted: Vec<FlashBlock> = blocks.iter().map(|&(block, _)| block).collect();
        sorted.sort_unstable();
        let known = sorted.windows(2).any(|pair| pair[0] == pair[1])
            || sorted
                .iter()
                .any(|&block| block.0 >= self.geometry.total_blocks() || self.find(block).is_some());
        if known || blocks.is_empty() || blocks.len() >= SLOT_BLOCKS as usize || self.slot(slot).is_some() {
            return Err(Error::invalid("blocks that it has already or cannot have, or a slot in use")
                .about(format!("slot {slot} of a vSSD")));
        }
        let mut info = Vec::with_capacity(blocks.len());
        let geometry = self.geometry;
        for channel in blocks.chunk_by(|a, b| geometry.channel(a.0) == geometry.channel(b.0)) {
            let (first, count) = (in_slot(info.len()), in_slot(channel.len()));
            let pool = self.new_pool(ChannelPool {
                slot,
                channel: geometry.channel(channel[0].0),
                first,
                count,
                usable: count,
                lent: 0,
                free: (first..).zip(channel).map(|(number, &(_, wear))| (wear, number)).collect(),
                dirty: BTreeSet::new(),
                draining: false,
                closed: false,
                opens: [0; STREAMS],
                dies: [0; STREAMS + 1],
                turn: 0,
                cost: WHOLE,
                placed: 0,
                erasing: 0,
                dead: 0,
            })?;
            info.extend(channel.iter().map(|&(_, wear)| Info {
                owner: LOG,
                wear,
                valid: 0,
                next: 0,
                holds: 0,
                pool,
                state: State::Free,
                stream: Stream::User,
                failing: false,
            }));
        }
        if self.slots.len() <= usize::from(slot) {
            self.slots.resize_with(usize::from(slot) + 1, || None);
        }
        let blocks = blocks.iter().map(|&(block, _)| block).collect();
        self.slots[usize::from(slot)] = Some(Slot { blocks, info });
        self.recount();
        Ok(())
    }

    /// A pool's number: one that is gone is used again.
    fn new_pool(&mut self, pool: ChannelPool) -> Result<u16> {
        let index = self.pools.iter().position(|pool| pool.count == 0).unwrap_or(self.pools.len());
        let number = u16::try_from(index).map_err(|_| Error::invalid("too many slots and channels"))?;
        if index == self.pools.len() {
            self.pools.push(pool);
        } else {
            self.pools[index] = pool;
        }
        Ok(number)
    }

    /// Gives a pool whose blocks hold nothing to another channel: as many blocks of that, ascending, each with its
    /// number of erasures, or `None` if it is bad.
    pub(super) fn replace_pool(&mut self, index: usize, blocks: &[(FlashBlock, Option<u32>)]) {
        let entries: Vec<_> = self.pools[index].entries().collect();
        self.failing.retain(|failing| !entries.contains(failing));
        let (slot, number) = (usize::from(self.pools[index].slot), exact(index, "new_pool refuses more"));
        let pool = &mut self.pools[index];
        (pool.free, pool.dirty, pool.usable, pool.lent) = Default::default();
        (pool.draining, pool.closed) = (false, false);
        for (&entry, &(block, wear)) in entries.iter().zip(blocks) {
            pool.channel = self.geometry.channel(block);
            let number_in_slot = in_slot(entry.number());
            let info = Info {
                owner: LOG,
                wear: wear.unwrap_or(0),
                valid: 0,
                next: 0,
                holds: 0,
                pool: number,
                state: if wear.is_some() { State::Free } else { State::Bad },
                stream: Stream::User,
                failing: false,
            };
            if let Some(wear) = wear {
                pool.free.insert((wear, number_in_slot));
                pool.usable += 1;
            }
            if let Some(slot) = &mut self.slots[slot] {
                (slot.blocks[entry.number()], slot.info[entry.number()]) = (block, info);
            }
        }
        self.recount();
    }

    /// Forgets a pool, all of whose blocks hold nothing; with its slot if that was the last.
    pub(super) fn remove_pool(&mut self, index: usize) {
        let entries: Vec<_> = self.pools[index].entries().collect();
        for entry in entries {
            self.put(entry, State::Vacant);
        }
        let slot = self.pools[index].slot;
        self.pools[index].count = 0;
        self.pools[index].draining = false;
        if !self.pools.iter().any(|pool| pool.count > 0 && pool.slot == slot) {
            self.slots[usize::from(slot)] = None;
        }
        self.recount();
    }

    pub(super) fn slot(&self, slot: u8) -> Option<&Slot> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    /// The slots there are.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u8, &Slot)> {
        (0..=u8::MAX).zip(&self.slots).filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// The pools of a slot, or of one of its channels, by number.
    pub(super) fn pools_of(&self, slot: u8, channel: Option<u16>) -> Vec<usize> {
        let ours = |pool: &ChannelPool| {
            pool.count > 0 && pool.slot == slot && channel.is_none_or(|channel| pool.channel == channel)
        };
        (0..self.pools.len()).filter(|&index| ours(&self.pools[index])).collect()
    }

    pub(super) fn pool(&self, index: usize) -> &ChannelPool {
        &self.pools[index]
    }

    fn pool_of(&self, entry: Entry) -> &ChannelPool {
        &self.pools[usize::from(self.info(entry).pool)]
    }

    pub(super) fn set_draining(&mut self, index: usize, draining: bool) {
        self.pools[index].draining = draining;
        self.recount();
    }

    pub(super) fn set_closed(&mut self, index: usize, closed: bool) {
        self.pools[index].closed = closed;
    }

    pub(super) fn is_closed(&self, entry: Entry) -> bool {
        self.pools[usize::from(self.info(entry).pool)].closed
    }

    /// `true` if a channel of a slot is drained, and may be used again.
    pub(super) fn is_slot_draining(&self, slot: u8) -> bool {
        let drained = |pool: &ChannelPool| pool.draining && !pool.closed;
        self.pools.iter().any(|pool| pool.count > 0 && pool.slot == slot && drained(pool))
    }

    /// `true` if a channel of a slot is closed.
    pub(super) fn is_slot_closed(&self, slot: u8) -> bool {
        self.pools.iter().any(|pool| pool.count > 0 && pool.slot == slot && pool.closed)
    }

    /// `true` if a block that is drained could be written, or one is being erased.
    pub(super) fn is_anything_left(&self) -> bool {
        let drained = |pool: &ChannelPool| pool.draining && !pool.closed && !pool.free.is_empty();
        self.pools.iter().filter(|pool| pool.count > 0).any(|pool| drained(pool) || pool.erasing > 0)
    }

    /// Every existing block.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.pools.iter().filter(|pool| pool.count > 0).flat_map(ChannelPool::entries).collect()
    }

    pub(super) fn find(&self, block: FlashBlock) -> Option<Entry> {
        let channel = self.geometry.channel(block);
        self.pools.iter().filter(|pool| pool.count > 0 && pool.channel == channel).find_map(|pool| {
            let slot = self.slot(pool.slot)?;
            let number =
                slot.blocks[pool.first as usize..][..pool.count as usize].binary_search(&block).ok()?;
            let entry = Entry::new(pool.slot, pool.first + u32::try_from(number).ok()?);
            (self.info(entry).state != State::Vacant).then_some(entry)
        })
    }

    /// `true` if there is, or was, such a block.
    pub(super) fn has(&self, entry: Entry) -> bool {
        let slot = self.slots.get(entry.slot()).and_then(Option::as_ref);
        slot.is_some_and(|slot| entry.number() < slot.blocks.len())
    }

    pub(super) fn is_draining(&self, entry: Entry) -> bool {
        self.pools[usize::from(self.info(entry).pool)].draining
    }

    pub(super) fn is_any_draining(&self) -> bool {
        self.pools.iter().any(|pool| pool.draining)
    }

    pub(super) fn block(&self, entry: Entry) -> FlashBlock {
        self.slots[entry.slot()].as_ref().map_or(FlashBlock(u32::MAX), |slot| slot.blocks[entry.number()])
    }

    /// The info of an existing block.
    pub(super) fn info(&self, entry: Entry) -> &Info {
        static GONE: Info = Info {
            owner: LOG,
            wear: 0,
            valid: 0,
            next: 0,
            holds: 0,
            pool: 0,
            state: State::Vacant,
            stream: Stream::User,
            failing: false,
        };
        self.slots[entry.slot()].as_ref().map_or(&GONE, |slot| &slot.info[entry.number()])
    }

    pub(super) fn change(&mut self, entry: Entry, change: impl FnOnce(&mut Info)) {
        if let Some(slot) = &mut self.slots[entry.slot()] {
            change(&mut slot.info[entry.number()]);
        }
    }

    /// `true` if two blocks came with one slot from one channel.
    pub(super) fn are_together(&self, entry: Entry, other: Entry) -> bool {
        self.info(entry).pool == self.info(other).pool
    }

    /// Moves a block to another state, and between the lists that go with them.
    pub(super) fn put(&mut self, entry: Entry, state: State) {
        let before = *self.info(entry);
        let number = in_slot(entry.number());
        self.change(entry, |info| {
            info.state = state;
            if matches!(state, State::Free | State::Lent) {
                (info.next, info.owner) = (0, LOG);
            }
        });
        let after = *self.info(entry);
        let die = self.geometry.die(self.block(entry));
        let pool = &mut self.pools[usize::from(before.pool)];
        match before.state {
            State::Free => drop(pool.free.remove(&(before.wear, number))),
            State::Dirty => drop(pool.dirty.remove(&number)),
            State::Open => pool.opens[before.stream as usize] -= 1,
            State::Lent => pool.lent -= 1,
            State::Erasing => pool.erasing -= 1,
            State::Dead => pool.dead -= 1,
            _ => {}
        }
        match state {
            State::Free => drop(pool.free.insert((after.wear, number))),
            State::Dirty => drop(pool.dirty.insert(number)),
            State::Open => pool.opens[after.stream as usize] += 1,
            State::Lent => pool.lent += 1,
            State::Erasing => {
                pool.erasing += 1;
                pool.dies[STREAMS] = die;
            }
            State::Dead => pool.dead += 1,
            _ => {}
        }
        pool.usable = pool.usable + u32::from(after.counts()) - u32::from(before.counts());
        if !matches!(state, State::Open | State::Sealed) {
            self.logs.remove(&entry);
        }
        if matches!(state, State::Bad | State::Vacant) {
            self.failing.retain(|&failing| failing != entry);
        }
        self.recount();
    }

    /// Notes that a program failed in the block.
    pub(super) fn fail(&mut self, entry: Entry) {
        if self.info(entry).failing {
            return;
        }
        let before = *self.info(entry);
        self.change(entry, |info| info.failing = true);
        self.pools[usize::from(before.pool)].usable -= u32::from(before.counts());
        self.failing.push(entry);
        self.recount();
    }

    fn recount(&mut self) {
        (self.usable, self.free, self.dirty, self.lent, self.active, self.quick) = (0, 0, 0, 0, 0, [0; 2]);
        self.dry = false;
        for pool in &self.pools {
            self.lent += pool.lent;
            if !pool.draining && pool.count > 0 {
                self.usable += pool.usable;
                self.free += in_slot(pool.free.len());
                self.dirty += in_slot(pool.dirty.len());
                if !pool.is_slow() {
                    self.quick[0] += in_slot(pool.free.len());
                    self.quick[1] += in_slot(pool.dirty.len());
                    self.dry |= pool.is_dry(self.geometry.dies.into());
                }
                self.active += u32::from(pool.usable > 0);
            }
        }
    }

    /// Blocks of pools that are not drained: those that hold or may hold something.
    pub(super) fn usable(&self) -> u32 {
        self.usable
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    pub(super) fn dirty(&self) -> u32 {
        self.dirty
    }

    /// Blocks that are or will be free without anything being copied.
    pub(super) fn coming(&self) -> u32 {
        self.free + self.dirty + exact::<u32>(self.dead.len(), "flash blocks have numbers of 32 bits")
    }

    /// `true` if a channel that is not slow is [dry](ChannelPool::is_dry).
    pub(super) fn is_dry(&self) -> bool {
        self.dry
    }

    pub(super) fn lent(&self) -> u32 {
        self.lent
    }

    /// Pools that are not drained.
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// Pages that can be stored in `blocks` blocks.
    pub(super) fn capacity_of(&self, blocks: u32) -> u64 {
        u64::from(blocks.saturating_sub(LEAST_SPARE)) * u64::from(self.pages)
    }

    /// Pages that can be stored.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity_of(self.usable)
    }

    /// Takes a free block of a pool that passes: of the pool with the fewest open ones for this purpose for its cost,
    /// then of the one that waited longest; there, of the least worn ones, one on the next die: a long transfer is as
    /// slow as the die with the most open ones. If a stream's blocks are written evenly, as data blocks are, the last
    /// channel ends as early as possible.
    pub(super) fn open(
        &mut self,
        stream: Stream,
        owner: u32,
        passes: impl Fn(&ChannelPool) -> bool,
    ) -> Option<Entry> {
        let ready = |pool: &&mut ChannelPool| !pool.closed && !pool.free.is_empty() && passes(pool);
        let load = |pool: &ChannelPool| {
            let cost = if owner == LOG { pool.cost.min(LOG_COST * WHOLE) } else { pool.cost };
            u64::from(pool.opens[stream as usize] + 1) * u64::from(cost)
        };
        let pool = self.pools.iter_mut().filter(ready).min_by_key(|pool| (load(pool), pool.turn))?;
        self.turn += 1;
        pool.turn = self.turn;
        let blocks = &self.slots.get(usize::from(pool.slot))?.as_ref()?.blocks;
        let die = |number: u32| self.geometry.die(blocks[number as usize]);
        let after = |number: u32| self.geometry.dies_after(pool.dies[stream as usize], die(number));
        let least = pool.free.iter().take(AMONG);
        let &(_, number) = least.min_by_key(|&&(wear, number)| (after(number), wear, number))?;
        pool.dies[stream as usize] = die(number);
        let entry = Entry::new(pool.slot, number);
        self.change(entry, |info| (info.stream, info.next, info.valid) = (stream, 0, 0));
        self.put(entry, State::Open);
        self.change(entry, |info| info.owner = owner);
        if owner == LOG {
            self.logs.insert(entry, vec![NOBODY; self.pages.into()].into());
        }
        Some(entry)
    }

    /// Notes that a spot holds a logical page. `owned` is the block's owner that this page fits, in place.
    pub(super) fn fill(&mut self, spot: Spot, page: u32) {
        self.change(spot.entry, |info| info.valid += 1);
        if self.info(spot.entry).owner == LOG {
            let pages = usize::from(self.pages);
            let whose = self.logs.entry(spot.entry).or_insert_with(|| vec![NOBODY; pages].into());
            whose[usize::from(spot.page)] = page;
        }
    }

    /// Makes a block that holds pages of one logical block, in place, a data block; or a data block a log block again.
    pub(super) fn set_owner(&mut self, entry: Entry, owner: u32, stripe: &Stripe) {
        let before = self.info(entry).owner;
        if owner == LOG && before != LOG {
            // What is beyond the last number is NOBODY's, whose number that is.
            let whose = |at| saturating(stripe.page(before, at));
            self.logs.insert(entry, (0..self.pages).map(whose).collect());
        } else if owner != LOG {
            self.logs.remove(&entry);
        }
        self.change(entry, |info| info.owner = owner);
    }

    /// Takes away the validity of pages of a block.
    pub(super) fn invalidate(&mut self, entry: Entry, count: u16) {
        self.change(entry, |info| info.valid = info.valid.saturating_sub(count));
    }

    /// The logical page that was last written to a spot.
    pub(super) fn owner_of(&self, spot: Spot, stripe: &Stripe) -> Option<u32> {
        match self.info(spot.entry).owner {
            LOG => self
                .logs
                .get(&spot.entry)
                .map(|log| log[usize::from(spot.page)])
                .filter(|&page| page != NOBODY),
            owner => u32::try_from(stripe.page(owner, spot.page)).ok(),
        }
    }

    /// Notes that a block holds nothing from change `number` on.
    pub(super) fn die(&mut self, entry: Entry, number: u64) {
        self.put(entry, State::Dead);
        self.dead.push_back((number, entry));
    }

    /// Notes that changes up to `number` are durable.
    pub(super) fn durable(&mut self, number: u64) {
        while let Some(&(needed, entry)) = self.dead.front()
            && needed <= number
        {
            self.dead.pop_front();
            self.put(entry, State::Dirty);
        }
    }

    /// Forgets the dead blocks, which are then found again.
    pub(super) fn forget_dead(&mut self) {
        self.dead.clear();
    }

    /// The change that must be durable for all dead blocks to be dirty.
    pub(super) fn waits_for(&self) -> Option<u64> {
        self.dead.back().map(|&(number, _)| number)
    }

    /// A dirty block that passes, of a pool with few free ones, on its next die; on slow channels only if they have few
    /// free ones, or `all` are wanted.
    pub(super) fn erasable(&self, all: bool, passes: impl Fn(FlashBlock) -> bool) -> Option<Entry> {
        let mut pools: Vec<&ChannelPool> = Vec::new();
        let dies = self.geometry.dies.into();
        pools.extend(self.pools.iter().filter(|pool| pool.erases(dies, all) && !pool.dirty.is_empty()));
        pools.sort_by_key(|pool| (pool.is_slow(), pool.free.len() + pool.erasing as usize));
        pools.iter().find_map(|pool| {
            let entries = pool.dirty.iter().take(AMONG).map(|&number| Entry::new(pool.slot, number));
            let passing = entries.filter(|&entry| passes(self.block(entry)));
            let after = |entry: Entry| self.geometry.die(self.block(entry));
            passing.min_by_key(|&entry| self.geometry.dies_after(pool.dies[STREAMS], after(entry)))
        })
    }

    /// The sealed block, of pools that are drained or not, with the fewest valid pages, if it passes. A pool without a
    /// free block is preferred a little. Of slow channels only those that have few, unless `all` are wanted.
    pub(super) fn fewest(
        &self,
        draining: bool,
        all: bool,
        passes: impl Fn(Entry) -> bool,
    ) -> Option<(Entry, u16)> {
        let mut best: Option<(u16, Entry, u16)> = None;
        for pool in self.pools.iter().filter(|pool| pool.count > 0 && pool.draining == draining) {
            let Some(slot) = self.slot(pool.slot) else { continue };
            // On a slow channel only as much room is made as is used.
            let idle = pool.is_slow() && pool.free.len() >= usize::from(self.geometry.dies);
            if idle && !all && !draining {
                continue;
            }
            let more = if pool.free.is_empty() { 0 } else { self.pages / 16 };
            for (number, info) in (pool.first..).zip(&slot.info[pool.first as usize..][..pool.count as usize])
            {
                let score = info.valid.saturating_add(more);
                if info.state == State::Sealed
                    && info.holds == 0
                    && best.is_none_or(|(least, _, _)| score < least)
                    && passes(Entry::new(pool.slot, number))
                {
                    best = Some((score, Entry::new(pool.slot, number), info.valid));
                }
            }
        }
        best.map(|(_, entry, valid)| (entry, valid))
    }

    /// Blocks of a pool that may leave: free ones first, then dirty ones.
    pub(super) fn leaving(&self, pool: usize) -> impl Iterator<Item = Entry> {
        let pool = &self.pools[pool];
        let free = pool.free.iter().map(|&(_, number)| number);
        free.chain(pool.dirty.iter().copied()).map(|number| Entry::new(pool.slot, number))
    }

    /// Bytes of: numbers of flash blocks; the logical pages of log blocks; the rest.
    pub(super) fn memory(&self) -> (usize, usize, usize) {
        let slots = || self.slots.iter().flatten();
        let numbers = slots().map(|slot| slot.blocks.capacity() * size_of::<FlashBlock>()).sum();
        let infos: usize = slots().map(|slot| slot.info.capacity() * size_of::<Info>()).sum();
        // A B-tree's nodes are half to wholly full.
        let lists: usize = self.pools.iter().map(|pool| pool.free.len() * 12 + pool.dirty.len() * 6).sum();
        let log = usize::from(self.pages) * size_of::<u32>();
        let logs = self.logs.len() * log + self.logs.capacity() * size_of::<(Entry, Box<[u32]>)>();
        (numbers, logs, infos + lists + self.dead.capacity() * size_of::<(u64, Entry)>())
    }
}
