//! A key-value store's mixed load as the regular VM, beside a sort as the harvest VM: the pair of
//! loads in section 5.1 of BlockFlex (OSDI 2022).

use super::load::{RECORD, Sort, Ycsb};
use super::machine::{Machine, Vm};
use super::tally::VmFigures;
use super::wear::{self, Wear};
use super::{Length, stage};
use headstart_block::Result;
use headstart_flash::scheduler::SchedulerSettings;
use serde::Serialize;
use std::time::Duration;

/// Results of a key-value store (the regular VM) and a sort (the harvest VM), each with and without
/// harvesting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The store without harvesting: YCSB's workload A in ten threads on four channels.
    pub store: VmFigures,
    /// The store with harvesting: the sort uses half of the blocks of the store's four channels.
    pub store_with: VmFigures,
    /// The sort without harvesting, on four channels of its own.
    pub sort: VmFigures,
    /// The sort with harvesting, on its own four channels and the four of the store.
    pub sort_with: VmFigures,
    /// Flash wear that the lease had caused at its end.
    pub wear: Wear,
}

impl Pair {
    /// Returns the share of the store's throughput that harvesting costs, up to 1; negative if the store is faster with
    /// harvesting.
    #[must_use]
    pub fn loss(&self) -> f64 {
        1.0 - self.store_with.rate / self.store.rate.max(1e-9)
    }

    /// Returns the ratio of the sort's bandwidth with harvesting to its bandwidth without harvesting.
    #[must_use]
    pub fn gain(&self) -> f64 {
        self.sort_with.bandwidth() / self.sort.bandwidth().max(1e-9)
    }
}

/// Runs store and sort, with and without harvesting, for two virtual minutes (two seconds if `length` is short) after a
/// warm-up. `think` is the mean pause of a thread of the store before each request. The requests of the store are drawn
/// with `seed`.
///
/// # Errors
/// An error if a vSSD (virtual SSD) has no room, which would be a bug of the simulation.
pub fn measure(length: Length, think: Duration, seed: u64) -> Result<Pair> {
    let (store, sort, _) = run(false, length, think, seed)?;
    let (store_with, sort_with, wear) = run(true, length, think, seed)?;
    Ok(Pair { store, store_with, sort, sort_with, wear })
}

/// Channels of each.
const CHANNELS: u16 = 4;

fn run(harvest: bool, length: Length, think: Duration, seed: u64) -> Result<(VmFigures, VmFigures, Wear)> {
    let geometry = stage::flash(2 * CHANNELS, length.blocks());
    let mut machine = Machine::new(geometry, SchedulerSettings::default());
    let all = stage::blocks(&geometry, 0..CHANNELS);
    let mut store = stage::vssd(&geometry, &all, stage::size(&geometry, all.len(), 0.25))?;
    stage::fill(&mut store)?;
    let lent = stage::lend(&mut store, &geometry, 0.5)?;
    let load = Ycsb::new(store.size() / u64::from(RECORD), 10, think, seed);
    let store = machine.add(Vm::new(store, true, usize::from(CHANNELS), Box::new(load)), 0..CHANNELS);
    let own = stage::blocks(&geometry, CHANNELS..2 * CHANNELS);
    let mut sort = stage::vssd(&geometry, &own, stage::size(&geometry, own.len(), 0.8))?;
    if harvest {
        sort.add_slot(1, &lent)?;
        super::fio::foresee(&mut sort, &(0..CHANNELS));
    }
    stage::fill(&mut sort)?;
    let load = Sort::new(0..sort.size(), 16);
    let channels = usize::from(2 * CHANNELS);
    let sort = machine.add(Vm::new(sort, false, channels, Box::new(load)), CHANNELS..2 * CHANNELS);
    [store, sort].into_iter().for_each(|vm| machine.start(vm));
    let (warm, measured) = length.of_runs();
    let minutes = if length == Length::Short { measured * 2 } else { Duration::from_secs(120) };
    machine.run(warm)?;
    machine.vms.iter_mut().for_each(|vm| vm.tally.clear(warm));
    machine.run(warm + minutes)?;
    let of = |vm: usize| machine.vms[vm].tally.figures(machine.now());
    let written = lent.iter().filter(|(block, _)| machine.vms[sort].written.contains(block)).count();
    let own = lent.iter().map(|(block, _)| u64::from(machine.wear_of(*block))).sum();
    Ok((of(store), of(sort), wear::of_lease(lent.len() as u64, written as u64, own)))
}
