//! Counts of a broker's work. A count never decreases.

use serde::{Deserialize, Serialize};
#[cfg(feature = "schema")]
use utoipa::ToSchema;

/// Counts of the broker's work since the host was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema), schema(as = BrokerStatus))]
pub struct Counters {
    /// Number of gSSDs (lent flash) that were made.
    pub created: u64,
    /// Number of gSSDs whose flash went back to its lender.
    pub returned: u64,
    /// Number of returned gSSDs that expired before a harvest VM leased them.
    pub expired: u64,
    /// Number of requests for storage from harvest VMs.
    pub requests: u64,
    /// Number of requests that were granted in full.
    pub granted: u64,
    /// Number of requests that were granted in part.
    pub partly: u64,
    /// Number of requests that were refused.
    pub refused: u64,
    /// Number of leases that began: gSSDs given to harvest VMs for any reason.
    pub leases: u64,
    /// Number of leases that began in place of others that were taken back.
    pub replacements: u64,
    /// Number of leases that began without a request, because a harvest VM needed more than it had requested.
    pub added: u64,
    /// Number of leases that harvest VMs gave back.
    pub released: u64,
    /// Number of leases that were taken back before the requested duration was over.
    pub early: u64,
    /// Number of leases that were taken back, early or not, and whose data was first moved to other flash.
    pub migrated: u64,
    /// Number of evictions: a harvest VM lost data, because a lease ended before its data was moved.
    pub evicted: u64,
    /// Number of leases that ended in evictions.
    pub evicted_leases: u64,
    /// Number of times that a harvest VM's user was told that less storage is available than the VM needs.
    pub under_harvests: u64,
    /// Leased flash that harvest VMs were forecast not to need, in flash blocks times seconds.
    pub waste_block_seconds: u64,
    /// Number of flash blocks that were erased because they changed hands.
    pub erased_blocks: u64,
    /// Number of flash blocks that could not be erased when they changed hands, and are no longer used.
    pub bad_blocks: u64,
    /// Number of events that came too late or named unknown objects. For debugging only: a host does not
    /// report it.
    #[serde(skip)]
    pub ignored: u64,
}
