//! `oracle`: the best order that a long search finds for the test trace itself (`docs/design-learning.md`). It is for
//! evaluation only, and shows the possible gain. [`crate::evaluate::bound`] has bounds that no order can beat.
//!
//! The search begins with the best of the trace's own orders, by first access and by score, and moves blocks as
//! [`search`](super::search) does. If the objective is hits, a move that changes nothing is kept too, so that the
//! search can cross orders of equal value. If the objective is the delay of a boot, only gains are kept, so that the
//! order stays near ones that are good for other models of the link, too.

use crate::best::first_best;
use crate::block_table::{BlockId, BlockTable};
use crate::compact_trace::CompactTrace;
use crate::evaluate::{BootLink, bound};
use crate::policy::score::{Scorer, Weights};
use crate::policy::search::{a_move, move_within};
use crate::policy::{Aim, Judge, Objective, Policy, Proposal, Training};
use crate::statistics::Statistics;
use headstart_block::random::Random;

/// The policy `oracle`, which searches for the best order for the test trace itself. It is for evaluation
/// only.
#[derive(Clone, Copy, Debug)]
pub struct Oracle<'a> {
    /// The trace that the order is found for, and will be tested on.
    pub test: &'a CompactTrace,
    /// The number of moves to try. A move puts one block at another position of the order.
    pub moves: usize,
}

/// A bound that no preload order can beat, in the unit of the objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// An upper bound on the hit rate, 0 to 1.
    HitRate(f64),
    /// A lower bound on the delay of the boot, in seconds.
    Delay(f64),
}

impl<'a> Oracle<'a> {
    /// Makes an oracle for this trace that tries 10,000 moves.
    #[must_use]
    pub fn new(test: &'a CompactTrace) -> Self {
        Self { test, moves: 10_000 }
    }

    /// Returns the bound that no preload order can beat on the oracle's trace; `block_table` is the table of
    /// the trace.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate of at most 3,000 reads, and seconds")]
    pub fn bound(&self, block_table: &BlockTable, aim: &Aim) -> Bound {
        match aim.objective {
            Objective::Hits => {
                let reads = self.test.counted().len().max(1) as f64;
                Bound::HitRate(bound::hits_at_most(self.test, block_table, aim.bandwidth) as f64 / reads)
            }
            Objective::Boot { round_trip, misses, .. } => {
                let link = BootLink { bandwidth: aim.bandwidth, round_trip, misses };
                Bound::Delay(bound::delay_at_least(self.test, block_table, &link) as f64 / 1e9)
            }
        }
    }
}

impl Policy for Oracle<'_> {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        const STEPS: u32 = 10;
        let (statistics, traces) = (Statistics::of([self.test]), [self.test]);
        let own = Training { statistics: &statistics, traces: &traces, ..*training };
        let mut judge = Judge::new(&own, aim, &traces);
        let mut scorer = Scorer::new(&own, aim.objective.window());
        let by_score = (0..=STEPS).flat_map(|a| (0..=STEPS - a).map(move |b| [a, b])).map(|weights| {
            let [alpha, beta] = weights.map(|weight| f64::from(weight) / f64::from(STEPS));
            scorer.order(Weights { alpha, beta })
        });
        let starts = std::iter::once(aim.objective.first_accesses(self.test)).chain(by_score);
        let Some((mut best, mut score)) = first_best(starts, |order| judge.score(order)) else {
            return Vec::new();
        };
        let (horizon, random) = (judge.horizon(aim).min(best.len()), &mut Random::new(aim.seed));
        if horizon < 2 {
            return best;
        }
        for _ in 0..self.moves {
            let (from, to) = a_move(random, horizon, best.len());
            move_within(&mut best, from, to);
            let now = judge.score(&best);
            if now > score || now >= score && aim.objective == Objective::Hits {
                score = now;
            } else {
                move_within(&mut best, to, from);
            }
        }
        best
    }

    /// Proposes blocks with the slices that the test trace reads.
    fn propose(&self, training: &Training<'_>, aim: &Aim) -> Proposal {
        Proposal::of_order(&self.order(training, aim), &Statistics::of([self.test]))
    }
}
