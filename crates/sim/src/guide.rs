//! Guides of the product and of policies: what is preloaded, decided while a boot runs.

use crate::disk::Guide;
use crate::time::Nanos;
use headstart_block::ByteRange;
use headstart_plan::ImagePlans;
use headstart_plan::evaluate::Online;
use headstart_pull::{BLOCK_SIZE, Engine, Plan, PlanItem, Switcher, Switches};
use std::ops::Range;
use std::sync::Arc;

/// Blocks of one read that are looked at; the longest reads have two or three.
const BLOCKS_MAX: u64 = 1024;

fn blocks(range: ByteRange) -> Range<u64> {
    let start = range.offset() / BLOCK_SIZE;
    start..range.end().div_ceil(BLOCK_SIZE).min(start + BLOCKS_MAX)
}

/// The product's plan switcher on an image's plans.
#[derive(Clone, Debug)]
pub struct Switching(Switcher);

impl Switching {
    /// At a creation where so many bytes a second are expected; see [`Switcher::new`].
    #[must_use]
    pub fn new(plans: Arc<ImagePlans>, bandwidth: Option<u64>) -> Self {
        Self(Switcher::new(plans, bandwidth))
    }

    /// How often it switched.
    #[must_use]
    pub fn switches(&self) -> Switches {
        self.0.switches()
    }
}

impl Guide for Switching {
    fn at_creation(&mut self) -> Plan {
        self.0.plan()
    }

    fn on_read(&mut self, _: Nanos, range: ByteRange, _: &Engine) -> Option<Plan> {
        let mut plan = None;
        for block in blocks(range) {
            plan = self.0.on_access(block).or(plan);
        }
        plan
    }

    fn on_answer(&mut self, now: Nanos, engine: &Engine) -> Option<Plan> {
        self.0.on_estimate(now.engine_time(), engine.estimate().bandwidth?)
    }
}

/// A policy that decides as reads come.
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
