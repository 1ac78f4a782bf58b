//! Failures below the collector: holes that cannot be punched, a base that cannot be read.

use super::super::alone::Unknown;
use super::super::{Limits, Load, NewDisk, WritableDisk};
use super::sim::{Fault, Machine};
use headstart_block::{BlockDevice, ErrorKind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use uuid::Uuid;

/// A dead range that is punched at once.
const PART: u64 = 64 << 10;
const PARTS: u64 = 16;

fn new_disk(size: u64) -> NewDisk {
    NewDisk { size, parent: String::new(), uuid: Uuid::from_u128(7) }
}

/// A disk on which every second part of the data file is dead.
fn half_dead(machine: &Machine) -> WritableDisk {
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(PART * PARTS)).unwrap();
    disk.view_mut().limits = Limits { slack: 1 << 20, ..Limits::default() };
    for round in 1..=2u8 {
        for part in (0..PARTS).filter(|part| round == 1 || part % 2 == 0) {
            disk.write_at(&vec![round; PART as usize], part * PART).unwrap();
        }
    }
    disk.flush().unwrap();
    disk
}

/// Does `steps` steps, whatever fails; returns the number that failed.
fn collect_stubbornly(disk: &WritableDisk, load: Load, steps: u32) -> usize {
    (0..steps).filter(|_| disk.collect(load).is_err()).count()
}

fn check(disk: &WritableDisk) {
    let mut found = vec![0; (PART * PARTS) as usize];
    disk.read_at(&mut found, 0).unwrap();
    for (number, part) in found.chunks(PART as usize).enumerate() {
        let round = if number % 2 == 0 { 2 } else { 1 };
        assert!(part.iter().all(|byte| *byte == round), "{number}");
    }
}

/// The space of the files once all is given back: the data, headers and the log.
const LEAST: u64 = PART * PARTS + 5 * 4096;

#[test]
fn a_hole_that_fails_once_loses_no_garbage() {
    for failing in [1, 3, 8] {
        let machine = Machine::default();
        let disk = half_dead(&machine);
        machine.fail_holes(failing);
        assert!(collect_stubbornly(&disk, Load::Quiet, 100) > 0);
        assert!(machine.taken() <= LEAST, "{failing}: {}", machine.taken());
        assert_eq!(disk.space().garbage_bytes, disk.generation().active.log_bytes());
        check(&disk);
    }
}

/// Neither sectors that were dead at the start nor ones that die later wait for a range that never can be punched.
#[test]
fn a_hole_that_always_fails_holds_nothing_up() {
    for reopened in [false, true] {
        for part in [0, 6, 14] {
            let machine = Machine::default();
            let mut disk = half_dead(&machine);
            if reopened {
                drop(disk);
                disk = WritableDisk::open_in(machine.directory(), None, "").unwrap();
            }
            machine.set_bad_page(Some(1 + (part * PART / 4096) as usize));
            assert!(collect_stubbornly(&disk, Load::Quiet, 100) > 0);
            assert!(machine.taken() <= LEAST + PART, "{reopened} {part}: {}", machine.taken());
            assert!(disk.space().garbage_bytes >= PART);
            machine.set_bad_page(None);
            collect_stubbornly(&disk, Load::Quiet, 100);
            assert!(machine.taken() <= LEAST, "{reopened} {part}: {}", machine.taken());
            check(&disk);
        }
    }
}

#[test]
fn a_writer_that_waits_for_a_hole_does_not_get_its_error() {
    let machine = Machine::default();
    let disk = half_dead(&machine);
    let mut failed = 0;
    for round in 0..400u64 {
        machine.fail_holes(round % 3);
        let byte = if round % 2 == 0 { 2 } else { 1 };
        // Written in the end as `check` has it.
        disk.write_at(&vec![byte; PART as usize], round % PARTS * PART).unwrap();
        failed += round % 3;
        let bound = 2 * PART * PARTS + (1 << 20);
        assert!(machine.taken() <= bound, "{round}: {}", machine.taken());
    }
    assert!(failed > 0 && disk.space().throttled_writes > 0);
    for part in 0..PARTS {
        let byte = if part % 2 == 0 { 2 } else { 1 };
        disk.write_at(&vec![byte; PART as usize], part * PART).unwrap();
    }
    check(&disk);
}

/// A write beside a hole that the file system has no room for is there, and durable once there is.
#[test]
fn a_write_beside_a_failed_hole_is_kept_until_there_is_room() {
    let machine = Machine::default();
    let disk = Arc::new(half_dead(&machine));
    let (beside, host) = (Arc::clone(&disk), machine.clone());
    let act = move || {
        beside.write_at(&[9; PART as usize], PART).unwrap();
        host.arm(0, Fault::Full);
    };
    machine.interrupt(0, Box::new(act));
    collect_stubbornly(&disk, Load::Quiet, 1);
    let check = |disk: &WritableDisk| {
        let mut found = [0; PART as usize];
        disk.read_at(&mut found, PART).unwrap();
        assert!(found == [9; PART as usize]);
    };
    for _ in 0..2 {
        assert_eq!(disk.flush().unwrap_err().kind(), ErrorKind::NoSpace);
        check(&disk);
    }
    machine.repair();
    disk.flush().unwrap();
    check(&disk);
    drop(disk);
    machine.crash(5);
    check(&WritableDisk::open_in(machine.directory(), None, "").unwrap());
}

/// Pieces that cannot be merged stay, and nothing else of a collection waits for them.
#[test]
fn a_base_that_cannot_be_read_stops_nothing() {
    const SIZE: u64 = 1 << 20;
    const RUNS: u64 = 64;
    let machine = Machine::default();
    let disk =
        WritableDisk::create_in(machine.directory(), Some(Arc::new(Unknown(SIZE))), &new_disk(SIZE)).unwrap();
    disk.view_mut().limits = Limits { runs: Some(RUNS), slack: 256 << 10, ..Limits::default() };
    // One piece more than there should be, each in the middle of data that only the base has.
    for piece in 0..=RUNS {
        for byte in 1..=2 {
            disk.write_at(&[byte; 4096], piece * (SIZE / (RUNS + 1) / 4096 * 4096)).unwrap();
        }
    }
    let mut steps = 0;
    while disk.collect(Load::Offline).unwrap() {
        steps += 1;
        assert!(steps < 1000, "{:?}", disk.space());
    }
    let space = disk.space();
    assert_eq!((space.runs, space.live_bytes), (RUNS + 1, (RUNS + 1) * 4096));
    assert!(machine.taken() <= space.live_bytes + 5 * 4096, "{}", machine.taken());
}

/// A failure of a step that a writer does for the collector: the step is tried again, and the next one reports it.
#[test]
fn a_step_that_fails_is_no_error_of_the_writer_that_does_it() {
    let machine = Machine::default();
    let prepared = |machine: &Machine, rounds: u64| {
        let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(PART * PARTS)).unwrap();
        disk.view_mut().limits = Limits { slack: 256 << 10, ..Limits::default() };
        for round in 0..rounds {
            disk.write_at(&[1; 4096], round % 2 * 4096).unwrap();
        }
        disk
    };
    let waits = |rounds: u64| prepared(&Machine::default(), rounds).space().throttled_writes > 0;
    let first = (1..1000).find(|rounds| waits(*rounds)).unwrap();
    let disk = prepared(&machine, first - 1);
    // Nothing can be made durable, so that nothing that died can be given back.
    machine.arm(0, Fault::Full);
    thread::scope(|scope| {
        let writer = scope.spawn(|| disk.write_at(&[2; 4096], 0));
        while disk.space().waiting_writes == 0 && !writer.is_finished() {
            thread::park_timeout(Duration::from_millis(1));
        }
        thread::park_timeout(Duration::from_millis(50));
        assert!(!writer.is_finished());
        machine.repair();
        writer.join().unwrap().unwrap();
    });
    assert_eq!(disk.collect(Load::Busy).unwrap_err().kind(), ErrorKind::NoSpace);
    disk.collect(Load::Busy).unwrap();
}
