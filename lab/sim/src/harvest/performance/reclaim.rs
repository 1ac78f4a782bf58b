//! Taking a channel back: the time of its erasure, and the cost to the regular VM meanwhile (BlockFlex,
//! OSDI 2022, sections 5.4 and 5.5).

use super::load::{Fio, Load, RECORD, Ycsb};
use super::machine::{Machine, Vm};
use super::tally::{VmFigures, ratio};
use super::{Length, stage};
use headstart_block::Result;
use headstart_flash::device::{FlashBlock, Geometry};
use headstart_flash::scheduler::SchedulerSettings;
use serde::Serialize;
use std::time::Duration;

/// The load of the regular VM while one of its four channels is reclaimed from a harvest VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Meanwhile {
    /// No load.
    Idle,
    /// YCSB's workload A in ten threads, with pauses of 0.2 ms.
    Ycsb,
    /// YCSB's workload A in ten threads without pauses.
    Busy,
    /// Random reads of 128 KiB, sixteen at a time.
    Reads,
}

impl Meanwhile {
    /// All loads, in the order of the report.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Ycsb, Self::Busy, Self::Reads];

    fn load(self, bytes: u64, seed: u64) -> Box<dyn Load> {
        let ycsb = |think| Box::new(Ycsb::new(bytes / u64::from(RECORD), 10, think, seed));
        match self {
            Self::Idle => Box::new(Fio::new(0..bytes, false, RECORD, 0, None)),
            Self::Ycsb => ycsb(Duration::from_micros(200)),
            Self::Busy => ycsb(Duration::ZERO),
            Self::Reads => Box::new(Fio::new(0..bytes, false, 128 << 10, 16, Some(seed))),
        }
    }
}

/// Results of one reclaim of a channel from a harvest VM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The load of the regular VM during the reclaim.
    pub meanwhile: Meanwhile,
    /// The number of written flash blocks of the channel that have to be erased, up to 16,384.
    pub blocks: u32,
    /// Seconds until all written blocks of the channel were erased, or until the time limit if they were not.
    pub seconds: f64,
    /// Share of the channel's written blocks that was erased at the end, 0 to 1.
    pub erased: f64,
    /// Performance of the regular VM over the same time without a reclaim.
    pub without: VmFigures,
    /// Performance of the regular VM during the reclaim.
    pub with: VmFigures,
}

impl Row {
    /// Returns the share of its bandwidth that the regular VM lost during the reclaim, up to 1; negative if the VM was
    /// faster than without a reclaim, 0 if it had no load.
    #[must_use]
    pub fn loss(&self) -> f64 {
        if self.without.requests == 0 { 0.0 } else { 1.0 - self.with.bandwidth() / self.without.bandwidth() }
    }
}

/// The number of flash blocks of a channel of 64 GiB.
pub const CHANNEL: u32 = 16_384;
/// Channels of the regular VM.
const CHANNELS: u16 = 4;
/// Blocks of each channel beside those that are reclaimed.
const OWN: u32 = 128;

/// Reclaims `blocks` written flash blocks (up to [`CHANNEL`]) of one channel from a harvest VM, under the load
/// `meanwhile`, until they are erased, but for at most 120 virtual seconds (20 if `length` is short). `seed` draws the
/// requests of the load.
///
/// # Errors
/// An error if a vSSD (virtual SSD) has no room, which would be a bug of the simulation.
pub fn measure(blocks: u32, meanwhile: Meanwhile, length: Length, seed: u64) -> Result<Row> {
    let geometry = stage::flash(CHANNELS, (CHANNEL + OWN) / 4);
    let (with, seconds, left) = run(&geometry, blocks, meanwhile, length.of_reclaim(), seed)?;
    // The run without a reclaim is as long, because a VM that writes has to collect after a while.
    let (without, _, _) = run(&geometry, 0, meanwhile, Duration::from_secs_f64(seconds), seed)?;
    let erased = 1.0 - ratio(left, blocks.into());
    Ok(Row { meanwhile, blocks, seconds, erased, without, with })
}

/// The figures of the VM, the time that it took, the number of blocks that are left.
fn run(
    geometry: &Geometry,
    blocks: u32,
    meanwhile: Meanwhile,
    limit: Duration,
    seed: u64,
) -> Result<(VmFigures, f64, u64)> {
    let mut machine = Machine::new(*geometry, SchedulerSettings::default());
    let own = (0..CHANNELS).flat_map(|channel| geometry.blocks_of(channel).skip(CHANNEL as usize));
    let own: Vec<_> = own.map(|number| (FlashBlock(number), 0)).collect();
    let mut vssd = stage::vssd(geometry, &own, stage::size(geometry, own.len(), 0.5))?;
    stage::fill(&mut vssd)?;
    let load = meanwhile.load(vssd.size(), seed);
    let vm = machine.add(Vm::new(vssd, true, usize::from(CHANNELS), load), 0..CHANNELS);
    machine.start(vm);
    let warm = Duration::from_millis(500);
    machine.run(warm)?;
    machine.vms[vm].tally.clear(warm);
    machine.reclaim(geometry.blocks_of(0).take(blocks as usize).map(FlashBlock));
    while (blocks == 0 || machine.reclaimed().is_none()) && machine.now() < warm + limit {
        machine.run((machine.now() + Duration::from_millis(100)).min(warm + limit))?;
    }
    let ended = machine.reclaimed().filter(|_| blocks > 0).unwrap_or_else(|| machine.now());
    let figures = machine.vms[vm].tally.figures(machine.now());
    Ok((figures, (ended - warm).as_secs_f64(), machine.left()))
}
