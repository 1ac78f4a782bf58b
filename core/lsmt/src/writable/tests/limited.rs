//! `--writable-max` holds whatever is done to keep other bounds, and so does the bound on the data that merging
//! copies up.

use super::super::{Limits, Load, NewDisk, WritableDisk};
use super::collecting::{full_base, taken};
use super::sim::Machine;
use crate::{Layer, LayerMeta, Stack};
use headstart_block::{BlockDevice, ByteRange, ErrorKind};
use std::sync::Arc;
use std::thread::{scope, yield_now};
use std::time::Duration;
use uuid::Uuid;

const SIZE: u64 = 64 << 20;
const MAX: u64 = 16 << 20;

/// Merging runs copies the data between them from the base, and has room for that only below the limit.
#[test]
fn merging_runs_takes_no_more_than_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let new = NewDisk { size: SIZE, parent: String::new(), uuid: Uuid::from_u128(7) };
    let disk = WritableDisk::create(dir.path(), Some(full_base(SIZE)), &new).unwrap();
    disk.view_mut().limits = Limits { max: Some(MAX), runs: Some(256), ..Limits::default() };
    let (mut refused, step) = (0, 16 << 10);
    for place in (0..SIZE).step_by(step) {
        let done = if place % (step as u64 * 2) == 0 {
            disk.write_zeroes(ByteRange::new(place, 512).unwrap())
        } else {
            disk.write_at(&[7; 512], place)
        };
        if let Err(error) = done {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            refused += 1;
        }
        while disk.collect(Load::Busy).unwrap() {}
        assert!(taken(dir.path()) <= MAX, "{} at {place}", taken(dir.path()));
    }
    while disk.collect(Load::Quiet).unwrap() {}
    assert!(taken(dir.path()) <= MAX, "{}", taken(dir.path()));
    // Untouched data is unchanged.
    let mut found = vec![0; 512];
    disk.read_at(&mut found, SIZE - 512).unwrap();
    assert!(found == [0xba; 512] && refused > 0, "{refused}");
}

fn base_over(size: u64) -> NewDisk {
    NewDisk { size, parent: String::new(), uuid: Uuid::from_u128(7) }
}

/// Scattered sectors take no more of the image along than there is of them, or a fixed amount.
#[test]
fn merging_runs_copies_up_no_more_than_was_written() {
    const COPIES: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), Some(full_base(SIZE)), &base_over(SIZE)).unwrap();
    disk.view_mut().limits =
        Limits { runs: Some(256), copied_up: COPIES, slack: 1 << 20, ..Limits::default() };
    let (mut refused, mut written, mut last) = (None, 0, 0);
    for place in (0..SIZE).step_by(16 << 10) {
        match disk.write_at(&[7; 512], place) {
            Ok(()) => (written, last) = (written + 512, place),
            Err(error) => refused = Some(error),
        }
        let space = disk.space();
        assert!(space.copied_up_bytes <= COPIES && space.runs <= 256 + 64 + 1, "{space:?}");
        assert!(space.live_bytes <= written + COPIES, "{space:?}");
        assert!(taken(dir.path()) <= 2 * (written + COPIES) + (1 << 20), "{}", taken(dir.path()));
    }
    let error = refused.expect("nothing was refused");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("small pieces") && error.to_string().contains("copied"), "{error}");
    // Writes that replace pieces are let through, and data that clients overwrite is not a copy any more.
    disk.write_at(&[8; 512], last).unwrap();
    let before = disk.space();
    assert!(before.refused_writes > 0 && before.copied_up_bytes > COPIES / 2, "{before:?}");
    disk.write_at(&vec![9; 4 << 20], last - (4 << 20) + (16 << 10)).unwrap();
    disk.write_at(&vec![9; 4 << 20], 0).unwrap();
    assert!(disk.space().copied_up_bytes < before.copied_up_bytes / 4, "{:?}", disk.space());
    // The more is written in large pieces, the more may be copied for small ones.
    disk.write_at(&vec![9; 8 << 20], SIZE - (8 << 20)).unwrap();
    for place in (32 << 20..46 << 20).step_by(16 << 10) {
        disk.write_at(&[7; 512], place).unwrap();
    }
    assert!(disk.space().copied_up_bytes > COPIES, "{:?}", disk.space());
    let mut found = vec![0; 512];
    for (place, byte) in [(0, 9), (last, 9), (SIZE - 512, 9), (33 << 20, 7), ((33 << 20) + 512, 0xba)] {
        disk.read_at(&mut found, place).unwrap();
        assert_eq!(found, [byte; 512], "{place}");
    }
}

/// The bytes that were copied up before the disk was opened are not forgotten.
#[test]
fn copied_up_bytes_are_known_after_a_restart() {
    let (dir, base) = (tempfile::tempdir().unwrap(), full_base(SIZE));
    let disk = WritableDisk::create(dir.path(), Some(base.clone()), &base_over(SIZE)).unwrap();
    disk.view_mut().limits = Limits { runs: Some(256), ..Limits::default() };
    for place in (0..SIZE).step_by(16 << 10) {
        disk.write_at(&[7; 512], place).unwrap();
    }
    while disk.collect(Load::Quiet).unwrap() {}
    let before = disk.space().copied_up_bytes;
    assert!(before >= 32 << 20, "{before}");
    drop(disk);
    let disk = WritableDisk::open(dir.path(), Some(base), "").unwrap();
    let after = disk.space().copied_up_bytes;
    assert!(after.abs_diff(before) < 16 << 20 && after > 0, "{before} {after}");
    disk.write_zeroes(ByteRange::between(0, SIZE)).unwrap();
    while disk.collect(Load::Quiet).unwrap() {}
    assert_eq!(disk.space().copied_up_bytes, 0);
    drop(disk);
    let disk = WritableDisk::open(dir.path(), Some(full_base(SIZE)), "").unwrap();
    assert_eq!(disk.space().copied_up_bytes, 0);
}

/// A commit that is never finished keeps all garbage in its place, if holes cannot be punched. Beyond the bound, writes
/// are refused if there is a limit, and let through if there is none; a discard takes no space, and is never refused.
#[test]
fn garbage_that_cannot_be_given_back_stops_no_discard() {
    for max in [None, Some(MAX)] {
        let machine = Machine::default();
        machine.fill_holes();
        let disk = WritableDisk::create_in(machine.directory(), None, &base_over(SIZE)).unwrap();
        let commit_timeout = Duration::from_millis(20);
        disk.view_mut().limits = Limits { slack: 4 << 20, max, commit_timeout, ..Limits::default() };
        disk.write_at(&[1; 4096], SIZE - 4096).unwrap();
        disk.stack_and_commit(Vec::new(), LayerMeta::default()).unwrap();
        let write = |round: u8| disk.write_at(&vec![round; 512 << 10], 0).map_err(|error| error.kind());
        let refused: Vec<_> = (0..24).filter_map(|round| write(round).err()).collect();
        assert_eq!(!refused.is_empty(), max.is_some(), "{max:?}");
        assert!(refused.iter().all(|kind| *kind == ErrorKind::NoSpace), "{refused:?}");
        let before = disk.space();
        disk.write_zeroes(ByteRange::between(0, 512 << 10)).unwrap();
        let after = disk.space();
        assert!(after.throttled_writes > before.throttled_writes && after.live_bytes == 4096, "{after:?}");
    }
}

/// A disk that is nearly full, whose content a guest writes again while a commit reads it.
fn nearly_full(commit_timeout: Duration) -> (tempfile::TempDir, Arc<WritableDisk>) {
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &base_over(SIZE)).unwrap();
    disk.set_limits(Limits { max: Some(MAX), commit_timeout, ..Limits::default() }).unwrap();
    disk.write_at(&vec![1; 8 << 20], 0).unwrap();
    (dir, Arc::new(disk))
}

/// A guest that writes its data again gets no error because a commit still reads the old data: the write waits.
#[test]
fn writes_wait_for_the_end_of_a_commit() {
    for stack in [false, true] {
        let (dir, disk) = nearly_full(Duration::from_secs(60));
        let begun = if stack { disk.begin_stack() } else { disk.begin_commit() }.unwrap();
        scope(|scope| {
            let writing = scope.spawn(|| disk.write_at(&vec![2; 8 << 20], 0));
            while disk.space().waiting_writes == 0 {
                assert!(!writing.is_finished(), "{stack}: the write did not wait");
                yield_now();
            }
            let (layer, _) = begun.write(Vec::new(), LayerMeta::default()).unwrap();
            if stack {
                let layer = Layer::open(Arc::new(layer)).unwrap();
                let base = Arc::new(Stack::new(vec![layer]).unwrap());
                disk.replace_frozen(base, "new".to_owned()).unwrap();
            }
            writing.join().unwrap().unwrap();
        });
        let mut found = vec![0; 8 << 20];
        disk.read_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 2) && disk.space().refused_writes == 0);
        assert!(taken(dir.path()) <= MAX, "{}", taken(dir.path()));
    }
}

/// A commit that never ends is named by the error.
#[test]
fn a_write_gives_up_on_a_commit_that_does_not_end() {
    let (_dir, disk) = nearly_full(Duration::from_millis(30));
    let begun = disk.begin_stack().unwrap();
    let error = disk.write_at(&vec![2; 8 << 20], 0).unwrap_err();
    assert!(error.kind() == ErrorKind::NoSpace && error.to_string().contains("commit"), "{error}");
    // Once it is abandoned, what later writes hide is given back, and the write is done.
    drop(begun);
    disk.write_at(&vec![3; 8 << 20], 0).unwrap();
    let mut found = vec![0; 8 << 20];
    disk.read_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|byte| *byte == 3));
}
