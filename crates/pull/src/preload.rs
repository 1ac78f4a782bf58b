//! The preload queue: the plan in its order, then the rests of blocks that missed.

use crate::active::Active;
use crate::cursor::{Cursor, Rests};
use crate::window::{Shape, Window};
use crate::{BlobRange, Counters, Plan, PlanItem, World};

/// What is to be preloaded.
#[derive(Debug, Default)]
pub(crate) struct Preload {
    cursor: Cursor,
    planned: Window,
    pub(crate) rests: Rests,
    resting: Window,
}

impl Preload {
    pub(crate) fn set_plan(&mut self, plan: Plan) {
        self.cursor = Cursor::new(plan);
        self.planned.clear();
    }

    /// The next request, passing not more than `budget` items for it. `None` with budget left: there is none.
    pub(crate) fn take(
        &mut self,
        shape: Shape,
        budget: &mut u32,
        world: &dyn World,
        active: &Active,
        counters: &mut Counters,
    ) -> Option<BlobRange> {
        let size = world.disk_size();
        loop {
            let next = || self.cursor.next(size);
            let end = fill(&mut self.planned, next, shape, budget, world, counters);
            if let Some(range) = self.planned.take(shape, world, active) {
                return Some(range);
            }
            if !end {
                if *budget == 0 {
                    return None;
                }
                continue;
            }
            let end = fill(&mut self.resting, || self.rests.pop(), shape, budget, world, counters);
            if let Some(range) = self.resting.take(shape, world, active) {
                return Some(range);
            }
            if end || *budget == 0 {
                return None;
            }
        }
    }
}

/// Fills `window` with what is missing of the next items; whether there is no next one.
fn fill(
    window: &mut Window,
    mut next: impl FnMut() -> Option<PlanItem>,
    shape: Shape,
    budget: &mut u32,
    world: &dyn World,
    counters: &mut Counters,
) -> bool {
    while *budget > 0 && !window.is_full(shape) {
        let Some(item) = next() else { return true };
        *budget -= 1;
        let mut skipped = true;
        for part in item.parts(world.disk_size()) {
            world.ranges(part, &mut |range| {
                world.missing(range, &mut |run| {
                    if run.blob == range.blob {
                        skipped = false;
                        counters.coalesced += u64::from(window.add(run, shape.gap));
                    }
                });
            });
        }
        counters.plan_skipped += u64::from(skipped);
    }
    false
}
