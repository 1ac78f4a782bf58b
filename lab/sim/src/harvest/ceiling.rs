//! The ceiling: an upper bound of the gain of any allocator, whatever it knows of the future.
//!
//! The rules are the product's. The capacity of a gSSD (the unit that is lent) is a multiple of the broker's grain of
//! capacity, and a gSSD lasts at least the grain of time. A home (lender) lends one gSSD at a time, to one harvest VM;
//! unsold storage lends as many as it has channels. A harvest VM uses no more than it really needs, and only while it
//! exists. The ceiling is the gain of an *oracle*, which has everything else for free: it knows the future use of every
//! VM; it cuts gSSDs again at every step, moves data between them in no time, and serves any part of any request. So at
//! each step it gains at most the lesser of
//!
//! * the storage that homes can lend: each the largest multiple of the grain that stays free through *some* while of
//!   the least length around that step, and
//! * the need of as many harvest VMs as gSSDs can be lent in that step: the VMs that need most.
//!
//! The sum over the steps is above the gain of the best allocator; how far above is not known (to find the best is a
//! packing problem). Below it are two that know the future and whose gain can be reached: the *clairvoyant*, the
//! product's broker with forecasts that come true (`foresight`), and a plan made of everything at once
//! ([`super::planner`]). The best allocator is between those and the ceiling.

use super::course::{STEP, Seconds};
use super::fleet::{Fleet, HarvestVm, RegularVm};
use super::foresight::GB_BLOCKS;
use headstart_block::{exact, saturating};
use headstart_broker::gssd::Grain;

/// The lower limits of a loan of storage (a gSSD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The granularity of a gSSD's capacity, in GB: its capacity is a multiple of this.
    pub gigabytes: u32,
    /// The shortest duration of a gSSD, in seconds.
    pub lasts: Seconds,
}

impl Rules {
    /// Converts the broker's granularity of loans, which has capacity in flash blocks, to GB and seconds.
    #[must_use]
    pub fn of(grain: &Grain) -> Self {
        let lasts = saturating(grain.lasts.as_secs());
        Self { gigabytes: grain.capacity / GB_BLOCKS, lasts }
    }
}

/// Storage that homes (lenders) can lend, and that harvest VMs (borrowers) need, by step of three minutes:
/// the upper bound of what any allocator can gain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ceiling {
    /// Storage that all homes together can lend in each step, in GB.
    pub supply: Vec<f64>,
    /// The number of gSSDs that can be lent together in each step: one for each regular VM with spare
    /// storage, or one for each channel of unsold storage.
    pub homes: Vec<usize>,
    /// Storage that all harvest VMs together would use in each step, in GB.
    pub demand: Vec<f64>,
    /// Storage that the harvest VMs with the largest use would use together in each step, in GB. The number of these
    /// VMs is that of [`Ceiling::homes`] for the step.
    pub largest: Vec<f64>,
}

impl Ceiling {
    /// Computes the ceiling for storage that regular VMs own and do not use.
    #[must_use]
    pub fn regular(fleet: &Fleet, rules: Rules) -> Self {
        let steps = (fleet.settings.span() / STEP) as usize;
        let (mut supply, mut homes) = (vec![0.0; steps], vec![0; steps]);
        for vm in &fleet.vms {
            let free = lendable(&free(vm, steps), rules);
            for ((sum, count), free) in supply.iter_mut().zip(&mut homes).zip(free) {
                *sum += f64::from(free);
                *count += usize::from(free > 0);
            }
        }
        Self::with(fleet, supply, homes)
    }

    /// Computes the ceiling for storage that is not sold.
    #[must_use]
    pub fn unsold(fleet: &Fleet, rules: Rules) -> Self {
        let steps = (fleet.settings.span() / STEP) as usize;
        let (mut supply, mut count) = (vec![0.0; steps], vec![0; steps]);
        for lot in fleet.lots.iter().filter(|lot| lot.until - lot.from >= rules.lasts) {
            let whole = lot.gigabytes() / rules.gigabytes.max(1) * rules.gigabytes;
            each_step(lot.from, lot.until, steps, |step, share| {
                if let (Some(sum), Some(count)) = (supply.get_mut(step), count.get_mut(step)) {
                    *sum += f64::from(whole) * share;
                    *count += usize::from(lot.channels);
                }
            });
        }
        Self::with(fleet, supply, count)
    }

    fn with(fleet: &Fleet, supply: Vec<f64>, homes: Vec<usize>) -> Self {
        let (demand, largest) = demand(fleet, &homes);
        Self { supply, homes, demand, largest }
    }

    /// Returns the upper bound of the gain of any allocator, in GB times seconds of harvested storage.
    #[must_use]
    pub fn gain(&self) -> f64 {
        let lesser = self.supply.iter().zip(&self.largest).map(|(supply, largest)| supply.min(*largest));
        lesser.sum::<f64>() * f64::from(STEP)
    }

    /// Returns the storage that harvest VMs would use if they got everything that they request, in GB times seconds.
    #[must_use]
    pub fn needed(&self) -> f64 {
        self.demand.iter().sum::<f64>() * f64::from(STEP)
    }
}

/// Calls `each` with every step that a while touches, and the share of the step.
fn each_step(from: Seconds, until: Seconds, steps: usize, mut each: impl FnMut(usize, f64)) {
    let last = (until.div_ceil(STEP) as usize).min(steps);
    for step in (from / STEP) as usize..last {
        let start =
            exact::<u32>(step, "steps are fewer than seconds, which have 32 bits").saturating_mul(STEP);
        let part = until.min(start + STEP).saturating_sub(from.max(start));
        each(step, f64::from(part) / f64::from(STEP));
    }
}

/// The GB that a VM leaves free in each step, at the least.
pub(super) fn free(vm: &RegularVm, steps: usize) -> Vec<u32> {
    let owned = f64::from(vm.gigabytes());
    let of = |step: usize| {
        let start =
            exact::<u32>(step, "steps are fewer than seconds, which have 32 bits").saturating_mul(STEP);
        super::regular::seconds(owned * (1.0 - f64::from(vm.capacity.over(start, start + STEP).max)))
    };
    (0..steps).map(of).collect()
}

/// For each step the most that is free through some while of the least length that contains the step: the greatest of
/// the least of a window, in whole grains.
fn lendable(free: &[u32], rules: Rules) -> Vec<u32> {
    let window = ((rules.lasts / STEP) as usize).clamp(1, free.len().max(1));
    let grain = rules.gigabytes.max(1);
    let whiles = sliding(free, window, |a, b| a <= b);
    // The step n is in the whiles that begin at n + 1 - window to n: pad, and take the greatest.
    let pad = std::iter::repeat_n(0, window - 1);
    let padded: Vec<_> = pad.clone().chain(whiles).chain(pad).collect();
    sliding(&padded, window, |a, b| a >= b).into_iter().map(|free| free / grain * grain).collect()
}

/// The best of each window of consecutive numbers: a queue of those that can still be it.
fn sliding(numbers: &[u32], window: usize, better: impl Fn(u32, u32) -> bool) -> Vec<u32> {
    let mut queue = std::collections::VecDeque::<(usize, u32)>::new();
    let mut best = Vec::with_capacity(numbers.len());
    for (at, number) in numbers.iter().copied().enumerate() {
        while queue.pop_back_if(|(_, last)| better(number, *last)).is_some() {}
        queue.push_back((at, number));
        while queue.pop_front_if(|(first, _)| *first + window <= at).is_some() {}
        if let (true, Some((_, first))) = (at + 1 >= window, queue.front()) {
            best.push(*first);
        }
    }
    best
}

/// The real use of harvest VMs in each step, in GB, if they get it: of all of them, and of those that use most, as many
/// as there are homes.
fn demand(fleet: &Fleet, homes: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let (mut all, mut largest) = (Vec::with_capacity(homes.len()), Vec::with_capacity(homes.len()));
    let mut coming = fleet.requests.iter().peekable();
    let mut here = Vec::new();
    for (step, homes) in (0..).zip(homes) {
        let (start, end) = (step * STEP, (step + 1) * STEP);
        here.retain(|(request, _): &(&HarvestVm, _)| request.at.saturating_add(request.lasts) > start);
        while let Some(request) = coming.next_if(|request| request.at < end) {
            here.push((request, request.demand().capacity));
        }
        let need = |(request, uses): &(&HarvestVm, super::course::Course)| {
            let until = request.at.saturating_add(request.lasts).min(end);
            let from = start.max(request.at);
            let share = f64::from(until.saturating_sub(from)) / f64::from(STEP);
            let mean = uses.over(from - request.at, until.saturating_sub(request.at)).mean;
            f64::from(mean) * f64::from(request.gigabytes) * share
        };
        let mut needs: Vec<f64> = here.iter().map(need).collect();
        all.push(needs.iter().sum());
        if *homes < needs.len() {
            needs.select_nth_unstable_by(*homes, |a, b| b.total_cmp(a));
            needs.truncate(*homes);
        }
        largest.push(needs.iter().sum());
    }
    (all, largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a search of all whiles.
        #[test]
        fn lendable_is_the_best_while(free in vec(0_u32..100, 1..40), window in 1_u32..6) {
            let rules = Rules { gigabytes: 16, lasts: window * STEP };
            let window = (window as usize).min(free.len());
            for (at, is) in lendable(&free, rules).into_iter().enumerate() {
                let starts = (at + 1).saturating_sub(window)..=at.min(free.len() - window);
                let least = |start: usize| free[start..start + window].iter().copied().min().unwrap();
                let best = starts.map(least).max().unwrap();
                prop_assert_eq!(is, best / 16 * 16);
            }
        }
    }

    #[test]
    fn a_while_has_shares_of_its_first_and_last_step() {
        let mut seen = Vec::new();
        each_step(90, 400, 9, |step, share| seen.push((step, share)));
        assert_eq!(seen, [(0, 0.5), (1, 1.0), (2, 40.0 / 180.0)]);
    }
}
