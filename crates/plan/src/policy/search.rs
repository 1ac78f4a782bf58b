//! `search`, our own: an order that is searched for, instead of one of a family (DESIGN, section 6).
//!
//! It begins with the best of some candidates: orders by score at the corners of the triangle of weights and at
//! what the genetic search finds, by first access (the earliest, the average, the centroid's), and by *value in the
//! slot*: slot after slot, the block that most reads would still come for. Then blocks are moved one by one, as
//! long as the evaluator says that the training traces gain. What it climbs is the objective itself: it knows that
//! a miss pulls blocks too, and that nobody waits for what was given up only where nobody waits at all.
//!
//! The next boot has another grace period, on a host of another speed: an order that fits the times of a handful of
//! traces to the millisecond is worse on the next than a plain one. So each trace is judged as several boots, with
//! grace periods of its group and paces around its own, and what gains next to nothing is not done.
//!
//! Moves are drawn: a block goes to some other place before the *horizon*, the number of blocks that the link
//! brings before the longest training trace ends (behind it, order is worth nothing); half of the moves are short.

use crate::condensed::Condensed;
use crate::policy::score::{Scorer, Weights};
use crate::policy::thinkahead::ThinkAhead;
use crate::policy::vmt::Vmt;
use crate::policy::{Aim, Judge, Objective, Policy, Proposal, Training, first};
use crate::random::Random;
use crate::vocabulary::BlockId;

/// See the module's head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Moves that are tried.
    pub moves: usize,
    /// The most traces that moves are judged on.
    pub judged_max: usize,
    /// As how many boots each of them is judged, elsewhere.
    pub variants: usize,
    /// What a move must gain, in hit rate or as a share of the wait: less is chance.
    pub gain_min: f64,
    /// What the accuracy counts beside the hit rate: it decides between equals.
    pub accuracy: f64,
}

impl Default for Search {
    fn default() -> Self {
        Self { moves: 1000, judged_max: 8, variants: 6, gain_min: 1e-3, accuracy: 0.01 }
    }
}

impl Policy for Search {
    fn name(&self) -> &'static str {
        "search"
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        if aim.objective != Objective::Hits {
            return first::items(training, aim).into_iter().map(|(id, _)| id).collect();
        }
        let random = &mut Random::new(aim.seed);
        let sample = random.sample(self.judged_max, training.traces.len());
        let traces: Vec<_> = sample.into_iter().map(|at| training.traces[at]).collect();
        let boots = self.boots(training, &traces, random);
        let traces: Vec<_> = boots.iter().collect();
        let horizon = horizon(training, aim, &traces);
        let mut judge = Judge::new(training, aim, traces.clone());
        judge.accuracy_weight = self.accuracy;
        let mut best: Option<(Vec<BlockId>, f64)> = None;
        for order in candidates(training, aim, &traces, horizon) {
            let worth = judge.worth(&order);
            if best.as_ref().is_none_or(|(_, best)| worth > *best) {
                best = Some((order, worth));
            }
        }
        let Some((mut order, mut worth)) = best else { return Vec::new() };
        let horizon = horizon.min(order.len());
        if horizon < 2 {
            return order;
        }
        for _ in 0..self.moves {
            let to = random.below(horizon);
            let from = if random.bits() & 1 == 0 {
                (to + 1 + random.below(8)).min(order.len() - 1)
            } else {
                random.below(order.len())
            };
            // Both ways: a block comes sooner, or is given up for a while.
            let (from, to) = if random.bits() & 1 == 0 { (from, to) } else { (to, from) };
            move_within(&mut order, from, to);
            let now = judge.worth(&order);
            let needed =
                if aim.objective == Objective::Hits { self.gain_min } else { self.gain_min * worth.abs() };
            if now > worth + needed {
                worth = now;
            } else {
                move_within(&mut order, to, from);
            }
        }
        order
    }

    fn propose(&self, training: &Training<'_>, aim: &Aim) -> Proposal {
        if aim.objective != Objective::Hits {
            return Proposal { items: first::items(training, aim), weights: None };
        }
        Proposal::of_order(&self.order(training, aim), training.statistics)
    }
}

impl Search {
    /// The traces as boots elsewhere; see the module's head.
    fn boots(&self, training: &Training<'_>, traces: &[&Condensed], random: &mut Random) -> Vec<Condensed> {
        let mut boots = Vec::with_capacity(traces.len() * self.variants);
        for trace in traces {
            for variant in 0..self.variants.max(1) {
                let grace = traces[random.below(traces.len())].grace_us();
                let (grace, permille) = match variant {
                    0 => (trace.grace_us(), 1000),
                    _ => (grace, 700 + u32::try_from(random.below(700)).unwrap_or(0)),
                };
                boots.push(trace.elsewhere(grace, permille, training.vocabulary));
            }
        }
        boots
    }
}

fn move_within(order: &mut [BlockId], from: usize, to: usize) {
    if from < to {
        order[from..=to].rotate_left(1);
    } else {
        order[to..=from].rotate_right(1);
    }
}

/// How many blocks, or hot parts of blocks, the link can bring before the last read.
fn horizon(training: &Training<'_>, aim: &Aim, traces: &[&Condensed]) -> usize {
    let last = match aim.objective {
        Objective::Hits => {
            traces.iter().filter_map(|trace| trace.counted().last()).map(|read| read.t_us).max()
        }
        // A guest that waits is there as long as it takes.
        Objective::Boot { .. } => None,
    };
    let all = training.statistics.read_blocks(aim.objective.window()).count();
    let Some(last) = last else { return all };
    let brought = u64::from(last) * 1000 / aim.bandwidth.time_of(headstart_block::BLOCK_SIZE).max(1);
    all.min(usize::try_from(brought).unwrap_or(usize::MAX).saturating_add(1))
}

fn candidates(
    training: &Training<'_>,
    aim: &Aim,
    traces: &[&Condensed],
    horizon: usize,
) -> Vec<Vec<BlockId>> {
    let mut scorer = Scorer::new(training, aim.objective.window());
    let corners = [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (1.0 / 3.0, 1.0 / 3.0), (0.1, 0.2), (0.15, 0.4)];
    let mut candidates = vec![ThinkAhead::default().order(training, aim), Vmt::Min.order(training, aim)];
    candidates.extend(corners.map(|(alpha, beta)| scorer.order(Weights { alpha, beta })));
    let mut by_first = candidates[1].clone();
    let first =
        |id: BlockId| training.statistics.blocks[id as usize].by(aim.objective.window()).first_average_us();
    by_first.sort_by(|a, b| first(*a).total_cmp(&first(*b)));
    if let Some(centroid) = training.traces.get(training.centroid) {
        let mut order = aim.objective.first_accesses(centroid);
        let known: std::collections::BTreeSet<_> = order.iter().copied().collect();
        order.extend(by_first.iter().filter(|id| !known.contains(id)));
        candidates.push(order);
    }
    if aim.objective == Objective::Hits && horizon < by_first.len() {
        candidates.push(by_value(by_first.clone(), aim, traces, horizon));
    }
    candidates.push(by_first);
    candidates
}

/// Slot after slot, the block that most reads come for when the slot is done; the rest as they were.
fn by_value(mut order: Vec<BlockId>, aim: &Aim, traces: &[&Condensed], horizon: usize) -> Vec<BlockId> {
    let slot = aim.bandwidth.time_of(headstart_block::BLOCK_SIZE);
    let most = order.iter().max().map_or(0, |id| *id as usize + 1);
    // Times of reads by block, of all traces together, descending: how many are left is where the slot's end lies.
    let mut times: Vec<Vec<u32>> = vec![Vec::new(); most];
    for (read, touch) in traces
        .iter()
        .flat_map(|t| t.counted().iter().flat_map(|r| t.touches(r).iter().map(move |touch| (r, touch))))
    {
        if let Some(times) = times.get_mut(touch.block as usize) {
            times.push(read.t_us);
        }
    }
    times.iter_mut().for_each(|times| times.sort_unstable());
    for at in 0..horizon.min(order.len()) {
        let done = slot.saturating_mul(at as u64 + 1) / 1000;
        let left = |id: BlockId| {
            let times = &times[id as usize];
            times.len() - times.partition_point(|time| u64::from(*time) < done)
        };
        let mut best = (at, left(order[at]));
        for (other, id) in order.iter().enumerate().skip(at + 1) {
            let left = left(*id);
            if left > best.1 {
                best = (other, left);
            }
        }
        move_within(&mut order, best.0, at);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bandwidth::Bandwidth;
    use crate::statistics::Statistics;
    use crate::testing::{Read, trace};
    use crate::vocabulary::Vocabulary;

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
        let mut vocabulary = Vocabulary::new(1 << 30);
        let reads: Vec<Read> = (0..60)
            .flat_map(|at: u32| {
                let busy = if at % 7 == 3 { 12 } else { 1 };
                (0..busy).map(move |again| {
                    (1_000_000 + at * 100_000 + again * 3000, u64::from(at * 13 % 60), 0, 1)
                })
            })
            .collect();
        let boots = [trace(&reads, &mut vocabulary)];
        let (statistics, traces) = (Statistics::of(&boots), boots.iter().collect::<Vec<_>>());
        let training =
            Training { vocabulary: &vocabulary, statistics: &statistics, traces: &traces, centroid: 0 };
        for rate in [2, 6, 20] {
            let aim = Aim { objective: Objective::Hits, bandwidth: Bandwidth::mib(rate), seed: 3 };
            let search = Search { variants: 1, moves: 300, ..Search::default() };
            let mut judge = Judge::new(&training, &aim, traces.clone());
            judge.accuracy_weight = search.accuracy;
            let searched = judge.worth(&search.order(&training, &aim));
            let scored = judge.worth(&ThinkAhead::default().order(&training, &aim));
            assert!(searched >= scored, "{rate}: {searched} {scored}");
        }
    }
}
