//! BlockFlex's predictors of a level: LSTMs that learn as they go (section 4.4.2).
//!
//! At every step (three minutes), the network is trained by one iteration: its input is the [`LOOK`] steps that ended
//! one horizon ago, and its target is the need that came after these steps. Then the network predicts, from the last
//! [`LOOK`] steps, the probability of each level one horizon ahead. For bandwidth, the input of a step is the maximum,
//! the minimum and the mean of the bandwidth and of the operations a second. For capacity, it is the maximum, the
//! minimum and the mean of the used capacity, and the change of the mean since the step before. The input is scaled to
//! about 0 to 1. The sizes are the paper's: 16 nodes and a learning rate of 0.005 for bandwidth, 4 nodes and a rate of
//! 0.04 for capacity.
//!
//! The network may also learn again from steps of the last day, chosen by a seeded generator
//! ([`LevelLstm::replaying`]). The paper does not do that, but a network that sees a few hundred changes of level only
//! once learns little from them.

use super::network::{Head, Network, NetworkShape};
use headstart_block::random::Random;
use headstart_forecast::counts::{Need, cheapest};
use headstart_forecast::level::{HIGHEST, level_above};
use headstart_forecast::{Level, Predictor, Quantity, Reading, Stat};
use std::collections::VecDeque;

/// The number of past steps that an LSTM gets as input: five of three minutes each.
pub const LOOK: usize = 5;

/// The number of steps that it can learn from again: a day.
const REMEMBERED: usize = 480;

/// The rule that turns the probabilities of levels into one forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelRule {
    /// The most probable level times `1 + setting`, rounded up, as in BlockFlex (OSDI 2022).
    Likeliest,
    /// The level with the least expected cost, if each level above the need costs 1 and a need that is not
    /// covered costs `setting`.
    Cheapest,
}

/// BlockFlex's predictor of a level (OSDI 2022, section 4.4.2): an LSTM that learns while it observes. Until it has
/// learned, each forecast is the last observed level times `1 + setting`, rounded up, whatever the rule; 0 before the
/// first observation.
#[derive(Clone, Debug)]
pub struct LevelLstm {
    quantity: Quantity,
    rule: LevelRule,
    horizon: usize,
    need: Need,
    /// Levels are told apart up to this one.
    highest: Level,
    network: Network,
    /// The last steps: the network's input for each, and its level.
    steps: VecDeque<([f32; 6], Level)>,
    /// The mean of use in the last step.
    used: f32,
    /// The most operations a second so far.
    most_iops: f32,
    /// Iterations on remembered steps, beside the one on the newest.
    replays: usize,
    random: Random,
}

impl LevelLstm {
    /// Creates a predictor of levels of `quantity` from 0 to `highest` (limited to the range from 1 to [`HIGHEST`]),
    /// `horizon` steps ahead (at least 1), with random weights from `seed`. `need` says which steps up to the horizon
    /// the forecast must cover.
    #[must_use]
    pub fn new(
        quantity: Quantity,
        rule: LevelRule,
        highest: Level,
        horizon: usize,
        need: Need,
        seed: u64,
    ) -> Self {
        let highest = highest.clamp(1, HIGHEST);
        let outputs = usize::from(highest) + 1;
        let (inputs, hidden, rate) = match quantity {
            Quantity::Bandwidth => (6, 16, 0.005),
            Quantity::Capacity => (4, 4, 0.04),
        };
        let shape = NetworkShape { inputs, hidden, outputs, head: Head::Softmax, rate };
        Self {
            quantity,
            rule,
            horizon: horizon.max(1),
            need,
            highest,
            network: Network::new(shape, seed),
            steps: VecDeque::new(),
            used: 0.0,
            most_iops: 1.0,
            replays: 0,
            random: Random::new(seed),
        }
    }

    /// Sets the number of remembered steps of the last day that the network learns from again at each step; 0
    /// by default.
    #[must_use]
    pub fn replaying(mut self, replays: usize) -> Self {
        self.replays = replays;
        self
    }

    /// The network's input of [`LOOK`] steps from `first` on.
    fn shown(&self, first: usize) -> Vec<f32> {
        let inputs = if self.quantity == Quantity::Bandwidth { 6 } else { 4 };
        self.steps.iter().skip(first).take(LOOK).flat_map(|(shown, _)| shown[..inputs].to_vec()).collect()
    }

    /// Learns from the [`LOOK`] steps from `first` on the need one horizon after them.
    fn learn(&mut self, first: usize) {
        let (last, end) = (first + LOOK - 1, first + LOOK - 1 + self.horizon);
        let from = if self.need == Need::At { end } else { last + 1 };
        let need = self.steps.range(from..=end).map(|(_, level)| *level).max().unwrap_or(0);
        let mut target = vec![0.0; usize::from(self.highest) + 1];
        target[usize::from(need.min(self.highest))] = 1.0;
        self.network.train(&self.shown(first), &target);
    }

    /// Returns, for each level from 0 to the highest, the probability that this level is the need that a forecast must
    /// cover. The network predicts these probabilities from the last [`LOOK`] observed steps. The highest level stands
    /// for all needs from it on. The sum is 1. Before the network has been trained, the probabilities mean nothing.
    #[must_use]
    pub fn likelihood(&self) -> Vec<f32> {
        self.network.infer(&self.shown(self.steps.len().saturating_sub(LOOK)))
    }
}

impl Predictor for LevelLstm {
    fn observe(&mut self, reading: &Reading) {
        let iops = reading.iops;
        let highest = f32::from(self.highest);
        let level =
            [reading.level.max, reading.level.min, reading.level.mean].map(|level| level.min(highest));
        let level = Stat { max: level[0], min: level[1], mean: level[2] };
        let scale = 1.0 / highest;
        let mut shown = [level.max * scale, level.min * scale, level.mean * scale, 0.0, 0.0, 0.0];
        match self.quantity {
            Quantity::Bandwidth => {
                self.most_iops = self.most_iops.max(iops.max);
                let scaled = [iops.max, iops.min, iops.mean].map(|iops| iops / self.most_iops);
                shown[3..].copy_from_slice(&scaled);
            }
            Quantity::Capacity => {
                let before = if self.steps.is_empty() { level.mean } else { self.used };
                shown[3] = (level.mean - before) * scale;
                self.used = level.mean;
            }
        }
        if self.steps.len() == REMEMBERED.max(LOOK + self.horizon) {
            self.steps.pop_front();
        }
        self.steps.push_back((shown, level_above(level.max)));
        let Some(newest) = self.steps.len().checked_sub(LOOK + self.horizon) else { return };
        for _ in 0..self.replays {
            let first = self.random.below(newest + 1);
            self.learn(first);
        }
        self.learn(newest);
    }

    fn forecast(&self, setting: f32) -> Level {
        let Some((_, last)) = self.steps.back() else { return 0 };
        if self.steps.len() < LOOK + self.horizon {
            return level_above(f32::from(*last) * (1.0 + setting));
        }
        let chance = self.likelihood();
        match self.rule {
            LevelRule::Cheapest => cheapest(&chance, setting),
            LevelRule::Likeliest => {
                let likeliest = (0..).zip(&chance).max_by(|(_, a), (_, b)| a.total_cmp(b));
                level_above(
                    likeliest.map_or(0.0, |(level, _): (Level, _)| f32::from(level)) * (1.0 + setting),
                )
            }
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.network.bytes() + self.steps.capacity() * size_of::<([f32; 6], Level)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A level that alternates in a way that the last one alone does not tell.
    fn after(mut lstm: LevelLstm, steps: usize) -> Vec<(Level, Level)> {
        let level = |step: usize| [1_u16, 1, 4][step % 3];
        let mut said = Vec::new();
        for step in 0..steps {
            lstm.observe(&Reading::flat(level(step).into()));
            said.push((lstm.forecast(0.0), level(step + 1)));
        }
        said.split_off(steps - 30)
    }

    #[test]
    fn an_lstm_learns_patterns_that_margins_cannot() {
        let lstm = LevelLstm::new(Quantity::Bandwidth, LevelRule::Likeliest, 16, 1, Need::At, 3);
        let said = after(lstm, 600);
        assert!(said.iter().all(|(said, needed)| said == needed), "{said:?}");
        let lstm = LevelLstm::new(Quantity::Capacity, LevelRule::Likeliest, 6, 1, Need::At, 3).replaying(4);
        let right = after(lstm, 600).iter().filter(|(said, needed)| said == needed).count();
        assert!(right >= 29, "{right}");
    }

    #[test]
    fn a_seed_determines_an_lstm() {
        let lstm = |seed| {
            LevelLstm::new(Quantity::Bandwidth, LevelRule::Cheapest, 16, 2, Need::Within, seed).replaying(2)
        };
        let chance = |seed| {
            let mut lstm = lstm(seed);
            (0..50_u8).for_each(|step| lstm.observe(&Reading::flat(f32::from(step % 7))));
            lstm.likelihood()
        };
        assert_eq!(chance(1), chance(1));
        assert_ne!(chance(1), chance(2));
    }

    #[test]
    fn levels_out_of_its_range_do_no_harm() {
        let mut lstm = LevelLstm::new(Quantity::Capacity, LevelRule::Cheapest, 0, 0, Need::Within, 1);
        for level in [0.0, 1e9, 3.5, 0.0, 7.0, 1.0, 1.0, 2.0] {
            lstm.observe(&Reading::flat(level));
        }
        assert!(lstm.forecast(1e6) <= 1);
    }
}
