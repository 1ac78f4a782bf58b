//! `thinkahead`: blocks by score, with the weights that a genetic search finds for the group and the bandwidth
//! (paper, section 5.3).

use crate::policy::genetic::Genetic;
use crate::policy::score::{Scorer, Weights};
use crate::policy::{Aim, Judge, Policy, Proposal, Training};
use crate::random::Random;
use crate::vocabulary::BlockId;

/// See the module's head.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThinkAhead {
    /// The search.
    pub genetic: Genetic,
    /// Weights that are known already, of a similar image (section 5.4): nothing is searched.
    pub weights: Option<Weights>,
}

/// The fitness is measured on a tenth of the traces, and on this many at least (the artifact).
const JUDGED_MIN: usize = 10;

impl ThinkAhead {
    /// The weights for a group.
    #[must_use]
    pub fn weights(&self, training: &Training<'_>, aim: &Aim) -> Weights {
        if let Some(weights) = self.weights {
            return weights;
        }
        let count = (training.traces.len() / 10).max(JUDGED_MIN);
        let sample = Random::new(aim.seed).sample(count, training.traces.len());
        let traces = sample.into_iter().map(|at| training.traces[at]).collect();
        let (mut judge, mut scorer) =
            (Judge::new(training, aim, traces), Scorer::new(training, aim.objective.window()));
        self.genetic.search(aim.seed, |weights| judge.worth(&scorer.order(weights))).0
    }
}

impl Policy for ThinkAhead {
    fn name(&self) -> &'static str {
        "thinkahead"
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        Scorer::new(training, aim.objective.window()).order(self.weights(training, aim))
    }

    fn propose(&self, training: &Training<'_>, aim: &Aim) -> Proposal {
        let weights = self.weights(training, aim);
        let order = Scorer::new(training, aim.objective.window()).order(weights);
        Proposal { weights: Some(weights), ..Proposal::of_order(&order, training.statistics) }
    }
}
