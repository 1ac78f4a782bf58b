//! Counts of a broker's work, which only grow.

use serde::{Deserialize, Serialize};
#[cfg(feature = "schema")]
use utoipa::ToSchema;

/// Counts of the broker's work since the host was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema), schema(as = BrokerStatus))]
pub struct Counters {
    /// gSSDs made.
    pub created: u64,
    /// gSSDs that went back to the lender.
    pub returned: u64,
    /// Of those, such that expired in the pool.
    pub expired: u64,
    /// Requests.
    pub requests: u64,
    /// Of those, granted in full.
    pub granted: u64,
    /// Of those, granted in part.
    pub partly: u64,
    /// Of those, refused.
    pub refused: u64,
    /// gSSDs given to harvest VMs, for whatever cause.
    pub leases: u64,
    /// Of those, in the place of such that were taken back.
    pub replacements: u64,
    /// Of those, added because a harvest VM needs more than it asked for.
    pub added: u64,
    /// Leases that were given back.
    pub released: u64,
    /// Leases taken back before the time asked for was over.
    pub early: u64,
    /// Leases taken back, early or not, whose data was moved elsewhere.
    pub migrated: u64,
    /// Harvest VMs that lost data with a lease.
    pub evicted: u64,
    /// Leases that ended with those.
    pub evicted_leases: u64,
    /// Times that a harvest VM was told that there is not what it needs.
    pub under_harvests: u64,
    /// Leased flash blocks that a harvest VM was forecast not to need, times seconds.
    pub waste_block_seconds: u64,
    /// Flash blocks erased for a change of hands.
    pub erased_blocks: u64,
    /// Flash blocks that could not be erased for one, and are not used any more.
    pub bad_blocks: u64,
    /// Events that came too late or for what does not exist. They help to look for faults: a host does not report them.
    #[serde(skip)]
    pub ignored: u64,
}
