//! The shares of a fleet that are used and sold (BlockFlex, OSDI 2022, section 2.1, figures 1 to 3).

use super::course::Course;
use super::fleet::{Fleet, Lot, RegularVm};
use headstart_block::saturating;
use std::collections::BTreeMap;

/// A distribution: numbers in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OrderedNumbers(Vec<f64>);

impl FromIterator<f64> for OrderedNumbers {
    fn from_iter<I: IntoIterator<Item = f64>>(numbers: I) -> Self {
        let mut all: Vec<_> = numbers.into_iter().collect();
        all.sort_by(f64::total_cmp);
        Self(all)
    }
}

impl OrderedNumbers {
    /// The numbers in ascending order.
    #[must_use]
    pub fn numbers(&self) -> &[f64] {
        &self.0
    }

    /// Returns the mean of the numbers; 0 if there are none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number of numbers")]
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Returns a quantile of the numbers: the one at the place `share` (0 for the least number, 0.5 for the median, 1
    /// for the greatest; a share beyond that range counts as its nearer end). 0 if there are no numbers.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place among them"
    )]
    pub fn quantile(&self, share: f64) -> f64 {
        let place = (self.0.len() as f64 * share.clamp(0.0, 1.0)) as usize;
        self.0.get(place.min(self.0.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    /// Returns the greatest number; 0 if there are none.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.quantile(1.0)
    }

    /// Returns the share of the numbers, 0 to 1, that are at least `least`; 0 if there are no numbers.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number of numbers")]
    pub fn at_least(&self, least: f64) -> f64 {
        let count = self.0.len() - self.0.partition_point(|number| *number < least);
        count as f64 / self.0.len().max(1) as f64
    }

    /// Returns the mean of the numbers between two quantiles, `from` and `to` (0 to 1); 0 if there are no numbers
    /// between them, or `from` is above `to`.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "places among them"
    )]
    pub fn mean_between(&self, from: f64, to: f64) -> f64 {
        let place = |share: f64| ((self.0.len() as f64 * share) as usize).min(self.0.len());
        self.0.get(place(from)..place(to)).unwrap_or_default().iter().copied().collect::<Self>().mean()
    }

    /// Returns the cumulative distribution for a chart: a pair for each percentile from 0 to 100 (101 pairs), of the
    /// number at that percentile and the share of numbers below it (0 to 1).
    #[must_use]
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let shares = (0..=100).map(|percent| f64::from(percent) / 100.0);
        shares.map(|share| (self.quantile(share), share)).collect()
    }
}

/// Used and unsold shares of storage in a fleet, 0 to 1: the data of figures 1 to 3 (BlockFlex, OSDI 2022).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DemandStatistics {
    /// Mean used share of bandwidth of each regular VM (figure 1a of BlockFlex, OSDI 2022).
    pub vm_bandwidth: OrderedNumbers,
    /// Mean used share of the sold bandwidth of each server with regular VMs (figure 1b of BlockFlex, OSDI
    /// 2022).
    pub server_bandwidth: OrderedNumbers,
    /// Mean used share of capacity of each regular VM (figure 2 of BlockFlex, OSDI 2022).
    pub vm_capacity: OrderedNumbers,
    /// Greatest used share of capacity over time of each regular VM.
    pub vm_capacity_max: OrderedNumbers,
    /// Greatest used share of bandwidth over time of each regular VM.
    pub vm_bandwidth_max: OrderedNumbers,
    /// Mean unsold share of capacity of each server with unsold storage (figure 3 of BlockFlex, OSDI 2022).
    pub unsold: OrderedNumbers,
}

impl DemandStatistics {
    /// Computes the statistics of a fleet over its whole simulated time.
    #[must_use]
    pub fn of(fleet: &Fleet) -> Self {
        let span = fleet.settings.span();
        let each = |of: &dyn Fn(&RegularVm) -> f32| fleet.vms.iter().map(|vm| f64::from(of(vm))).collect();
        let servers = regular_servers(fleet);
        let server_gigabytes = f64::from(fleet.server_gigabytes);
        Self {
            vm_bandwidth: each(&|vm| vm.bandwidth.over(0, span).mean),
            server_bandwidth: servers.iter().map(|course| f64::from(course.over(0, span).mean)).collect(),
            vm_capacity: each(&|vm| vm.capacity.over(0, span).mean),
            vm_capacity_max: each(&|vm| vm.capacity.over(0, span).max),
            vm_bandwidth_max: each(&|vm| vm.bandwidth.over(0, span).max),
            unsold: unsold_servers(fleet)
                .iter()
                .map(|course| f64::from(course.over(0, span).mean) / server_gigabytes)
                .collect(),
        }
    }
}

/// The share of sold bandwidth that is used on each server with regular VMs.
pub(super) fn regular_servers(fleet: &Fleet) -> Vec<Course> {
    let mut by_server: BTreeMap<u32, Vec<&RegularVm>> = BTreeMap::new();
    fleet.vms.iter().for_each(|vm| by_server.entry(vm.server).or_default().push(vm));
    let sum = |vms: &Vec<&RegularVm>| {
        let all: f32 = vms.iter().map(|vm| f32::from(vm.channels)).sum();
        Course::sum(vms.iter().map(|vm| (&vm.bandwidth, f32::from(vm.channels) / all)))
    };
    by_server.values().map(sum).collect()
}

/// The GB that are unsold on each server.
pub(super) fn unsold_servers(fleet: &Fleet) -> Vec<Course> {
    let mut by_server: Vec<Vec<&Lot>> = vec![Vec::new(); fleet.settings.servers];
    for lot in &fleet.lots {
        if let Some(list) = by_server.get_mut(lot.server as usize) {
            list.push(lot);
        }
    }
    let of = |lots: &Vec<&Lot>| {
        let mut changes: Vec<(u32, i64)> = Vec::new();
        for lot in lots {
            changes.push((lot.from, i64::from(lot.gigabytes())));
            changes.push((lot.until, -i64::from(lot.gigabytes())));
        }
        changes.sort_unstable();
        let (mut course, mut level) = (Course::constant(0.0), 0);
        for (at, change) in changes {
            level += change;
            course.push(at, f32::from(saturating::<u16>(level)));
        }
        course
    };
    by_server.iter().map(of).collect()
}
