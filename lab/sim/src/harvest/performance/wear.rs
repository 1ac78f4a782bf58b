//! Erasures that harvesting causes (BlockFlex, OSDI 2022, section 4.3.2): lent blocks that were written are erased when
//! they come back.

use super::tally::ratio;
use serde::Serialize;

/// The number of erasures that a flash block is rated for (BlockFlex, OSDI 2022, section 4.3.2).
pub const RATED: f64 = 10_000.0;
/// The interval between two harvests of a vSSD (virtual SSD), in days (BlockFlex, OSDI 2022, sections 4.3.2
/// and 5.2).
pub const EVERY: f64 = 2.1;
/// The share of a vSSD that is harvested at a time, 0 to 1.
pub const PART: f64 = 0.25;
/// The service life of the flash, in years.
pub const YEARS: f64 = 5.0;

/// Flash wear that leases cause, in shares of the rated erasures over the service life.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wear {
    /// Share of the rated erasures that returned leases cost over the five years of service if every leased
    /// block is written: 2.2% at the rate of BlockFlex (OSDI 2022).
    pub all_written: f64,
    /// Share of the lease's blocks that had been written at its end, and had to be erased, 0 to 1.
    pub written: f64,
    /// Share of the rated erasures that returned leases cost over five years of service if the share
    /// [`Wear::written`] of the leased blocks is written.
    pub share: f64,
    /// Erasures by the harvest VM's own garbage collection during the lease, for each leased block. They are
    /// no cost of harvesting: the VM would have worn any flash by as much.
    pub own: f64,
}

/// Computes the wear of a lease of `blocks` flash blocks. `erased` of them had to be erased at its end; `own`
/// erasures were by the harvest VM's garbage collection.
#[must_use]
pub fn of_lease(blocks: u64, erased: u64, own: u64) -> Wear {
    let all_written = YEARS * 365.0 / EVERY * PART / RATED;
    let written = ratio(erased, blocks);
    Wear { all_written, written, share: all_written * written, own: ratio(own, blocks) }
}
