//! `search`, the default policy: an order found by search among all orders, instead of the best order of one family
//! (`docs/design-learning.md`). The ThinkAhead paper has no such policy.
//!
//! If the objective is the delay of a boot, `search` makes the plan of [`first`], because no order that a search found
//! was better on boots that the search had not seen.
//!
//! If the objective is hits, the search begins with the order that [`thinkahead`](super::thinkahead) finds. Then blocks
//! are moved one by one, and a move is kept if the score of a [`Judge`] rises. Unlike the score of a block, a judge
//! takes into account that misses pull blocks too, and that the link has no time for all blocks: a block may be given
//! up (preloaded too late for its reads) so that others come in time. A move that gains next to nothing is not kept,
//! because it may as well be a loss for the next boot.
//!
//! Hit rates of 54 boots that no plan was trained on, by policy and by bandwidth in MiB/s; the five columns on the
//! right are with guests five times as fast. The last row is the bound of [`bound`](crate::evaluate::bound):
//!
//! | | 2 | 4 | 6 | 8 | 10 | 2 | 4 | 6 | 8 | 10 |
//! |---|---|---|---|---|---|---|---|---|---|---|
//! | `thinkahead` | 0.4161 | 0.7383 | 0.9018 | 0.9788 | 0.9962 | 0.2486 | 0.4548 | 0.6198 | 0.7496 | 0.8274 |
//! | `search` | 0.4159 | 0.7415 | 0.9035 | 0.9788 | 0.9963 | 0.2552 | 0.4602 | 0.6232 | 0.7507 | 0.8296 |
//! | `oracle` | 0.4365 | 0.7713 | 0.9351 | 0.9883 | 0.9984 | 0.2714 | 0.4768 | 0.6405 | 0.7726 | 0.8499 |
//! | no order beats | 0.4589 | 0.8185 | 0.9561 | 0.9924 | 0.9990 | 0.2809 | 0.5002 | 0.6789 | 0.8074 | 0.8750 |
//!
//! Moves are drawn at random: a block moves to another place, and one of the two places is before the *horizon*, the
//! number of blocks that the link brings before the longest training trace ends. (The order behind the horizon does not
//! matter.) Half of the moves are by a few places only.

use crate::block_table::BlockId;
use crate::policy::thinkahead::ThinkAhead;
use crate::policy::{Aim, Judge, Objective, Policy, Proposal, Training, first};
use headstart_block::random::Random;

/// The policy `search`. If the objective is hits, `search` improves the order of [`ThinkAhead`] by moving blocks. If
/// the objective is the delay of a boot, `search` makes the plan of [`first`].
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The number of moves to try. A move puts one block at another position of the order.
    pub moves: usize,
    /// The gain in hit rate, 0 to 1, that a move must exceed to be kept. A smaller gain may be noise.
    pub gain_min: f64,
    /// The policy, with its settings, whose order the search begins with.
    pub start: ThinkAhead,
}

impl Default for Search {
    /// Settings of 1,000 moves, and of a gain of 0.001 that a move must exceed.
    fn default() -> Self {
        Self { moves: 1000, gain_min: 1e-3, start: ThinkAhead::default() }
    }
}

impl Policy for Search {
    fn name(&self) -> &'static str {
        "search"
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        match aim.objective {
            Objective::Hits => self.climb(training, aim, &mut Judge::elsewhere(training, aim)),
            Objective::Boot { .. } => first::items(training, aim).into_iter().map(|(id, _)| id).collect(),
        }
    }

    fn propose(&self, training: &Training<'_>, aim: &Aim) -> Proposal {
        match aim.objective {
            Objective::Hits => Proposal::of_order(&self.order(training, aim), training.statistics),
            Objective::Boot { .. } => Proposal { items: first::items(training, aim), weights: None },
        }
    }
}

impl Search {
    fn climb(&self, training: &Training<'_>, aim: &Aim, judge: &mut Judge<'_>) -> Vec<BlockId> {
        let (_, mut order) = self.start.weigh(training, aim, judge);
        let horizon = judge.horizon(aim).min(order.len());
        if horizon < 2 {
            return order;
        }
        let (random, mut score) = (&mut Random::new(aim.seed), judge.score(&order));
        for _ in 0..self.moves {
            let (from, to) = a_move(random, horizon, order.len());
            move_within(&mut order, from, to);
            let now = judge.score(&order);
            if now > score + self.gain_min {
                score = now;
            } else {
                move_within(&mut order, to, from);
            }
        }
        order
    }
}

/// Draws a move: its source and its target. One of the two is before the horizon, which is before the end.
pub(crate) fn a_move(random: &mut Random, horizon: usize, len: usize) -> (usize, usize) {
    let near = random.below(horizon);
    let other = match random.bits() & 1 {
        0 => (near + 1 + random.below(8)).min(len - 1),
        _ => random.below(len),
    };
    // Both ways: a block comes sooner, or is given up for a while.
    if random.bits() & 1 == 0 { (other, near) } else { (near, other) }
}

/// Takes a block from one place to another; the blocks between move up by one.
pub(crate) fn move_within(order: &mut [BlockId], from: usize, to: usize) {
    if from < to {
        order[from..=to].rotate_left(1);
    } else {
        order[to..=from].rotate_right(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bandwidth::Bandwidth;
    use crate::block_table::BlockTable;
    use crate::statistics::Statistics;
    use crate::testing::{Read, trace};

    #[test]
    fn moves_can_be_taken_back() {
        let mut order = [0, 1, 2, 3, 4];
        move_within(&mut order, 1, 3);
        assert_eq!(order, [0, 2, 3, 1, 4]);
        move_within(&mut order, 3, 1);
        assert_eq!(order, [0, 1, 2, 3, 4]);
        move_within(&mut order, 4, 0);
        assert_eq!(order, [4, 0, 1, 2, 3]);
    }

    /// Two busy blocks and many that are read once, where no weights of the score give what is best.
    #[test]
    fn is_no_worse_than_the_score_on_the_boots_that_it_judges() {
        let mut block_table = BlockTable::new(1 << 30);
        let reads: Vec<Read> = (0..60)
            .flat_map(|at: u32| {
                let busy = if at % 7 == 3 { 12 } else { 1 };
                (0..busy).map(move |again| {
                    (1_000_000 + at * 100_000 + again * 3000, u64::from(at * 13 % 60), 0, 1)
                })
            })
            .collect();
        let boots = [trace(&reads, &mut block_table)];
        let (statistics, traces) = (Statistics::of(&boots), boots.iter().collect::<Vec<_>>());
        let training = Training { block_table: &block_table, statistics: &statistics, traces: &traces };
        for rate in [2, 6, 20] {
            let aim = Aim { objective: Objective::Hits, bandwidth: Bandwidth::mib(rate), seed: 3 };
            let score = |order: Vec<u32>| Judge::elsewhere(&training, &aim).score(&order);
            let searched = score(Search { moves: 300, ..Search::default() }.order(&training, &aim));
            let scored = score(ThinkAhead::default().order(&training, &aim));
            assert!(searched >= scored, "{rate}: {searched} {scored}");
        }
    }
}
