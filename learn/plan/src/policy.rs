//! Policies: ways to choose the blocks to preload, and their order.
//!
//! Each module names the source of its policies. All policies see only the training traces, except for [`History`] and
//! [`Oracle`]: these are given the test trace, on which their plan is tried, and are for evaluation only.

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

/// The input of a policy: a group of traces of one image.
#[derive(Clone, Copy)]
pub struct Training<'a> {
    /// The table of the blocks that the image's traces read.
    pub block_table: &'a BlockTable,
    /// The statistics of all traces of the group.
    pub statistics: &'a Statistics,
    /// The traces of the group that are available, all or a sample. The most typical one is first.
    pub traces: &'a [&'a CompactTrace],
}

/// The quantity that a plan is to optimize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The hit rate if reads arrive as recorded, regardless of waits, and whole blocks are fetched, as in the
    /// ThinkAhead paper ([`crate::evaluate::hits`]).
    Hits,
    /// The delay of a boot whose guest waits for its reads ([`crate::evaluate::boot`]), over a link with this round
    /// trip.
    Boot {
        /// The round-trip time of the link, in nanoseconds.
        round_trip: u64,
        /// The part of a block that a miss fetches.
        misses: Misses,
        /// `true` to preload only slices that training traces read, `false` to preload whole blocks.
        hot: bool,
    },
}

impl Objective {
    /// Returns the reads that the objective counts: the first 3,000 of a trace for the hit rate, all for the
    /// delay of a boot.
    #[must_use]
    pub fn window(self) -> ReadWindow {
        match self {
            Self::Hits => ReadWindow::Counted,
            Self::Boot { .. } => ReadWindow::All,
        }
    }

    /// Returns the blocks of a trace in the order of first access, by the reads that the objective counts.
    #[must_use]
    pub fn first_accesses(self, trace: &CompactTrace) -> Vec<BlockId> {
        match self {
            Self::Hits => trace.blocks.iter().map(|block| block.block).collect(),
            Self::Boot { .. } => trace.first_accesses().to_vec(),
        }
    }
}

/// The task of a policy: the objective, the bandwidth of the link, and a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// The quantity to optimize.
    pub objective: Objective,
    /// The bandwidth of the link that the plan is made for.
    pub bandwidth: Bandwidth,
    /// The seed of policies that use random numbers; the same seed gives the same plan.
    pub seed: u64,
}

/// The output of a policy: the blocks to preload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// The blocks to preload in order, each at most once and with at least one slice.
    pub items: Vec<Item>,
    /// The weights of the blocks' scores that the policy found, to be reused for a similar image; `None` if
    /// the policy has no such weights.
    pub weights: Option<Weights>,
}

impl Proposal {
    /// Makes a proposal, without weights, of these blocks in this order, each with all slices that any training trace
    /// read. Blocks that no training trace read are left out. `statistics` are those of the training traces.
    #[must_use]
    pub fn of_order(order: &[BlockId], statistics: &Statistics) -> Self {
        let item = |id: &BlockId| (*id, statistics.mask(*id, 0.0));
        let items = order.iter().map(item).filter(|(_, mask)| *mask != 0).collect();
        Self { items, weights: None }
    }

    /// Returns the items with the blocks' numbers on the disk in place of their ids in `block_table`.
    #[must_use]
    pub fn plan_items(&self, block_table: &BlockTable) -> Vec<PlanItem> {
        let item = |(id, mask): &Item| {
            let block = *block_table.blocks().get(*id as usize)?;
            Some(PlanItem { block, mask: *mask })
        };
        self.items.iter().filter_map(item).collect()
    }
}

/// An algorithm that chooses the blocks to preload, and their order.
pub trait Policy: Send + Sync {
    /// Returns the name of the policy on the command line.
    fn name(&self) -> &'static str;

    /// Returns the blocks to preload, in order, each at most once.
    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId>;

    /// Returns the blocks to preload with their slices. By default these are the blocks of
    /// [`order`](Self::order), each with all slices that any training trace read.
    fn propose(&self, training: &Training<'_>, aim: &Aim) -> Proposal {
        Proposal::of_order(&self.order(training, aim), training.statistics)
    }

    /// Returns the initial state of a policy that decides during the boot; [`order`](Self::order) of such a policy
    /// is empty. `None` for all other policies.
    fn online(&self) -> Option<Box<dyn Online>> {
        None
    }
}

/// The name of the default policy; the default objective is the delay of a boot.
///
/// For that objective, the policy `search` makes the plan of the module [`first`], whose documentation gives the
/// reasons and the figures.
pub const DEFAULT: &str = "search";

/// The names of all policies that do without the test trace, that is, of all but [`History`] and [`Oracle`]; the
/// simplest is first. [`by_name`] accepts these names.
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

/// Makes the policy that has this name in [`NAMES`].
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
            return Err(Error::invalid(format!("`{}` is not a policy", name.escape_debug()))
                .remedy(format!("name one of {}", NAMES.join(", "))));
        }
    })
}

#[cfg(test)]
mod tests;
