//! Read bandwidth of a disk over time, before and after the disk harvests channels (BlockFlex, OSDI 2022, figure 19).
//! At first all data is on the disk's own channels. Pages that are written after the harvest are spread over all
//! channels, and so are later reads of them.

use super::fio::{self, Owner};
use super::load::Job;
use super::machine::{Machine, Vm};
use super::{Length, stage};
use headstart_block::Result;
use headstart_flash::scheduler::SchedulerSettings;
use serde::Serialize;
use std::time::Duration;

/// Read bandwidth of one job over time, before and after its disk harvests more channels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Course {
    /// The number of requests of 1 MiB that the job writes for each hundred that it reads.
    pub writes: u64,
    /// The owner of the harvested channels.
    pub owner: Owner,
    /// Read bandwidth in each second: pairs of the middle of the second, counted from the start of the job in seconds,
    /// and the bandwidth in MB/s (10^6 bytes).
    pub read: Vec<(f64, f64)>,
    /// Seconds from the start of the job to the harvest of half as many channels more; with [`Owner::None`]
    /// no channels are added.
    pub harvested: f64,
}

impl Course {
    /// Returns the mean read bandwidth, in MB/s, from second `from` to second `to`, both counted from the harvest; 0 if
    /// no second between them was measured.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
    pub fn mean(&self, from: f64, to: f64) -> f64 {
        let within = self.read.iter().filter(|(at, _)| (from..to).contains(&(at - self.harvested)));
        let rates: Vec<f64> = within.map(|(_, rate)| *rate).collect();
        rates.iter().sum::<f64>() / rates.len().max(1) as f64
    }
}

/// Measures the read bandwidth, second by second, of a job on a disk with `home` channels of its own. The job reads its
/// data over and over in requests of 1 MiB, and makes `writes` write requests of that length for each hundred reads.
/// After some seconds the disk harvests `home / 2` more channels from `owner`; with [`Owner::None`] it gets none. The
/// disk is measured for 2 virtual seconds before the harvest and 4 after it ([`Length::Short`]), or for 10 and 120.
/// `seed` draws the requests of the regular VM that owns the harvested channels; without such a VM it has no effect.
///
/// # Errors
/// An error if a vSSD (virtual SSD) has no room, which would be a bug of the simulation.
pub fn measure(home: u16, writes: u64, owner: Owner, length: Length, seed: u64) -> Result<Course> {
    let (before, after) = if length == Length::Short { (2, 4) } else { (10, 120) };
    let more = home / 2;
    let geometry = stage::flash(home + more, length.blocks());
    let mut machine = Machine::new(geometry, SchedulerSettings::default());
    let blocks = stage::blocks(&geometry, 0..home);
    let mut disk = stage::vssd(&geometry, &blocks, stage::size(&geometry, blocks.len(), 0.8))?;
    stage::fill(&mut disk)?;
    let job = Job::new(0..disk.size(), writes, 16);
    let disk = machine.add(Vm::new(disk, false, usize::from(home + more), Box::new(job)), 0..home);
    let (harvested, regular) = fio::harvested(&geometry, home..home + more, owner, seed)?;
    let regular = regular.map(|vm| machine.add(vm, home..home + more));
    regular.into_iter().chain([disk]).for_each(|vm| machine.start(vm));
    machine.run(Duration::from_secs(before))?;
    if !harvested.is_empty() {
        machine.attach(disk, &harvested)?;
    }
    machine.run(Duration::from_secs(before + after))?;
    let read = machine.vms[disk].tally.course(machine.now(), Duration::from_secs(1), false);
    #[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
    let harvested = before as f64;
    Ok(Course { writes, owner, read, harvested })
}
