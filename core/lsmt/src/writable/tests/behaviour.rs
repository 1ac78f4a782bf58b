//! The behaviour of a writable disk on the real file system, case by case.

use super::super::pending::PENDING;
use super::super::{NewDisk, WritableDisk};
use super::sim::{Fault, Machine};
use crate::{Layer, LayerMeta, Stack};
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, SECTOR_SIZE};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

fn new_disk(size: u64) -> NewDisk {
    NewDisk { size, parent: "sha256:aa".to_owned(), uuid: Uuid::from_u128(1 << 100) }
}

fn refused<T>(result: Result<T, Error>) -> Error {
    result.err().expect("it was not refused")
}

fn read(disk: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    disk.read_at(&mut buf, offset).unwrap();
    buf
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn flushed_writes_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/disk");
    let disk = WritableDisk::create(&path, None, &new_disk(1 << 20)).unwrap();
    assert_eq!(names(&path), ["data", "index", "lock", "state.json"]);
    disk.write_at(&[7; 4096], 512).unwrap();
    disk.write_zeroes(ByteRange::new(1024, 512).unwrap()).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let disk = WritableDisk::open(&path, None, "sha256:aa").unwrap();
    assert_eq!(read(&disk, 0, 2048), [[0; 512], [7; 512], [0; 512], [7; 512]].concat());
    let info = WritableDisk::inspect(&path).unwrap();
    assert_eq!((info.size, &*info.parent, info.uuid), (1 << 20, "sha256:aa", Uuid::from_u128(1 << 100)));
    assert_eq!(info.pairs, [("data".to_owned(), "index".to_owned())]);
}

#[test]
fn a_second_opener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(1 << 20)).unwrap();
    let error = refused(WritableDisk::open(dir.path(), None, "sha256:aa"));
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("in use by another process"), "{error}");
    drop(disk);
    WritableDisk::open(dir.path(), None, "sha256:aa").unwrap();
    assert_eq!(refused(WritableDisk::create(dir.path(), None, &new_disk(512))).kind(), ErrorKind::Conflict);
}

/// A creation that fails removes its own files while its lock is held, and nothing else.
#[test]
fn a_creation_that_fails_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    assert_eq!(refused(WritableDisk::create(&path, None, &new_disk(100))).kind(), ErrorKind::Invalid);
    assert!(names(&path).is_empty());
    // In a directory that was there, others may have files.
    std::fs::write(path.join("data"), "").unwrap();
    refused(WritableDisk::create(&path, None, &new_disk(100)));
    assert_eq!(names(&path), ["data", "lock"]);
    let disk = WritableDisk::create(&path, None, &new_disk(1 << 20)).unwrap();
    assert_eq!(refused(WritableDisk::create(&path, None, &new_disk(1 << 20))).kind(), ErrorKind::Conflict);
    drop(disk);
    WritableDisk::open(&path, None, "sha256:aa").unwrap();
}

/// Disks come and go in a directory, and their lock files along: one at a time has it.
#[test]
fn a_lock_on_a_removed_file_is_none() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let holders = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let Ok(disk) = WritableDisk::create(dir.path(), None, &new_disk(1 << 20)) else {
                        continue;
                    };
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                    holders.fetch_sub(1, Ordering::SeqCst);
                    WritableDisk::remove_new(dir.path());
                    drop(disk);
                }
            });
        }
    });
}

#[test]
fn another_parent_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    WritableDisk::create(dir.path(), None, &new_disk(1 << 20)).unwrap();
    let error = refused(WritableDisk::open(dir.path(), None, "sha256:bb"));
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("is based on sha256:aa, not on sha256:bb"), "{error}");
}

#[test]
fn directories_that_are_no_disks_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || refused(WritableDisk::open(dir.path(), None, ""));
    assert_eq!(open().kind(), ErrorKind::NotFound);
    let state = dir.path().join("state.json");
    for (text, kind, remedy) in [
        ("", ErrorKind::Corrupt, "restore it"),
        ("{\"version\": 3}", ErrorKind::Unsupported, "use the program that made it"),
        ("{\"version\": 1}", ErrorKind::Corrupt, "restore it"),
        (
            "{\"version\": 1, \"uuid\": \"00000000-0000-0000-0000-000000000000\", \"parent\": \"\", \
              \"virtual_size\": 512, \"pairs\": [{\"data\": \"../data\", \"index\": \"index\"}]}",
            ErrorKind::Corrupt,
            "restore it",
        ),
    ] {
        std::fs::write(&state, text).unwrap();
        let error = open();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("state.json") && error.to_string().contains(remedy), "{error}");
    }
    assert_eq!(refused(WritableDisk::open(dir.path().join("none"), None, "")).kind(), ErrorKind::NotFound);
}

#[test]
fn files_of_two_disks_are_told_apart() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    WritableDisk::create(one.path(), None, &new_disk(1 << 20)).unwrap();
    let other = NewDisk { uuid: Uuid::from_u128(2), ..new_disk(1 << 20) };
    WritableDisk::create(two.path(), None, &other).unwrap();
    std::fs::copy(two.path().join("index"), one.path().join("index")).unwrap();
    let error = refused(WritableDisk::open(one.path(), None, "sha256:aa"));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn only_whole_sectors_inside_the_disk_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(4096)).unwrap();
    for (len, offset) in [(511, 0), (512, 1), (512, 4096), (1024, 3584), (512, u64::MAX - 511)] {
        let error = disk.write_at(&vec![0; len], offset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{len} at {offset}");
        if let Some(range) = ByteRange::new(offset, len as u64) {
            assert_eq!(disk.write_zeroes(range).unwrap_err().kind(), ErrorKind::Invalid);
        }
        if offset >= 3584 {
            assert_eq!(disk.read_at(&mut vec![0; len], offset).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
    disk.write_at(&[], 512).unwrap();
    assert_eq!(disk.extent_at(4096).unwrap_err().kind(), ErrorKind::Invalid);
    for size in [4095, 4097, 3584] {
        assert_eq!(disk.grow(size).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let other = dir.path().join("other");
    for size in [4095, u64::MAX - 511] {
        let error = refused(WritableDisk::create(&other, None, &new_disk(size)));
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let base = Arc::new(Stack::new(Vec::new()).unwrap().with_size(8192));
    assert_eq!(refused(WritableDisk::create(&other, Some(base), &new_disk(4096))).kind(), ErrorKind::Invalid);
}

#[test]
fn discarding_a_huge_empty_disk_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let size = 1 << 58;
    let disk = WritableDisk::create(dir.path(), None, &new_disk(size)).unwrap();
    disk.write_at(&[1; 512], size / 2).unwrap();
    disk.write_zeroes(ByteRange::between(0, size)).unwrap();
    disk.flush().unwrap();
    assert_eq!(read(&disk, size / 2, 512), [0; 512]);
    // A header, two records and a seal.
    assert_eq!(std::fs::metadata(dir.path().join("index")).unwrap().len(), 4096 + 3 * 16);
}

#[test]
fn pending_records_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(1 << 30)).unwrap();
    for sector in 0..66_000 {
        disk.write_at(&[1; 512], sector * 2 * SECTOR_SIZE).unwrap();
    }
    let len = std::fs::metadata(dir.path().join("index")).unwrap().len();
    let records = (len - 4096) / 16;
    assert!((60_000..=1 << 16).contains(&records), "{records}");
}

#[test]
fn an_idle_flush_touches_nothing() {
    let machine = Machine::default();
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(1 << 16)).unwrap();
    disk.write_at(&[1; 512], 0).unwrap();
    disk.flush().unwrap();
    let before = machine.steps();
    disk.flush().unwrap();
    assert_eq!(machine.steps(), before);
    // Nothing to collect either.
    disk.collect_garbage().unwrap();
    assert_eq!(machine.steps(), before);
}

#[test]
fn a_full_disk_during_collection_gives_its_space_back() {
    let machine = Machine::default();
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(1 << 16)).unwrap();
    for _ in 0..4 {
        disk.write_at(&[1; 1 << 15], 0).unwrap();
    }
    disk.flush().unwrap();
    let before = disk.usage();
    // The new active pair still fits, the copy does not.
    machine.arm(14, Fault::Full);
    let error = disk.collect_garbage().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("free space"), "{error}");
    let after = disk.usage();
    assert_eq!(after.live_bytes, before.live_bytes);
    assert!(after.file_bytes <= before.file_bytes + 2 * 4096, "{before:?} {after:?}");
    let names = ["data", "data.1", "index", "index.1", PENDING, "state.json"];
    assert_eq!(machine.directory().list().unwrap(), names);
    machine.repair();
    let collected = disk.collect_garbage().unwrap();
    assert_eq!(collected.copied_bytes, 1 << 15);
    assert_eq!(disk.usage().garbage_bytes, 0);
    assert_eq!(read(&disk, 0, 1 << 15), [1; 1 << 15]);
}

#[test]
fn after_a_failed_sync_only_reads_go_on() {
    let machine = Machine::default();
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(1 << 16)).unwrap();
    disk.write_at(&[1; 512], 0).unwrap();
    machine.arm(0, Fault::Eio);
    disk.flush().unwrap_err();
    machine.repair();
    for error in [
        disk.flush().unwrap_err(),
        disk.write_at(&[2; 512], 0).unwrap_err(),
        disk.write_zeroes(ByteRange::between(0, 512)).unwrap_err(),
        disk.grow(1 << 17).unwrap_err(),
        refused(disk.commit(Vec::new(), LayerMeta::default())),
        refused(disk.stack_and_commit(Vec::new(), LayerMeta::default())),
    ] {
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("a sync has failed before"), "{error}");
    }
    assert_eq!(read(&disk, 0, 512), [1; 512]);
}

#[test]
fn a_committed_layer_takes_the_place_of_its_pairs() {
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(1 << 20)).unwrap();
    disk.write_at(&[1; 8192], 0).unwrap();
    let (layer, summary) = disk.stack_and_commit(Vec::new(), LayerMeta::default()).unwrap();
    assert_eq!(summary.data_bytes, 8192);
    disk.write_at(&[2; 512], 0).unwrap();
    assert_eq!(disk.collect_garbage().unwrap_err().kind(), ErrorKind::Conflict);
    let stack = Stack::new(vec![Layer::open(Arc::new(layer)).unwrap()]).unwrap();
    let wrong = Arc::new(Stack::new(Vec::new()).unwrap().with_size(512));
    assert_eq!(disk.replace_frozen(wrong, "x".to_owned()).unwrap_err().kind(), ErrorKind::Invalid);
    let base: Arc<dyn BlockDevice> = Arc::new(stack);
    disk.replace_frozen(base.clone(), "sha256:bb".to_owned()).unwrap();
    assert_eq!(refused(disk.replace_frozen(base.clone(), String::new())).kind(), ErrorKind::Conflict);
    assert_eq!(names(dir.path()), ["data.1", "index.1", PENDING, "lock", "state.json"]);
    assert_eq!((disk.parent(), disk.usage().live_bytes), ("sha256:bb".to_owned(), 512));
    let expected = [[2; 512], [1; 512]].concat();
    assert_eq!(read(&disk, 0, 1024), expected);
    disk.flush().unwrap();
    drop(disk);
    let disk = WritableDisk::open(dir.path(), Some(base), "sha256:bb").unwrap();
    assert_eq!(read(&disk, 0, 1024), expected);
}

#[test]
fn pairs_pile_up_to_a_limit_only() {
    let machine = Machine::default();
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(1 << 16)).unwrap();
    let mut commits = 0;
    let error = loop {
        disk.write_at(&[commits + 1; 512], u64::from(commits) * 512).unwrap();
        match disk.stack_and_commit(Vec::new(), LayerMeta::default()) {
            Ok(_) => commits += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), commits), (ErrorKind::Conflict, 63));
    assert!(error.to_string().contains("collect the garbage first"), "{error}");
    disk.collect_garbage().unwrap();
    assert_eq!(disk.usage().pairs, 2);
    assert_eq!(read(&disk, 63 * 512, 512), [64; 512]);
    disk.stack_and_commit(Vec::new(), LayerMeta::default()).unwrap();
}

/// Its runs stay in place, so that no other thread waits while they are copied.
#[test]
fn a_commit_sets_the_runs_aside() {
    let machine = Machine::default();
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(1 << 16)).unwrap();
    disk.write_at(&[1; 2048], 0).unwrap();
    disk.flush().unwrap();
    let before = (machine.steps(), disk.usage());
    disk.commit(Vec::new(), LayerMeta::default()).unwrap();
    assert_eq!((machine.steps(), disk.usage()), before);
    assert_eq!((disk.view().runs.len(), disk.generation().frozen.len()), (0, 1));
    // The pair still takes writes, and all its runs go below together.
    disk.write_at(&[2; 512], 512).unwrap();
    assert_eq!(disk.usage().garbage_bytes, 512);
    disk.write_zeroes(ByteRange::between(1024, 1536)).unwrap();
    let expected = [[1; 512], [2; 512], [0; 512], [1; 512]].concat();
    assert_eq!(read(&disk, 0, 2048), expected);
    disk.collect_garbage().unwrap();
    assert_eq!((disk.usage().garbage_bytes, disk.usage().pairs), (0, 2));
    assert_eq!(read(&disk, 0, 2048), expected);
    let names = ["data.1", "data.2", "index.1", "index.2", PENDING, "state.json"];
    assert_eq!(machine.directory().list().unwrap(), names);
}

#[test]
fn commits_may_follow_each_other_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(1 << 20)).unwrap();
    let mut expected = vec![0; 1 << 20];
    for number in 0..200 {
        let place = number * 7919 % 2000 * 512;
        expected[place..place + 1024].fill(number as u8 + 1);
        disk.write_at(&expected[place..place + 1024], place as u64).unwrap();
        // In the middle, beside a stacked commit that was not finished; then it goes on with a new base.
        if number == 100 {
            let (layer, _) = disk.stack_and_commit(Vec::new(), LayerMeta::default()).unwrap();
            disk.write_at(&[0xaa; 512], 0).unwrap();
            expected[..512].fill(0xaa);
            let (whole, _) = disk.commit(Vec::new(), LayerMeta::default()).unwrap();
            assert!(read(&layer_disk(whole), 0, 1 << 20) == expected);
            disk.replace_frozen(Arc::new(layer_disk(layer)), "new".to_owned()).unwrap();
        }
        let (layer, summary) = disk.commit(Vec::new(), LayerMeta::default()).unwrap();
        if number < 100 {
            assert!(read(&layer_disk(layer), 0, 1 << 20) == expected, "commit {number}");
        }
        assert!(read(&disk, 0, 1 << 20) == expected, "after commit {number}");
        let usage = disk.usage();
        assert_eq!((usage.live_bytes, usage.pairs), (summary.data_bytes, 1));
        assert_eq!(disk.generation().frozen.len(), 1);
    }
    assert_eq!(names(dir.path()), ["data.1", "index.1", PENDING, "lock", "state.json"]);
    disk.flush().unwrap();
    let base = disk.generation().base.clone();
    drop(disk);
    let disk = WritableDisk::open(dir.path(), base, "new").unwrap();
    assert!(read(&disk, 0, 1 << 20) == expected);
}

fn layer_disk(layer: Vec<u8>) -> Stack {
    Stack::new(vec![Layer::open(Arc::new(layer)).unwrap()]).unwrap()
}

#[test]
fn a_state_that_is_not_the_disks_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = WritableDisk::create(dir.path(), None, &new_disk(1 << 20)).unwrap();
    disk.write_at(&[1; 512], 8192).unwrap();
    disk.flush().unwrap();
    drop(disk);
    let state = std::fs::read_to_string(dir.path().join("state.json")).unwrap();
    std::fs::write(dir.path().join("state.json"), state.replace("1048576", "8192")).unwrap();
    let error = refused(WritableDisk::open(dir.path(), None, "sha256:aa"));
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("up to sector 17, but the disk has 16"), "{error}");
}

/// The files of version 1, byte by byte: the present files must open for ever.
#[test]
fn a_directory_of_version_1_has_its_bytes() {
    const STATE: &str = r#"{
  "version": 1,
  "uuid": "00000010-0000-0000-0000-000000000000",
  "parent": "sha256:aa",
  "virtual_size": 65536,
  "pairs": [
    {
      "data": "data",
      "index": "index"
    }
  ]
}"#;
    let machine = Machine::default();
    let disk = WritableDisk::create_in(machine.directory(), None, &new_disk(1 << 16)).unwrap();
    disk.write_at(&[5; 1024], 512).unwrap();
    disk.write_zeroes(ByteRange::between(1024, 1536)).unwrap();
    disk.flush().unwrap();
    assert_eq!(String::from_utf8(machine.contents("state.json")).unwrap(), STATE);
    let index = machine.contents("index");
    let words: Vec<_> =
        index[4096..].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    // Two sectors at 1, from sector 8; one zeroed at 2, the next data would go to 10; the seal of two.
    let seal = [((1 << 50) - 1) | (1 << 50), 2 << 32 | 0xa6d7_c4ea];
    assert_eq!(words, [1 | 2 << 50, 8, 2 | 1 << 50, 10 | 1 << 55, seal[0], seal[1]]);
    assert_eq!(&index[134..150], b"headstart-pair-1");
    assert_eq!(machine.contents("data").len(), 4096 + 1024);
}
