//! The quality of an order of blocks, measured on the training traces. Policies that search try to raise it.
//!
//! The next boot will have another grace period (the time before its first read) and another speed. An order that fits
//! the times of a handful of traces to the millisecond is worse for the next boot than a plain order. So if the
//! objective is hits, each replayed trace counts as up to twelve boots, so that there are up to 60 in all (more only if
//! there are more traces). These boots have grace periods around those of the group, and speeds around that of their
//! trace. (The recorded grace periods alone are too few to learn from. Three boots that began late make orders that
//! come too late for one that begins early: the hit rate is 0.57 instead of 0.77.) If the objective is the delay of a
//! boot, each trace is replayed once, because a guest that waits moves the times itself.

use crate::block_table::BlockId;
use crate::compact_trace::CompactTrace;
use crate::evaluate::{BootEvaluator, BootLink, Evaluator, Item};
use crate::policy::{Aim, Objective, Training};
use headstart_block::random::Random;
use headstart_block::{exact, saturating, to_usize};
use std::borrow::Cow;
use std::ops::Range;

/// The number of boots that orders are judged on, if there are fewer traces.
const BOOTS: usize = 60;

/// The most boots that one trace is judged as.
const VARIANTS_MAX: usize = 12;

/// The least number of traces to measure on, which otherwise is a tenth of the traces (the artifact).
const TRACES_MIN: usize = 10;

/// The factors of grace periods, in thousandths.
const GRACES: Range<u64> = 400..1800;

/// The factors of the times between reads, in thousandths.
const PACES: Range<u64> = 700..1400;

/// The weight of the artifact's accuracy beside the hit rate: it decides between equals. (A tenth, as in the artifact,
/// costs a tenth of a point of hit rate.)
const ACCURACY: f64 = 0.01;

/// A number of a range.
fn within(range: &Range<u64>, random: &mut Random) -> u64 {
    let span = to_usize(range.end - range.start);
    range.start + random.below(span) as u64
}

/// Scores preload orders for one objective and bandwidth, by replaying boots.
pub struct Judge<'a> {
    boots: Vec<Cow<'a, CompactTrace>>,
    evaluator: Either,
    /// Room for a plan.
    items: Vec<Item>,
}

enum Either {
    Hits(Evaluator),
    /// The closed loop, with the slices that are preloaded of each block.
    Boot(Box<BootEvaluator>, Vec<u32>),
}

impl<'a> Judge<'a> {
    /// Makes a judge that replays these traces as they were recorded.
    #[must_use]
    pub fn new(training: &Training<'_>, aim: &Aim, traces: &[&'a CompactTrace]) -> Self {
        let evaluator = match aim.objective {
            Objective::Hits => Either::Hits(Evaluator::new(training.block_table, aim.bandwidth)),
            Objective::Boot { round_trip, misses, hot } => {
                let link = BootLink { bandwidth: aim.bandwidth, round_trip, misses };
                let mask = |id| if hot { training.statistics.mask(id, 0.0) } else { u32::MAX };
                let masks = (0..).take(training.block_table.len()).map(mask).collect();
                Either::Boot(Box::new(BootEvaluator::new(training.block_table, link)), masks)
            }
        };
        let boots = traces.iter().map(|trace| Cow::Borrowed(*trace)).collect();
        Self { boots, evaluator, items: Vec::new() }
    }

    /// Makes a judge that replays a sample of the training traces: a tenth of them, but at least ten, or all if there
    /// are fewer. For hit rates, each trace is also replayed with other grace periods (times before the first read) and
    /// other speeds, as if on other hosts.
    #[must_use]
    pub fn elsewhere(training: &Training<'a>, aim: &Aim) -> Self {
        let random = &mut Random::new(aim.seed);
        let count = (training.traces.len() / 10).max(TRACES_MIN);
        let sample = random.sample(count, training.traces.len());
        let traces: Vec<_> = sample.into_iter().map(|at| training.traces[at]).collect();
        let mut judge = Self::new(training, aim, &traces);
        let variants = match aim.objective {
            Objective::Hits => (BOOTS / traces.len().max(1)).min(VARIANTS_MAX),
            Objective::Boot { .. } => 1,
        };
        for trace in &traces {
            for _ in 1..variants {
                let grace = u64::from(traces[random.below(traces.len())].grace_us());
                let grace = grace * within(&GRACES, random) / 1000;
                let grace = saturating(grace);
                let permille = exact(within(&PACES, random), "it is one of PACES");
                judge.boots.push(Cow::Owned(trace.elsewhere(grace, permille, training.block_table)));
            }
        }
        judge
    }

    /// Returns the score of an order, averaged over the boots; higher is better. If the objective is hits, the score is
    /// the hit rate (0 to 1) plus a hundredth of [`artifact_accuracy`](crate::evaluate::Score::artifact_accuracy). If
    /// the objective is the delay of a boot, the score is the delay in seconds as a negative number.
    #[expect(clippy::cast_precision_loss, reason = "an average over boots")]
    pub fn score(&mut self, order: &[BlockId]) -> f64 {
        let count = self.boots.len().max(1) as f64;
        match &mut self.evaluator {
            Either::Hits(evaluator) => {
                let score = |boot: &Cow<'_, CompactTrace>| {
                    let score = evaluator.evaluate(order, boot);
                    score.hit_rate() + ACCURACY * score.artifact_accuracy().unwrap_or(0.0)
                };
                self.boots.iter().map(score).sum::<f64>() / count
            }
            Either::Boot(evaluator, masks) => {
                self.items.clear();
                let mask = |id: &BlockId| masks.get(*id as usize).copied().unwrap_or(0);
                self.items.extend(order.iter().map(|id| (*id, mask(id))));
                -evaluator.evaluate_all(&self.items, self.boots.iter().map(AsRef::as_ref)).delay_s()
            }
        }
    }

    /// Returns the maximum number of blocks that the link can bring before the last counted read. The order of the
    /// blocks after this number does not matter. `usize::MAX` if the objective is the delay of a boot, because the
    /// guest then waits for each block.
    #[must_use]
    pub fn horizon(&self, aim: &Aim) -> usize {
        let last = |boot: &Cow<'_, CompactTrace>| boot.counted().last().map(|read| read.t_us);
        let Objective::Hits = aim.objective else { return usize::MAX };
        let last = self.boots.iter().filter_map(last).max().unwrap_or(0);
        let brought = u64::from(last) * 1000 / aim.bandwidth.time_of(headstart_block::BLOCK_SIZE).max(1);
        to_usize(brought).saturating_add(1)
    }
}
