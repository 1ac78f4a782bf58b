//! The death of the disk's process: answered writes are there for the next one, as long as the host runs.

use super::super::left::Left;
use super::super::log::LogEnd;
use super::super::pending::{PENDING, Pending, Place};
use super::super::state::State;
use super::super::{Limits, Load, NewDisk, SEALED_AHEAD, WritableDisk};
use super::model::{Model, Op, arm, cases, interlude, io, tend, upkeep};
use super::sim::{Fault, Machine};
use headstart_block::{BlockDevice, ByteRange, ErrorKind, SECTOR_SIZE};
use headstart_testkit::scene::hex;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::spawn;
use std::time::Duration;
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

/// Layers that a killed process has sealed ahead are as large as the disk's data.
#[test]
fn layers_sealed_ahead_go_with_the_next_opening_or_a_repair() {
    for repair in [false, true] {
        let machine = Machine::default();
        drop(unflushed(&machine));
        for name in ["sealed-ahead.1", "sealed-ahead.1.tree"] {
            machine.put(name, &[7; 4096]);
        }
        if repair {
            assert!(WritableDisk::repair_in(&*machine.directory()).unwrap().is_empty());
        } else {
            drop(open(&machine));
        }
        let left = machine.directory().list().unwrap();
        assert!(left.iter().all(|name| !name.starts_with(SEALED_AHEAD)), "{left:?}");
        assert_eq!(sectors(&open(&machine), 6), WRITTEN);
    }
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
    for len in [0, 63, 4095, 4096, 8192] {
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

/// Storage may give back an earlier state of one of the files, or of both, while the host runs.
#[test]
fn it_is_used_only_on_the_log_that_it_continues() {
    let machine = Machine::default();
    let disk = unflushed(&machine);
    let files = || (machine.contents("index"), machine.contents(PENDING));
    let (early_log, early) = files();
    disk.flush().unwrap();
    disk.write_at(&[7; 512], 0).unwrap();
    disk.flush().unwrap();
    disk.write_at(&[8; 512], 512).unwrap();
    let (late_log, late) = files();
    drop(disk);
    let open_with = |index: &[u8], pending: &[u8]| {
        let other = Machine::default();
        other.put("state.json", &machine.contents("state.json"));
        other.put("data", &machine.contents("data"));
        other.put("index", index);
        other.put(PENDING, pending);
        sectors(&open(&other), 6)
    };
    assert_eq!(open_with(&early_log, &early), WRITTEN);
    assert_eq!(open_with(&late_log, &late), [7, 8, 0, 2, 1, 3]);
    // Writes that were flushed long ago must not come back over later ones.
    assert_eq!(open_with(&late_log, &early), [7, 2, 0, 2, 1, 3]);
    assert_eq!(open_with(&early_log, &late), FLUSHED);
    // Notes of one moment, and entries of a later one.
    let mixed = [&early[..8192], &late[8192..]].concat();
    assert_eq!(open_with(&early_log, &mixed), FLUSHED);
}

/// A process that is killed while it brings what was left into the log has it there.
#[test]
fn what_was_left_is_there_after_another_death() {
    for after in 0..12 {
        let machine = Machine::default();
        drop(unflushed(&machine));
        machine.arm(after, Fault::Kill);
        let opened = WritableDisk::open_in(machine.directory(), None, "");
        assert!(opened.is_ok() || machine.is_down(), "{after}");
        machine.revive();
        machine.repair();
        assert_eq!(sectors(&open(&machine), 6), WRITTEN, "{after}");
    }
}

/// Readers do not wait for the file that copies of kept data go to.
#[test]
fn a_read_beside_a_copy_of_kept_data_does_not_wait() {
    let machine = Machine::default();
    let disk = Arc::new(create(&machine));
    disk.write_at(&[1; 1 << 17], 0).unwrap();
    disk.write_at(&[2; 1 << 17], 0).unwrap();
    disk.flush().unwrap();
    let (told, read) = channel();
    let (writer, hole) = (Arc::clone(&disk), machine.clone());
    let write = move || {
        // The first step of a write beside a hole is that of its copy.
        let reader = Arc::clone(&writer);
        let during = move || {
            let (done, is_done) = channel();
            spawn(move || done.send(sectors(&reader, 1)));
            told.send(is_done.recv_timeout(Duration::from_secs(20)).ok()).unwrap();
        };
        hole.interrupt(0, Box::new(during));
        writer.write_at(&[3; 512], 512).unwrap();
    };
    machine.interrupt(0, Box::new(write));
    disk.collect(Load::Offline).unwrap();
    assert_eq!(read.recv().unwrap(), Some(vec![2]));
    assert_eq!(sectors(&disk, 2), [2, 3]);
}

/// A discard gives space back, so that it needs none for its entry.
#[test]
fn a_discard_on_a_full_file_system_is_durable_when_it_is_answered() {
    let machine = Machine::default();
    let disk = create(&machine);
    disk.write_at(&[1; 6 * 512], 0).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let disk = open(&machine);
    machine.refuse_names();
    assert_eq!(disk.make_ready().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(disk.write_at(&[2; 512], 0).unwrap_err().kind(), ErrorKind::NoSpace);
    disk.write_zeroes(ByteRange::new(512, 1024).unwrap()).unwrap();
    assert_eq!(sectors(&disk, 6), [1, 0, 0, 1, 1, 1]);
    drop(disk);
    machine.crash(0);
    assert_eq!(sectors(&open(&machine), 6), [1, 0, 0, 1, 1, 1]);
}

/// The space for the first writes is taken before clients come.
#[test]
fn a_disk_that_was_made_ready_takes_discards_without_more_space() {
    let machine = Machine::default();
    let disk = create(&machine);
    disk.write_at(&[1; 6 * 512], 0).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let disk = open(&machine);
    assert!(disk.make_ready().unwrap());
    machine.arm(0, Fault::Full);
    disk.write_zeroes(ByteRange::new(512, 1024).unwrap()).unwrap();
    assert!(!machine.is_down() && sectors(&disk, 6) == [1, 0, 0, 1, 1, 1]);
    machine.repair();
    drop(disk);
    assert_eq!(sectors(&open(&machine), 6), [1, 0, 0, 1, 1, 1]);
    // It tells whether writes survive this process.
    let machine = Machine::default();
    machine.hide_boot_id();
    assert!(!create(&machine).make_ready().unwrap());
}

fn fixture(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The bytes that this version writes: a later one must read them.
#[test]
fn the_format_is_this_one() {
    let machine = Machine::default();
    drop(unflushed(&machine));
    let file = machine.contents(PENDING);
    assert_eq!(hex(&file[..128]), hex(&fixture(include_str!("pending-header-2.hex"))));
    assert_eq!(hex(&file[4096..][..96]), hex(&fixture(include_str!("pending-note-2.hex"))));
    assert_eq!(hex(&file[8192..][..144]), hex(&fixture(include_str!("pending-entries-2.hex"))));
    assert!(file[8192 + 144..].iter().all(|byte| *byte == 0));
}

/// A file of the first form, as an earlier version leaves it when a newer one takes its place while guests run.
#[test]
fn a_file_of_the_first_form_is_read() {
    let machine = Machine::default();
    drop(unflushed(&machine));
    let mut file = fixture(include_str!("pending-header.hex"));
    file.resize(4096, 0);
    file.extend(fixture(include_str!("pending-entries.hex")));
    file.resize(4096 + 512 * 40, 0);
    machine.put(PENDING, &file);
    assert_eq!(sectors(&open(&machine), 6), WRITTEN);
    // Of the three entries, only the last one counts.
    let machine = Machine::default();
    drop(unflushed(&machine));
    file[64..72].copy_from_slice(&3_u64.to_le_bytes());
    machine.put(PENDING, &file);
    assert_eq!(sectors(&open(&machine), 6), [1, 1, 1, 1, 1, 3]);
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

/// The end of the log of pair 0 after some bytes.
fn ends(bytes: u64) -> Vec<(u32, LogEnd)> {
    vec![(0, LogEnd { bytes, checksum: 1 })]
}

/// Flushes that find more writes under way leave their entries, in slots that go round.
#[test]
fn the_ring_goes_round() {
    let machine = Machine::default();
    let pending = Pending::new(machine.directory(), Uuid::nil(), ends(0));
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
        pending.forget(first, ends(first)).unwrap();
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
            assert_eq!(machine.contents(PENDING).len(), 8192 + 3 * 512 * 48);
        }
    }
    drop(disk);
    assert_eq!(machine.contents(PENDING).len(), 8192 + 10 * 512 * 48);
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
    #![proptest_config(cases(1_500))]

    /// Storage that loses what was not synced while the host runs, as a network volume that comes back does.
    #[test]
    fn storage_that_loses_its_last_writes_has_what_was_flushed(
        base: bool, seed: u64,
        ops in vec(
            prop_oneof![
                8 => io(), 3 => upkeep(), 3 => interlude().prop_map(tend),
                3 => any::<u64>().prop_map(|seed| Op::Lose { seed }), 1 => Just(Op::Reopen { flush: false }),
            ],
            1..40,
        ),
    ) {
        Model::new(base, seed).run(&ops);
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
            let at = 44 + at.index(52 + 144);
            file[if at < 96 { at } else { 8192 - 96 + at }] = byte;
        }
        if seal {
            let sum = super::super::pending::checksum(&file[8192..8236]);
            file[8236..8240].copy_from_slice(&sum.to_le_bytes());
        }
        machine.put(PENDING, &file);
        // It opens, whatever they say.
        let disk = open(&machine);
        disk.write_at(&[9; 512], 0).unwrap();
        disk.flush().unwrap();
        prop_assert_eq!(sectors(&open(&machine), 1), [9]);
    }
}
