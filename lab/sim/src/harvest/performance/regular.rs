//! A regular VM whose channels are all harvested (BlockFlex, OSDI 2022, section 5.4, figure 20).

use super::load::{RECORD, Sort, Ycsb};
use super::machine::{Machine, Vm};
use super::tally::VmFigures;
use super::{Length, stage};
use headstart_block::Result;
use headstart_flash::device::timing::Speeds;
use headstart_flash::scheduler::SchedulerSettings;
use serde::Serialize;
use std::time::Duration;

/// A regular VM that lends storage. It runs YCSB's workload A in ten threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Case {
    /// The number of flash channels that the VM owns.
    pub channels: u16,
    /// Mean pause of a thread before each request.
    pub think: Duration,
    /// Used share of the blocks that the VM did not lend, 0 to 0.9.
    pub full: f64,
    /// `true` if all pages of the VM were overwritten before, which keeps its garbage collection busy.
    pub aged: bool,
}

/// Performance of a regular VM with and without harvesting, and of the harvest VM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The regular VM's channels, load and state.
    pub case: Case,
    /// Performance of the regular VM without harvesting.
    pub without: VmFigures,
    /// Performance of the regular VM while a sort uses half of the blocks of all its channels as fast as it
    /// can.
    pub with: VmFigures,
    /// Performance of the sort, which is the harvest VM.
    pub harvest: VmFigures,
    /// Shares of the time of the VM's threads that were spent waiting for the harvest VM, by the estimate of
    /// the channel schedulers: first for its reads and programs, then for erasures.
    pub reckoned: [f64; 2],
}

impl Row {
    /// Returns the share of its throughput that the regular VM lost, up to 1; negative if it is faster with
    /// harvesting.
    #[must_use]
    pub fn loss(&self) -> f64 {
        1.0 - self.with.rate / self.without.rate.max(1e-9)
    }

    /// Returns `true` if the regular VM keeps its performance: its throughput falls by at most 5%, and the 95th
    /// percentile of its latency rises by at most 5% or by the duration of programming one page, whichever is more.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        let program = Speeds::default().program.as_secs_f64() * 1e3;
        self.loss() <= 0.05 && self.with.p95 <= (self.without.p95 * 1.05).max(self.without.p95 + program)
    }
}

/// Returns the regular VMs that a run of this length measures.
#[must_use]
pub fn cases(length: Length) -> Vec<Case> {
    let think = Duration::from_micros(200);
    let (channels, ages): (&[u16], &[bool]) = match length {
        Length::Short => (&[4], &[false]),
        Length::Full => (&[2, 4, 6, 8, 10], &[false, true]),
    };
    let mut list = Vec::new();
    for &aged in ages {
        for think in [think, Duration::ZERO] {
            let case = |&channels| Case { channels, think, full: if aged { 0.8 } else { 0.4 }, aged };
            list.extend(channels.iter().map(case));
        }
    }
    list
}

/// Measures one regular VM with and without harvesting, each for 10 virtual seconds (one if `length` is short) after a
/// warm-up. `settings` are those of the channels' schedulers. `seed` draws the requests of the VM.
///
/// # Errors
/// An error if a vSSD (virtual SSD) has no room, which would be a bug of the simulation.
pub fn measure(case: Case, length: Length, settings: SchedulerSettings, seed: u64) -> Result<Row> {
    let (without, _, _) = run(case, false, length, settings, seed)?;
    let (with, harvest, reckoned) = run(case, true, length, settings, seed)?;
    Ok(Row { case, without, with, harvest, reckoned })
}

/// Threads of the regular VM.
const THREADS: usize = 10;

fn run(
    case: Case,
    harvest: bool,
    length: Length,
    settings: SchedulerSettings,
    seed: u64,
) -> Result<(VmFigures, VmFigures, [f64; 2])> {
    let geometry = stage::flash(case.channels, if case.aged { length.blocks() } else { stage::FEW });
    let mut machine = Machine::new(geometry, settings);
    let all = stage::blocks(&geometry, 0..case.channels);
    let mut vssd = stage::vssd(&geometry, &all, stage::size(&geometry, all.len(), case.full / 2.0))?;
    stage::fill(&mut vssd)?;
    let lent = stage::lend(&mut vssd, &geometry, 0.5)?;
    if case.aged {
        stage::age(&mut vssd, 1.5, seed)?;
    }
    let channels = usize::from(case.channels);
    let load = Ycsb::new(vssd.size() / u64::from(RECORD), THREADS, case.think, seed);
    let regular = machine.add(Vm::new(vssd, true, channels, Box::new(load)), 0..case.channels);
    machine.start(regular);
    let mut borrower = stage::vssd(&geometry, &lent, stage::size(&geometry, lent.len(), 0.8))?;
    stage::fill(&mut borrower)?;
    let sort = Sort::new(0..borrower.size(), 16);
    let borrower = machine.add(Vm::new(borrower, false, channels, Box::new(sort)), 0..0);
    if harvest {
        machine.start(borrower);
    }
    let (warm, measured) = length.of_runs();
    machine.run(warm)?;
    machine.vms.iter_mut().for_each(|vm| vm.tally.clear(warm));
    let before = machine.spent(regular);
    machine.run(warm + measured)?;
    let spent = machine.spent(regular);
    let threads = measured.as_secs_f64() * 10.0;
    let reckoned = [0, 1].map(|kind| (spent[kind] - before[kind]).as_secs_f64() / threads);
    let of = |vm: usize| machine.vms[vm].tally.figures(machine.now());
    Ok((of(regular), of(borrower), reckoned))
}
