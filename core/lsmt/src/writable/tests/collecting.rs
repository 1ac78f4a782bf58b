//! Garbage collection by itself: crashes at each of its steps, its bounds, its readers.

use super::super::{Limits, Load, NewDisk, WritableDisk};
use super::model::{Interlude, Model, Op, arm, cases, crash, interlude, io, upkeep};
use super::sim::{Dice, Fault, Machine};
use super::steps::{fail_every_step, fail_every_step_of, write, zero};
use crate::{Layer, LayerMeta, Stack};
use headstart_block::{BlockDevice, ByteRange, ErrorKind, SECTOR_SIZE};
use headstart_testkit::soak;
use proptest::collection::vec;
use proptest::prelude::*;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use uuid::Uuid;

fn tend(load: Load) -> Op {
    Op::Tend { load, steps: 1000, during: None }
}

fn tending() -> impl Strategy<Value = Op> {
    let load = prop_oneof![Just(Load::Busy), Just(Load::Quiet), Just(Load::Offline), Just(Load::Pressed)];
    let steps = prop_oneof![1 => 1u64..6, 1 => Just(1000)];
    (load, steps, interlude()).prop_map(|(load, steps, during)| Op::Tend { load, steps, during })
}

fn tending_alone() -> impl Strategy<Value = Op> {
    tending().prop_map(|op| match op {
        Op::Tend { load, steps, .. } => Op::Tend { load, steps, during: None },
        other => other,
    })
}

/// Upkeep without writes in the middle, which would wait for a collector that waits for them.
fn upkeep_alone() -> impl Strategy<Value = Op> {
    upkeep().prop_map(|op| match op {
        Op::Collect { .. } => Op::Collect { during: None },
        Op::Commit { .. } => Op::Commit { during: None },
        Op::Stack { replace, .. } => Op::Stack { replace, during: None },
        other => other,
    })
}

/// Enough to fill blocks, leave parts of them, and grow the log.
const SCRIPT: &[Op] = &[
    write(0, 40),
    write(3, 1),
    write(9, 6),
    Op::Flush,
    zero(16, 8),
    write(0, 16),
    write(70, 9),
    Op::Flush,
    write(70, 9),
];

#[test]
fn a_fault_at_any_step_of_compaction_loses_nothing() {
    let mut script = SCRIPT.to_vec();
    script.push(tend(Load::Quiet));
    script.push(write(30, 3));
    script.push(tend(Load::Offline));
    for start in [1, 5, 33, 90, 91] {
        script.extend([write(start, 1), Op::Flush]);
    }
    script.extend([write(1, 60), tend(Load::Offline), Op::Reopen { flush: false }, tend(Load::Offline)]);
    fail_every_step(&script);
}

#[test]
fn a_fault_at_any_step_of_absorbing_pairs_loses_nothing() {
    let mut script = SCRIPT.to_vec();
    script.extend([Op::Collect { during: None }, write(2, 5), tend(Load::Busy), write(8, 30)]);
    script.extend([Op::Stack { replace: false, during: None }, write(50, 5), Op::Collect { during: None }]);
    script.push(tend(Load::Offline));
    fail_every_step(&script);
}

#[test]
fn writes_in_the_middle_of_a_collection_step_are_kept() {
    for after in 0..40 {
        let during = Some(Interlude { after, start: 2, len: 12, zero: after % 3 == 0 });
        let mut script = SCRIPT.to_vec();
        script.extend([Op::Collect { during: None }, write(4, 9), Op::Commit { during: None }, write(33, 2)]);
        script.push(Op::Tend { load: Load::Offline, steps: 1000, during });
        script.extend([Op::Crash { seed: after, again: None }, tend(Load::Offline)]);
        Model::new(true, 5).run(&script);
    }
}

#[test]
fn a_fault_at_any_step_of_a_writers_collection_loses_nothing() {
    let script: Vec<_> = (0..14).flat_map(|n| [write(n % 3, 17), write(40 + n, 9)]).collect();
    fail_every_step_of(&script, |seed| Model::new(false, seed).tight(48 << 10));
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn survives_crashes_while_it_collects(
        base: bool, seed: u64,
        ops in vec(
            prop_oneof![
                6 => io(), 2 => upkeep(), 5 => tending(), 2 => arm(Fault::Crash), 1 => arm(Fault::Kill),
                1 => arm(Fault::Eio), 1 => arm(Fault::Full), 1 => Just(Op::Repair), 1 => crash(),
            ],
            1..40,
        ),
    ) {
        Model::new(base, seed).run(&ops);
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn writes_alone_keep_the_directory_within_its_bounds(
        base: bool, seed: u64, slack in prop_oneof![Just(40u64 << 10), Just(96 << 10)],
        ops in vec(
            prop_oneof![
                12 => io(), 1 => upkeep_alone(), 1 => tending_alone(), 1 => arm(Fault::Crash),
                1 => arm(Fault::Eio), 1 => arm(Fault::Full), 1 => Just(Op::Repair), 1 => crash(),
            ],
            1..120,
        ),
    ) {
        Model::new(base, seed).tight(slack).run(&ops);
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn layers_are_sealed_ahead_while_writes_wait_for_the_collector(
        base: bool, seed: u64, slack in prop_oneof![Just(40u64 << 10), Just(96 << 10)],
        ops in vec(
            prop_oneof![
                12 => io(), 2 => (1u64..60).prop_map(|sectors| Op::Seal { sectors, during: None }),
                2 => Just(Op::Mark), 1 => upkeep_alone(), 1 => tending_alone(), 1 => crash(),
            ],
            1..80,
        ),
    ) {
        Model::new(base, seed).tight(slack).run(&ops);
    }
}

fn new_disk(size: u64) -> NewDisk {
    NewDisk { size, parent: String::new(), uuid: Uuid::from_u128(7) }
}

/// Bytes that the files of a directory take.
pub(super) fn taken(path: &Path) -> u64 {
    std::fs::read_dir(path)
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.blocks() * 512))
        .sum()
}

fn collect_all(disk: &WritableDisk, load: Load) {
    for _ in 0..100_000 {
        if !disk.collect(load).unwrap() {
            return;
        }
    }
    panic!("collecting does not end: {:?}", disk.space());
}

/// A way to write.
type Pattern = fn(&WritableDisk, &mut Dice, u64);

const SIZE: u64 = 16 << 20;

fn sequentially(disk: &WritableDisk, _: &mut Dice, round: u64) {
    disk.write_at(&[round as u8; 64 << 10], round * (64 << 10) % (4 << 20)).unwrap();
}

fn in_blocks(disk: &WritableDisk, dice: &mut Dice, round: u64) {
    for _ in 0..16 {
        disk.write_at(&[round as u8; 4096], dice.below(1024) as u64 * 4096).unwrap();
    }
}

fn in_sectors(disk: &WritableDisk, dice: &mut Dice, round: u64) {
    for _ in 0..64 {
        disk.write_at(&[round as u8; 512], dice.below(8192) as u64 * 512).unwrap();
    }
}

/// Leaves one sector of each block alive.
fn one_of_eight(disk: &WritableDisk, dice: &mut Dice, round: u64) {
    let start = dice.below(SIZE as usize / 4096 - 16) as u64 * 4096;
    disk.write_at(&[round as u8; 16 << 10], start).unwrap();
    for block in 0..4 {
        disk.write_zeroes(ByteRange::new(start + block * 4096 + 512, 3584).unwrap()).unwrap();
    }
}

fn and_discard_all(disk: &WritableDisk, dice: &mut Dice, round: u64) {
    in_blocks(disk, dice, round);
    if round % 50 == 49 {
        disk.write_zeroes(ByteRange::between(0, SIZE)).unwrap();
    }
}

fn small_flushes(disk: &WritableDisk, dice: &mut Dice, round: u64) {
    for _ in 0..4 {
        disk.write_at(&[round as u8; 512], dice.below(32) as u64 * 512).unwrap();
        disk.flush().unwrap();
    }
}

/// The bound at any moment while only the writer collects, and the one of quiet.
#[test]
fn no_pattern_of_writes_fills_the_directory() {
    const SLACK: u64 = 1 << 20;
    let longer = if soak::is_on() { 5 } else { 1 };
    let patterns: [(&str, u64, Pattern); 6] = [
        ("sequential", 200 * longer, sequentially),
        ("blocks", 200 * longer, in_blocks),
        ("sectors", 300 * longer, in_sectors),
        ("one of eight", 400 * longer, one_of_eight),
        ("discard", 150 * longer, and_discard_all),
        ("flushes", 800 * longer, small_flushes),
    ];
    for (name, rounds, pattern) in patterns {
        let dir = tempfile::tempdir().unwrap();
        let disk = WritableDisk::create(dir.path(), None, &new_disk(SIZE)).unwrap();
        disk.view_mut().limits = Limits { slack: SLACK, ..Limits::default() };
        let mut dice = Dice::new(0x9e37_79b9_7f4a_7c15);
        for round in 0..rounds {
            pattern(&disk, &mut dice, round);
            let live = disk.usage().live_bytes;
            assert!(taken(dir.path()) <= 2 * live + SLACK, "{name} {round}: {} {live}", taken(dir.path()));
        }
        collect_all(&disk, Load::Quiet);
        let (live, quiet) = (disk.usage().live_bytes, taken(dir.path()));
        assert!(quiet <= live + live / 2 + SLACK, "{name}: {quiet} {live}");
        collect_all(&disk, Load::Offline);
        let least = taken(dir.path());
        assert!(least <= live + live / 16 + (64 << 10), "{name}: {least} {live}");
        let mut before = vec![0; SIZE as usize];
        disk.read_at(&mut before, 0).unwrap();
        drop(disk);
        let disk = WritableDisk::open(dir.path(), None, "").unwrap();
        let mut after = vec![1; SIZE as usize];
        disk.read_at(&mut after, 0).unwrap();
        assert!(before == after, "{name}");
    }
}

#[test]
fn a_full_directory_refuses_writes_until_something_is_discarded() {
    const MAX: u64 = 32 << 20;
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(256 << 20)).unwrap();
    let limits = Limits { max: Some(MAX), ..Limits::default() };
    assert_eq!(
        disk.set_limits(Limits { max: Some(1 << 20), ..limits }).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    disk.set_limits(limits).unwrap();
    let mut written = 0;
    let error = loop {
        match disk.write_at(&vec![7; 1 << 20], written) {
            Ok(()) => written += 1 << 20,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("fstrim") && error.to_string().contains("32 MiB"), "{error}");
    // Most of it is for data.
    assert!(written >= MAX * 5 / 8 && taken(dir.path()) <= MAX, "{written}");
    // The present data can be written again, flushed, read, and for ever.
    for round in 0..100u8 {
        disk.write_at(&vec![round; 4 << 20], u64::from(round % 4) << 20).unwrap();
        assert!(taken(dir.path()) <= MAX, "{}", taken(dir.path()));
    }
    disk.flush().unwrap();
    let mut sector = [0; 512];
    disk.read_at(&mut sector, written - 512).unwrap();
    assert_eq!(sector, [7; 512]);
    assert_eq!(disk.write_at(&vec![7; 1 << 20], 200 << 20).unwrap_err().kind(), ErrorKind::NoSpace);
    disk.write_zeroes(ByteRange::between(0, 8 << 20)).unwrap();
    disk.write_at(&vec![8; 4 << 20], 200 << 20).unwrap();
    assert!(taken(dir.path()) <= MAX && disk.space().throttled_writes > 0);
}

/// Data that a commit reads stays there until it has ended, and counts for the bound as if it were live.
#[test]
fn a_commit_reads_what_is_overwritten_meanwhile() {
    struct Overwriter<'a>(&'a WritableDisk, Vec<u8>);
    impl Write for Overwriter<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            for round in 0..8 {
                self.0.write_at(&vec![round; 1 << 20], u64::from(round % 4) << 20)?;
                self.0.flush()?;
                collect_all(self.0, Load::Offline);
            }
            self.1.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(SIZE)).unwrap();
    disk.view_mut().limits = Limits { slack: 4 << 20, ..Limits::default() };
    for mib in 0..4u8 {
        disk.write_at(&vec![0xa0 + mib; 1 << 20], u64::from(mib) << 20).unwrap();
    }
    let (layer, _) = disk.commit(Overwriter(&disk, Vec::new()), LayerMeta::default()).unwrap();
    let committed = Stack::new(vec![Layer::open(Arc::new(layer.1)).unwrap()]).unwrap();
    for mib in 0..4u8 {
        let mut found = vec![0; 1 << 20];
        committed.read_at(&mut found, u64::from(mib) << 20).unwrap();
        assert!(found.iter().all(|byte| *byte == 0xa0 + mib), "{mib}");
    }
    assert!(taken(dir.path()) <= 2 * (8 << 20) + (4 << 20), "{}", taken(dir.path()));
    collect_all(&disk, Load::Offline);
    assert!(taken(dir.path()) < 5 << 20, "{}", taken(dir.path()));
}

#[test]
fn without_holes_garbage_is_collected_by_copying() {
    let machine = Machine::default();
    machine.fill_holes();
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(SIZE)).unwrap();
    disk.view_mut().limits = Limits { slack: 4 << 20, ..Limits::default() };
    for round in 0..200u8 {
        disk.write_at(&[round; 64 << 10], u64::from(round % 4) << 16).unwrap();
        assert!(machine.taken() <= (8 << 20), "{}", machine.taken());
    }
    collect_all(&disk, Load::Offline);
    assert!(machine.taken() <= 320 << 10, "{}", machine.taken());
    let mut found = vec![0; 64 << 10];
    disk.read_at(&mut found, 3 << 16).unwrap();
    assert!(found == [199; 64 << 10]);
}

/// Logs count as garbage, though a copy has logs as well.
#[test]
fn copying_ends_when_it_gives_nothing_back() {
    let machine = Machine::default();
    machine.fill_holes();
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(SIZE)).unwrap();
    for round in 0..4u8 {
        disk.write_at(&[round; 64 << 10], 0).unwrap();
    }
    // The headers of the logs alone are more garbage than that allows.
    disk.view_mut().limits = Limits { slack: 4 << 10, ..Limits::default() };
    assert!((0..100).any(|_| !disk.collect(Load::Pressed).unwrap()), "{:?}", disk.space());
    let space = disk.space();
    assert_eq!((space.live_bytes, space.copied_bytes), (64 << 10, 64 << 10), "{space:?}");
}

/// A reader that was on its way when its sectors died must not read a hole.
#[test]
fn readers_never_see_holes() {
    const SECTORS: usize = 2048;
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(SECTORS as u64 * SECTOR_SIZE)).unwrap();
    disk.view_mut().limits = Limits { slack: 1 << 20, ..Limits::default() };
    disk.write_at(&vec![1; SECTORS * 512], 0).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 1..=2 {
            let (disk, ended) = (&disk, &ended);
            scope.spawn(move || {
                let mut dice = Dice::new(reader * 0x1234_5678_9abc_def1);
                let mut buf = vec![0; 64 * 512];
                while !ended.load(Ordering::Relaxed) {
                    disk.read_at(&mut buf, dice.below(SECTORS - 64) as u64 * 512).unwrap();
                    assert!(buf.iter().all(|byte| *byte != 0), "a hole was read");
                }
            });
        }
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                disk.collect(Load::Offline).unwrap();
            }
        });
        let mut dice = Dice::new(77);
        let rounds = if soak::is_on() { 20_000u32 } else { 3_000 };
        for round in 0..rounds {
            let len = [512, 512, 4096, 16 << 10][dice.below(4)];
            disk.write_at(&vec![(round % 200) as u8 + 1; len], dice.below(SECTORS - 32) as u64 * 512)
                .unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(disk.space().collected_bytes > 0);
}

/// A base of `len` bytes without a hole.
pub(super) fn full_base(len: u64) -> Arc<dyn BlockDevice> {
    let meta = LayerMeta { virtual_size: len, ..LayerMeta::default() };
    let mut writer = crate::LayerWriter::new(Vec::new(), meta).unwrap();
    writer.data(0, &vec![0xba; len as usize]).unwrap();
    Arc::new(Stack::new(vec![Layer::open(Arc::new(writer.finish().unwrap().0)).unwrap()]).unwrap())
}

/// Single sectors all over a disk, over a base and over none: the map stays within its bound, and the disk keeps
/// its content.
#[test]
fn scattered_sectors_do_not_fill_the_memory() {
    const RUNS: u64 = 512;
    let base = full_base(SIZE / 2);
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), Some(base.clone()), &new_disk(SIZE)).unwrap();
    disk.view_mut().limits = Limits { runs: Some(RUNS), ..Limits::default() };
    let mut expected = vec![0; SIZE as usize];
    expected[..SIZE as usize / 2].fill(0xba);
    let mut dice = Dice::new(99);
    let rounds = if soak::is_on() { 20_000usize } else { 6_000 };
    for round in 0..rounds {
        let place = dice.below(SIZE as usize / 512) * 512;
        let byte = if round % 5 == 0 { 0 } else { round as u8 };
        expected[place..place + 512].fill(byte);
        match round % 5 {
            0 => disk.write_zeroes(ByteRange::new(place as u64, 512).unwrap()).unwrap(),
            _ => disk.write_at(&[byte; 512], place as u64).unwrap(),
        }
        let runs = disk.space().runs;
        assert!(runs <= RUNS + RUNS / 4 + 2, "{runs} after {round}");
    }
    collect_all(&disk, Load::Quiet);
    assert!(disk.space().runs <= RUNS, "{:?}", disk.space());
    let mut found = vec![1; SIZE as usize];
    disk.read_at(&mut found, 0).unwrap();
    assert!(found == expected);
    disk.flush().unwrap();
    drop(disk);
    let disk = WritableDisk::open(dir.path(), Some(base), "").unwrap();
    disk.read_at(&mut found, 0).unwrap();
    assert!(found == expected);
}
