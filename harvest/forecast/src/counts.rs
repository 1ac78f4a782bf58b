//! A learned predictor of few parameters: it counts the needs that followed earlier states like the present one.
//!
//! A VM's level stays for a while, then moves; the state of the VM decides where to and how soon. Three *contexts*
//! describe the state, each more closely than the one before: the level; the level and the highest of the last
//! [`RECENT`] steps; both, and the time for which the level has held (in octaves of steps). For each context the
//! predictor counts the levels that were needed one horizon later. A context is *wider* than one that describes the
//! state more closely. To the counts of a context, the probabilities from the next wider context are added as if they
//! were [`BLEND`] observations (as in Witten and Bell's estimate). So a context that was never seen gives the same
//! probabilities as the next wider one. Two estimates are still wider than the
//! three contexts. The first counts the distances by which the level moved, whatever the level was. The second, wider
//! than the first, is a guess: most likely the level stays.
//!
//! That gives the probability of each level. Each level of the forecast above the need costs 1, and a need above the
//! forecast costs `setting` (the argument of [`Predictor::forecast`]). The forecast is the level `k` with the least
//! expected cost, `sum(p(need) * (k - need)+) + setting * p(need > k)`, where `(x)+` is `x`, but 0 if `x` is negative.
//! Of all rules that use those probabilities this one wastes least at its coverage: it covers rises where they are
//! likely or cheap, instead of everywhere alike.

use super::level::{HIGHEST, Level, Predictor, Reading, level_above};
use headstart_block::{exact, saturating};
use std::collections::{BTreeMap, VecDeque};

/// Number of latest steps whose highest level describes a VM's state: an hour of steps of three minutes.
pub const RECENT: usize = 20;

/// The weight of the next wider context's probabilities when they are added to the counts of a context: they count as
/// this many observations.
pub const BLEND: f32 = 2.0;

/// A context's counts are halved when they reach this: old observations count less, and a count stays exact.
const FULL: f32 = 256.0;

/// The assumed probability that a level is missed by one level, before anything is known; by two, half that.
const UNKNOWN: f32 = 0.025;

/// Octaves of steps that a level has held: the last is half a day and more.
const OCTAVES: u16 = 8;

/// The most contexts that are kept: far above what a VM meets; more are not learned.
const CONTEXTS: usize = 1024;

/// A state: the level, the recent highest + 1 or 0, the octave of holding + 1 or 0.
type Context = (Level, Level, u16);

/// The need that [`DemandCounts`] predicts: at one moment, or the highest over a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The level at the end of the horizon. BlockFlex's figures of accuracy are for this one.
    At,
    /// The highest level until the end of the horizon: the need that a lease of that duration must meet.
    Within,
}

/// A learned predictor: it counts the levels that were needed after states like the present one, and forecasts the
/// level with the lowest expected cost. Each forecast level that is not needed costs 1. A need above the forecast costs
/// the setting of [`Predictor::forecast`].
#[derive(Clone, Debug)]
pub struct DemandCounts {
    horizon: usize,
    need: Need,
    /// Counts of the distance that the level moved: index `HIGHEST + need - level`.
    moves: Tally,
    contexts: BTreeMap<Context, Tally>,
    /// The last levels, newest last; as many as the horizon and the recent highest need.
    levels: VecDeque<Level>,
    /// The contexts of the steps whose outcome is not known yet, oldest first.
    waiting: VecDeque<[Context; 3]>,
    /// Steps for which the level has held.
    held: u32,
}

/// Counts and their sum: those from `first` on, the others are 0.
#[derive(Clone, Debug, Default)]
struct Tally {
    first: usize,
    counts: Vec<f32>,
    sum: f32,
}

impl Tally {
    fn add(&mut self, at: usize) {
        if self.counts.is_empty() {
            self.first = at;
        }
        if at < self.first {
            self.counts.splice(0..0, std::iter::repeat_n(0.0, self.first - at));
            self.first = at;
        }
        if self.counts.len() <= at - self.first {
            self.counts.resize(at - self.first + 1, 0.0);
        }
        self.counts[at - self.first] += 1.0;
        self.sum += 1.0;
        if self.sum >= FULL {
            self.counts.iter_mut().for_each(|count| *count /= 2.0);
            self.sum /= 2.0;
        }
    }

    fn count(&self, at: usize) -> f32 {
        at.checked_sub(self.first).and_then(|at| self.counts.get(at)).copied().unwrap_or(0.0)
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.counts.capacity() * size_of::<f32>()
    }
}

impl DemandCounts {
    /// Returns a predictor of `need` over the next `horizon` steps (0 counts as 1). It has learned nothing yet.
    #[must_use]
    pub fn new(horizon: usize, need: Need) -> Self {
        Self {
            horizon: horizon.max(1),
            need,
            moves: Tally::default(),
            contexts: BTreeMap::new(),
            levels: VecDeque::new(),
            waiting: VecDeque::new(),
            held: 0,
        }
    }

    /// The state after the last step.
    fn stand(&self) -> [Context; 3] {
        let level = self.levels.back().copied().unwrap_or(0);
        let recent = self.levels.iter().rev().take(RECENT).copied().max().unwrap_or(0) + 1;
        let octave = saturating::<u16>((self.held + 1).ilog2()).min(OCTAVES) + 1;
        [(level, 0, 0), (level, recent, 0), (level, recent, octave)]
    }

    /// Counts the need that followed one horizon after `stood`.
    fn learn(&mut self, stood: [Context; 3]) {
        let need = match self.need {
            Need::At => self.levels.back().copied(),
            Need::Within => self.levels.iter().rev().take(self.horizon).copied().max(),
        };
        let need = usize::from(need.unwrap_or(0));
        self.moves.add(usize::from(HIGHEST) + need - usize::from(stood[0].0));
        for context in stood {
            if self.contexts.len() < CONTEXTS || self.contexts.contains_key(&context) {
                self.contexts.entry(context).or_default().add(need);
            }
        }
    }

    /// Returns the estimated probability of each level from 0 to [`HIGHEST`] to be the one that will be needed. The sum
    /// of the probabilities is 1. Before the first reading, the present level counts as 0.
    #[must_use]
    pub fn likelihood(&self) -> Vec<f32> {
        let stand = self.stand();
        let level = usize::from(stand[0].0);
        let highest = usize::from(HIGHEST);
        let mut chance: Vec<f32> = (0..=highest)
            .map(|other| match other.abs_diff(level) {
                0 => 1.0,
                off => UNKNOWN * 2.0 / 2_f32.powi(exact(off, "levels are at most HIGHEST")),
            })
            .collect();
        level_sum(&mut chance);
        let moved = |other: usize| self.moves.count(highest + other - level);
        chance.iter_mut().enumerate().for_each(|(other, chance)| *chance = moved(other) + BLEND * *chance);
        level_sum(&mut chance);
        for tally in stand.iter().filter_map(|context| self.contexts.get(context)) {
            for (other, chance) in chance.iter_mut().enumerate() {
                *chance = (tally.count(other) + BLEND * *chance) / (tally.sum + BLEND);
            }
        }
        chance
    }
}

/// Makes the sum 1.
fn level_sum(chance: &mut [f32]) {
    let sum: f32 = chance.iter().sum();
    chance.iter_mut().for_each(|chance| *chance /= sum.max(f32::MIN_POSITIVE));
}

/// Returns the level with the lowest expected cost; the lowest of equally cheap ones. `chance` has the probability of
/// each level, from 0 on, to be the one that is needed. Each returned level that is not needed costs 1; a need above
/// the returned level costs `miss`, however far above. 0 if `chance` is empty.
#[must_use]
pub fn cheapest(chance: &[f32], miss: f32) -> Level {
    let (mut covered, mut wasted) = (0.0_f32, 0.0_f32);
    let (mut best, mut least) = (0, f32::INFINITY);
    for (level, chance) in (0..).zip(chance) {
        wasted += covered;
        covered += chance;
        let cost = wasted + miss * (1.0 - covered).max(0.0);
        if cost < least {
            (best, least) = (level, cost);
        }
    }
    best
}

impl Predictor for DemandCounts {
    fn observe(&mut self, reading: &Reading) {
        let level = level_above(reading.level.max).min(HIGHEST);
        self.held = if self.levels.back() == Some(&level) { self.held.saturating_add(1) } else { 0 };
        if self.levels.len() == RECENT.max(self.horizon) {
            self.levels.pop_front();
        }
        self.levels.push_back(level);
        if self.waiting.len() == self.horizon
            && let Some(stood) = self.waiting.pop_front()
        {
            self.learn(stood);
        }
        self.waiting.push_back(self.stand());
    }

    fn forecast(&self, setting: f32) -> Level {
        if self.levels.is_empty() { 0 } else { cheapest(&self.likelihood(), setting) }
    }

    fn bytes(&self) -> usize {
        // An entry of a B-tree that is two thirds full.
        let contexts = self.contexts.values().map(|tally| (size_of::<Context>() + tally.bytes()) * 3 / 2);
        size_of::<Self>()
            + self.moves.bytes()
            + contexts.sum::<usize>()
            + self.levels.capacity() * size_of::<Level>()
            + self.waiting.capacity() * size_of::<[Context; 3]>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(levels: impl IntoIterator<Item = Level>, horizon: usize, need: Need) -> DemandCounts {
        let mut counts = DemandCounts::new(horizon, need);
        levels.into_iter().for_each(|level| counts.observe(&Reading::flat(level.into())));
        counts
    }

    #[test]
    fn a_pattern_that_repeats_is_forecast() {
        // Two steps of 1, two of 4: after two of 1 comes 4, and so on.
        let counts = told((0..402).map(|step| [1, 1, 4, 4][step % 4]), 1, Need::At);
        assert_eq!(counts.forecast(1.0), 4);
        let counts = told((0..401).map(|step| [1, 1, 4, 4][step % 4]), 1, Need::At);
        assert_eq!(counts.forecast(1.0), 1);
        let counts = told((0..401).map(|step| [1, 1, 4, 4][step % 4]), 3, Need::Within);
        assert_eq!(counts.forecast(1.0), 4);
        let counts = told((0..401).map(|step| [1, 1, 4, 4][step % 4]), 4, Need::At);
        assert_eq!(counts.forecast(1.0), 1);
    }

    #[test]
    fn without_history_the_last_level_is_forecast() {
        assert_eq!(DemandCounts::new(1, Need::At).forecast(100.0), 0);
        assert_eq!(told([7], 1, Need::At).forecast(1.0), 7);
        assert!(told([7], 1, Need::At).forecast(1000.0) > 7);
    }

    #[test]
    fn levels_beyond_the_highest_are_one() {
        assert_eq!(told([0, Level::MAX], 1, Need::At).forecast(1.0), HIGHEST);
    }

    proptest! {
        /// Likelihoods add up, forecasts rise with the price of a miss, and memory is bounded.
        #[test]
        fn forecasts_rise_with_the_cost_of_a_miss(
            levels in prop::collection::vec(0_u16..70, 1..300), horizon in 1_usize..8, within: bool,
        ) {
            let counts = told(levels, horizon, if within { Need::Within } else { Need::At });
            let chance = counts.likelihood();
            prop_assert!((chance.iter().sum::<f32>() - 1.0).abs() < 1e-3);
            prop_assert!(chance.iter().all(|chance| *chance >= 0.0));
            let forecasts: Vec<_> = [0.5, 2.0, 8.0, 32.0, 128.0].map(|miss| counts.forecast(miss)).to_vec();
            prop_assert!(forecasts.is_sorted());
            prop_assert!(counts.bytes() < 300_000);
        }

        /// Compares with a search of all levels.
        #[test]
        fn the_cheapest_level_is_found(weights in prop::collection::vec(1_u8..100, 1..12), miss in 0_u8..50) {
            let sum: f32 = weights.iter().map(|weight| f32::from(*weight)).sum();
            let chance: Vec<f32> = weights.iter().map(|weight| f32::from(*weight) / sum).collect();
            let cost = |level: Level| -> f32 {
                (0..).zip(&chance).map(|(need, chance): (Level, _)| {
                    chance * if need > level { miss.into() } else { f32::from(level - need) }
                }).sum()
            };
            let best = cheapest(&chance, miss.into());
            for level in 0..chance.len() {
                prop_assert!(cost(best) <= cost(u16::try_from(level).unwrap()) + 1e-3);
            }
        }
    }
}
