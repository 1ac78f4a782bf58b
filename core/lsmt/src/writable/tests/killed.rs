//! The death of the disk's process: answered writes are there for the next one, as long as the host runs.

use super::super::pending::{Left, PENDING, Pending, Place};
use super::super::state::State;
use super::super::{Limits, Load, NewDisk, WritableDisk};
use super::model::{Model, Op, arm, cases, interlude, io, tend, upkeep};
use super::sim::{Fault, Machine};
use headstart_block::{BlockDevice, ByteRange, SECTOR_SIZE};
use headstart_testkit::scene::hex;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use uuid::Uuid;

const SIZE: u64 = 1 << 20;

fn new_disk() -> NewDisk {
    NewDisk { size: SIZE, parent: String::new(), uuid: Uuid::from_u128(0xabcd << 96) }
}

fn create(machine: &Machine) -> WritableDisk {
    WritableDisk::create_in(machine.directory(), None, &new_disk()).unwrap()
}

fn open(machine: &Machine) -> WritableDisk {
    WritableDisk::open_in(machine.directory(), None, "").unwrap()
}

/// The first byte of each of the first sectors, which must be uniform.
fn sectors(disk: &WritableDisk, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count * SECTOR_SIZE as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    let uniform = bytes.chunks(SECTOR_SIZE as usize).map(|sector| {
        assert!(sector.iter().all(|byte| *byte == sector[0]));
        sector[0]
    });
    uniform.collect()
}

/// A disk that has flushed a write over six sectors, and then writes and a discard that it has not.
fn unflushed(machine: &Machine) -> WritableDisk {
    let disk = create(machine);
    disk.write_at(&[1; 6 * 512], 0).unwrap();
    disk.flush().unwrap();
    disk.write_at(&[2; 3 * 512], 512).unwrap();
    disk.write_zeroes(ByteRange::new(1024, 512).unwrap()).unwrap();
    disk.write_at(&[3; 512], 5 * 512).unwrap();
    disk
}

const FLUSHED: [u8; 6] = [1; 6];
const WRITTEN: [u8; 6] = [1, 2, 0, 2, 1, 3];

#[test]
fn answered_writes_survive_the_process_and_are_durable_from_then_on() {
    let machine = Machine::default();
    drop(unflushed(&machine));
    let is_there = || machine.directory().list().unwrap().iter().any(|name| name == PENDING);
    assert!(is_there());
    let disk = open(&machine);
    assert_eq!(sectors(&disk, 6), WRITTEN);
    assert!(!is_there());
    // A disk that is closed in good order leaves none.
    disk.write_at(&[3; 512], 5 * 512).unwrap();
    assert!(is_there());
    disk.flush().unwrap();
    drop(disk);
    assert!(!is_there());
    machine.crash(0);
    assert_eq!(sectors(&open(&machine), 6), WRITTEN);
}

/// Even if all of it has reached the disk: the data may not have.
#[test]
fn nothing_of_it_is_used_after_a_loss_of_power() {
    let machine = Machine::default();
    let disk = unflushed(&machine);
    machine.directory().open(PENDING).unwrap().sync().unwrap();
    machine.directory().sync().unwrap();
    drop(disk);
    machine.crash(0);
    assert_eq!(sectors(&open(&machine), 6), FLUSHED);
}

#[test]
fn a_host_that_does_not_tell_its_boot_id_has_no_such_file() {
    let machine = Machine::default();
    machine.hide_boot_id();
    drop(unflushed(&machine));
    assert!(!machine.directory().list().unwrap().iter().any(|name| name == PENDING));
    assert_eq!(sectors(&open(&machine), 6), FLUSHED);
}

#[test]
fn a_sync_that_failed_makes_it_void() {
    let machine = Machine::default();
    let disk = unflushed(&machine);
    machine.arm(0, Fault::Eio);
    disk.flush().unwrap_err();
    drop(disk);
    assert_eq!(sectors(&open(&machine), 6), FLUSHED);
}

/// Versions that do not know the file take it for one of a pair that is gone.
#[test]
fn an_earlier_version_removes_it() {
    let machine = Machine::default();
    drop(unflushed(&machine));
    State::load(&*machine.directory()).unwrap().remove_leftovers(&*machine.directory());
    assert!(!machine.directory().list().unwrap().iter().any(|name| name == PENDING));
    assert_eq!(sectors(&open(&machine), 6), FLUSHED);
}

/// Data that is not what was written, as after the file system was mounted again, takes all entries of its pair along.
#[test]
fn entries_without_their_data_are_left_out() {
    let machine = Machine::default();
    drop(unflushed(&machine));
    let mut data = machine.contents("data");
    let end = data.len();
    data[end - 1] ^= 1;
    machine.put("data", &data);
    assert_eq!(sectors(&open(&machine), 6), FLUSHED);
}

/// The file of another disk, or one that is cut off.
#[test]
fn a_file_that_is_none_is_not_used() {
    let machine = Machine::default();
    drop(unflushed(&machine));
    let file = machine.contents(PENDING);
    for len in [0, 63, 4095, 4096] {
        let other = Machine::default();
        for name in ["data", "index", "state.json"] {
            other.put(name, &machine.contents(name));
        }
        other.put(PENDING, &file[..len]);
        assert_eq!(sectors(&open(&other), 6), FLUSHED, "{len}");
    }
    let mut other = file;
    other[24] ^= 1;
    machine.put(PENDING, &other);
    assert_eq!(sectors(&open(&machine), 6), FLUSHED);
}

/// The bytes that this version writes: a later one must read them.
#[test]
fn the_format_is_this_one() {
    let machine = Machine::default();
    drop(unflushed(&machine));
    let file = machine.contents(PENDING);
    assert_eq!(hex(&file[..72]), include_str!("pending-header.hex").replace(['\n', ' '], ""));
    assert_eq!(hex(&file[4096..][..120]), include_str!("pending-entries.hex").replace(['\n', ' '], ""));
    assert!(file[4096 + 120..].iter().all(|byte| *byte == 0));
}

/// A write that comes while a hole is made waits in memory; its copy is in the file.
#[test]
fn a_write_beside_a_hole_survives() {
    let machine = Machine::default();
    let disk = Arc::new(create(&machine));
    disk.write_at(&[1; 1 << 17], 0).unwrap();
    disk.write_at(&[2; 1 << 17], 0).unwrap();
    disk.flush().unwrap();
    let beside = Arc::clone(&disk);
    let hole = machine.clone();
    let write = move || {
        let before = hole.contents("data");
        beside.write_at(&[3; 512], 0).unwrap();
        beside.write_at(&[4; 1024], 2048).unwrap();
        assert!(hole.contents("data") == before, "it went to the file");
        hole.arm(0, Fault::Kill);
    };
    machine.interrupt(0, Box::new(write));
    let _ = disk.collect(Load::Offline);
    assert!(machine.is_down() && machine.revive());
    drop(disk);
    assert_eq!(sectors(&open(&machine), 8), [3, 2, 2, 2, 4, 4, 2, 2]);
}

/// Flushes that find more writes under way leave their entries, in slots that go round.
#[test]
fn the_ring_goes_round() {
    let machine = Machine::default();
    let pending = Pending::new(machine.directory(), Uuid::nil());
    let state = State::new(Uuid::nil(), String::new(), SIZE, &[0]);
    let left = || Left::read(&*machine.directory(), &state).positions();
    let (mut first, mut next) = (0, 0);
    for step in [300, 500, 70, 512, 1] {
        let mut places = 0;
        loop {
            pending.make_room(|| 0).unwrap();
            let Place::Ticket(ticket) = pending.place() else { break };
            pending.enter(ticket, 0, (1, 2), None).unwrap();
            places += 1;
        }
        assert!(matches!(pending.place(), Place::Full) && pending.is_nearly_full());
        next += places;
        assert_eq!(next - first, 512, "all slots are used");
        assert_eq!(left(), (first..next).collect::<Vec<_>>());
        first += step;
        pending.forget(first).unwrap();
        assert_eq!(left(), (first..next).collect::<Vec<_>>());
    }
}

/// More writes than there are entries are flushed in between.
#[test]
fn the_file_keeps_to_the_limit_of_the_directory() {
    let machine = Machine::default();
    let disk = create(&machine);
    disk.set_limits(Limits { max: Some(Limits::MAX_LEAST), ..Limits::default() }).unwrap();
    let mut expected = vec![0; 64];
    for number in 0..7000_usize {
        let (place, byte) = (number * 7 % 64, (number % 251) as u8);
        disk.write_at(&[byte; 512], place as u64 * 512).unwrap();
        expected[place] = byte;
        if number == 1000 {
            assert_eq!(machine.contents(PENDING).len(), 4096 + 3 * 512 * 40);
        }
    }
    drop(disk);
    assert_eq!(machine.contents(PENDING).len(), 4096 + 12 * 512 * 40);
    assert_eq!(sectors(&open(&machine), 64), expected);
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn nothing_answered_is_lost_when_the_process_is_killed(
        base: bool, seed: u64, tight: bool,
        ops in vec(
            prop_oneof![
                8 => io(), 3 => upkeep(), 3 => interlude().prop_map(tend), 4 => arm(Fault::Kill),
                1 => Just(Op::Reopen { flush: false }),
            ],
            1..40,
        ),
    ) {
        let model = Model::new(base, seed);
        if tight { model.tight(64 << 10) } else { model }.run(&ops);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_replayed_or_left_out(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), seal: bool,
    ) {
        let machine = Machine::default();
        drop(unflushed(&machine));
        let mut file = machine.contents(PENDING);
        for (at, byte) in changes {
            let at = 44 + at.index(172);
            file[if at < 96 { at } else { 4000 + at }] = byte;
        }
        if seal {
            let sum = super::super::pending::checksum(&file[4096..4132]);
            file[4132..4136].copy_from_slice(&sum.to_le_bytes());
        }
        machine.put(PENDING, &file);
        // It opens, whatever they say.
        let disk = open(&machine);
        disk.write_at(&[9; 512], 0).unwrap();
        disk.flush().unwrap();
        prop_assert_eq!(sectors(&open(&machine), 1), [9]);
    }
}
