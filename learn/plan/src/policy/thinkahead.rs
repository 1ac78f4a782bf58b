//! `thinkahead`: blocks by score, with the weights that a genetic search finds for the group and the bandwidth
//! (ThinkAhead paper, section 5.3). The fitness of weights is the score that a [`Judge`] gives to the order by these
//! weights.

use crate::block_table::BlockId;
use crate::policy::genetic::Genetic;
use crate::policy::score::{Scorer, Weights};
use crate::policy::{Aim, Judge, Policy, Proposal, Training};

/// The policy `thinkahead`: blocks in the order of a score, whose weights a genetic search finds.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThinkAhead {
    /// The settings of the genetic search.
    pub genetic: Genetic,
    /// The weights to use instead of a search, for example those of a similar image (section 5.4 of the
    /// ThinkAhead paper); `None` to search.
    pub weights: Option<Weights>,
}

impl ThinkAhead {
    /// Returns weights for a group of traces, and the order of blocks by the score with these weights. The weights
    /// are [`weights`](Self::weights) if these are given; otherwise a genetic search finds them, with the scores of
    /// `judge` as fitness.
    #[must_use]
    pub fn weigh(
        &self,
        training: &Training<'_>,
        aim: &Aim,
        judge: &mut Judge<'_>,
    ) -> (Weights, Vec<BlockId>) {
        let mut scorer = Scorer::new(training, aim.objective.window());
        let search = || self.genetic.search(aim.seed, |weights| judge.score(&scorer.order(weights))).0;
        let weights = self.weights.unwrap_or_else(search);
        (weights, scorer.order(weights))
    }
}

impl Policy for ThinkAhead {
    fn name(&self) -> &'static str {
        "thinkahead"
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        self.weigh(training, aim, &mut Judge::elsewhere(training, aim)).1
    }

    fn propose(&self, training: &Training<'_>, aim: &Aim) -> Proposal {
        let (weights, order) = self.weigh(training, aim, &mut Judge::elsewhere(training, aim));
        Proposal { weights: Some(weights), ..Proposal::of_order(&order, training.statistics) }
    }
}
