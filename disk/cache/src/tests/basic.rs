//! One process, and nothing fails except some fetched bytes.

use super::{Sample, UNIT, missing, open, units};
use crate::{Cache, CacheSettings, EntryKind, WaitHint};
use headstart_block::{ByteRange, ErrorKind, ReadAt};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn reads_return_inserted_units_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(20 * UNIT as usize + 100, 1);
    let blob = open(dir.path(), None).blob(&sample.spec).unwrap();
    let len = blob.len();
    assert_eq!((blob.unit(), blob.tree().unwrap().unit()), (16384, 4096));
    assert_eq!(missing(&blob, ByteRange::between(5, len)), [ByteRange::between(0, len)]);
    assert!(!blob.is_local(ByteRange::between(0, 1)));
    assert!(fs::read_dir(dir.path()).unwrap().count() == 3, "no files before the first insert");

    sample.fill(&blob, units(3, 5));
    sample.fill(&blob, ByteRange::between(20 * UNIT, len));
    let expected: Vec<_> = (0..21).map(|unit| matches!(unit, 3 | 4 | 20)).collect();
    assert_eq!(sample.units(&blob), expected);
    assert_eq!(blob.local_bytes(), 2 * UNIT + 100);
    assert!(blob.is_local(units(3, 5)) && blob.is_local(ByteRange::between(len - 1, len)));
    assert!(!blob.is_local(units(4, 6)) && !blob.is_local(ByteRange::between(len - 1, len + 1)));
    let runs = missing(&blob, ByteRange::between(UNIT + 1, len));
    assert_eq!(runs, [units(1, 3), units(5, 20)]);
    assert!(sample.reads(&blob, ByteRange::between(3 * UNIT + 7, 5 * UNIT)));
    assert!(!sample.reads(&blob, ByteRange::between(3 * UNIT + 7, 5 * UNIT + 1)));
    let past = blob.read_at(&mut [0; 2], len - 1).unwrap_err();
    assert_eq!(past.kind(), ErrorKind::Corrupt);
    blob.read_at(&mut [], len).unwrap();

    blob.discard(ByteRange::between(3 * UNIT + 9, 3 * UNIT + 10)).unwrap();
    assert!(!blob.is_local(units(3, 4)) && blob.is_local(units(4, 5)));
}

#[test]
fn an_absent_read_names_its_range_and_the_missing_units() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(8 * UNIT as usize, 1);
    let blob = open(dir.path(), None).blob(&sample.spec).unwrap();
    let read = ByteRange::between(2 * UNIT + 5, 3 * UNIT + 7);
    let absent = || blob.read_at(&mut vec![0; UNIT as usize + 2], read.offset()).unwrap_err().absent_range();
    assert_eq!(absent(), Some(read));
    sample.fill(&blob, units(2, 3));
    assert_eq!(absent(), Some(read));
}

#[test]
fn bytes_that_are_not_whole_units_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(3 * UNIT as usize + 100, 1);
    let blob = open(dir.path(), None).blob(&sample.plain("here")).unwrap();
    for (from, to) in [(1, UNIT), (0, UNIT - 1), (3 * UNIT, 3 * UNIT + 99)] {
        let range = ByteRange::between(from, to);
        let error = blob.insert(range.offset(), sample.part(range)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{range}");
    }
    assert_eq!(blob.insert(4 * UNIT, &[1; 16384]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(blob.insert(u64::MAX, &[1]).unwrap_err().kind(), ErrorKind::Invalid);
    blob.insert(0, &[]).unwrap();
}

#[test]
fn bytes_are_visible_only_after_their_check() {
    let dir = tempfile::tempdir().unwrap();
    // An outboard of more than 64 KiB, so that its pages are fetched one by one.
    let sample = Sample::new(1200 * UNIT as usize, 2);
    let cache = open(dir.path(), None);
    let blob = cache.blob(&sample.spec).unwrap();
    let range = units(1000, 1004);
    let without = blob.insert(range.offset(), sample.part(range)).unwrap_err();
    assert_eq!(without.kind(), ErrorKind::Absent);
    let mut pages = Vec::new();
    blob.tree_missing(range, &mut |run| pages.push(run));
    let bytes: u64 = pages.iter().map(|run| run.len()).sum();
    assert!(pages.len() > 1 && bytes < blob.tree().unwrap().len() / 2, "{pages:?}");
    for run in &pages {
        assert!(blob.insert(range.offset(), sample.part(range)).is_err());
        let page = &sample.outboard[run.offset() as usize..run.end() as usize];
        blob.tree().unwrap().insert(run.offset(), page).unwrap();
    }
    let mut wrong = sample.part(range).to_vec();
    wrong[40_000] ^= 1;
    let error = blob.insert(range.offset(), &wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains(&sample.spec.digest.to_string()) && text.contains("[0xfa0000, "), "{text}");
    assert_eq!(blob.local_bytes(), 0);
    assert_eq!(cache.counters().corrupt_inserts, 1);
    blob.tree_missing(range, &mut |run| panic!("{run} was right"));
    blob.insert(range.offset(), sample.part(range)).unwrap();
    assert!(sample.reads(&blob, range));
}

#[test]
fn wrong_pages_of_a_tree_are_forgotten_when_they_are_found_out() {
    let sample = Sample::new(1200 * UNIT as usize, 3);
    for at in [3, 8 + 40, 50_000] {
        let dir = tempfile::tempdir().unwrap();
        let blob = open(dir.path(), None).blob(&sample.spec).unwrap();
        let tree = blob.tree().unwrap();
        let mut wrong = sample.outboard.clone();
        wrong[at] ^= 1;
        tree.insert(0, &wrong).unwrap();
        let byte = ByteRange::between(at as u64, at as u64 + 1);
        let needs_it = |unit: &u64| {
            let mut needs = false;
            let each = &mut |run: ByteRange| needs |= !run.intersect(byte).is_empty();
            headstart_hash_tree::nodes(blob.len(), units(*unit, unit + 1), each);
            needs
        };
        let unit = (0..1200).find(needs_it).unwrap();
        let range = units(unit, unit + 1);
        let error = blob.insert(range.offset(), sample.part(range)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(!tree.is_local(byte) && tree.local_bytes() > 0, "byte {at}");
        sample.fill(&blob, range);
        assert!(sample.reads(&blob, range));
    }
}

#[test]
fn a_small_tree_is_asked_for_whole() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(100 * UNIT as usize, 3);
    let blob = open(dir.path(), None).blob(&sample.spec).unwrap();
    let mut pages = Vec::new();
    blob.tree_missing(units(0, 1), &mut |run| pages.push(run));
    assert_eq!(pages, [ByteRange::between(0, blob.tree().unwrap().len())]);
}

#[test]
fn blobs_of_no_and_of_few_bytes_work() {
    for len in [0, 1, 16383, 16384] {
        let dir = tempfile::tempdir().unwrap();
        let sample = Sample::new(len, 3);
        let cache = open(dir.path(), None);
        let blob = cache.blob(&sample.spec).unwrap();
        let all = ByteRange::between(0, len as u64);
        sample.fill(&blob, all);
        assert!(sample.reads(&blob, all) && blob.is_local(all) && missing(&blob, all).is_empty());
        let claim = blob.claim(all).unwrap();
        assert!(claim.owned().is_empty());
        drop((claim, blob.pin(all).unwrap()));
        cache.sync().unwrap();
        assert_eq!(blob.local_bytes(), len as u64);
    }
}

#[test]
fn a_hostile_description_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    let mut spec = Sample::new(100_000, 3).spec;
    spec.len += 16384;
    assert_eq!(cache.blob(&spec).err().unwrap().kind(), ErrorKind::Corrupt);
    spec.tree = None;
    spec.len = u64::MAX;
    assert_eq!(cache.blob(&spec).err().unwrap().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_process_has_one_blob_and_an_identity_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    let sample = Sample::new(100_000, 4);
    let blob = cache.blob(&sample.spec).unwrap();
    assert!(Arc::ptr_eq(&blob, &cache.blob(&sample.spec).unwrap()));
    sample.fill(&blob, ByteRange::between(0, 100_000));
    // What an untrusted store says about the digest is neither what the root proves nor what another store says.
    let plain = cache.blob(&sample.plain("a")).unwrap();
    plain.insert(0, &[9; 16384]).unwrap();
    assert!(sample.reads(&blob, units(0, 1)));
    assert_eq!(cache.blob(&sample.plain("b")).unwrap().local_bytes(), 0);
    assert!(cache.blob(&sample.plain("a")).unwrap().is_local(units(0, 1)));
}

#[test]
fn waiters_are_told_of_inserts_discards_and_ends_of_claims() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(100_000, 6);
    let blob = open(dir.path(), None).blob(&sample.plain("a")).unwrap();
    let notified = Arc::new(AtomicUsize::new(0));
    let subscribe = || {
        let notified = Arc::clone(&notified);
        blob.subscribe(Box::new(move || {
            notified.fetch_add(1, Ordering::Relaxed);
        }));
    };
    subscribe();
    subscribe();
    let claim = blob.claim(units(0, 2)).unwrap();
    assert_eq!(claim.owned(), [units(0, 2)]);
    assert_eq!(notified.load(Ordering::Relaxed), 0);
    blob.insert(0, sample.part(units(0, 1))).unwrap();
    assert_eq!(notified.load(Ordering::Relaxed), 2);
    subscribe();
    drop(claim);
    assert_eq!(notified.load(Ordering::Relaxed), 3);
    subscribe();
    blob.discard(units(0, 1)).unwrap();
    assert_eq!(notified.load(Ordering::Relaxed), 4);
}

#[test]
fn a_unit_is_claimed_once() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(20 * UNIT as usize, 7);
    let blobs = [(); 2].map(|()| open(dir.path(), None).blob(&sample.spec).unwrap());
    let [here, there] = &blobs;
    sample.fill(here, units(9, 10));
    let first = here.claim(units(4, 12)).unwrap();
    assert_eq!(first.owned(), [units(4, 9), units(10, 12)]);
    assert_eq!(first.wait_hint(), WaitHint::Nothing);
    let second = here.claim(units(0, 20)).unwrap();
    assert_eq!(second.owned(), [units(0, 4), units(12, 20)]);
    assert_eq!(second.wait_hint(), WaitHint::Notified);
    // Another handle behaves as another process does.
    let third = there.claim(units(0, 10)).unwrap();
    assert!(third.owned().is_empty() && matches!(third.wait_hint(), WaitHint::Poll(_)));
    drop(second);
    let fourth = there.claim(units(0, 10)).unwrap();
    assert_eq!(fourth.owned(), [units(0, 4)]);
    sample.fill(here, units(4, 5));
    drop(first);
    let fifth = there.claim(units(4, 12)).unwrap();
    assert_eq!(fifth.owned(), [units(5, 9), units(10, 12)]);
}

#[test]
fn an_unusable_directory_is_said_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Cache::open(&file.join("cache"), CacheSettings::default()).err().unwrap();
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
}

#[test]
fn a_directory_is_closed_when_it_becomes_a_cache() {
    let dir = tempfile::tempdir().unwrap();
    let mode = || fs::metadata(dir.path()).unwrap().permissions().mode() & 0o7777;
    let set_mode = |mode| fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
    // Other entries there may be meant for other users.
    fs::write(dir.path().join("letters"), "dear").unwrap();
    set_mode(0o777);
    let error = Cache::open(dir.path(), CacheSettings::default()).err().unwrap();
    assert_eq!((error.kind(), mode()), (ErrorKind::Invalid, 0o777), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    fs::remove_file(dir.path().join("letters")).unwrap();
    drop(open(dir.path(), None));
    assert_eq!(mode(), 0o700);
    set_mode(0o1777);
    drop(open(dir.path(), None));
    assert_eq!(mode(), 0o1777);
}

#[test]
fn the_shared_state_of_another_user_is_not_used() {
    if !rustix::process::geteuid().is_root() {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED: only root gives files away\n");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), None));
    for (owner, is_used) in [(0, true), (54_321, false), (0, true)] {
        chown(dir.path().join("state.1"), Some(owner), None).unwrap();
        assert_eq!(open(dir.path(), None).storage.state.was_there, is_used, "{owner}");
    }
}

#[test]
fn blobs_are_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    let samples = [Sample::new(100_000, 8), Sample::new(50_000, 9)];
    let blobs = samples.each_ref().map(|sample| cache.blob(&sample.spec).unwrap());
    sample_fill_all(&samples[0], &blobs[0]);
    samples[1].fill(&blobs[1], units(0, 1));
    let pin = blobs[1].pin(ByteRange::between(0, 50_000)).unwrap();
    cache.sync().unwrap();
    let entries = cache.list().unwrap();
    assert_eq!(entries.len(), 4);
    let entry = entries.iter().find(|entry| entry.digest == samples[1].spec.digest).unwrap();
    assert_eq!((entry.kind, entry.len, entry.in_use), (EntryKind::Verified, 50_000, true));
    assert_eq!((entry.local_bytes, entry.durable_bytes, entry.pinned_bytes), (16384, 16384, 50_000));
    let trees: u64 = samples.iter().map(|sample| sample.outboard.len() as u64).sum();
    let usage = cache.usage().unwrap();
    assert_eq!((usage.blobs, usage.blobs_in_use, usage.local_bytes), (4, 4, 100_000 + 16384 + trees));

    let digest = samples[0].spec.digest;
    assert_eq!(cache.remove(&digest).unwrap_err().kind(), ErrorKind::Conflict);
    drop((pin, blobs));
    assert_eq!(cache.remove(&digest).unwrap(), 100_000 + samples[0].outboard.len() as u64);
    assert_eq!(cache.remove(&digest).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(cache.list().unwrap().len(), 2);
    assert_eq!(cache.prune(0).unwrap().left_bytes, 0);
    assert_eq!(cache.list().unwrap().len(), 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn pinned_bytes_are_those_of_the_chunks_that_pins_touch_each_once() {
    const CHUNK: u64 = 64 << 10;
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    let sample = Sample::new(5 * CHUNK as usize, 8);
    let blob = cache.blob(&sample.plain("a")).unwrap();
    sample.fill(&blob, units(0, 1));
    let pinned = || cache.list().unwrap()[0].pinned_bytes;
    assert_eq!(pinned(), 0);
    let first = blob.pin(ByteRange::between(CHUNK, 3 * CHUNK)).unwrap();
    assert_eq!(pinned(), 2 * CHUNK);
    let second = blob.pin(ByteRange::between(3 * CHUNK - 1, 4 * CHUNK + 1)).unwrap();
    assert_eq!(pinned(), 4 * CHUNK);
    drop((first, second));
    assert_eq!(pinned(), 0);
}

#[test]
fn the_free_bytes_are_those_of_the_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let file_system = rustix::fs::statvfs(dir.path()).unwrap();
    let nowhere = dir.path().join("not/there/yet");
    let usages = [open(dir.path(), None).usage().unwrap(), Cache::usage_of_none(&nowhere).unwrap()];
    for free in usages.map(|usage| usage.free_bytes) {
        assert!(free > 1 << 20 && free <= file_system.f_blocks * file_system.f_frsize, "{free}");
    }
}

fn sample_fill_all(sample: &Sample, blob: &crate::CachedBlob) {
    sample.fill(blob, ByteRange::between(0, sample.bytes.len() as u64));
}
