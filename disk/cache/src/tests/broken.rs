//! A cache whose disk or files cannot be used, and blobs that are described to be larger than they are.

use super::{Sample, UNIT, open, units};
use crate::files::Directory;
use crate::{BlobSpec, Cache, CacheSettings};
use headstart_block::{ByteRange, Digest, ErrorKind};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// A directory in the place of a file cannot be opened, read or removed, by root either.
#[test]
fn files_that_cannot_be_opened_are_done_without() {
    for end in [".map", ".data"] {
        let dir = tempfile::tempdir().unwrap();
        let (sample, other) = (Sample::new(20 * UNIT as usize, 1), Sample::new(20 * UNIT as usize, 2));
        sample.fill(&open(dir.path(), None).blob(&sample.plain("a")).unwrap(), units(0, 20));
        for entry in fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.to_str().unwrap().ends_with(end) {
                fs::remove_file(&entry).unwrap();
                fs::create_dir_all(entry.join("something")).unwrap();
            }
        }
        let cache = open(dir.path(), None);
        let blob = cache.blob(&sample.plain("a")).unwrap();
        assert_eq!(blob.local_bytes(), 0);
        for range in units(0, 20).parts(5 * UNIT) {
            assert_eq!(blob.claim(range).unwrap().owned(), [range]);
            sample.fill(&blob, range);
            assert!(sample.reads(&blob, range), "{end}: {range}");
        }
        // The other blobs are where they belong.
        let well = cache.blob(&other.plain("a")).unwrap();
        other.fill(&well, units(0, 20));
        assert_eq!(well.local_bytes(), 20 * UNIT, "{end}");
        assert!(other.reads(&well, units(0, 20)));
        cache.sync().unwrap();
    }
}

#[test]
fn a_directory_whose_disk_fails_is_done_without() {
    let error = |errno: i32| {
        let io = std::io::Error::from_raw_os_error(errno);
        headstart_block::Error::io("cannot write to the cache directory", io)
    };
    use rustix::io::Errno;
    for (errno, fault) in [
        (Errno::IO, true),
        (Errno::ROFS, true),
        (Errno::NOSPC, true),
        (Errno::NOTDIR, false),
        (Errno::ACCESS, false),
    ] {
        assert_eq!(crate::storage::is_fault_of_disk(&error(errno.raw_os_error())), fault, "{errno}");
    }
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(20 * UNIT as usize, 1);
    let cache = Cache::without_directory(&dir.path().join("nowhere"), CacheSettings::default()).unwrap();
    let blob = cache.blob(&sample.spec).unwrap();
    assert!(blob.is_bypassed() && blob.claims_at_once());
    let claim = blob.claim(units(3, 9)).unwrap();
    assert_eq!(claim.owned(), [units(3, 9)]);
    sample.fill(&blob, units(3, 9));
    assert!(sample.reads(&blob, units(3, 9)) && !sample.reads(&blob, units(2, 3)));
    drop((claim, blob.pin(units(0, 20)).unwrap()));
    cache.sync().unwrap();
    assert!(!cache.is_crowded());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // A wrong choice of directory is an error.
    fs::write(dir.path().join("file"), "").unwrap();
    let chosen = Cache::open_or_bypass(&dir.path().join("file"), CacheSettings::default());
    assert_eq!(chosen.err().unwrap().kind(), ErrorKind::Io);
}

/// A hostile manifest may name many blobs of any length, of which only a few bytes are ever fetched.
#[test]
fn sidecars_count_against_the_size_limit() {
    const LIMIT: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Some(LIMIT));
    let bytes = vec![7; UNIT as usize];
    let blobs: Vec<_> = (0..30u32)
        .map(|n| {
            let digest = Digest::of(&n.to_ne_bytes());
            let spec = BlobSpec { digest, len: 10 << 30, tree: None, origin: None };
            let blob = cache.blob(&spec).unwrap();
            drop(blob.claim(ByteRange::between(0, UNIT)).unwrap());
            blob.insert(0, &bytes).unwrap();
            assert!(blob.is_local(ByteRange::between(0, UNIT)));
            blob
        })
        .collect();
    let usage = cache.usage().unwrap();
    assert!(usage.sidecar_bytes > LIMIT / 2 && usage.sidecar_bytes + usage.local_bytes <= LIMIT, "{usage:?}");
    drop(blobs);
    assert_eq!(cache.prune(0).unwrap().left_blobs, 0);
    assert_eq!(cache.storage.state.taken_bytes(), 0);
}

#[test]
fn a_directory_that_holds_something_else_becomes_no_cache() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let letters = dir.path().join("letters");
    for is_alone in [true, false] {
        fs::write(&letters, "dear").unwrap();
        for _ in 0..2 {
            let opened = Cache::open(dir.path(), CacheSettings::default());
            let or_bypassed = Cache::open_or_bypass(dir.path(), CacheSettings::default());
            for error in [opened.err().unwrap(), or_bypassed.err().unwrap()] {
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                assert!(error.to_string().contains("holds something already: letters"), "{error}");
            }
        }
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(
            (left, fs::metadata(dir.path()).unwrap().mode() & 0o777),
            (2 - usize::from(is_alone), 0o755)
        );
        fs::remove_file(&letters).unwrap();
        // An earlier start was interrupted.
        fs::write(dir.path().join("lock"), "").unwrap();
    }
    // A cache stays one, whatever is beside its files.
    drop(open(dir.path(), None));
    fs::write(&letters, "dear").unwrap();
    drop(open(dir.path(), None));
    assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
    // Another process has made a cache since this one looked, and is about to record an image.
    fs::create_dir(dir.path().join("images")).unwrap();
    Directory::check_is_free(dir.path()).unwrap();
}

#[test]
fn a_first_start_that_was_interrupted_is_gone_on_with() {
    let sample = Sample::new(4 * UNIT as usize, 1);
    for left in
        [&["state.1"][..], &["lock"], &["evict"], &["lock", "state.1"], &["lock", "evict"], &["new.tmp"]]
    {
        let dir = tempfile::tempdir().unwrap();
        left.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        for is_there in [false, true] {
            let blob = open(dir.path(), Some(1 << 20)).blob(&sample.plain("a")).unwrap();
            assert_eq!(sample.reads(&blob, units(0, 4)), is_there, "{left:?}");
            sample.fill(&blob, units(0, 4));
        }
    }
}
