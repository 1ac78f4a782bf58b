//! The list of recent requests: chunks in chains in the order of asking, and in the order of use for making room.

use super::{ChunkKey, SavedChain, SavedItem};
use crate::event::PeerKey;
use headstart_block::exact;
use std::collections::{BTreeMap, BTreeSet};

/// A place in the list, as long as its chunk is in it.
pub(super) type Slot = u32;
/// No slot.
pub(super) const NONE: Slot = u32::MAX;

/// The excess of passes over requests at which a chunk is forgotten.
const FORGOTTEN: u16 = 4;
/// The sum of requests and passes beyond which both are halved.
const HALVED: u16 = 64;

#[derive(Clone, Debug)]
struct Item {
    piece: ChunkKey,
    asked: u16,
    passed: u16,
    /// `true` if more than one agent has requested it.
    proven: bool,
    /// `true` if the agent of the last request is another than that of the one before.
    by_others: bool,
    asker: Option<PeerKey>,
    used: u64,
    before: Slot,
    after: Slot,
    /// The place that agents came from before they found it here, and their number, net of those that came another way.
    claim: Option<(ChunkKey, u8)>,
}

/// The list.
#[derive(Clone, Debug)]
pub(super) struct List {
    capacity: usize,
    items: Vec<Item>,
    free: Vec<Slot>,
    slots: BTreeMap<ChunkKey, Slot>,
    /// Slots by use, the oldest first: those that are not proven, and those that are.
    ages: [BTreeMap<u64, Slot>; 2],
    clock: u64,
}

impl List {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.clamp(1, NONE as usize),
            items: Vec::new(),
            free: Vec::new(),
            slots: BTreeMap::new(),
            ages: [BTreeMap::new(), BTreeMap::new()],
            clock: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn find(&self, piece: ChunkKey) -> Option<Slot> {
        self.slots.get(&piece).copied()
    }

    pub(super) fn piece(&self, slot: Slot) -> ChunkKey {
        self.item(slot).piece
    }

    pub(super) fn after(&self, slot: Slot) -> Slot {
        self.item(slot).after
    }

    pub(super) fn before(&self, slot: Slot) -> Slot {
        self.item(slot).before
    }

    /// The place that agents came from before they found it here, and their number, net of those that came another way.
    pub(super) fn claim(&self, slot: Slot) -> Option<(ChunkKey, u8)> {
        self.item(slot).claim
    }

    pub(super) fn set_claim(&mut self, slot: Slot, claim: Option<(ChunkKey, u8)>) {
        self.item_mut(slot).claim = claim;
    }

    /// Notes that an agent met a chunk in its place.
    pub(super) fn on_met(&mut self, slot: Slot) {
        let item = self.item_mut(slot);
        item.claim = item.claim.filter(|(_, votes)| *votes > 1).map(|(at, votes)| (at, votes - 1));
    }

    /// The number of requests for a chunk, and of times that it was passed by.
    pub(super) fn counts(&self, slot: Slot) -> (u16, u16) {
        let item = self.item(slot);
        (item.asked, item.passed)
    }

    /// `true` if more than one agent has requested it.
    pub(super) fn is_proven(&self, slot: Slot) -> bool {
        self.item(slot).proven
    }

    /// `true` if the agent of the last request is another than that of the one before.
    pub(super) fn by_others(&self, slot: Slot) -> bool {
        self.item(slot).by_others
    }

    fn item(&self, slot: Slot) -> &Item {
        &self.items[slot as usize]
    }

    fn item_mut(&mut self, slot: Slot) -> &mut Item {
        &mut self.items[slot as usize]
    }

    /// Puts a new chunk behind a slot (or at the beginning of a chain), and makes room for it first.
    pub(super) fn insert(
        &mut self,
        piece: ChunkKey,
        asker: PeerKey,
        behind: Slot,
        claim: Option<(ChunkKey, u8)>,
    ) {
        let item = Item {
            piece,
            asked: 1,
            passed: 0,
            proven: false,
            by_others: false,
            asker: Some(asker),
            used: 0,
            before: NONE,
            after: NONE,
            claim,
        };
        let anchor = (behind != NONE).then(|| self.piece(behind));
        while self.slots.len() >= self.capacity {
            self.make_room();
        }
        let slot = self.put(item);
        if let Some(behind) = anchor.and_then(|anchor| self.find(anchor)) {
            self.link(slot, behind);
        }
    }

    fn put(&mut self, item: Item) -> Slot {
        let piece = item.piece;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.items[slot as usize] = item;
                slot
            }
            None => {
                self.items.push(item);
                exact(self.items.len() - 1, "it is below the capacity, which a slot's number can name")
            }
        };
        self.slots.insert(piece, slot);
        self.stamp(slot);
        slot
    }

    /// Removes the oldest chunk. Chunks that only one agent requested go first, as long as they are a quarter of all.
    fn make_room(&mut self) {
        let [unproven, proven] = &self.ages;
        let first = if unproven.len() * 4 >= self.capacity || proven.is_empty() { unproven } else { proven };
        if let Some(slot) = first.values().next().copied() {
            self.remove(slot);
        }
    }

    /// Makes a chunk the most recently used.
    pub(super) fn touch(&mut self, slot: Slot) {
        let (used, proven) = (self.item(slot).used, self.item(slot).proven);
        self.ages[usize::from(proven)].remove(&used);
        self.stamp(slot);
    }

    fn stamp(&mut self, slot: Slot) {
        self.clock += 1;
        let clock = self.clock;
        self.item_mut(slot).used = clock;
        let proven = self.item(slot).proven;
        self.ages[usize::from(proven)].insert(clock, slot);
    }

    /// Notes a request of an agent for a chunk.
    pub(super) fn on_request(&mut self, slot: Slot, asker: PeerKey) {
        let item = self.item(slot);
        let (used, was_proven) = (item.used, item.proven);
        self.ages[usize::from(was_proven)].remove(&used);
        let item = self.item_mut(slot);
        item.by_others = item.asker != Some(asker);
        if item.by_others {
            item.asked = item.asked.saturating_add(1);
            item.proven = true;
        }
        item.asker = Some(asker);
        item.halve();
        self.stamp(slot);
    }

    /// Notes that an agent passed a chunk by.
    pub(super) fn passed(&mut self, slot: Slot) {
        let item = self.item_mut(slot);
        item.passed = item.passed.saturating_add(1);
        item.halve();
        if item.passed >= item.asked.saturating_add(FORGOTTEN) {
            self.remove(slot);
        }
    }

    /// Moves a chunk behind another; the one that followed it gets a claim to follow it there, if it has none.
    pub(super) fn move_behind(&mut self, slot: Slot, behind: Slot) {
        if slot == behind {
            return;
        }
        let (piece, rest) = (self.piece(slot), self.after(slot));
        if rest != NONE && self.item(rest).claim.is_none() {
            self.item_mut(rest).claim = Some((piece, 1));
        }
        self.unlink(slot);
        self.item_mut(slot).claim = None;
        self.link(slot, behind);
    }

    /// Puts a slot between another and the one after it.
    fn link(&mut self, slot: Slot, behind: Slot) {
        let after = self.after(behind);
        self.item_mut(behind).after = slot;
        let item = self.item_mut(slot);
        (item.before, item.after) = (behind, after);
        if after != NONE {
            self.item_mut(after).before = slot;
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let (before, after) = (self.before(slot), self.after(slot));
        if before != NONE {
            self.item_mut(before).after = after;
        }
        if after != NONE {
            self.item_mut(after).before = before;
        }
    }

    fn remove(&mut self, slot: Slot) {
        self.unlink(slot);
        let item = self.item(slot);
        let (piece, used, proven) = (item.piece, item.used, item.proven);
        self.slots.remove(&piece);
        self.ages[usize::from(proven)].remove(&used);
        self.free.push(slot);
    }

    /// Forgets a blob.
    pub(super) fn remove_blob(&mut self, blob: crate::BlobKey) {
        let all = ChunkKey { blob, chunk: 0 }..=ChunkKey { blob, chunk: u32::MAX };
        let slots: Vec<_> = self.slots.range(all).map(|(_, slot)| *slot).collect();
        slots.into_iter().for_each(|slot| self.remove(slot));
    }

    fn chain(&self, first: Slot) -> impl Iterator<Item = Slot> {
        std::iter::successors(Some(first), |slot| Some(self.after(*slot)).filter(|slot| *slot != NONE))
    }

    pub(super) fn save(&self) -> Vec<SavedChain> {
        let mut by_use: Vec<_> = self.slots.values().map(|slot| self.item(*slot).used).collect();
        by_use.sort_unstable();
        let saved = |slot: Slot| {
            let item = self.item(slot);
            let used = by_use.partition_point(|used| *used < item.used);
            let used = exact(used, "it is at most the capacity, which a slot's number can name");
            SavedItem {
                piece: item.piece,
                asked: item.asked,
                passed: item.passed,
                proven: item.proven,
                used,
                claim: item.claim,
            }
        };
        let firsts = self.slots.values().filter(|slot| self.before(**slot) == NONE);
        let chain = |first: &Slot| SavedChain { items: self.chain(*first).map(saved).collect() };
        firsts.map(chain).collect()
    }

    pub(super) fn load(chains: &[SavedChain], capacity: usize) -> Self {
        let mut list = Self::new(capacity);
        let mut by_use: Vec<(u32, ChunkKey)> =
            chains.iter().flat_map(|chain| &chain.items).map(|item| (item.used, item.piece)).collect();
        by_use.sort_unstable_by(|a, b| b.cmp(a));
        let kept: BTreeSet<ChunkKey> = by_use.iter().map(|(_, piece)| *piece).take(list.capacity).collect();
        for chain in chains {
            let mut last = NONE;
            for saved in chain.items.iter().filter(|saved| kept.contains(&saved.piece)) {
                if list.slots.contains_key(&saved.piece) {
                    continue;
                }
                let slot = list.put(Item::loaded(saved));
                if last != NONE {
                    list.link(slot, last);
                }
                last = slot;
            }
        }
        let slots: Vec<_> = by_use.iter().rev().filter_map(|(_, piece)| list.find(*piece)).collect();
        slots.into_iter().for_each(|slot| list.touch(slot));
        list
    }
}

impl Item {
    fn loaded(saved: &SavedItem) -> Self {
        Self {
            piece: saved.piece,
            asked: saved.asked.max(1),
            passed: saved.passed.min(saved.asked),
            proven: saved.proven,
            by_others: false,
            asker: None,
            used: 0,
            before: NONE,
            after: NONE,
            claim: saved.claim.map(|(at, votes)| (at, votes.clamp(1, 2))),
        }
    }

    fn halve(&mut self) {
        if self.asked.saturating_add(self.passed) > HALVED {
            self.asked = self.asked.div_ceil(2);
            self.passed /= 2;
        }
    }
}

#[cfg(test)]
impl List {
    /// Asserts that each chunk is in one chain, and that every link has its other end.
    pub(super) fn check(&self) {
        let mut seen = 0;
        for slot in self.slots.values().filter(|slot| self.before(**slot) == NONE) {
            let mut last = NONE;
            for slot in self.chain(*slot) {
                assert_eq!(self.before(slot), last);
                assert_eq!(self.find(self.piece(slot)), Some(slot));
                assert_eq!(
                    self.ages[usize::from(self.item(slot).proven)].get(&self.item(slot).used),
                    Some(&slot)
                );
                (last, seen) = (slot, seen + 1);
                assert!(seen <= self.len(), "a chain that does not end");
            }
        }
        assert_eq!((seen, self.ages[0].len() + self.ages[1].len()), (self.len(), self.len()));
        assert!(self.len() <= self.capacity && self.items.len() <= self.capacity);
    }
}
