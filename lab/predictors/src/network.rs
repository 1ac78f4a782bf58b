//! A small LSTM network, written by hand: one hidden layer, fully connected to the input and to the output.
//!
//! BlockFlex (section 4.6) predicts with such networks of 4 to 50 hidden nodes, trained with Adam on the squared error.
//! A tensor library would be a thousand times the code of this module, and slower at this size.
//!
//! Let `x` be the inputs of a step, and `h` and `c` the layer's output and state after the step before (zeros at
//! first). `W` has a row of weights over `[x, h, 1]` for each node and gate, and `V` a row over `[h, 1]` for each
//! output. Then:
//!
//! ```text
//! i, f, o = sigmoid(W [x, h, 1])    g = tanh(W [x, h, 1])
//! c' = f * c + i * g                h' = o * tanh(c')
//! y = V [h', 1] after the last step; through softmax if the outputs are probabilities of classes
//! ```
//!
//! Training is one step of Adam (Kingma and Ba, 2015) on the mean squared error of `y`, with gradients through all the
//! steps of the sequence. All weights are `f32`, and so is Adam's state: 12 bytes a weight.

use headstart_block::random::Random;

/// The kind of output of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Plain numbers.
    Linear,
    /// Probabilities of classes, one for each output; the sum is 1.
    Softmax,
}

/// The size and the learning rate of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkShape {
    /// The number of inputs at each step.
    pub inputs: usize,
    /// The number of nodes in the hidden layer.
    pub hidden: usize,
    /// The number of outputs; they are computed after the last step.
    pub outputs: usize,
    /// The kind of output: plain numbers or probabilities.
    pub head: Head,
    /// Learning rate of Adam, the optimiser.
    pub rate: f32,
}

/// An LSTM network with one hidden layer, and the state of its optimiser (Adam).
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    shape: NetworkShape,
    /// The rows of `W` (input, forget, output gate and candidate of each node), then those of `V`.
    weights: Vec<f32>,
    /// Adam's mean of the gradients.
    mean: Vec<f32>,
    /// Adam's mean of their squares.
    square: Vec<f32>,
    /// Adam's decays to the power of the iterations so far.
    decayed: [f32; 2],
}

/// Adam's decay of the mean.
const DECAY_MEAN: f32 = 0.9;
/// Adam's decay of the squares.
const DECAY_SQUARE: f32 = 0.999;
/// The number that Adam adds to the root of the squares.
const TINY: f32 = 1e-8;

/// The values of the layer in one step, for the way back.
#[derive(Clone, Debug, Default)]
struct Tape {
    /// `[x, h, 1]` before it.
    before: Vec<f32>,
    /// The gates of each node: i, f, o, g.
    gates: Vec<f32>,
    /// `c` before it.
    kept: Vec<f32>,
    /// `tanh(c')`.
    squashed: Vec<f32>,
}

impl Network {
    /// Creates a network with random weights from `seed`, distributed uniformly within `1 / sqrt(hidden)` of
    /// 0. A size of 0 in `shape` counts as 1.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "small sizes; weights are f32"
    )]
    pub fn new(shape: NetworkShape, seed: u64) -> Self {
        let at_least_one = |size: usize| size.max(1);
        let shape = NetworkShape {
            inputs: at_least_one(shape.inputs),
            hidden: at_least_one(shape.hidden),
            outputs: at_least_one(shape.outputs),
            ..shape
        };
        let size = 4 * shape.hidden * shape.row() + shape.outputs * (shape.hidden + 1);
        let within = 1.0 / (shape.hidden as f64).sqrt();
        let mut random = Random::new(seed);
        let weights = (0..size).map(|_| ((random.unit() * 2.0 - 1.0) * within) as f32).collect();
        Self { shape, weights, mean: vec![0.0; size], square: vec![0.0; size], decayed: [1.0; 2] }
    }

    /// Returns the output after a sequence of steps. `steps` holds the inputs of the first step, then the inputs
    /// of the next step, and so on. An incomplete last step is ignored.
    #[must_use]
    pub fn infer(&self, steps: &[f32]) -> Vec<f32> {
        self.run(steps).1
    }

    /// Trains the network by one iteration towards the output `target` for the inputs `steps`, laid out as in
    /// [`Network::infer`]. Missing numbers of `target` count as 0, and numbers beyond the outputs are ignored. Returns
    /// the mean squared error before the iteration.
    pub fn train(&mut self, steps: &[f32], target: &[f32]) -> f32 {
        let (gradient, loss) = self.gradient(steps, target);
        self.decayed[0] *= DECAY_MEAN;
        self.decayed[1] *= DECAY_SQUARE;
        let rate = self.shape.rate * (1.0 - self.decayed[1]).sqrt() / (1.0 - self.decayed[0]);
        let state = self.mean.iter_mut().zip(&mut self.square);
        for ((weight, gradient), (mean, square)) in self.weights.iter_mut().zip(gradient).zip(state) {
            *mean += (1.0 - DECAY_MEAN) * (gradient - *mean);
            *square += (1.0 - DECAY_SQUARE) * (gradient * gradient - *square);
            *weight -= rate * *mean / (square.sqrt() + TINY);
        }
        loss
    }

    /// Returns the memory that the network takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + 3 * size_of::<f32>() * self.weights.capacity()
    }

    /// The tapes of all steps, `[h, 1]` after the last, and the output.
    fn run(&self, steps: &[f32]) -> (Vec<Tape>, Vec<f32>, Vec<f32>) {
        let NetworkShape { inputs, hidden, outputs, head, .. } = self.shape;
        let (recurrent, readout) = self.weights.split_at(4 * hidden * self.shape.row());
        let (mut said, mut kept) = (vec![0.0; hidden], vec![0.0; hidden]);
        let mut tapes = Vec::with_capacity(steps.len() / inputs);
        for step in steps.chunks_exact(inputs) {
            let before: Vec<f32> = step.iter().chain(&said).copied().chain([1.0]).collect();
            let mut tape =
                Tape { gates: Vec::with_capacity(4 * hidden), kept: kept.clone(), ..Tape::default() };
            let nodes = recurrent.chunks_exact(4 * before.len()).zip(kept.iter_mut().zip(&mut said));
            for (rows, (kept, said)) in nodes {
                let sum = |gate: usize| dot(&rows[gate * before.len()..][..before.len()], &before);
                let (i, f, o, g) = (sigmoid(sum(0)), sigmoid(sum(1)), sigmoid(sum(2)), sum(3).tanh());
                *kept = f * *kept + i * g;
                let squashed = kept.tanh();
                *said = o * squashed;
                tape.gates.extend([i, f, o, g]);
                tape.squashed.push(squashed);
            }
            tape.before = before;
            tapes.push(tape);
        }
        said.push(1.0);
        let mut out: Vec<f32> = readout.chunks_exact(hidden + 1).map(|row| dot(row, &said)).collect();
        debug_assert_eq!(out.len(), outputs);
        if head == Head::Softmax {
            softmax(&mut out);
        }
        (tapes, out, said)
    }

    /// The gradient of the mean squared error, and that error.
    fn gradient(&self, steps: &[f32], target: &[f32]) -> (Vec<f32>, f32) {
        let NetworkShape { hidden, outputs, head, .. } = self.shape;
        let (tapes, out, said) = self.run(steps);
        #[expect(clippy::cast_precision_loss, reason = "small sizes")]
        let share = 1.0 / outputs as f32;
        let errors =
            out.iter().zip(target.iter().chain(std::iter::repeat(&0.0))).map(|(out, target)| out - target);
        let loss = share * errors.clone().map(|error| error * error).sum::<f32>();
        let mut back: Vec<f32> = errors.map(|error| 2.0 * share * error).collect();
        if head == Head::Softmax {
            let mixed = dot(&back, &out);
            back.iter_mut().zip(&out).for_each(|(back, out)| *back = out * (*back - mixed));
        }
        let split = 4 * hidden * self.shape.row();
        let mut gradient = vec![0.0; self.weights.len()];
        let (recurrent, readout) = gradient.split_at_mut(split);
        let mut back_said = vec![0.0; hidden];
        let rows = self.weights[split..].chunks_exact(hidden + 1).zip(readout.chunks_exact_mut(hidden + 1));
        for ((weights, gradient), back) in rows.zip(&back) {
            add(gradient, *back, &said);
            add(&mut back_said, *back, &weights[..hidden]);
        }
        let mut back_kept = vec![0.0; hidden];
        for tape in tapes.iter().rev() {
            back_said = self.back(tape, &back_said, &mut back_kept, recurrent);
        }
        (gradient, loss)
    }

    /// One step of the layer backwards: adds to the gradient of `W`, turns `back_kept` from that after the step to that
    /// before it, and returns the same for the layer's output.
    fn back(&self, tape: &Tape, back_said: &[f32], back_kept: &mut [f32], gradient: &mut [f32]) -> Vec<f32> {
        let NetworkShape { inputs, hidden, .. } = self.shape;
        let row = self.shape.row();
        let mut back_before = vec![0.0; hidden];
        for (node, gates) in tape.gates.chunks_exact(4).enumerate() {
            let &[i, f, o, g] = gates else { continue };
            let (squashed, kept) = (tape.squashed[node], tape.kept[node]);
            let back_cell = back_kept[node] + back_said[node] * o * (1.0 - squashed * squashed);
            let sums = [
                back_cell * g * i * (1.0 - i),
                back_cell * kept * f * (1.0 - f),
                back_said[node] * squashed * o * (1.0 - o),
                back_cell * i * (1.0 - g * g),
            ];
            back_kept[node] = back_cell * f;
            for (gate, back) in sums.into_iter().enumerate() {
                let at = (4 * node + gate) * row;
                add(&mut gradient[at..at + row], back, &tape.before);
                add(&mut back_before, back, &self.weights[at + inputs..at + inputs + hidden]);
            }
        }
        back_before
    }
}

impl NetworkShape {
    /// The length of a row of `W`.
    fn row(&self) -> usize {
        self.inputs + self.hidden + 1
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The dot product, in lanes that a processor adds at once: the order of additions is fixed, so the sum is the same
/// everywhere.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut lanes = [0.0_f32; LANES];
    let (a_whole, a_rest) = a.as_chunks::<LANES>();
    let (b_whole, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_whole.iter().zip(b_whole) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    lanes.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

/// `to += times * what`
fn add(to: &mut [f32], times: f32, what: &[f32]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += times * what);
}

fn softmax(out: &mut [f32]) {
    let highest = out.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    out.iter_mut().for_each(|out| *out = (*out - highest).exp());
    let sum: f32 = out.iter().sum();
    out.iter_mut().for_each(|out| *out /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(head: Head) -> NetworkShape {
        NetworkShape { inputs: 3, hidden: 5, outputs: 4, head, rate: 0.01 }
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "an input")]
    fn gradients_are_what_differences_say() {
        for (head, seed) in [(Head::Linear, 1), (Head::Softmax, 2), (Head::Softmax, 3)] {
            let network = Network::new(shape(head), seed);
            let mut random = Random::new(seed + 10);
            let steps: Vec<f32> = (0..5 * 3).map(|_| random.unit() as f32 * 2.0 - 1.0).collect();
            let target = [0.0, 1.0, 0.0, 0.0];
            let (gradient, loss) = network.gradient(&steps, &target);
            assert!(loss > 0.0);
            let off = 5e-3;
            for (at, gradient) in gradient.iter().enumerate() {
                let [above, below] = [off, -off].map(|off| {
                    let mut moved = network.clone();
                    moved.weights[at] += off;
                    moved.gradient(&steps, &target).1
                });
                let expected = (above - below) / (2.0 * off);
                let error = (gradient - expected).abs();
                assert!(error < 3e-5 + 0.01 * expected.abs(), "weight {at}: {gradient}, {expected}");
            }
        }
    }

    #[test]
    fn a_network_learns_from_steps_back() {
        // Which of two came first, three steps ago.
        let mut network = Network::new(
            NetworkShape { inputs: 1, hidden: 8, outputs: 2, head: Head::Softmax, rate: 0.02 },
            5,
        );
        let examples =
            [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]];
        for round in 0..2000 {
            let steps = examples[round % 4];
            network.train(&steps, &[steps[0], 1.0 - steps[0]]);
        }
        for steps in examples {
            assert!(
                (network.infer(&steps)[0] - steps[0]).abs() < 0.1,
                "{steps:?}: {:?}",
                network.infer(&steps)
            );
        }
    }

    #[test]
    fn a_seed_determines_a_network() {
        let trained = |seed| {
            let mut network = Network::new(shape(Head::Softmax), seed);
            for _ in 0..10 {
                network.train(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], &[0.0, 0.0, 1.0, 0.0]);
            }
            network
        };
        assert_eq!(trained(7), trained(7));
        assert_ne!(trained(7), trained(8));
    }

    #[test]
    fn odd_sizes_do_no_harm() {
        let none = NetworkShape { inputs: 0, hidden: 0, outputs: 0, head: Head::Softmax, rate: 0.01 };
        let mut network = Network::new(none, 1);
        network.train(&[], &[]);
        assert_eq!(network.infer(&[f32::MAX]).len(), 1);
        assert_eq!(network.bytes(), size_of::<Network>() + 12 * (4 * 3 + 2));
    }
}
