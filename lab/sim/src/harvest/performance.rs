//! The gain of harvest VMs and the loss of regular ones (BlockFlex, OSDI 2022, sections 5.3 to 5.5), in virtual time.
//!
//! The product's vSSDs and schedulers run on emulated flash: see `machine`. The flash is that of BlockFlex, but with
//! fewer blocks, so that disks fill quickly; channels, dies, pages and durations are the same. [`measure`] runs all
//! measurements.
//!
//! | module | content |
//! |---|---|
//! | `machine` | the event loop (read this first) |
//! | `load` | the work of VMs: fio, YCSB, a sort |
//! | `stage` | full and aged vSSDs |
//! | `tally` | the results of a VM |
//! | [`fio`] | a harvest disk against one that owns its channels |
//! | [`spread`] | read bandwidth over time after a harvest |
//! | [`regular`] | a regular VM whose channels are all harvested |
//! | [`reclaim`] | the time to erase a channel, and its cost |
//! | [`beside`] | a key-value store and a sort on the same channels |
//! | [`wear`] | erasures that harvesting causes |

pub mod beside;
pub mod fio;
mod load;
mod machine;
pub mod reclaim;
pub mod regular;
pub mod spread;
mod stage;
mod tally;
#[cfg(test)]
mod tests;
pub mod wear;

pub use tally::VmFigures;

use fio::Owner;
use headstart_block::Result;
use headstart_flash::scheduler::SchedulerSettings;
use reclaim::Meanwhile;
use serde::Serialize;
use std::time::Duration;

/// The results of all measurements of harvesting on emulated flash.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PerformanceReport {
    /// Bandwidth of request patterns as of the benchmark fio, on a disk with eight channels of its own, alone and with
    /// four more channels, by the owner of the four.
    pub fio: Vec<fio::Row>,
    /// Read bandwidth over time, before and after a disk harvests more channels.
    pub spread: Vec<spread::Course>,
    /// Performance of regular VMs whose channels are all harvested.
    pub regular: Vec<regular::Row>,
    /// Durations of reclaiming a channel, and the cost of each reclaim for the channel's owner. A quarter, half and all
    /// of the channel are written if the owner is idle, otherwise only a quarter.
    pub reclaim: Vec<reclaim::Row>,
    /// A key-value store beside a sort. The store's threads pause before each request for 1 ms, for 0.2 ms, and not at
    /// all.
    pub beside: Vec<beside::Pair>,
}

/// Runs all measurements. `step` is called before each run; an error that it returns ends the measurements. All random
/// numbers follow from `seed`: the same seed gives the same report.
///
/// # Errors
/// The errors of `step`; an error if a vSSD (virtual SSD) has no room, which would be a bug of the simulation.
pub fn measure(length: Length, seed: u64, mut step: impl FnMut() -> Result<()>) -> Result<PerformanceReport> {
    let mut report = PerformanceReport::default();
    for pattern in fio::patterns(length) {
        step()?;
        report.fio.extend(fio::measure(8, &[pattern], length, seed)?);
    }
    for writes in [25, 100] {
        for owner in [Owner::None, Owner::Unsold, Owner::Steady, Owner::Bursts] {
            step()?;
            report.spread.push(spread::measure(8, writes, owner, length, seed)?);
        }
    }
    for case in regular::cases(length) {
        step()?;
        report.regular.push(regular::measure(case, length, SchedulerSettings::default(), seed)?);
    }
    for meanwhile in Meanwhile::ALL {
        // Beside a VM at work, larger parts take too long.
        for part in [4, 2, 1].into_iter().filter(|part| meanwhile == Meanwhile::Idle || *part == 4) {
            step()?;
            report.reclaim.push(reclaim::measure(reclaim::CHANNEL / part, meanwhile, length, seed)?);
        }
    }
    for think in [1000, 200, 0] {
        step()?;
        report.beside.push(beside::measure(length, Duration::from_micros(think), seed)?);
    }
    Ok(report)
}

/// The length of runs and the number of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    /// Few cases of a few virtual seconds, for tests.
    Short,
    /// All cases, with longer runs.
    Full,
}

impl Length {
    /// The time for which a reclaim is watched.
    fn of_reclaim(self) -> Duration {
        if self == Self::Short { Duration::from_secs(20) } else { Duration::from_secs(120) }
    }

    /// Blocks of a die where collecting matters.
    fn blocks(self) -> u32 {
        if self == Self::Short { 64 } else { 128 }
    }

    /// The time for which a run warms up, and the time for which it is measured.
    pub(super) fn of_runs(self) -> (Duration, Duration) {
        match self {
            Self::Short => (Duration::from_millis(500), Duration::from_secs(1)),
            Self::Full => (Duration::from_secs(1), Duration::from_secs(10)),
        }
    }
}
