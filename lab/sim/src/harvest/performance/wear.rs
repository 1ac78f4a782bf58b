//! Erasures that harvesting causes (section 4.3.2): lent blocks that were written are erased when they come back.

use super::tally::ratio;
use serde::Serialize;

/// The number of erasures that a flash block stands (section 4.3.2).
pub const RATED: f64 = 10_000.0;
/// The interval between harvests of a vSSD, in days (sections 4.3.2, 5.2).
pub const EVERY: f64 = 2.1;
/// The share of it that is harvested at a time.
pub const PART: f64 = 0.25;
/// The years of service.
pub const YEARS: f64 = 5.0;

/// The wear that leases cause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wear {
    /// Share of the rated erasures that the hand-overs of five years take at the paper's rate, if every leased block is
    /// written: 2.2%.
    pub all_written: f64,
    /// Share of a lease's blocks that had been written when it ended, and were erased.
    pub written: f64,
    /// Share of the rated erasures that the hand-overs take then.
    pub share: f64,
    /// Erasures of the harvest VM's own collecting during the lease, for each block of it: it would have worn any flash
    /// by as much.
    pub own: f64,
}

/// The wear of a lease of `blocks` blocks, of which `erased` were erased at its end; `own` erasures were the holder's.
#[must_use]
pub fn of_lease(blocks: u64, erased: u64, own: u64) -> Wear {
    let all_written = YEARS * 365.0 / EVERY * PART / RATED;
    let written = ratio(erased, blocks);
    Wear { all_written, written, share: all_written * written, own: ratio(own, blocks) }
}
