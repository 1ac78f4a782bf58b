//! The position in a plan.

use crate::{BLOCK_SIZE, Plan, PlanItem};
use headstart_block::exact;
use std::collections::{BTreeSet, VecDeque};

/// A walk through a plan, once and in its order.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    plan: Plan,
    next: u64,
}

impl Cursor {
    /// A cursor at the first item of `plan`. It passes local items quickly, so this continues a plan that was begun.
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, next: 0 }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// `true` if there is more of a list.
    pub(crate) fn is_on_a_list(&self) -> bool {
        matches!(&self.plan, Plan::List(items) if self.next < items.len() as u64)
    }

    /// The number of passed items.
    pub(crate) fn passed(&self) -> u64 {
        self.next
    }

    /// The next item of a plan for a disk of `disk_size` bytes.
    pub(crate) fn next(&mut self, disk_size: u64) -> Option<PlanItem> {
        let item = match &self.plan {
            Plan::Lazy => None,
            Plan::Sequential => {
                (self.next < disk_size.div_ceil(BLOCK_SIZE)).then(|| PlanItem::whole(self.next))
            }
            Plan::List(items) => usize::try_from(self.next).ok().and_then(|next| items.get(next)).copied(),
        };
        self.next += u64::from(item.is_some());
        item
    }
}

/// The place of a block in a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The slices that it names; 0 if it does not name the block.
    pub(crate) mask: u32,
    /// The index in the plan of the last item that names it.
    pub(crate) last: u64,
}

/// The places of all blocks in a plan, for quick look-ups. Made at the first look-up.
#[derive(Debug, Default)]
pub(crate) struct Named(Option<Vec<(u64, Place)>>);

impl Named {
    /// Forgets the places: another plan is followed from now on.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    /// The place of `block` in `plan`. Plans that go through the whole disk name nothing: they do not tell which blocks
    /// are read.
    pub(crate) fn place(&mut self, plan: &Plan, block: u64) -> Place {
        let items = self.0.get_or_insert_with(|| {
            let Plan::List(items) = plan else { return Vec::new() };
            let place = |(last, item): (u64, &PlanItem)| (item.block, Place { mask: item.mask, last });
            let mut items: Vec<_> = (0..).zip(items.iter()).map(place).collect();
            // Stable: for a block that comes several times the last item is last.
            items.sort_by_key(|(block, _)| *block);
            items.dedup_by(|next, first| {
                let same = next.0 == first.0;
                if same {
                    first.1 = Place { mask: first.1.mask | next.1.mask, last: next.1.last };
                }
                same
            });
            items
        });
        let found = items.binary_search_by_key(&block, |(known, _)| *known);
        found.map_or_else(|_| Place::default(), |at| items[at].1)
    }
}

/// Blocks in which reads missed bytes that no plan names: each once, not more than a set number, the latest first,
/// because the guest reads there now. A block in which a second read misses in this way is read on: it goes before
/// the plan, from the end of that read.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    /// Blocks in which one read missed, the latest last.
    once: VecDeque<u64>,
    /// The same blocks, for quick look-ups.
    known: BTreeSet<u64>,
    /// The remaining parts of blocks in which several reads missed, the latest last.
    urgent: VecDeque<PlanItem>,
}

impl Rests {
    /// `true` if one read missed in a block so far.
    pub(crate) fn knows(&self, block: u64) -> bool {
        self.known.contains(&block)
    }

    /// Notes that a read missed in a block, up to before slice `end` of it. Returns `true` if an older block was
    /// dropped for it.
    pub(crate) fn push(&mut self, block: u64, end: u64, max: usize) -> bool {
        if max == 0 {
            return false;
        }
        if !self.known.insert(block) {
            self.known.remove(&block);
            self.once.retain(|other| *other != block);
            let end: u32 = exact(end, "a block has 32 slices");
            let before = u32::MAX.checked_shr(32 - end).unwrap_or(0);
            self.promote(block, &[before, !before], max);
            return false;
        }
        self.push_once(block, max)
    }

    /// Notes that a read will miss in a block if it goes on as before. Returns `true` if an older block was dropped
    /// for it.
    pub(crate) fn read_ahead(&mut self, block: u64, max: usize) -> bool {
        max > 0 && self.known.insert(block) && self.push_once(block, max)
    }

    fn push_once(&mut self, block: u64, max: usize) -> bool {
        self.once.push_back(block);
        let full = self.once.len() > max;
        if full && let Some(oldest) = self.once.pop_front() {
            self.known.remove(&oldest);
        }
        full
    }

    /// Puts these slices of a block before everything else, the last mask first.
    pub(crate) fn promote(&mut self, block: u64, masks: &[u32], max: usize) {
        self.urgent.retain(|item| item.block != block);
        let masks = masks.iter().filter(|mask| **mask != 0);
        self.urgent.extend(masks.map(|mask| PlanItem { block, mask: *mask }));
        while self.urgent.len() > max.saturating_mul(2) {
            self.urgent.pop_front();
        }
    }

    /// Takes the latest block in which one read missed.
    pub(crate) fn pop(&mut self) -> Option<PlanItem> {
        let block = self.once.pop_back()?;
        self.known.remove(&block);
        Some(PlanItem::whole(block))
    }

    /// Takes the next part of the latest block in which several reads missed.
    pub(crate) fn pop_urgent(&mut self) -> Option<PlanItem> {
        self.urgent.pop_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_the_blocks_of_each_kind_of_plan() {
        let disk = 2 * BLOCK_SIZE + 512;
        let walk = |plan| {
            let mut cursor = Cursor::new(plan);
            std::iter::from_fn(|| cursor.next(disk)).map(|item| item.block).collect::<Vec<_>>()
        };
        assert!(walk(Plan::Lazy).is_empty());
        assert_eq!(walk(Plan::Sequential), [0, 1, 2]);
        let list: Vec<_> = [2, 0].into_iter().map(PlanItem::whole).collect();
        assert_eq!(walk(Plan::List(list.into())), [2, 0]);
    }

    #[test]
    fn rests_are_kept_once_and_bounded() {
        let mut rests = Rests::default();
        assert!(![1, 2].into_iter().any(|block| rests.push(block, 9, 2)));
        assert!(rests.push(3, 9, 2), "the oldest goes");
        assert!(!rests.push(2, 20, 2), "it is read on");
        let item = |mask| Some(PlanItem { block: 2, mask });
        assert_eq!([rests.pop_urgent(), rests.pop_urgent()], [item(!0xf_ffff), item(0xf_ffff)]);
        assert_eq!([rests.pop_urgent(), rests.pop(), rests.pop()], [None, Some(PlanItem::whole(3)), None]);
        for block in (0..100).flat_map(|block| [block, block]) {
            rests.push(block, 32, 2);
        }
        assert!(rests.urgent.len() <= 4 && rests.known.is_empty());
        for block in (200..300).flat_map(|block| [block, block]) {
            rests.push(block, 9, 2);
        }
        assert_eq!(rests.urgent.len(), 4, "two parts of each of two blocks");
        assert!(!rests.read_ahead(7, 0) && !rests.read_ahead(7, 2) && rests.knows(7));
        assert_eq!(rests.pop(), Some(PlanItem::whole(7)));
    }

    #[test]
    fn a_cursor_tells_planned_slices_from_others() {
        let items = [(7, 1), (2, 4), (7, 2)].map(|(block, mask)| PlanItem { block, mask });
        let (plan, mut named) = (Plan::List(items.to_vec().into()), Named::default());
        let places = [7, 2, 3].map(|block| named.place(&plan, block));
        assert_eq!(places, [(3, 2), (4, 1), (0, 0)].map(|(mask, last)| Place { mask, last }));
        named.forget();
        assert_eq!(named.place(&Plan::Sequential, 7), Place::default());
    }
}
