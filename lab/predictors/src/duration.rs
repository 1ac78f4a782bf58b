//! BlockFlex's predictor of the duration of a level: an LSTM for each level (section 4.4.2).

use super::lstm::LOOK;
use super::network::{Head, Network, NetworkShape};
use headstart_forecast::duration::{Lasting, Lengths, seconds};
use headstart_forecast::{Level, Quantity};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// BlockFlex's predictor of the duration of a level (OSDI 2022, section 4.4.2): for each level an LSTM of 50
/// nodes over the last [`LOOK`] durations of the level. The forecast is the predicted duration times `1 - setting`,
/// less the time for which the level has been held already.
///
/// The networks work with base-2 logarithms of seconds, scaled to about 0 to 1. The network of a level is created when
/// the level ends for the second time, unless there are as many networks as the predictor may have. Each time the level
/// ends, its network is trained with [`PASSES`] iterations: the first one on the newest duration, the others on the
/// remembered durations in turn. With 12 bytes a weight, [`NETWORKS`] networks fit into the 1.7 MB of memory that the
/// predictors of a vSSD (virtual SSD) may take. For a level without a network, the last duration of the level takes the
/// place of the predicted one; for a level that has never ended, the last duration of any level, or zero if there is
/// none.
#[derive(Clone, Debug)]
pub struct LengthLstm {
    quantity: Quantity,
    lengths: Lengths,
    networks: BTreeMap<Level, (Network, usize)>,
    most: usize,
    seed: u64,
}

/// Training iterations of a level's network each time the level ends. A level lasts about ten steps of three
/// minutes, and BlockFlex (OSDI 2022) trains once at each step.
pub const PASSES: usize = 10;

/// The default for the number of networks in one predictor of durations, each for one level.
pub const NETWORKS: usize = 6;

/// Octaves of seconds that are 1 to the network: 24 days.
const OCTAVES: f32 = 21.0;

impl LengthLstm {
    /// Creates a predictor of the durations of the levels of `quantity`, with random weights from `seed` and at most
    /// `most` networks, each for one level.
    #[must_use]
    pub fn new(quantity: Quantity, most: usize, seed: u64) -> Self {
        Self { quantity, lengths: Lengths::default(), networks: BTreeMap::new(), most, seed }
    }

    /// The [`LOOK`] lengths before `end`, the oldest repeated if there are fewer.
    fn shown(lengths: &VecDeque<f32>, end: usize) -> [f32; LOOK] {
        std::array::from_fn(|at| {
            let at = (end + at).saturating_sub(LOOK);
            lengths.get(at).map_or(0.0, |length| (1.0 + length).log2() / OCTAVES)
        })
    }
}

impl Lasting for LengthLstm {
    fn ended(&mut self, level: Level, length: Duration) {
        self.lengths.push(level, length);
        let Some(lengths) = self.lengths.own(level).filter(|lengths| lengths.len() > 1) else {
            return;
        };
        if self.networks.len() >= self.most && !self.networks.contains_key(&level) {
            return;
        }
        let rate = if self.quantity == Quantity::Bandwidth { 0.006 } else { 0.001 };
        let shape = NetworkShape { inputs: 1, hidden: 50, outputs: 1, head: Head::Linear, rate };
        let (network, turn) = self
            .networks
            .entry(level)
            .or_insert_with(|| (Network::new(shape, self.seed.wrapping_add(level.into())), 0));
        for pass in 0..PASSES {
            // The newest first, then the others in turn.
            let end = if pass == 0 { lengths.len() - 1 } else { 1 + *turn % (lengths.len() - 1) };
            *turn = turn.wrapping_add(1);
            network.train(&Self::shown(lengths, end), &[(1.0 + lengths[end]).log2() / OCTAVES]);
        }
    }

    fn forecast(&self, level: Level, age: Duration, setting: f32) -> Duration {
        let lengths = self.lengths.of(level);
        let last = lengths.back().copied().unwrap_or(0.0);
        let said = self.networks.get(&level).map_or(last, |(network, _)| {
            let said = network.infer(&Self::shown(lengths, lengths.len()))[0];
            (said * OCTAVES).clamp(0.0, OCTAVES).exp2() - 1.0
        });
        seconds(said * (1.0 - setting) - age.as_secs_f32())
    }

    fn bytes(&self) -> usize {
        self.lengths.bytes() + self.networks.values().map(|(network, _)| network.bytes()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    fn told(mut lasting: impl Lasting, lengths: &[(Level, u64)]) -> impl Lasting {
        lengths.iter().for_each(|&(level, length)| lasting.ended(level, minutes(length)));
        lasting
    }

    #[test]
    fn a_network_learns_a_pattern_of_lengths() {
        let lengths: Vec<(Level, u64)> = (0..300).map(|at| (3, [10, 10, 200][at % 3])).collect();
        let lstm = told(LengthLstm::new(Quantity::Bandwidth, NETWORKS, 1), &lengths);
        let said = lstm.forecast(3, Duration::ZERO, 0.0);
        assert!(said < minutes(20), "{said:?}");
        let lstm = told(lstm, &[(3, 10), (3, 10)]);
        let said = lstm.forecast(3, Duration::ZERO, 0.0);
        assert!(said > minutes(100), "{said:?}");
        assert!(lstm.bytes() < 140_000, "{}", lstm.bytes());
    }
}
