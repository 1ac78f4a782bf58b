//! The planner: an allocator that knows the future, and its gain. Unlike the ceiling, this gain can be reached: it is
//! the gain of a plan, which assigns storage to each harvest VM for each time.
//!
//! The rules are the product's: a gSSD (a loan of storage) is a multiple of the broker's grain of capacity; each home
//! (lender) lends one gSSD at a time, to one harvest VM, and only while the home does not use that storage itself. But
//! the planner knows the use of every VM and every request before the first one comes; no home ever needs storage back
//! early, and no margin is kept back. The planner ignores bandwidth, gives a harvest VM the most that the VM will
//! really use instead of its request, and moves the VM to other storage in no time.
//!
//! To find the best plan is a packing problem. This planner is greedy: it takes the requests one by one, and assigns to
//! each the home that fits best, or several homes if less is left over then. If a request finds no place for all of its
//! time, and that time is six hours or longer, it is split in halves, and the planner looks for a place for each half
//! in the same way. The planner does that with several orders of the requests, and the best plan counts.

use super::ceiling::{Rules, free};
use super::course::{Course, STEP};
use super::fleet::{Fleet, HarvestVm};
use headstart_block::{exact, saturating};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The shortest stay at one place that is split, in steps: six hours.
const SHORTEST: usize = 120;

/// The order in which requests are given a place.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// The order of arrival.
    Time,
    /// Those that need most first.
    Size,
    /// Those that need most for longest first.
    Gain,
}

/// Returns the gain of a planner that knows the future, on storage that regular VMs do not use, in GB times
/// seconds. The planner makes several plans, and the best one counts.
#[must_use]
pub fn planned(fleet: &Fleet, rules: Rules) -> f64 {
    let steps = (fleet.settings.span() / STEP) as usize;
    let homes: Vec<Tree> = fleet.vms.iter().map(|vm| Tree::new(&free(vm, steps), rules.gigabytes)).collect();
    let uses: Vec<Course> = fleet.requests.iter().map(|request| request.demand().capacity).collect();
    let plan = |order| {
        let busy = vec![BTreeMap::new(); homes.len()];
        Plan { homes: &homes, busy, requests: &fleet.requests, uses: &uses, rules }.place_all(order, steps)
    };
    [Order::Time, Order::Size, Order::Gain].map(plan).into_iter().fold(0.0, f64::max)
}

/// A part of a harvest VM's time, in steps.
#[derive(Clone, Copy, Debug)]
struct Stay {
    request: usize,
    from: usize,
    until: usize,
}

struct Plan<'a> {
    homes: &'a [Tree],
    /// The spans in which each home lends: ends by beginnings.
    busy: Vec<BTreeMap<usize, usize>>,
    requests: &'a [HarvestVm],
    /// The share of each request that is really used.
    uses: &'a [Course],
    rules: Rules,
}

impl Plan<'_> {
    fn place_all(mut self, order: Order, steps: usize) -> f64 {
        let stay = |(request, it): (usize, &HarvestVm)| {
            let from = (it.at / STEP) as usize;
            Stay { request, from, until: (from + (it.lasts / STEP) as usize).min(steps) }
        };
        let mut stays: Vec<Stay> = self.requests.iter().enumerate().map(stay).collect();
        match order {
            Order::Time => {}
            Order::Size => stays.sort_by_key(|stay| Reverse(self.needs(stay).0)),
            Order::Gain => {
                stays.sort_by_key(|stay| Reverse(u64::from(self.needs(stay).0) * stay.steps() as u64));
            }
        }
        let mut gain = 0.0;
        while !stays.is_empty() {
            let mut halves = Vec::new();
            for stay in stays {
                let (grains, gains) = self.needs(&stay);
                let middle = usize::midpoint(stay.from, stay.until);
                if self.place(&stay, grains) {
                    gain += gains;
                } else if stay.steps() >= SHORTEST {
                    halves.extend([Stay { until: middle, ..stay }, Stay { from: middle, ..stay }]);
                }
            }
            stays = halves;
        }
        gain
    }

    /// The most grains that a stay needs, and the GB times seconds.
    fn needs(&self, stay: &Stay) -> (u32, f64) {
        let (Some(request), Some(uses)) = (self.requests.get(stay.request), self.uses.get(stay.request))
        else {
            return (0, 0.0);
        };
        let since = |step: usize| seconds(step).saturating_sub(request.at / STEP * STEP);
        let used = uses.over(since(stay.from), since(stay.until));
        let gigabytes = f64::from(request.gigabytes);
        let grains = gigabytes * f64::from(used.max) / f64::from(self.rules.gigabytes.max(1));
        let long = f64::from(since(stay.until) - since(stay.from));
        (super::regular::seconds(grains.ceil()), gigabytes * f64::from(used.mean) * long)
    }

    /// Gives a stay a place for all of its time, if there is one.
    fn place(&mut self, stay: &Stay, grains: u32) -> bool {
        let idle = |busy: &BTreeMap<usize, usize>| {
            busy.range(..stay.until).next_back().is_none_or(|(_, until)| *until <= stay.from)
        };
        let homes = self.homes.iter().zip(&self.busy).enumerate();
        let spare = homes.filter(|(_, (_, busy))| idle(busy)).filter_map(|(home, (tree, _))| {
            let least = tree.least(stay.from, stay.until);
            (least > 0).then_some((u32::from(least), home))
        });
        let Some(chosen) = choose(spare.collect(), grains) else { return false };
        for home in chosen {
            if let Some(busy) = self.busy.get_mut(home) {
                busy.insert(stay.from, stay.until);
            }
        }
        true
    }
}

impl Stay {
    fn steps(&self) -> usize {
        self.until.saturating_sub(self.from)
    }
}

fn seconds(step: usize) -> u32 {
    exact::<u32>(step, "steps are fewer than seconds, which have 32 bits").saturating_mul(STEP)
}

/// Chooses from homes by the capacity that they can spare: those that leave least over of `grains` grains. It takes the
/// largest that are not enough from the top down, and as the last one the home that fits best.
fn choose(mut spare: Vec<(u32, usize)>, grains: u32) -> Option<Vec<usize>> {
    spare.sort_unstable();
    let (mut left, mut taken) = (grains, Vec::new());
    let mut best: Option<(u32, Vec<usize>)> = None;
    loop {
        let at = spare.partition_point(|(size, _)| *size < left);
        if let Some((size, home)) = spare.get(at) {
            let over = size - left;
            if best.as_ref().is_none_or(|(least, _)| over < *least) {
                best = Some((over, taken.iter().copied().chain([*home]).collect()));
            }
            if over == 0 {
                break;
            }
        }
        let Some(below) = at.checked_sub(1) else { break };
        let (size, home) = spare.remove(below);
        left -= size;
        taken.push(home);
    }
    best.map(|(_, homes)| homes)
}

/// The grains that a home leaves free, and the least of any while: a tree of minima.
struct Tree {
    leaves: usize,
    /// From 1 on: the least of the nodes below. A leaf is at `leaves` plus its step.
    least: Vec<u16>,
}

impl Tree {
    fn new(free: &[u32], grain: u32) -> Self {
        let leaves = free.len();
        let mut least = vec![0; leaves * 2];
        for (leaf, free) in least.iter_mut().skip(leaves).zip(free) {
            *leaf = saturating(free / grain.max(1));
        }
        for at in (1..leaves).rev() {
            least[at] = least[at * 2].min(least[at * 2 + 1]);
        }
        Self { leaves, least }
    }

    /// The least of the steps in `[from, until)`; 0 if there are none.
    fn least(&self, from: usize, until: usize) -> u16 {
        let (mut from, mut until) = (from + self.leaves, until.min(self.leaves) + self.leaves);
        let mut least = u16::MAX;
        while from < until {
            if from % 2 == 1 {
                least = least.min(self.least[from]);
                from += 1;
            }
            if until % 2 == 1 {
                until -= 1;
                least = least.min(self.least[until]);
            }
            (from, until) = (from / 2, until / 2);
        }
        if least == u16::MAX { 0 } else { least }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fleet::{DAY, FleetSettings, RegularVm};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_tree_knows_all_whiles(free in vec(0_u32..900, 1..50), from in 0_usize..50, long in 0_usize..50) {
            let until = (from + long).min(free.len());
            let expected = free.get(from..until).and_then(|part| part.iter().min()).map_or(0, |it| it / 16);
            prop_assert_eq!(u32::from(Tree::new(&free, 16).least(from, until)), expected);
        }

        /// The chosen homes are enough, none is chosen twice, and the sum is no more than the one that fits best by
        /// itself.
        #[test]
        fn little_is_left_over(sizes in vec(1_u32..33, 0..12), grains in 1_u32..33) {
            let spare: Vec<_> = sizes.iter().copied().zip(0..).collect();
            let alone = sizes.iter().copied().filter(|size| *size >= grains).min();
            match choose(spare, grains) {
                None => prop_assert!(sizes.iter().sum::<u32>() < grains),
                Some(mut homes) => {
                    let sum: u32 = homes.iter().map(|home| sizes[*home]).sum();
                    prop_assert!(sum >= grains && alone.is_none_or(|alone| sum <= alone));
                    homes.sort_unstable();
                    prop_assert!(homes.windows(2).all(|two| two[0] < two[1]));
                }
            }
        }
    }

    #[test]
    fn a_plan_gains_what_fits() {
        let mut fleet = Fleet::generate(&FleetSettings { history: 0, ..FleetSettings::part(1, 4) });
        // 128 GB, half of it free, except on the third day.
        let mut capacity = Course::constant(0.5);
        capacity.push(2 * DAY, 1.0);
        capacity.push(3 * DAY, 0.5);
        let bandwidth = Course::constant(0.0);
        fleet.vms = vec![RegularVm { server: 0, channels: 2, bandwidth, capacity }];
        let request = |at, lasts, gigabytes| HarvestVm { at, lasts, gigabytes, channels: 1, seed: 1 };
        let rules = Rules { gigabytes: 16, lasts: 1800 };
        let share = request(0, 2 * DAY, 64).demand().capacity.over(0, 2 * DAY).mean;
        let near = |fleet: &Fleet, expected: f64| {
            let is = planned(fleet, rules);
            assert!((is - expected).abs() < 0.01 * expected + 1.0, "{is} {expected}");
        };
        fleet.requests = vec![request(0, 2 * DAY, 64)];
        near(&fleet, f64::from(2 * DAY) * 64.0 * f64::from(share));
        // One home lends to one: the smaller has to stay away.
        fleet.requests.push(request(0, 2 * DAY, 32));
        near(&fleet, f64::from(2 * DAY) * 64.0 * f64::from(share));
        // A request that cannot stay for all of its time gets the part that there is.
        fleet.requests = vec![request(0, 4 * DAY, 64)];
        let used = fleet.requests[0].demand().capacity;
        let sum = |from, until| f64::from(used.over(from, until).mean) * f64::from(until - from);
        near(&fleet, 64.0 * (sum(0, 2 * DAY) + sum(3 * DAY, 4 * DAY)));
    }
}
