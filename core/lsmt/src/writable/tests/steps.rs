//! Every step of a few scripts fails in turn, in every way.
//!
//! Random sequences seldom meet the one moment between a rename and a sync. Here each script is first run as it
//! is, to count its steps, and then once for each step, each kind of fault and several crashes.

use super::super::files::STATE_NEW;
use super::super::{Load, NewDisk, WritableDisk};
use super::model::{Interlude, Model, Op};
use super::sim::{Fault, Machine};
use headstart_block::{BlockDevice, ByteRange, ErrorKind};
use headstart_testkit::soak;
use uuid::Uuid;

/// Crashes of each kind at each step; each of them leaves other remains.
fn seeds() -> u64 {
    if soak::is_on() { 12 } else { 4 }
}

pub(super) const fn write(start: u64, len: u64) -> Op {
    Op::Write { start, len }
}

pub(super) const fn zero(start: u64, len: u64) -> Op {
    Op::Zero { start, len }
}

/// A seed that is not a small number.
fn seed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(super) fn fail_every_step(script: &[Op]) {
    fail_every_step_of(script, |seed| Model::new(true, seed));
}

/// As [`fail_every_step`], with models of another kind.
pub(super) fn fail_every_step_of(script: &[Op], new: impl Fn(u64) -> Model) {
    let steps = new(0).run(script);
    for after in 0..steps {
        for fault in [Fault::Crash, Fault::Kill, Fault::Eio, Fault::Full] {
            let seeds = if fault == Fault::Kill { 1 } else { seeds() };
            for number in 0..seeds {
                let mut ops = vec![Op::Arm { after, fault }];
                ops.extend_from_slice(script);
                // The disk must have the same content after the fault and after a crash.
                ops.extend([write(1, 3), Op::Flush, Op::Crash { seed: seed(number + 1), again: None }]);
                new(seed(number)).run(&ops);
            }
        }
    }
}

#[test]
fn a_fault_at_any_step_of_writes_loses_nothing() {
    fail_every_step(&[
        write(0, 20),
        zero(4, 4),
        Op::Flush,
        write(10, 30),
        write(90, 3),
        Op::Flush,
        zero(0, 128),
        write(5, 1),
        write(50, 9),
        Op::Flush,
        write(50, 9),
        Op::Flush,
    ]);
}

#[test]
fn a_fault_at_any_step_of_a_collection_loses_nothing() {
    let during = |after, start, zero| Some(Interlude { after, start, len: 12, zero });
    fail_every_step(&[
        write(0, 20),
        write(10, 20),
        zero(40, 4),
        write(60, 8),
        Op::Flush,
        write(5, 3),
        Op::Collect { during: None },
        write(12, 4),
        zero(60, 2),
        Op::Flush,
        Op::Collect { during: during(14, 10, false) },
        write(100, 12),
        Op::Collect { during: during(3, 0, true) },
    ]);
}

#[test]
fn a_fault_at_any_step_of_stacking_and_growing_loses_nothing() {
    let during = Some(Interlude { after: 9, start: 16, len: 12, zero: false });
    fail_every_step(&[
        write(0, 20),
        zero(40, 4),
        write(60, 8),
        Op::Stack { replace: true, during },
        write(10, 4),
        Op::Grow { sectors: 8 },
        write(120, 16),
        Op::Flush,
        Op::Stack { replace: false, during: None },
        zero(0, 8),
        Op::Stack { replace: true, during: None },
        write(0, 3),
        Op::Flush,
    ]);
}

#[test]
fn an_interrupted_creation_is_told_from_a_disk() {
    let new = NewDisk { size: 1 << 16, parent: "p".to_owned(), uuid: Uuid::from_u128(7) };
    let whole = Machine::default();
    WritableDisk::create_in(whole.directory(), None, &new).unwrap();
    for after in 0..whole.steps() {
        for fault in [Fault::Crash, Fault::Eio, Fault::Full] {
            for number in 0..seeds() * 4 {
                let machine = Machine::default();
                machine.arm(after, fault);
                let created = WritableDisk::create_in(machine.directory(), None, &new);
                assert_eq!(created.is_err(), machine.faults_seen() > 0, "{:?}", created.err());
                drop(created);
                machine.crash(seed(number));
                let disk = match WritableDisk::open_in(machine.directory(), None, "p") {
                    Ok(disk) => disk,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                        WritableDisk::create_in(machine.directory(), None, &new).unwrap()
                    }
                };
                let mut all = vec![1; 1 << 16];
                disk.read_at(&mut all, 0).unwrap();
                assert!(all.iter().all(|byte| *byte == 0));
                assert!(!machine.directory().list().unwrap().contains(&STATE_NEW.to_owned()));
            }
        }
    }
}

#[test]
fn a_torn_tail_is_cut_off_both_files() {
    let machine = Machine::default();
    let new = NewDisk { size: 1 << 16, parent: String::new(), uuid: Uuid::from_u128(7) };
    let disk = WritableDisk::create_in(machine.directory(), None, &new).unwrap();
    disk.write_at(&[1; 512], 0).unwrap();
    disk.flush().unwrap();
    disk.write_at(&[2; 1024], 0).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let mut index = machine.contents("index");
    assert_eq!((machine.contents("data").len(), index.len()), (4096 + 1536, 4096 + 64));
    // One bit of the last record.
    index[4096 + 40] ^= 1;
    machine.put("index", &index);
    let disk = WritableDisk::open_in(machine.directory(), None, "").unwrap();
    let mut all = vec![9; 1024];
    disk.read_at(&mut all, 0).unwrap();
    assert_eq!(all, [[1; 512], [0; 512]].concat());
    assert_eq!((machine.contents("data").len(), machine.contents("index").len()), (4096 + 512, 4096 + 32));
}

#[test]
fn damage_in_the_middle_of_a_log_is_no_torn_tail() {
    let machine = Machine::default();
    let new = NewDisk { size: 1 << 16, parent: String::new(), uuid: Uuid::from_u128(7) };
    let disk = WritableDisk::create_in(machine.directory(), None, &new).unwrap();
    for byte in 1..5 {
        disk.write_at(&[byte; 512], 0).unwrap();
        disk.flush().unwrap();
    }
    drop(disk);
    let (data, index) = (machine.contents("data"), machine.contents("index"));
    // In every byte of all groups but the last, which cannot be told from a torn one.
    for at in 4096..4096 + 96 {
        let mut damaged = index.clone();
        damaged[at] ^= 0x10;
        machine.put("index", &damaged);
        let error = WritableDisk::open_in(machine.directory(), None, "").err().expect("it opened");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}: {error}");
        assert!(error.to_string().contains("restore"), "{error}");
        assert!(machine.contents("data") == data && machine.contents("index") == damaged);
    }
    machine.put("index", &index);
    assert!(WritableDisk::open_in(machine.directory(), None, "").is_ok());
}

/// A log with fewer records names less of the data file. If a process dies after it has put that log in the place of
/// another, the name is in memory only: the data that the other one names must stay until the name is durable.
#[test]
fn data_is_kept_until_the_log_without_it_is_durable() {
    let new = NewDisk { size: 1 << 16, parent: String::new(), uuid: Uuid::from_u128(7) };
    // A log of many records, the last of which name data that is dead.
    let prepared = || {
        let machine = Machine::default();
        let disk = WritableDisk::create_in(machine.directory(), None, &new).unwrap();
        disk.write_at(&[1; 4096], 0).unwrap();
        for _ in 0..40 {
            disk.write_at(&[2; 512], 8192).unwrap();
            disk.write_zeroes(ByteRange::new(8192, 512).unwrap()).unwrap();
            disk.flush().unwrap();
        }
        (machine, disk)
    };
    let collect = |disk: &WritableDisk| while disk.collect(Load::Offline).is_ok_and(|worked| worked) {};
    let steps = |machine: &Machine, act: &dyn Fn()| {
        let before = machine.steps();
        act();
        machine.steps() - before
    };
    let (machine, disk) = prepared();
    let collecting = steps(&machine, &|| collect(&disk));
    drop(disk);
    let opening = steps(&machine, &|| drop(WritableDisk::open_in(machine.directory(), None, "").unwrap()));
    for (killed, crashed) in (0..collecting).flat_map(|killed| (0..=opening).map(move |n| (killed, n))) {
        for number in 0..seeds() {
            let (machine, disk) = prepared();
            machine.arm(killed, Fault::Kill);
            collect(&disk);
            drop(disk);
            assert!(machine.revive());
            machine.arm(crashed, Fault::Crash);
            drop(WritableDisk::open_in(machine.directory(), None, ""));
            machine.crash(seed(number));
            let disk = WritableDisk::open_in(machine.directory(), None, "").unwrap();
            let mut all = [9; 12 << 10];
            disk.read_at(&mut all, 0).unwrap();
            assert!(all[..4096] == [1; 4096] && all[4096..] == [0; 8192], "{killed} {crashed}");
        }
    }
}
