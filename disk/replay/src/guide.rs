//! Guides, which decide what is preloaded while a simulated boot runs: the product's pilot, and online policies.

use crate::disk::Guide;
use crate::time::Nanos;
use headstart_block::ByteRange;
use headstart_plan::ImagePlans;
use headstart_plan::evaluate::Online;
use headstart_preload::{Pilot, PilotReport};
use headstart_pull::{BLOCK_SIZE, Engine, Plan, PlanItem, SLICE_SIZE};
use std::ops::Range;
use std::sync::Arc;

/// Blocks of one read that are looked at; the longest reads have two or three.
const BLOCKS_MAX: u64 = 1024;

fn blocks(range: ByteRange) -> Range<u64> {
    let start = range.offset() / BLOCK_SIZE;
    start..range.end().div_ceil(BLOCK_SIZE).min(start + BLOCKS_MAX)
}

/// A guide that follows an image's plans by the product's [`Pilot`], which switches plans and stops harmful
/// ones.
#[derive(Clone, Debug)]
pub struct Piloting(Pilot);

impl Piloting {
    /// Creates a guide with a new pilot. `bandwidth` is the expected bandwidth in bytes a second; see
    /// [`Pilot::new`].
    #[must_use]
    pub fn new(plans: Arc<ImagePlans>, bandwidth: Option<u64>) -> Self {
        Self(Pilot::new(plans, bandwidth))
    }

    /// The results of preloading so far.
    #[must_use]
    pub fn report(&self) -> PilotReport {
        self.0.report()
    }
}

impl Guide for Piloting {
    fn at_creation(&mut self) -> Plan {
        self.0.plan()
    }

    fn on_read(&mut self, now: Nanos, range: ByteRange, engine: &Engine) -> Option<Plan> {
        let (now, mut plan) = (now.engine_time(), None);
        for block in blocks(range) {
            plan = self.0.on_access(now, block, slices(range, block)).or(plan);
        }
        self.0.on_tick(now, &engine.preloading()).or(plan)
    }

    fn on_answer(&mut self, now: Nanos, engine: &Engine) -> Option<Plan> {
        self.0.on_tick(now.engine_time(), &engine.preloading())
    }
}

/// The slices of a block that a range touches.
fn slices(range: ByteRange, block: u64) -> u32 {
    let start = block * BLOCK_SIZE;
    let inside = range.intersect(ByteRange::between(start, start + BLOCK_SIZE));
    let (first, end) = ((inside.offset() - start) / SLICE_SIZE, (inside.end() - start).div_ceil(SLICE_SIZE));
    (first..end).fold(0, |mask, slice| mask | 1 << slice)
}

/// A guide that follows an [`Online`] policy, which names whole blocks (2 MiB) to preload as reads come.
pub struct Following<'a>(pub &'a mut dyn Online);

fn whole(blocks: Vec<u64>) -> Plan {
    Plan::List(blocks.into_iter().map(PlanItem::whole).collect())
}

impl Guide for Following<'_> {
    fn at_creation(&mut self) -> Plan {
        whole(self.0.at_creation())
    }

    fn on_read(&mut self, _: Nanos, range: ByteRange, _: &Engine) -> Option<Plan> {
        self.0.on_read(&blocks(range).collect::<Vec<_>>()).map(whole)
    }
}
