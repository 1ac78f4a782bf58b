//! Erasures that harvesting causes (section 4.3.2): what was lent is erased when it comes back, where it was written.

use super::tally::ratio;
use serde::Serialize;

/// How often flash blocks may be erased (section 4.3.2).
pub const RATED: f64 = 10_000.0;
/// A vSSD is harvested every so many days (sections 4.3.2, 5.2).
pub const EVERY: f64 = 2.1;
/// A quarter of it at a time.
pub const PART: f64 = 0.25;
/// For so many years.
pub const YEARS: f64 = 5.0;

/// What leases cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wear {
    /// Share of the rated erasures that the hand-overs of five years take at the paper's rate, where every block
    /// that is leased is written: 2.2%.
    pub all_written: f64,
    /// Share of a lease's blocks that had been written when it ended, and were erased.
    pub written: f64,
    /// Share of the rated erasures that the hand-overs take then.
    pub share: f64,
    /// Erasures of the harvest VM's own collecting during the lease, for each block of it: what it would have worn of
    /// any flash.
    pub own: f64,
}

/// Of a lease of so many blocks, of which so many were erased at its end and so many erasures were the holder's own.
#[must_use]
pub fn of_lease(blocks: u64, erased: u64, own: u64) -> Wear {
    let all_written = YEARS * 365.0 / EVERY * PART / RATED;
    let written = ratio(erased, blocks);
    Wear { all_written, written, share: all_written * written, own: ratio(own, blocks) }
}
