//! A disk that harvests half as many channels as it owns, measured with request patterns as of the benchmark fio. The
//! disk is compared with a disk that owns all these channels, and with one that harvests nothing (BlockFlex, OSDI 2022,
//! section 5.3, figure 18).

use super::load::{Fio, Paced};
use super::machine::{Machine, Vm};
use super::tally::VmFigures;
use super::{Length, stage};
use headstart_block::{Result, exact};
use headstart_flash::device::Geometry;
use headstart_flash::scheduler::SchedulerSettings;
use headstart_flash::vssd::Vssd;
use serde::Serialize;
use std::time::Duration;

/// The owner of the channels that the disk harvests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// No owner: nothing is harvested, and the disk owns all its channels.
    None,
    /// No owner: the channels are harvested from unsold storage.
    Unsold,
    /// A regular VM that uses half of the bandwidth of the harvested channels steadily.
    Steady,
    /// A regular VM that uses all of the bandwidth of the harvested channels half of the time.
    Bursts,
}

/// A pattern of requests, as the benchmark fio names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pattern {
    /// `true` if the requests are writes, `false` if reads.
    pub write: bool,
    /// `true` for random offsets, `false` for sequential ones.
    pub random: bool,
    /// Length of a request, in bytes.
    pub block: u32,
    /// Queue depth: the number of requests in flight.
    pub depth: usize,
}

impl Pattern {
    /// Returns fio's name of the pattern with block size and depth, such as `randread 4k x32`.
    #[must_use]
    pub fn name(&self) -> String {
        let kind = match (self.random, self.write) {
            (false, false) => "read",
            (false, true) => "write",
            (true, false) => "randread",
            (true, true) => "randwrite",
        };
        let size = if self.block < 1 << 20 {
            format!("{}k", self.block >> 10)
        } else {
            format!("{}M", self.block >> 20)
        };
        format!("{kind} {size} x{}", self.depth)
    }
}

/// Bandwidth of one pattern, in MB/s (10^6 bytes), by the channels that the disk has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The pattern of requests.
    pub pattern: Pattern,
    /// MB/s on the disk's own channels only, without harvesting.
    pub home: f64,
    /// MB/s with half as many channels more, which the disk owns.
    pub owned: f64,
    /// MB/s with half as many channels more, harvested from unsold storage.
    pub unsold: f64,
    /// MB/s with half as many channels more, harvested from a regular VM that uses half of their bandwidth
    /// steadily.
    pub steady: f64,
    /// MB/s with half as many channels more, harvested from a regular VM that uses all of their bandwidth
    /// half of the time.
    pub bursts: f64,
}

/// Returns the patterns that a run of this length measures: reads and writes, sequential and random, of
/// several sizes and depths.
#[must_use]
pub fn patterns(length: Length) -> Vec<Pattern> {
    let (blocks, depths): (&[u32], &[usize]) = match length {
        Length::Short => (&[4 << 10, 1 << 20], &[32]),
        Length::Full => (&[4 << 10, 128 << 10, 1 << 20], &[1, 4, 32]),
    };
    let mut list = Vec::new();
    for (write, random) in [(false, false), (false, true), (true, false), (true, true)] {
        for &block in blocks {
            list.extend(depths.iter().map(|&depth| Pattern { write, random, block, depth }));
        }
    }
    list
}

/// Measures each pattern on a disk with `home` channels of its own, alone and with half as many more, once for each
/// owner of the additional channels. Each measurement takes 1 virtual second, or 10 if `length` is full, after a
/// warm-up. `seed` draws random offsets and the requests of regular VMs. Returns one row for each pattern, in the same
/// order.
///
/// # Errors
/// An error if a vSSD (virtual SSD) has no room, which would be a bug of the simulation.
pub fn measure(home: u16, patterns: &[Pattern], length: Length, seed: u64) -> Result<Vec<Row>> {
    let run = |pattern, more, owner| one(home, more, pattern, owner, length, seed).map(|it| it.0.bandwidth());
    let half = home / 2;
    let rows = patterns.iter().map(|&pattern| {
        Ok(Row {
            pattern,
            home: run(pattern, 0, Owner::None)?,
            owned: run(pattern, half, Owner::None)?,
            unsold: run(pattern, half, Owner::Unsold)?,
            steady: run(pattern, half, Owner::Steady)?,
            bursts: run(pattern, half, Owner::Bursts)?,
        })
    });
    rows.collect()
}

/// The fill level of disks, as a share of the blocks of home's channels: the work is the same whatever channels there
/// are besides, as in the paper.
const FULL: f64 = 0.8;

/// The factor by which a harvest VM's programs are slower on a channel that a regular VM uses half than on its own:
/// disks that were written before are filled with this factor.
const SOLD: u32 = 5;

/// The time for which a regular VM works before its channels are harvested.
const LEAD: Duration = Duration::from_secs(1);

/// Tells a disk which channels belong to another VM.
pub(super) fn foresee(disk: &mut Vssd, sold: &std::ops::Range<u16>) {
    let time = |channel: u16| Duration::from_millis(1) * if sold.contains(&channel) { SOLD } else { 1 };
    disk.set_program_times(time);
}

/// The figures of the disk, and of the regular VM that owns the channels.
pub(super) fn one(
    home: u16,
    more: u16,
    pattern: Pattern,
    owner: Owner,
    length: Length,
    seed: u64,
) -> Result<(VmFigures, Option<VmFigures>)> {
    // Collecting needs spare blocks in a real disk's numbers.
    let blocks = if pattern.write { length.blocks() } else { stage::FEW };
    let geometry = stage::flash(home + more, blocks);
    let mut machine = Machine::new(geometry, SchedulerSettings::default());
    let own = if owner == Owner::None { home + more } else { home };
    let blocks = stage::blocks(&geometry, 0..own);
    let size = stage::size(&geometry, stage::blocks(&geometry, 0..home).len(), FULL);
    let mut disk = stage::vssd(&geometry, &blocks, size)?;
    let (harvested, regular) = harvested(&geometry, own..home + more, owner, seed)?;
    if !harvested.is_empty() {
        disk.add_slot(1, &harvested)?;
        // Pages that were written at random are spread over all channels.
        if regular.is_some() && !(pattern.write && pattern.random) {
            foresee(&mut disk, &(own..home + more));
        }
    }
    stage::fill(&mut disk)?;
    // Written pages are collected from the beginning on.
    match (pattern.write, pattern.random) {
        (true, true) => stage::age(&mut disk, 1.0, seed)?,
        (true, false) => stage::fill(&mut disk)?,
        (false, _) => {}
    }
    let fio =
        Fio::new(0..disk.size(), pattern.write, pattern.block, pattern.depth, pattern.random.then_some(seed));
    let channels = usize::from(home + more);
    let disk = machine.add(Vm::new(disk, false, channels, Box::new(fio)), 0..own);
    let regular = regular.map(|vm| machine.add(vm, own..home + more));
    regular.into_iter().for_each(|vm| machine.start(vm));
    machine.run(LEAD)?;
    machine.start(disk);
    let (warm, measured) = length.of_runs();
    let warm = LEAD + warm;
    machine.run(warm)?;
    machine.vms.iter_mut().for_each(|vm| vm.tally.clear(warm));
    machine.run(warm + measured)?;
    let of = |vm: usize| machine.vms[vm].tally.figures(machine.now());
    Ok((of(disk), regular.map(of)))
}

/// Blocks of channels that are harvested, and the VM that owns them: half of the blocks of a regular one.
pub(super) fn harvested(
    geometry: &Geometry,
    channels: std::ops::Range<u16>,
    owner: Owner,
    seed: u64,
) -> Result<(stage::Blocks, Option<Vm>)> {
    let bursts = match owner {
        Owner::None => return Ok((Vec::new(), None)),
        Owner::Unsold => return Ok((stage::blocks(geometry, channels), None)),
        Owner::Steady => None,
        Owner::Bursts => Some((Duration::from_secs(1), Duration::from_millis(500))),
    };
    let all = stage::blocks(geometry, channels.clone());
    let mut vssd = stage::vssd(geometry, &all, stage::size(geometry, all.len(), FULL / 2.0))?;
    stage::fill(&mut vssd)?;
    let lent = stage::lend(&mut vssd, geometry, 0.5)?;
    // Half of 70 MB/s for each channel, in requests of 64 KiB of which three of ten write.
    let rate =
        0.5 * 70e6 / 65_536.0 * f64::from(exact::<u16>(channels.len(), "channels have numbers of 16 bits"));
    let load = Paced::new(0..vssd.size(), (64 << 10, 0.3), (rate, 16), bursts, seed);
    Ok((lent, Some(Vm::new(vssd, true, channels.len(), Box::new(load)))))
}
