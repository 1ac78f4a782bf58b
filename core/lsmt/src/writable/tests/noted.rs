//! Logs that lost durable records: the loss is noticed up to the noted place, and repaired on request.

use super::super::pending::PENDING;
use super::super::state::State;
use super::super::torn::TORN;
use super::super::{Load, NewDisk, Repaired, WritableDisk};
use super::model::{Op, cases};
use super::sim::{Dice, Fault, Machine};
use super::steps::{fail_every_step, write, zero};
use headstart_block::{BlockDevice, Error, ErrorKind};
use proptest::collection::vec;
use proptest::prelude::*;
use uuid::Uuid;

const SIZE: u64 = 1 << 16;

fn create(machine: &Machine) -> WritableDisk {
    let new = NewDisk { size: SIZE, parent: String::new(), uuid: Uuid::from_u128(7) };
    WritableDisk::create_in(machine.directory(), None, &new).unwrap()
}

fn open(machine: &Machine) -> Result<WritableDisk, Error> {
    WritableDisk::open_in(machine.directory(), None, "")
}

fn contents(disk: &WritableDisk) -> Vec<u8> {
    let mut all = vec![0xee; SIZE as usize];
    disk.read_at(&mut all, 0).unwrap();
    all
}

/// Writes sectors one after the other, each with a flush, and each with its number.
fn write_sectors(disk: &WritableDisk, numbers: std::ops::Range<u8>) {
    for number in numbers {
        disk.write_at(&[number + 1; 512], u64::from(number) * 512).unwrap();
        disk.flush().unwrap();
    }
}

/// The directory of a disk that was closed after `count` such writes.
fn closed(count: u8) -> Machine {
    let machine = Machine::default();
    let disk = create(&machine);
    write_sectors(&disk, 0..count);
    disk.note_logs().unwrap();
    machine
}

/// Writes to the disk and damages the last record of its log; the log then, and that record.
fn damage_last(machine: &Machine, byte: u8) -> (Vec<u8>, Vec<u8>) {
    let disk = open(machine).unwrap();
    write_sectors(&disk, 0..2);
    disk.note_logs().unwrap();
    drop(disk);
    let mut index = machine.contents("index");
    let last = index.len() - 32;
    index[last..].fill(byte);
    machine.put("index", &index);
    let torn = index[last..].to_vec();
    (index, torn)
}

/// The content of the disk after `count` such writes.
fn expected(count: u8) -> Vec<u8> {
    let mut all: Vec<_> = (1..=count).flat_map(|number| [number; 512]).collect();
    all.resize(SIZE as usize, 0);
    all
}

/// Opens a directory with a damaged index, which must be refused and left as it is.
#[track_caller]
fn assert_refused(machine: &Machine, index: &[u8]) {
    machine.put("index", index);
    let (data, state) = (machine.contents("data"), machine.contents("state.json"));
    let error = open(machine).err().expect("it opened");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let message = error.to_string();
    assert!(message.contains("simulated/index") && message.contains("restore data and index"), "{message}");
    assert!(message.contains("headstart disk repair simulated"), "{message}");
    let is_same = machine.contents("index") == index && machine.contents("data") == data;
    assert!(is_same && machine.contents("state.json") == state);
    assert!(!machine.directory().list().unwrap().contains(&TORN.to_owned()));
}

#[test]
fn a_closed_log_that_lost_anything_is_refused() {
    let machine = Machine::default();
    let disk = create(&machine);
    write_sectors(&disk, 0..5);
    disk.note_logs().unwrap();
    let steps = machine.steps();
    disk.note_logs().unwrap();
    assert_eq!(machine.steps(), steps, "it was noted");
    drop(disk);
    let index = machine.contents("index");
    assert_eq!(index.len(), 4096 + 5 * 32);
    for len in 4096..index.len() {
        assert_refused(&machine, &index[..len]);
        // Longer again, by zeros.
        let mut filled = index[..len].to_vec();
        filled.resize(index.len(), 0);
        if filled != index {
            assert_refused(&machine, &filled);
        }
    }
    for at in 4096..index.len() {
        let mut damaged = index.clone();
        damaged[at] ^= 1 << (at % 8);
        assert_refused(&machine, &damaged);
    }
    machine.put("index", &index);
    assert_eq!(contents(&open(&machine).unwrap()), expected(5));
}

/// Version 0.1.0 appends, or makes another state, and knows nothing of notes.
#[test]
fn a_log_that_went_on_without_a_note_opens() {
    let machine = closed(3);
    let disk = open(&machine).unwrap();
    write_sectors(&disk, 3..6);
    drop(disk);
    assert_eq!(contents(&open(&machine).unwrap()), expected(6));
    // Noted records are still protected; later ones end like after a crash.
    let (data, index) = (machine.contents("data"), machine.contents("index"));
    assert_refused(&machine, &index[..4096 + 2 * 32]);
    let mut torn = index.clone();
    *torn.last_mut().unwrap() ^= 1;
    machine.put("index", &torn);
    assert_eq!(contents(&open(&machine).unwrap()), expected(5));
    assert_eq!(machine.contents("index"), index[..index.len() - 32]);
    assert_eq!(machine.contents(TORN), torn[index.len() - 32..]);
    // A state without notes.
    machine.put("data", &data);
    machine.put("index", &index);
    let state = State::load(&*machine.directory()).unwrap();
    State { logs: Vec::new(), ..state }.store(&*machine.directory()).map_err(|e| e.error).unwrap();
    assert_eq!(contents(&open(&machine).unwrap()), expected(6));
}

#[test]
fn logs_are_noted_where_they_have_grown_or_nobody_writes() {
    let machine = Machine::default();
    let disk = create(&machine);
    let noted = || State::load(&*machine.directory()).unwrap().noted("index").map(|end| end.bytes);
    disk.collect(Load::Quiet).unwrap();
    write_sectors(&disk, 0..3);
    disk.collect(Load::Busy).unwrap();
    assert_eq!(noted(), None);
    disk.collect(Load::Quiet).unwrap();
    assert_eq!(noted(), Some(4096 + 3 * 32));
    for round in 0..4500_u64 {
        disk.write_at(&[9; 512], round % 100 * 512).unwrap();
        disk.flush().unwrap();
        if round % 500 == 0 {
            disk.collect(Load::Busy).unwrap();
        }
    }
    // Too little while clients write.
    assert_eq!(noted(), Some(4096 + 3 * 32));
    for _ in 0..4500 {
        disk.write_at(&[9; 512], 0).unwrap();
        disk.flush().unwrap();
    }
    disk.collect(Load::Busy).unwrap();
    assert_eq!(noted(), Some(disk.generation().active.log_bytes()));
}

/// A write and a flush cost the same as before there were notes, the first ones of a disk that was closed, too.
#[test]
fn no_flush_waits_for_notes() {
    let machine = closed(3);
    let disk = open(&machine).unwrap();
    write_sectors(&disk, 3..4);
    for number in 4..6 {
        let before = machine.steps();
        write_sectors(&disk, number..number + 1);
        // The data, its entry, a note of the next end of the log and the record; two syncs; and the entry counts for
        // nothing any more.
        assert_eq!(machine.steps() - before, 7);
    }
}

#[test]
fn a_new_log_is_not_judged_by_the_end_of_the_old_one() {
    let machine = Machine::default();
    let disk = create(&machine);
    for _ in 0..60 {
        write_sectors(&disk, 0..2);
    }
    disk.note_logs().unwrap();
    let before = State::load(&*machine.directory()).unwrap().noted("index").unwrap();
    disk.compact_log().unwrap();
    assert_eq!(State::load(&*machine.directory()).unwrap().noted("index"), None);
    disk.note_logs().unwrap();
    let after = State::load(&*machine.directory()).unwrap().noted("index").unwrap();
    assert!(after.bytes < before.bytes && after.bytes > 4096, "{before:?} {after:?}");
    drop(disk);
    let index = machine.contents("index");
    assert_refused(&machine, &index[..index.len() - 1]);
    machine.put("index", &index);
    assert_eq!(contents(&open(&machine).unwrap()), expected(2));
}

/// A log is replaced, noted, frozen and dropped, with a crash or a failure at each step.
#[test]
fn notes_survive_every_step() {
    let tend = |load| Op::Tend { load, steps: 40, during: None };
    fail_every_step(&[
        write(0, 20),
        Op::Flush,
        write(5, 3),
        Op::Flush,
        tend(Load::Quiet),
        write(5, 3),
        write(30, 2),
        Op::Reopen { flush: true },
        zero(2, 9),
        write(5, 3),
        tend(Load::Offline),
        Op::Reopen { flush: true },
        Op::Stack { replace: true, during: None },
        write(40, 3),
        Op::Reopen { flush: true },
    ]);
}

#[test]
fn a_damaged_log_is_repaired_on_request() {
    let machine = closed(4);
    assert_eq!(WritableDisk::repair_in(&*machine.directory()).unwrap(), []);
    let (data, index) = (machine.contents("data"), machine.contents("index"));
    let kept = |groups: u64, cut_bytes: u64, copied: bool| Repaired {
        index: "index".to_owned(),
        kept_bytes: 4096 + groups * 32,
        cut_bytes,
        lost_bytes: (4 - groups) * 32,
        copy: copied.then(|| TORN.to_owned()),
    };
    let mut flipped = index.clone();
    flipped[4096 + 40] ^= 4;
    let mut zeroed = index.clone();
    zeroed[4096 + 64..].fill(0);
    let foreign = [&index[..4096 + 32], &[7; 40]].concat();
    for (damaged, repaired) in [
        (index[..4096].to_vec(), kept(0, 0, false)),
        (index[..4096 + 70].to_vec(), kept(2, 6, true)),
        // Later groups show that it is not a torn tail.
        (flipped, kept(1, 96, true)),
        (zeroed, kept(2, 64, false)),
        (foreign, kept(1, 40, true)),
    ] {
        let machine = Machine::default();
        drop(create(&machine));
        machine.put("data", &data);
        machine.put("index", &index);
        open(&machine).unwrap().note_logs().unwrap();
        assert_refused(&machine, &damaged);
        let kept_bytes = repaired.kept_bytes as usize;
        // Writes that came later have no place over a log that lacks those before them.
        machine.put(PENDING, b"later writes");
        assert_eq!(WritableDisk::repair_in(&*machine.directory()).unwrap(), std::slice::from_ref(&repaired));
        assert!(!machine.directory().list().unwrap().iter().any(|name| name == PENDING));
        assert_eq!(machine.contents("data"), data);
        if repaired.copy.is_some() {
            assert_eq!(machine.contents(TORN), damaged[kept_bytes..]);
        }
        let disk = open(&machine).unwrap();
        let groups = (kept_bytes - 4096) / 32;
        assert_eq!(contents(&disk), expected(groups as u8));
        write_sectors(&disk, 0..9);
        disk.note_logs().unwrap();
        drop(disk);
        assert_eq!(contents(&open(&machine).unwrap()), expected(9));
    }
}

/// Bytes that repairs cut off are kept, up to a few times.
#[test]
fn earlier_copies_of_what_was_cut_off_are_kept() {
    let machine = Machine::default();
    drop(create(&machine));
    let mut copies = Vec::new();
    for round in 0..6_u8 {
        let (_, torn) = damage_last(&machine, round + 1);
        let repaired = WritableDisk::repair_in(&*machine.directory()).unwrap();
        assert_eq!(repaired[0].copy.as_deref(), Some(TORN));
        copies.insert(0, torn);
    }
    let names: Vec<_> =
        (0..4).map(|n| if n == 0 { TORN.to_owned() } else { format!("{TORN}.{n}") }).collect();
    for (name, copy) in names.iter().zip(&copies) {
        assert_eq!(machine.contents(name), *copy, "{name}");
    }
    let kept = machine.directory().list().unwrap().into_iter().filter(|name| name.starts_with(TORN));
    assert_eq!(kept.collect::<Vec<_>>(), names);
}

/// A disk without room takes no earlier copy away, however often that is tried.
#[test]
fn a_copy_that_cannot_be_written_leaves_the_earlier_ones() {
    let machine = Machine::default();
    let mut damaged = Vec::new();
    for round in 1..=2 {
        if round == 1 {
            drop(create(&machine));
        }
        let (index, torn) = damage_last(&machine, round);
        damaged.insert(0, torn);
        if round == 2 {
            for _ in 0..5 {
                machine.arm(0, Fault::Full);
                WritableDisk::repair_in(&*machine.directory()).unwrap_err();
                machine.repair();
                assert_eq!(machine.contents(TORN), damaged[1]);
                assert_eq!(machine.contents("index"), index);
                let names = machine.directory().list().unwrap();
                assert_eq!(names.iter().filter(|name| name.starts_with(TORN)).count(), 1, "{names:?}");
            }
        }
        WritableDisk::repair_in(&*machine.directory()).unwrap();
    }
    assert_eq!([TORN, "index.torn.1"].map(|name| machine.contents(name)), *damaged);
}

/// A log is of no use without the data that it names.
#[test]
fn a_pair_without_a_header_is_not_repaired() {
    let machine = closed(4);
    for file in ["data", "index"] {
        let whole = machine.contents(file);
        for len in [0, 4095] {
            machine.put(file, &whole[..len]);
            let [data, index] = ["data", "index"].map(|name| machine.contents(name));
            for error in
                [WritableDisk::repair_in(&*machine.directory()).unwrap_err(), open(&machine).err().unwrap()]
            {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                let message = error.to_string();
                let parts =
                    [&*format!("simulated/{file}"), "its header", "restore data and index", "cannot mend"];
                assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            }
            assert!(machine.contents("data") == data && machine.contents("index") == index);
        }
        machine.put(file, &whole);
    }
    assert_eq!(contents(&open(&machine).unwrap()), expected(4));
}

/// A repair that a crash interrupts is done again.
#[test]
fn a_repair_may_be_interrupted() {
    for after in 0..12 {
        for seed in 0..8 {
            let machine = closed(4);
            let mut index = machine.contents("index");
            index[4096 + 70] ^= 4;
            machine.put("index", &index);
            machine.arm(after, Fault::Crash);
            let _ = WritableDisk::repair_in(&*machine.directory());
            machine.crash(seed);
            WritableDisk::repair_in(&*machine.directory()).unwrap();
            assert_eq!(contents(&open(&machine).unwrap()), expected(2), "{after} {seed}");
        }
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Nothing is missing in silence, whatever is done to the noted part of an index, by a crash or behind our back.
    #[test]
    fn noted_records_are_never_lost_in_silence(
        writes in vec((0u64..120, 1usize..8, any::<bool>()), 1..20),
        later in vec((0u64..120, 1usize..8, any::<bool>()), 0..8),
        tended: bool, crashes: bool, kind in 0..4, seed: u64,
    ) {
        let machine = Machine::default();
        let disk = create(&machine);
        let write = |(number, (start, len, flush)): (usize, &(u64, usize, bool))| {
            disk.write_at(&vec![number as u8 + 1; len * 512], start * 512).unwrap();
            if *flush {
                disk.flush().unwrap();
            }
        };
        writes.iter().enumerate().for_each(write);
        disk.flush().unwrap();
        if tended {
            // So many that the log is written again; a disk of a few sectors is not always done with evacuating.
            (0..100).all(|_| disk.collect(Load::Offline).unwrap());
        }
        disk.flush().unwrap();
        disk.note_logs().unwrap();
        let noted = State::load(&*machine.directory()).unwrap().noted("index").unwrap().bytes as usize;
        later.iter().enumerate().for_each(write);
        drop(disk);
        if crashes {
            machine.crash(seed);
        }
        let mut dice = Dice::new(seed | 1);
        let mut index = machine.contents("index");
        let at = 4096 + dice.below(noted - 4096);
        let original = index.clone();
        match kind {
            0 => index.truncate(at),
            1 => index[at] ^= 1 << dice.below(8),
            2 => index[at..].fill(0),
            _ => {
                let end = at + dice.below(index.len() - at) + 1;
                index.drain(at..end);
            }
        }
        let is_damaged = index.get(..noted) != Some(&original[..noted]);
        machine.put("index", &index);
        match open(&machine) {
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corrupt),
            Ok(_) => prop_assert!(!is_damaged),
        }
    }
}
