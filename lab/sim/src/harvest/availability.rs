//! Storage that could be harvested, and for how long (BlockFlex, OSDI 2022, section 2.2, figures 4 to 6).
//!
//! For each moment of a trace the paper takes a hypothetical harvest VM that comes at that moment, and asks if the VM's
//! request could be met for a given time without a break. The result is the share of all moments of the trace for which
//! that is so. Here a moment counts only if the given time, begun at that moment, ends within the simulated span.
//! Figure 6 ([`lots`]) is different: its times are counted from the moment at which unsold storage becomes free.

use super::course::{Course, Seconds, share_of_starts};
use super::fleet::Fleet;
use super::statistics::{regular_servers, unsold_servers};
use serde::Serialize;

/// The durations of requests, in hours: those of figures 4 to 6 (BlockFlex, OSDI 2022), and some between.
pub const HOURS: [u32; 8] = [1, 3, 6, 12, 24, 36, 48, 72];
/// The requested shares of a server's sold bandwidth, 0 to 1, as in figure 4 (BlockFlex, OSDI 2022).
pub const SHARES: [f64; 3] = [0.10, 0.25, 0.50];
/// The requested capacities in GB, as in figures 5 and 6 (BlockFlex, OSDI 2022).
pub const GIGABYTES: [u32; 3] = [128, 256, 512];

/// A line of figures 4 to 6 (BlockFlex, OSDI 2022): a request for storage, and the share of lenders that could meet the
/// request for each duration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Available {
    /// The requested amount in words, such as `128 GB`.
    pub request: String,
    /// Share of lenders (servers or unsold VMs) that could meet the request, 0 to 1, for each duration of [`hours`]. In
    /// figures 4 and 5, it is averaged over all moments. In figure 6, only unsold VMs that became free after the
    /// beginning count; empty if the fleet has none of the size.
    pub share: Vec<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "a number of servers")]
fn mean(shares: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = shares.len().max(1) as f64;
    shares.sum::<f64>() / count
}

fn hours_within(span: Seconds) -> impl Iterator<Item = Seconds> {
    HOURS.into_iter().map(|hours| hours * 3600).filter(move |lasts| *lasts <= span)
}

/// Returns those durations of [`HOURS`] that are not longer than the simulated time of the fleet, in hours.
#[must_use]
pub fn hours(fleet: &Fleet) -> Vec<u32> {
    hours_within(fleet.settings.span()).map(|lasts| lasts / 3600).collect()
}

/// Computes figure 4 (BlockFlex, OSDI 2022): the share of servers that can spare each of [`SHARES`] of their
/// sold bandwidth for each duration.
#[must_use]
pub fn allocated(fleet: &Fleet) -> Vec<Available> {
    let span = fleet.settings.span();
    let servers = regular_servers(fleet);
    let line = |share: f64| {
        // A course is of single-precision numbers: the slack lets a level that is exactly this much be enough.
        let most = super::regular::single(1.0 - share) + 1e-6;
        let whiles: Vec<_> = servers.iter().map(|course| course.below(most, span)).collect();
        let share_for = |lasts| mean(whiles.iter().map(|whiles| share_of_starts(whiles, lasts, span)));
        let request = format!("{:.0}% of the bandwidth", share * 100.0);
        Available { request, share: hours_within(span).map(share_for).collect() }
    };
    SHARES.into_iter().map(line).collect()
}

/// Computes figure 5 (BlockFlex, OSDI 2022): the share of servers with each of [`GIGABYTES`] unsold for each
/// duration.
#[must_use]
pub fn unallocated(fleet: &Fleet) -> Vec<Available> {
    let span = fleet.settings.span();
    // Storage is either sold or unsold: `below` finds the spans in which little is sold.
    let total = super::regular::single(f64::from(fleet.server_gigabytes));
    let sold: Vec<_> = unsold_servers(fleet)
        .iter()
        .map(|unsold| {
            let mut sold = Course::constant(total);
            unsold.steps().iter().for_each(|(at, level)| sold.push(*at, total - level));
            sold
        })
        .collect();
    let line = |gigabytes: u32| {
        let most = total - super::regular::single(f64::from(gigabytes));
        let whiles: Vec<_> = sold.iter().map(|course| course.below(most, span)).collect();
        let share_for = |lasts| mean(whiles.iter().map(|whiles| share_of_starts(whiles, lasts, span)));
        Available { request: format!("{gigabytes} GB"), share: hours_within(span).map(share_for).collect() }
    };
    GIGABYTES.into_iter().map(line).collect()
}

/// Computes figure 6 (BlockFlex, OSDI 2022): the share of unsold VMs of each size in [`GIGABYTES`] that stay
/// unsold for each duration, counted from the moment at which they become free.
#[must_use]
pub fn lots(fleet: &Fleet) -> Vec<Available> {
    let span = fleet.settings.span();
    let line = |gigabytes: u32| {
        let of_size = fleet.lots.iter().filter(|lot| lot.gigabytes() == gigabytes);
        let lasted: Vec<_> = of_size.filter_map(super::fleet::Lot::lasted).collect();
        let share_for = |lasts| mean(lasted.iter().map(|lasted| f64::from(u8::from(*lasted >= lasts))));
        let share = hours_within(span).filter(|_| !lasted.is_empty()).map(share_for).collect();
        Available { request: format!("{gigabytes} GB"), share }
    };
    GIGABYTES.into_iter().map(line).collect()
}
