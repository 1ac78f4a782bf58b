//! What a broker has done, in numbers that only grow.

use serde::Serialize;

/// Counts of events, and of flash blocks where said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// gSSDs made.
    pub created: u64,
    /// gSSDs that went home.
    pub returned: u64,
    /// Of those, unused ones that expired in the pool.
    pub expired: u64,
    /// Requests.
    pub requests: u64,
    /// Of those, granted in full.
    pub granted: u64,
    /// Of those, granted in part.
    pub partly: u64,
    /// Of those, refused.
    pub refused: u64,
    /// Leases: gSSDs given to harvest VMs, for whatever cause.
    pub leases: u64,
    /// Leases that were replacements of gSSDs taken back.
    pub replacements: u64,
    /// Leases added because a harvest VM needs more than it asked for (under-harvest).
    pub added: u64,
    /// Leases that ended because their harvest VM gave them back.
    pub released: u64,
    /// Leases taken back before the time asked for was over (early reclamation).
    pub early: u64,
    /// Leases taken back, early or not, whose data was moved elsewhere.
    pub migrated: u64,
    /// Harvest VMs evicted.
    pub evicted: u64,
    /// Leases that ended with those.
    pub evicted_leases: u64,
    /// Times that a harvest VM was told that there is not what it needs.
    pub under_harvests: u64,
    /// Leased blocks that a harvest VM was not predicted to need, times seconds (waste).
    pub waste_block_seconds: u64,
    /// Flash blocks erased for a change of hands.
    pub erased_blocks: u64,
    /// Flash blocks that failed to be erased.
    pub bad_blocks: u64,
    /// Events that came too late or for what does not exist.
    pub ignored: u64,
}
