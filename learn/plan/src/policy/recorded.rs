//! Policies that preload in the order in which some boot read (ThinkAhead paper, section 7).
//!
//! * `random`: a training trace drawn at random.
//! * `dadi` (the paper's DADI+): the training trace that is most similar to the others; at most the first 256 traces
//!   are compared. DADI itself (USENIX ATC'20, section 3.3) prefetches by one recorded trace.
//! * `history` (the paper's HB): the test trace itself, known beforehand. It is for evaluation only.

use crate::block_table::BlockId;
use crate::compact_trace::CompactTrace;
use crate::policy::{Aim, Policy, Proposal, Training};
use crate::similarity::{Feature, Similarities, Vector};
use crate::statistics::Statistics;
use headstart_block::random::Random;

/// The policy `random`, which preloads in the order of a training trace drawn at random.
#[derive(Clone, Copy, Debug)]
pub struct RandomTrace;

impl Policy for RandomTrace {
    fn name(&self) -> &'static str {
        "random"
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        let drawn = Random::new(aim.seed).below(training.traces.len());
        training.traces.get(drawn).map(|trace| aim.objective.first_accesses(trace)).unwrap_or_default()
    }
}

/// The policy `dadi`, which preloads in the order of the training trace that is most similar to the others.
#[derive(Clone, Copy, Debug)]
pub struct Dadi;

/// Traces that are compared with each other; if there are more, the first.
const COMPARED_MAX: usize = 256;

impl Policy for Dadi {
    fn name(&self) -> &'static str {
        "dadi"
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        let traces = &training.traces[..training.traces.len().min(COMPARED_MAX)];
        let vectors: Vec<_> = traces.iter().map(|trace| Vector::of(trace, Feature::Counts)).collect();
        let members: Vec<_> = (0..vectors.len()).collect();
        let centre = Similarities::of(&vectors).centroid(&members);
        centre.map(|centre| aim.objective.first_accesses(traces[centre])).unwrap_or_default()
    }
}

/// The policy `history`, which preloads in the order of the test trace itself. It is for evaluation only.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// The trace whose order is used, and that the plan will be tested on.
    pub test: &'a CompactTrace,
}

impl Policy for History<'_> {
    fn name(&self) -> &'static str {
        "history"
    }

    fn order(&self, _: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        aim.objective.first_accesses(self.test)
    }

    /// Proposes blocks with the slices that the test trace reads.
    fn propose(&self, training: &Training<'_>, aim: &Aim) -> Proposal {
        Proposal::of_order(&self.order(training, aim), &Statistics::of([self.test]))
    }
}
