//! Counts of a broker's work, which only grow.

use serde::{Deserialize, Serialize};
#[cfg(feature = "schema")]
use utoipa::ToSchema;

/// Counts of the broker since the host was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema), schema(as = BrokerStatus))]
pub struct Counters {
    /// gSSDs made.
    pub created: u64,
    /// gSSDs that went back to the lender.
    pub returned: u64,
    /// Of those, gSSDs that expired in the pool.
    pub expired: u64,
    /// Requests.
    pub requests: u64,
    /// Of those, granted in full.
    pub granted: u64,
    /// Of those, granted in part.
    pub partly: u64,
    /// Of those, refused.
    pub refused: u64,
    /// gSSDs given to harvest VMs, for any cause.
    pub leases: u64,
    /// Of those, gSSDs that replace others that were taken back.
    pub replacements: u64,
    /// Of those, gSSDs added because a harvest VM needs more than it requested.
    pub added: u64,
    /// Leases that were given back.
    pub released: u64,
    /// Leases taken back before the requested time was over.
    pub early: u64,
    /// Leases taken back, early or not, whose data was moved elsewhere.
    pub migrated: u64,
    /// Harvest VMs that lost data with a lease.
    pub evicted: u64,
    /// Leases that ended with those.
    pub evicted_leases: u64,
    /// Times that a harvest VM was told that it cannot get as much as it needs.
    pub under_harvests: u64,
    /// Leased flash blocks that a harvest VM was forecast not to need, times seconds.
    pub waste_block_seconds: u64,
    /// Flash blocks erased because they changed hands.
    pub erased_blocks: u64,
    /// Flash blocks that could not be erased then, and are not used any more.
    pub bad_blocks: u64,
    /// Events that came too late or for something that does not exist. Only for people that look for faults: a host
    /// does not report them.
    #[serde(skip)]
    pub ignored: u64,
}
