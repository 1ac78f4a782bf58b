//! How far the plan is.

use crate::{BLOCK_SIZE, Plan, PlanItem};
use std::collections::{BTreeSet, VecDeque};

/// Walks a plan once, in its order.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    plan: Plan,
    next: u64,
}

impl Cursor {
    /// At the first item of `plan`. What is local is passed quickly, so this continues a plan that was begun.
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, next: 0 }
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

/// Blocks in which a read missed, oldest first, each once, not more than a set number.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    order: VecDeque<u64>,
    known: BTreeSet<u64>,
}

impl Rests {
    /// Adds a block; whether an older one had to go for it.
    pub(crate) fn push(&mut self, block: u64, max: usize) -> bool {
        if max == 0 || !self.known.insert(block) {
            return false;
        }
        self.order.push_back(block);
        let full = self.order.len() > max;
        if full {
            self.pop();
        }
        full
    }

    /// The oldest.
    pub(crate) fn pop(&mut self) -> Option<PlanItem> {
        let block = self.order.pop_front()?;
        self.known.remove(&block);
        Some(PlanItem::whole(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_each_kind_of_plan() {
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
        assert!(![1, 2, 1].into_iter().any(|block| rests.push(block, 2)));
        assert!(rests.push(3, 2));
        let order: Vec<_> = std::iter::from_fn(|| rests.pop()).map(|item| item.block).collect();
        assert_eq!(order, [2, 3]);
    }
}
