//! Policies: ways to choose the blocks to preload, and their order.
//!
//! Each names its source. All see only the training traces, except for [`History`] and [`Oracle`], which are
//! given the test trace and are for evaluation.

use crate::bandwidth::Bandwidth;
use crate::block_table::{BlockId, BlockTable};
use crate::compact_trace::CompactTrace;
use crate::evaluate::{Item, Misses, Online};
use crate::statistics::{ReadWindow, Statistics};
use headstart_block::{Error, PlanItem, Result};

pub mod counts;
pub mod first;
pub mod genetic;
pub mod judge;
pub mod lazy;
pub mod leap;
pub mod oracle;
pub mod recorded;
pub mod score;
pub mod search;
pub mod thinkahead;
pub mod vmt;

pub use judge::Judge;
pub use oracle::Oracle;
pub use recorded::History;
pub use score::Weights;

/// The input of a policy's learning: a group of traces of one image.
#[derive(Clone, Copy)]
pub struct Training<'a> {
    /// The image's blocks.
    pub block_table: &'a BlockTable,
    /// The statistics of all traces of the group.
    pub statistics: &'a Statistics,
    /// Traces of the group that are at hand, all or a sample; the one that is most like the others first.
    pub traces: &'a [&'a CompactTrace],
}

/// The objective of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The open-loop hit rate, whole blocks (the paper's model and fitness).
    Hits,
    /// The total wait of a closed-loop boot, over a link with this round trip (`docs/design-learning.md`).
    Boot {
        /// In nanoseconds.
        round_trip: u64,
        /// The bytes that a miss brings.
        misses: Misses,
        /// `true` if hot slices are preloaded, `false` for whole blocks.
        hot: bool,
    },
}

impl Objective {
    /// The reads that matter to the objective.
    #[must_use]
    pub fn window(self) -> ReadWindow {
        match self {
            Self::Hits => ReadWindow::Counted,
            Self::Boot { .. } => ReadWindow::All,
        }
    }

    /// The blocks of a trace in the order of their first access by the reads that matter.
    #[must_use]
    pub fn first_accesses(self, trace: &CompactTrace) -> Vec<BlockId> {
        match self {
            Self::Hits => trace.blocks.iter().map(|block| block.block).collect(),
            Self::Boot { .. } => trace.first_accesses().to_vec(),
        }
    }
}

/// The objective of a plan, and its bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// The objective.
    pub objective: Objective,
    /// The bandwidth.
    pub bandwidth: Bandwidth,
    /// The seed of policies that draw: the same seed gives the same plan.
    pub seed: u64,
}

/// The result of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// The items to preload, in order: each block at most once, with its hot slices, of which there is at least one.
    pub items: Vec<Item>,
    /// The weights that a policy that scores blocks found, to be reused for a similar image.
    pub weights: Option<Weights>,
}

impl Proposal {
    /// A proposal of these blocks in this order, each with all slices that any of the training traces read.
    #[must_use]
    pub fn of_order(order: &[BlockId], statistics: &Statistics) -> Self {
        let item = |id: &BlockId| (*id, statistics.mask(*id, 0.0));
        let items = order.iter().map(item).filter(|(_, mask)| *mask != 0).collect();
        Self { items, weights: None }
    }

    /// The items as those of a plan: blocks by their numbers on the disk.
    #[must_use]
    pub fn plan_items(&self, block_table: &BlockTable) -> Vec<PlanItem> {
        let item = |(id, mask): &Item| {
            let block = *block_table.blocks().get(*id as usize)?;
            Some(PlanItem { block, mask: *mask })
        };
        self.items.iter().filter_map(item).collect()
    }
}

/// A way to choose the blocks to preload.
pub trait Policy: Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// The blocks to preload, in order, each at most once.
    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId>;

    /// The order with slices; by default all slices that any training trace read.
    fn propose(&self, training: &Training<'_>, aim: &Aim) -> Proposal {
        Proposal::of_order(&self.order(training, aim), training.statistics)
    }

    /// The state at a creation of a policy that decides as reads come. Such a policy has no order.
    fn online(&self) -> Option<Box<dyn Online>> {
        None
    }
}

/// The policy of the product, for its objective, the delay of a boot.
///
/// For that objective `search` is [`first`], whose head gives the reasons and the figures.
pub const DEFAULT: &str = "search";

/// The names of all policies that learn from training traces alone, the simplest first.
pub const NAMES: [&str; 11] = [
    "lazy",
    "leap",
    "random",
    "dadi",
    "vmt-min",
    "vmt-avg",
    "iocnt",
    "iocnt-t",
    "iocnt-2t",
    "thinkahead",
    "search",
];

/// The policy of this name.
///
/// # Errors
/// [`ErrorKind::Invalid`](headstart_block::ErrorKind) for an unknown name.
pub fn by_name(name: &str) -> Result<Box<dyn Policy>> {
    Ok(match name {
        "lazy" => Box::new(lazy::Lazy),
        "leap" => Box::new(leap::Leap),
        "random" => Box::new(recorded::RandomTrace),
        "dadi" => Box::new(recorded::Dadi),
        "vmt-min" => Box::new(vmt::Vmt::Min),
        "vmt-avg" => Box::new(vmt::Vmt::Average),
        "iocnt" => Box::new(counts::CountPolicy::Count),
        "iocnt-t" => Box::new(counts::CountPolicy::CountTime),
        "iocnt-2t" => Box::new(counts::CountPolicy::CountTwoTimes),
        "thinkahead" => Box::new(thinkahead::ThinkAhead::default()),
        "search" => Box::new(search::Search::default()),
        _ => {
            return Err(Error::invalid(format!("`{}` is no policy", name.escape_debug()))
                .remedy(format!("name one of {}", NAMES.join(", "))));
        }
    })
}

#[cfg(test)]
mod tests;
