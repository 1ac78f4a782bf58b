//! The blocks of a vSSD that are open for writes, and the placements under way.

use super::map::{Entry, Spot, Table};
use std::collections::BTreeSet;

/// A data block that is being written from its beginning on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) entry: Entry,
    pub(super) used: u64,
}

/// Blocks that are open, and placements under way.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// Open log blocks: the user's, the collector's.
    pub(super) logs: [Vec<Entry>; 2],
    pub(super) fills: Table<u32, Fill>,
    pub(super) flights: BTreeSet<Spot>,
    /// Of those, the user's.
    pub(super) users: u64,
    /// The place in turn among log blocks, for each kind.
    pub(super) turns: [usize; 2],
    pub(super) clock: u64,
}
