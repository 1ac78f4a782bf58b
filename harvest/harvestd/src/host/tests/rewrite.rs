//! The journal is replaced while everything goes on; then the host crashes.

use super::super::Host;
use super::kit::{BLOCK, HOUR, Machine, PAGE, SMALL, harvest_request, pattern, read_page, spec};
use headstart_block::ErrorKind;
use headstart_block::random::Random;
use headstart_flash::VssdKind;
use headstart_flash::device::emulator::FlashFaults;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pages that each writer has.
const PAGES: u32 = 60;

/// The state of a page, as far as its writer knows it.
#[derive(Clone, Copy, Default)]
struct Known {
    flushed: u32,
    written: u32,
    /// A write of it failed.
    unsure: bool,
}

/// Writes the writer's pages and flushes now and then until told to stop; returns the state of each.
fn write(host: &Arc<Host>, name: &str, letter: u8, first: u32, over: &AtomicBool) -> Vec<Known> {
    let disk = host.disk(name).unwrap();
    let mut known = vec![Known::default(); PAGES as usize];
    let mut random = Random::new(u64::from(letter) * 1000 + u64::from(first));
    let mut generation = 0;
    while !over.load(Ordering::Acquire) {
        generation += 1;
        let page = u32::try_from(random.below(PAGES as usize)).unwrap();
        let bytes = pattern(letter, first + page, generation);
        let written = disk.write_at(&bytes, u64::from(first + page) * PAGE as u64);
        let mine = &mut known[page as usize];
        match written {
            Ok(()) => *mine = Known { written: generation, unsure: false, ..*mine },
            Err(error) => {
                assert!(letter == b'G' && error.kind() == ErrorKind::NoSpace, "{error}");
                *mine = Known { written: generation, unsure: true, ..*mine };
            }
        }
        if random.below(10) == 0 {
            disk.flush().unwrap();
            for mine in known.iter_mut().filter(|mine| !mine.unsure) {
                mine.flushed = mine.written;
            }
        }
    }
    known
}

fn under_load(seed: u64, power: bool) {
    let mut machine = Machine::new(SMALL, FlashFaults { seed, ..FlashFaults::default() });
    machine.inline = false;
    let host = machine.restart();
    host.create("regular", spec(VssdKind::Regular, 2, Some(24 * BLOCK))).unwrap();
    host.create("ghost", spec(VssdKind::Harvest, 2, None)).unwrap();
    let over = AtomicBool::new(false);
    let writers =
        [("regular", b'R', 0), ("regular", b'R', PAGES), ("ghost", b'G', 0), ("ghost", b'G', PAGES)];
    let known = std::thread::scope(|scope| {
        let (host, over, machine) = (&host, &over, &machine);
        let writers =
            writers.map(|(name, letter, first)| scope.spawn(move || write(host, name, letter, first, over)));
        scope.spawn(move || {
            let mut random = Random::new(seed);
            while !over.load(Ordering::Acquire) {
                match random.below(4) {
                    0 => host.offer("regular", 2, random.below(16) as u64 * BLOCK, 10 * HOUR).unwrap(),
                    1 => drop(host.request("ghost", harvest_request(4))),
                    2 => host
                        .release("ghost", host.status().leases.first().map(|lease| lease.id))
                        .unwrap_or(()),
                    _ => {
                        machine.pass(Duration::from_secs(5));
                        host.tick();
                    }
                }
                std::thread::park_timeout(Duration::from_millis(1));
            }
        });
        for _ in 0..40 {
            match host.rewrite() {
                // The ticks rewrite it too.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                Ok(()) => std::thread::park_timeout(Duration::from_millis(3)),
            }
        }
        over.store(true, Ordering::Release);
        writers.map(|writer| writer.join().unwrap())
    });
    // Background work holds the host for a while.
    host.closing.store(true, Ordering::Release);
    for _ in 0..12_000 {
        if Arc::strong_count(&host) == 1 {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    drop(host);
    if power {
        machine.lose_power(&[7; 9]);
    }
    machine.inline = true;
    let host = machine.restart();
    for ((name, letter, first), known) in writers.into_iter().zip(known) {
        let disk = host.disk(name).unwrap();
        for (page, known) in (first..).zip(known) {
            let read = match read_page(disk.as_ref(), page) {
                Err(error) => {
                    assert!(letter == b'G' && error.kind() == ErrorKind::Io, "{error}");
                    continue;
                }
                Ok(read) => read,
            };
            assert!(read.iter().all(|sector| *sector == read[0]), "{name} page {page} is torn");
            let generation = read[0].map_or(0, |(holder, at, generation)| {
                assert_eq!((holder, at), (letter, page));
                generation
            });
            let right = (known.flushed..=known.written).contains(&generation);
            assert!(right, "{name} page {page}: {generation}, flushed was {}", known.flushed);
        }
    }
}

#[test]
fn a_journal_is_replaced_under_load() {
    for seed in 1..5 {
        under_load(seed, seed % 2 == 0);
    }
}

/// A disk whose map takes more than one record.
fn large(machine: &mut Machine) -> Arc<Host> {
    let host = machine.restart();
    host.create("large", spec(VssdKind::Harvest, 2, Some(8 << 30))).unwrap();
    host
}

#[test]
fn a_long_map_comes_back_whole() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let mut host = large(&mut machine);
    let places: Vec<u32> = (0..40).map(|number| number * 50_021).collect();
    for round in 1..4 {
        let disk = host.disk("large").unwrap();
        for page in &places {
            disk.write_at(&pattern(b'L', *page, round), u64::from(*page) * PAGE as u64).unwrap();
        }
        disk.flush().unwrap();
        host.rewrite().unwrap();
        assert!(std::fs::metadata(machine.journal()).unwrap().len() > 1 << 20);
        drop((disk, host));
        host = machine.restart();
        let disk = host.disk("large").unwrap();
        for page in &places {
            assert_eq!(read_page(disk.as_ref(), *page).unwrap()[0], Some((b'L', *page, round)));
            assert_eq!(read_page(disk.as_ref(), page + 1).unwrap()[0], None);
        }
    }
}

#[test]
fn a_journal_that_cannot_be_rewritten_goes_on() {
    let mut machine = Machine::new(SMALL, FlashFaults::default());
    let host = large(&mut machine);
    let in_the_way = machine.journal().with_extension("new");
    std::fs::create_dir(&in_the_way).unwrap();
    let disk = host.disk("large").unwrap();
    for page in 0..100 {
        host.tick();
        disk.write_at(&pattern(b'L', page, 1), u64::from(page) * PAGE as u64).unwrap();
        disk.flush().unwrap();
    }
    assert_eq!(host.status().journal.snapshots, 0);
    std::fs::remove_dir(&in_the_way).unwrap();
    for _ in 0..200 {
        host.tick();
    }
    assert_eq!(host.status().journal.snapshots, 1);
    drop((disk, host));
    let host = machine.restart();
    let disk = host.disk("large").unwrap();
    assert!((0..100).all(|page| read_page(disk.as_ref(), page).unwrap()[0] == Some((b'L', page, 1))));
}
