//! `iocnt`, `iocnt-t`, `iocnt-2t`: the blocks with the most reads first (ThinkAhead paper, section 7). `iocnt` orders
//! by the number of reads alone, `iocnt-t` also by the average time of the reads, `iocnt-2t` by the number, the average
//! time and the earliest time. The paper does not give the weights of these terms; here they are equal.

use crate::block_table::BlockId;
use crate::policy::score::{Scorer, Weights};
use crate::policy::{Aim, Policy, Training};

/// The policies that begin with the blocks that were read most often; two of them also consider the times of the reads.
#[derive(Clone, Copy, Debug)]
pub enum CountPolicy {
    /// `iocnt`: by the number of reads.
    Count,
    /// `iocnt-t`: by the number and the average time of reads.
    CountTime,
    /// `iocnt-2t`: by the number, the average time and the earliest time of reads.
    CountTwoTimes,
}

impl Policy for CountPolicy {
    fn name(&self) -> &'static str {
        match self {
            Self::Count => "iocnt",
            Self::CountTime => "iocnt-t",
            Self::CountTwoTimes => "iocnt-2t",
        }
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        let third = 1.0 / 3.0;
        let weights = match self {
            Self::Count => Weights { alpha: 1.0, beta: 0.0 },
            Self::CountTime => Weights { alpha: 0.5, beta: 0.5 },
            Self::CountTwoTimes => Weights { alpha: third, beta: third },
        };
        Scorer::new(training, aim.objective.window()).order(weights)
    }
}
