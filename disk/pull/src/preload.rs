//! The preload queue: the rests of blocks that are read on, the plan in its order, then the rests of other blocks
//! that missed.
//!
//! A miss in slices that the plan names and has not reached yet means that the guest is at another place: the slices
//! that the plan names of the block go before everything else. So an order that is wrong, or right for another boot,
//! costs hardly more than none: plans from the last item to the first, which took up to 3.5 times as long as without
//! a plan, take 0.8 times at most. A miss in anything else is the beginning of something that training did not see, a
//! service's first start or a scan of the disk: the rest of its block comes behind the plan. After the second such
//! miss in the block it comes before the plan; if a whole block comes in a few round trips, after the first: the plan
//! loses little by that, and if the plan does not fit the boot, the boot would otherwise lose a round trip for each
//! read in the block.

use crate::active::Active;
use crate::cursor::{Cursor, Named, Rests};
use crate::scans::Scans;
use crate::window::{Shape, Window};
use crate::{BLOCK_SIZE, BlobRange, BlobView, EngineCounters, Plan, PlanItem, SLICE_SIZE};
use headstart_block::ByteRange;

/// The queue of preloads.
#[derive(Debug, Default)]
pub(crate) struct Preload {
    cursor: Cursor,
    planned: Window,
    named: Named,
    rests: Rests,
    scans: Scans,
    urgent: Window,
    resting: Window,
}

impl Preload {
    /// Follows `plan` from its first item on; returns `true` if it is another one.
    pub(crate) fn set_plan(&mut self, plan: Plan) -> bool {
        let changed = *self.cursor.plan() != plan;
        self.cursor = Cursor::new(plan);
        self.planned.clear();
        self.named.forget();
        changed
    }

    /// The plan that is followed, and the number of its passed items.
    pub(crate) fn progress(&self) -> (&Plan, u64) {
        (self.cursor.plan(), self.cursor.passed())
    }

    /// Notes that a read missed `part` of the disk, whose blocks come `quickly` or not. Returns the number of
    /// blocks that were dropped because more than `max` wait for their rest.
    pub(crate) fn missed(&mut self, part: ByteRange, max: usize, quickly: bool) -> u64 {
        let mut dropped = 0;
        for block in part.offset() / BLOCK_SIZE..part.end().div_ceil(BLOCK_SIZE) {
            let start = block * BLOCK_SIZE;
            let inside = part.intersect(ByteRange::between(start, start + BLOCK_SIZE));
            let place = self.named.place(self.cursor.plan(), block);
            let slices = (inside.offset() - start) / SLICE_SIZE..(inside.end() - start).div_ceil(SLICE_SIZE);
            if slices.clone().any(|slice| place.mask >> slice & 1 == 0) {
                if quickly && max > 0 && self.cursor.is_on_a_list() && !self.rests.knows(block) {
                    self.rests.promote(block, &[u32::MAX], max);
                }
                // Blocks behind it come after it: the latest goes first.
                for ahead in self.scans.missed(block).rev() {
                    dropped += u64::from(self.rests.read_ahead(ahead, max));
                }
                dropped += u64::from(self.rests.push(block, slices.end, max));
            } else if place.last >= self.cursor.passed() {
                self.rests.promote(block, &[place.mask], max);
            }
        }
        dropped
    }

    /// Takes the next request for the rest of a block that is read on.
    pub(crate) fn take_urgent(
        &mut self,
        shape: Shape,
        budget: &mut u32,
        view: &dyn BlobView,
        active: &Active,
        counters: &mut EngineCounters,
    ) -> Option<BlobRange> {
        fill(&mut self.urgent, || self.rests.pop_urgent(), shape, budget, view, counters);
        self.urgent.take(shape, view, active)
    }

    /// Takes the next request, passing not more than `budget` items for it. `None` with budget left: there is none.
    pub(crate) fn take(
        &mut self,
        shape: Shape,
        budget: &mut u32,
        view: &dyn BlobView,
        active: &Active,
        counters: &mut EngineCounters,
    ) -> Option<BlobRange> {
        let size = view.disk_size();
        let short = shape.short();
        loop {
            if let Some(range) = self.take_urgent(short, budget, view, active, counters) {
                return Some(range);
            }
            let next = || self.cursor.next(size);
            let end = fill(&mut self.planned, next, shape, budget, view, counters);
            if *budget == 0 && !end && self.planned.grows(shape) {
                // The rest of a long run is handled in the next event, which comes at once.
                return None;
            }
            if let Some(range) = self.planned.take(shape, view, active) {
                return Some(range);
            }
            if !end {
                if *budget == 0 {
                    return None;
                }
                continue;
            }
            let end = fill(&mut self.resting, || self.rests.pop(), short, budget, view, counters);
            if let Some(range) = self.resting.take(short, view, active) {
                return Some(range);
            }
            if end || *budget == 0 {
                return None;
            }
        }
    }
}

/// Fills `window` with the missing parts of the next items; returns `true` if there is no next item.
fn fill(
    window: &mut Window,
    mut next: impl FnMut() -> Option<PlanItem>,
    shape: Shape,
    budget: &mut u32,
    view: &dyn BlobView,
    counters: &mut EngineCounters,
) -> bool {
    while *budget > 0 && !window.is_full(shape) {
        let Some(item) = next() else { return true };
        *budget -= 1;
        let mut skipped = true;
        let in_order = window.is_enough(shape);
        for part in item.parts(view.disk_size()) {
            view.ranges(part, &mut |range| {
                view.missing(range, &mut |run| {
                    if run.blob == range.blob {
                        skipped = false;
                        counters.coalesced += u64::from(window.add_next(run, shape.gap, in_order));
                    }
                });
            });
        }
        counters.plan_skipped += u64::from(skipped);
    }
    false
}
