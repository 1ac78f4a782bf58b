//! The preload queue: the rests of blocks that are read on, the plan in its order, then the rests of other blocks that
//! missed.
//!
//! A miss in what the plan names says nothing but that the plan is late, and asks for no rest. One in anything else is
//! the beginning of something that training did not see, a service's first start or a scan of the disk: the rest of
//! its block comes behind the plan, and with the second such miss in the block before it.

use crate::active::Active;
use crate::cursor::{Cursor, Named, Rests};
use crate::window::{Shape, Window};
use crate::{BLOCK_SIZE, BlobRange, Counters, Plan, PlanItem, SLICE_SIZE, World};
use headstart_block::ByteRange;

/// What is to be preloaded.
#[derive(Debug, Default)]
pub(crate) struct Preload {
    cursor: Cursor,
    planned: Window,
    named: Named,
    rests: Rests,
    urgent: Window,
    resting: Window,
}

impl Preload {
    pub(crate) fn set_plan(&mut self, plan: Plan) {
        self.cursor = Cursor::new(plan);
        self.planned.clear();
        self.named.forget();
    }

    /// How many items of the plan were passed.
    pub(crate) fn passed(&self) -> u64 {
        self.cursor.passed()
    }

    /// A read missed `part` of the disk. How many blocks were dropped because more than `max` wait for their rest.
    pub(crate) fn missed(&mut self, part: ByteRange, max: usize) -> u64 {
        let mut dropped = 0;
        for block in part.offset() / BLOCK_SIZE..part.end().div_ceil(BLOCK_SIZE) {
            let start = block * BLOCK_SIZE;
            let inside = part.intersect(ByteRange::between(start, start + BLOCK_SIZE));
            let named = self.named.mask(self.cursor.plan(), block);
            let slices = (inside.offset() - start) / SLICE_SIZE..(inside.end() - start).div_ceil(SLICE_SIZE);
            if slices.clone().any(|slice| named >> slice & 1 == 0) {
                dropped += u64::from(self.rests.push(block, slices.end, max));
            }
        }
        dropped
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
            fill(&mut self.urgent, || self.rests.pop_urgent(), shape, budget, world, counters);
            if let Some(range) = self.urgent.take(shape, world, active) {
                return Some(range);
            }
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
