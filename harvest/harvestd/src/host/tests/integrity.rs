//! Threads write and read disks while flash is lent, moved and taken back under them.

use super::super::Host;
use super::kit::{HOUR, Machine, PAGE, harvest_request, spec};
use headstart_block::random::Random;
use headstart_block::{BlockDevice, ByteRange, ErrorKind};
use headstart_broker::BrokerEvent;
use headstart_flash::VssdKind;
use headstart_flash::device::Geometry;
use headstart_flash::device::emulator::FlashFaults;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const MEDIUM: Geometry = Geometry { channels: 6, dies: 2, planes: 1, blocks: 16, pages: 16, page_size: 4096 };
const SECTOR: usize = 512;

/// The content of a sector that only this writer writes, as far as the writer knows it.
#[derive(Clone, Copy, PartialEq)]
enum Sector {
    /// The sector holds this byte all over.
    Is(u8),
    /// A write of it failed: it holds one of these two.
    Either(u8, u8),
    /// Any data of this writer: a write of it failed more than once.
    Any,
}

/// A thread's part of a disk, byte by byte.
struct Part<'a> {
    disk: &'a dyn BlockDevice,
    /// The first sector.
    first: usize,
    sectors: Vec<Sector>,
    /// `true` if leases may be lost.
    evictable: bool,
    random: Random,
    /// Bytes that this writer writes: these 16 and zero.
    letter: u8,
}

impl Part<'_> {
    fn step(&mut self) {
        let at = self.random.below(self.sectors.len());
        let most = if self.random.below(4) == 0 { 300 } else { 12 };
        let count = 1 + self.random.below(most);
        let run = at..(at + count).min(self.sectors.len());
        let range = ByteRange::between(self.place(run.start), self.place(run.end));
        match self.random.below(10) {
            0..=3 => {
                let byte = self.letter + u8::try_from(self.random.below(16)).unwrap();
                let written = self.disk.write_at(&vec![byte; run.len() * SECTOR], range.offset());
                self.wrote(run, byte, &written);
            }
            4 => {
                let trimmed = self.disk.write_zeroes(range);
                self.wrote(run, 0, &trimmed);
            }
            5 => self.disk.flush().unwrap(),
            _ => self.check(run),
        }
    }

    fn place(&self, sector: usize) -> u64 {
        ((self.first + sector) * SECTOR) as u64
    }

    fn wrote(&mut self, run: std::ops::Range<usize>, byte: u8, result: &headstart_block::Result<()>) {
        if let Err(error) = result {
            let expected = matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io);
            assert!(self.evictable && expected, "{error}");
        }
        for sector in &mut self.sectors[run] {
            *sector = match (result, *sector) {
                (Ok(()), _) => Sector::Is(byte),
                (Err(_), Sector::Is(before)) => Sector::Either(before, byte),
                (Err(_), _) => Sector::Any,
            };
        }
    }

    fn check(&self, run: std::ops::Range<usize>) {
        let mut bytes = vec![0xff; run.len() * SECTOR];
        if let Err(error) = self.disk.read_at(&mut bytes, self.place(run.start)) {
            assert!(self.evictable && error.kind() == ErrorKind::Io, "{error}");
            return;
        }
        for (sector, bytes) in run.clone().zip(bytes.chunks_exact(SECTOR)) {
            let found = bytes[0];
            assert!(bytes.iter().all(|byte| *byte == found), "a sector is torn");
            let own = found == 0 || (self.letter..self.letter + 16).contains(&found);
            let right = match self.sectors[sector] {
                Sector::Is(byte) => found == byte,
                Sector::Either(this, that) => found == this || found == that,
                Sector::Any => true,
            };
            assert!(own && right, "sector {} of {} is {found}", self.first + sector, self.letter);
        }
    }
}

/// Writes a disk from two threads, for `steps` steps each.
fn use_disk(host: &Arc<Host>, name: &str, letter: u8, evictable: bool, seed: u64, steps: usize) {
    let disk = host.disk(name).unwrap();
    let disk = disk.as_ref();
    let sectors = usize::try_from(disk.size()).unwrap() / SECTOR;
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                let first = half * (sectors / 2) + half;
                let mut part = Part {
                    disk,
                    first,
                    sectors: vec![Sector::Is(0); sectors / 2 - 3],
                    evictable,
                    random: Random::new(seed * 2 + half as u64),
                    letter: letter + 16 * u8::try_from(half).unwrap(),
                };
                (0..steps).for_each(|_| part.step());
                // On a slow machine, until there was storage to share.
                for _ in 0..20 * steps {
                    if host.status().broker.leases > 0 {
                        break;
                    }
                    part.step();
                }
                part.check(0..part.sectors.len());
            });
        }
    });
}

/// Runs disks side by side; returns the number of swaps of channels.
fn live(seed: u64, faults: FlashFaults, size: Option<u64>, steps: usize, swapping: bool) -> usize {
    let mut machine = Machine::new(MEDIUM, faults);
    machine.inline = false;
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, size)).unwrap();
    host.create("other", spec(VssdKind::Regular, 2, size)).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 2, Some(80 * 16 * PAGE as u64))).unwrap();
    let homes: Vec<_> =
        host.list().iter().filter(|it| it.kind == VssdKind::Regular).map(|it| it.id).collect();
    let (over, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (host, over, swaps) = (&host, &over, &swaps);
        let disks = [("regular", 16, false), ("other", 64, false), ("ghost", 128, true)];
        let users = disks.map(|(name, letter, evictable)| {
            scope.spawn(move || use_disk(host, name, letter, evictable, seed + u64::from(letter), steps))
        });
        let machine = &machine;
        scope.spawn(move || {
            let mut random = Random::new(seed);
            let owned = |home| host.volume(home).unwrap().channels();
            let mut before = owned(homes[0]);
            while !over.load(Ordering::Acquire) {
                let name = ["regular", "other"][random.below(2)];
                let now = owned(homes[0]);
                swaps.fetch_add(usize::from(now != before), Ordering::Relaxed);
                before = now;
                match random.below(if swapping { 9 } else { 8 }) {
                    0 | 1 => host.offer(name, 2, (random.below(40) * 16 * PAGE) as u64, 10 * HOUR).unwrap(),
                    2 | 3 => drop(host.request("ghost", harvest_request(4 + random.below(20) as u64))),
                    4 => {
                        let leases = host.status().leases;
                        if !leases.is_empty() {
                            drop(host.release("ghost", Some(leases[random.below(leases.len())].id)));
                        }
                    }
                    5 if random.below(4) == 0 => host.release("ghost", None).unwrap(),
                    6 => {
                        let home = homes[random.below(2)];
                        let capacity = u32::try_from(random.below(10)).unwrap();
                        host.notify(BrokerEvent::SpacePressure { lender: home, bandwidth: 0, capacity })
                            .unwrap();
                    }
                    8 => {
                        let one = (homes[0], owned(homes[0])[random.below(2)]);
                        let other = (homes[1], owned(homes[1])[random.below(2)]);
                        host.plan(one, other);
                        host.tick();
                    }
                    _ => {
                        machine.pass(std::time::Duration::from_secs(20));
                        host.tick();
                    }
                }
                std::thread::park_timeout(std::time::Duration::from_millis(1));
            }
        });
        let ended = users.map(std::thread::ScopedJoinHandle::join);
        over.store(true, Ordering::Release);
        for ended in ended {
            if let Err(panic) = ended {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let broker = host.status().broker;
    assert!(broker.leases > 0 && broker.erased_blocks > 0, "{broker:?}");
    swaps.into_inner()
}

#[test]
fn no_vssd_reads_bytes_of_another() {
    for seed in 1..4 {
        live(seed, FlashFaults::default(), None, 1500, false);
    }
}

/// Disks with room for a channel's worth.
#[test]
fn no_vssd_reads_bytes_of_another_while_channels_swap() {
    let size = Some(12 * 16 * PAGE as u64);
    let swapping = |seed| live(seed, FlashFaults::default(), size, 1500, true);
    let mut swaps: usize = (1..4).map(swapping).sum();
    // On a slow machine, until there were some swaps.
    for seed in 11..30 {
        if swaps <= 3 {
            swaps += swapping(seed);
        }
    }
    assert!(swaps > 3, "{swaps}");
    live(7, FlashFaults { seed: 3, made_bad: 0.01, program: 0.0002, erase: 0.001 }, size, 1500, true);
}

#[test]
fn no_vssd_reads_bytes_of_another_on_failing_flash() {
    live(
        9,
        // Fewer blocks turn bad than a disk has to spare, however the threads run.
        FlashFaults { seed: 3, made_bad: 0.01, program: 0.0002, erase: 0.001 },
        Some(40 * 16 * PAGE as u64),
        1200,
        false,
    );
}
