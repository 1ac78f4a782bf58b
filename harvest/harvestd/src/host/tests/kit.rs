//! A host on emulated flash that can crash anywhere.

use super::super::log::Guard;
use super::super::options::{HostSettings, Opened};
use super::super::recover::Parts;
use super::super::{HarvestRequest, Host, VssdSpec};
use headstart_block::{BlockDevice, Error, ErrorKind, Result};
use headstart_broker::BrokerSettings;
use headstart_broker::gssd::Grain;
use headstart_flash::VssdKind;
use headstart_flash::device::emulator::{Emulator, FlashFaults};
use headstart_flash::device::{Flash, FlashBlock, FlashError, Geometry};
use headstart_flash::queue::Clock;
use headstart_flash::scheduler::Speed;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Four channels of 24 blocks of 8 pages of 4 KiB.
pub(super) const SMALL: Geometry =
    Geometry { channels: 4, dies: 2, planes: 1, blocks: 12, pages: 8, page_size: 4096 };
pub(super) const PAGE: usize = 4096;
pub(super) const BLOCK: u64 = 8 * 4096;
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// Burns down with every change of the flash and every write of the journal; then nothing gets through any more.
#[derive(Debug)]
pub(super) struct Fuse {
    left: AtomicU64,
    dead: AtomicBool,
    pub(super) burnt: AtomicU64,
    /// Flash blocks that cannot be read.
    pub(super) unreadable: Mutex<BTreeSet<FlashBlock>>,
}

impl Fuse {
    pub(super) fn of(left: u64) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU64::new(left),
            dead: AtomicBool::new(false),
            burnt: AtomicU64::new(0),
            unreadable: Mutex::default(),
        })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn burn(&self) -> Result<()> {
        self.check()?;
        self.burnt.fetch_add(1, Ordering::SeqCst);
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.dead.store(true, Ordering::SeqCst);
        }
        self.check()
    }

    fn check(&self) -> Result<()> {
        if self.is_dead() { Err(Error::new(ErrorKind::Cancelled, "crashed")) } else { Ok(()) }
    }
}

/// Flash behind a fuse.
struct Fused(Arc<Emulator>, Arc<Fuse>);

impl Flash for Fused {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, block: FlashBlock, offset: u32, buf: &mut [u8]) -> Result<(), FlashError> {
        self.1.check().map_err(FlashError::Failed)?;
        if self.1.unreadable.lock().contains(&block) {
            return Err(FlashError::Failed(Error::new(ErrorKind::Io, "unreadable")));
        }
        self.0.read(block, offset, buf)
    }

    fn program(&self, block: FlashBlock, page: u32, data: &[u8]) -> Result<(), FlashError> {
        self.1.burn().map_err(FlashError::Failed)?;
        self.0.program(block, page, data)
    }

    fn erase(&self, block: FlashBlock) -> Result<(), FlashError> {
        self.1.burn().map_err(FlashError::Failed)?;
        self.0.erase(block)
    }

    fn flush(&self) -> Result<(), FlashError> {
        self.1.burn().map_err(FlashError::Failed)?;
        self.0.flush()
    }

    fn answers(&self, apart: FlashBlock) -> bool {
        !self.1.is_dead() && self.0.answers(apart)
    }

    fn is_bad(&self, block: FlashBlock) -> bool {
        self.0.is_bad(block)
    }

    fn wear(&self, block: FlashBlock) -> u32 {
        self.0.wear(block)
    }
}

/// A machine: flash, the directory that the journal is in, a clock.
pub(super) struct Machine {
    pub(super) flash: Arc<Emulator>,
    dir: TempDir,
    time: Arc<AtomicU64>,
    new: bool,
    pub(super) inline: bool,
    /// Microseconds that pass at each look at the clock.
    pub(super) pace: Arc<AtomicU64>,
}

impl Machine {
    pub(super) fn new(geometry: Geometry, faults: FlashFaults) -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let flash = Arc::new(Emulator::new(geometry, faults));
        let time = Arc::new(AtomicU64::new(1_000_000_000_000));
        let pace = Arc::new(AtomicU64::new(500));
        Self { flash, dir: dir.unwrap(), time, new: true, inline: true, pace }
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    pub(super) fn pass(&self, time: Duration) {
        self.time.fetch_add(u64::try_from(time.as_micros()).unwrap(), Ordering::SeqCst);
    }

    /// Starts a host, which crashes when the fuse has burnt down.
    pub(super) fn start(&mut self, fuse: &Arc<Fuse>) -> Result<Arc<Host>> {
        let (time, guard_fuse) = (Arc::clone(&self.time), Arc::clone(fuse));
        let guard: Guard = Arc::new(move || guard_fuse.burn());
        let pace = Arc::clone(&self.pace);
        // Time passes at each look at the clock.
        let clock: Arc<dyn Clock> = Arc::new(move || {
            Duration::from_micros(time.fetch_add(pace.load(Ordering::SeqCst), Ordering::SeqCst))
        });
        let journal = self.journal();
        let new = self.new && !journal.exists();
        let opened = Opened {
            flash: Arc::new(Fused(Arc::clone(&self.flash), Arc::clone(fuse))),
            speed: Speed::Bucket { rate: None, burst: 1 << 20 },
            new,
            forgets: false,
            place: "test".to_owned(),
            made: None,
        };
        let grain = Grain { bandwidth: 1, capacity: 4, lasts: Duration::from_secs(60) };
        let settings = HostSettings {
            grain: Some(grain),
            schedulers: headstart_flash::scheduler::SchedulerSettings {
                guard: Duration::ZERO,
                ..headstart_flash::scheduler::SchedulerSettings::default()
            },
            broker: BrokerSettings { forecasts_to_reclaim: 1, ..BrokerSettings::default() },
            ..HostSettings::default()
        };
        let parts = Parts { opened, settings, journal, lock: None, inline: self.inline, guard: Some(guard) };
        let host = Host::assemble(parts, clock)?;
        self.new = false;
        Ok(host)
    }

    /// The time on its clock.
    pub(super) fn time(&self) -> Duration {
        Duration::from_micros(self.time.load(Ordering::SeqCst))
    }

    /// Starts one that does not crash.
    pub(super) fn restart(&mut self) -> Arc<Host> {
        self.start(&Fuse::of(u64::MAX)).unwrap()
    }

    /// Cuts power and restores it: unflushed data is gone or torn, and the journal ends in `garbage`.
    pub(super) fn lose_power(&mut self, garbage: &[u8]) {
        self.flash = Arc::new(self.flash.lose_power());
        let path = self.journal();
        if let Ok(mut bytes) = std::fs::read(&path) {
            bytes.extend_from_slice(garbage);
            std::fs::write(&path, bytes).unwrap();
        }
    }
}

pub(super) fn spec(kind: VssdKind, channels: u16, size: Option<u64>) -> VssdSpec {
    VssdSpec { kind, channels: Some(channels), size }
}

pub(super) fn harvest_request(blocks: u64) -> HarvestRequest {
    HarvestRequest { capacity: blocks * BLOCK, bandwidth: 1, duration: HOUR, partial: true }
}

/// The bytes of a page that names its holder, its place, and its generation.
pub(super) fn pattern(holder: u8, page: u32, generation: u32) -> Vec<u8> {
    sector_of(holder, page, generation).repeat(PAGE / 512)
}

fn sector_of(holder: u8, page: u32, generation: u32) -> [u8; 512] {
    let mut sector = [holder; 512];
    sector[1..5].copy_from_slice(&page.to_le_bytes());
    sector[5..9].copy_from_slice(&generation.to_le_bytes());
    sector
}

/// The content of a sector: holder, page, generation; `None` for zeros.
pub(super) fn says(sector: &[u8]) -> Option<(u8, u32, u32)> {
    if sector == [0; 512] {
        return None;
    }
    let number = |at: usize| u32::from_le_bytes(sector[at..at + 4].try_into().unwrap());
    let (holder, page, generation) = (sector[0], number(1), number(5));
    assert_eq!(sector, sector_of(holder, page, generation), "torn within a sector");
    Some((holder, page, generation))
}

/// Reads a page: the content of each sector. A lost page is an error.
pub(super) fn read_page(disk: &dyn BlockDevice, page: u32) -> Result<Vec<Option<(u8, u32, u32)>>> {
    let mut bytes = vec![0; PAGE];
    disk.read_at(&mut bytes, u64::from(page) * PAGE as u64)?;
    Ok(bytes.chunks_exact(512).map(says).collect())
}
