//! Too little space: limits, pins, scans, disks that take nothing.

use super::{Sample, UNIT, missing, open, units};
use crate::bypass_log::BypassReason;
use crate::evict;
use crate::files::EVICT_LOCK;
use crate::locks::{self, Mode};
use crate::room::Room;
use crate::writing::Writing;
use crate::{BlobSpec, Cache, CacheSettings, CachedBlob};
use headstart_block::{ByteRange, Digest, ErrorKind, ReadAt};
use headstart_testkit::wait::{wait_for, wait_until};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// A limit that nothing here exceeds on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes that the file system holds for data files.
fn blocks(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let data = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "data"));
    data.map(|entry| entry.metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn the_size_limit_holds_and_space_is_given_back() {
    const LIMIT: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(16 << 20, 1);
    let cache = open(dir.path(), Some(LIMIT));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    for range in ByteRange::between(0, blob.len()).parts(5 * UNIT) {
        sample.fill(&blob, range);
        assert!(sample.reads(&blob, range));
        let usage = cache.usage().unwrap();
        let taken = usage.local_bytes + usage.sidecar_bytes;
        assert!(taken <= LIMIT, "{usage:?}");
        assert_eq!(taken, cache.storage.state.taken_bytes());
        assert!(blocks(dir.path()) <= LIMIT + (256 << 10), "{} on disk", blocks(dir.path()));
    }
    assert_eq!(cache.counters().bypassed_bytes, 0);
    assert!(cache.counters().evicted_bytes >= (16 << 20) - LIMIT);
    sample.units(&blob);
}

#[test]
fn a_hot_set_survives_a_scan_of_three_times_the_cache() {
    const LIMIT: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (hot, scanned) = (Sample::new(3 << 20, 1), Sample::new(3 * LIMIT as usize, 2));
    let cache = open(dir.path(), Some(LIMIT));
    let [hot_blob, scanned_blob] = [&hot, &scanned].map(|sample| cache.blob(&sample.plain("a")).unwrap());
    let all = ByteRange::between(0, hot_blob.len());
    hot.fill(&hot_blob, all);
    for _ in 0..2 {
        assert!(all.parts(4096).all(|range| hot.reads(&hot_blob, range)));
        (0..2).for_each(|_| cache.storage.state.next_epoch());
    }
    for range in ByteRange::between(0, scanned_blob.len()).parts(UNIT) {
        scanned.fill(&scanned_blob, range);
        assert!(range.parts(4096).all(|range| scanned.reads(&scanned_blob, range)));
        if cache.is_crowded() {
            cache.evict().unwrap();
        }
    }
    assert!(hot_blob.is_local(all), "{:?} are gone", missing(&hot_blob, all));
}

#[test]
fn pinned_chunks_stay_and_the_rest_goes_through_memory() {
    const LIMIT: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(6 << 20, 1);
    let cache = open(dir.path(), Some(LIMIT));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    // Another handle behaves as another process does; it pins before there is anything, and twice.
    let other = open(dir.path(), Some(LIMIT)).blob(&sample.plain("a")).unwrap();
    let pinned = ByteRange::between(1 << 20, (3 << 20) - (64 << 10));
    let pins = [other.pin(pinned).unwrap(), other.pin(ByteRange::between(0, 2 << 20)).unwrap()];
    sample.fill(&other, units(0, 1));
    for range in pinned.parts(8 * UNIT) {
        sample.fill(&blob, range);
    }
    assert!(blob.is_local(pinned));
    let rest = ByteRange::between(3 << 20, 6 << 20);
    for range in rest.parts(8 * UNIT) {
        sample.fill(&blob, range);
        assert!(sample.reads(&blob, range), "a read that waits completes");
    }
    assert!(cache.counters().bypassed_bytes > 0);
    assert!(sample.reads(&other, pinned) && cache.usage().unwrap().local_bytes <= LIMIT);
    cache.prune(0).unwrap();
    assert!(sample.reads(&other, pinned));
    let [first, second] = pins;
    drop(first);
    cache.prune(0).unwrap();
    assert!(sample.reads(&other, ByteRange::between(1 << 20, 2 << 20)) && !sample.reads(&other, pinned));
    drop(second);
    cache.prune(0).unwrap();
    assert_eq!(cache.usage().unwrap().local_bytes, 0);
}

#[test]
fn the_disk_is_tried_again_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(1 << 20, 1);
    let settings = CacheSettings { overlay_limit: 8 * UNIT, ..CacheSettings::default() };
    let cache = Cache::open(dir.path(), settings).unwrap();
    let blob = cache.blob(&sample.plain("a")).unwrap();
    let full = headstart_block::Error::invalid("a test says that the disk is full");
    cache.storage.bypass_began(BypassReason::Refused, &full);
    assert_eq!(blob.claim(units(0, 4)).unwrap().owned(), [units(0, 4)]);
    for unit in 0..20 {
        sample.fill(&blob, units(unit, unit + 1));
        assert!(sample.reads(&blob, units(unit, unit + 1)) && blob.is_local(units(unit, unit + 1)));
    }
    assert_eq!((blob.local_bytes(), cache.counters().bypassed_bytes), (0, 20 * UNIT));
    assert!(sample.reads(&blob, ByteRange::between(13 * UNIT + 5, 19 * UNIT + 7)));
    assert_eq!(missing(&blob, units(0, 64)), [units(0, 12), units(20, 64)]);
    blob.discard(units(15, 16)).unwrap();
    assert!(!sample.reads(&blob, units(14, 17)));
    // The cache leaves a full disk alone for a second.
    wait_until("the disk is tried again", TIMEOUT, || !blob.is_bypassed());
    sample.fill(&blob, units(17, 30));
    assert!(sample.reads(&blob, units(16, 30)), "partly in memory, partly in the file");
    assert_eq!(blob.local_bytes(), 10 * UNIT);
}

/// The number of threads that insert, the bytes of an insert, and the bytes that each thread inserts.
const THREADS: u64 = 12;
const PART: u64 = 4 * UNIT;
const EACH: u64 = 1 << 20;

/// Inserts a blob by all threads at once, and calls `look` after each insert.
fn insert_at_once(sample: &Sample, blob: &CachedBlob, look: &(dyn Fn(ByteRange) + Sync)) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for range in ByteRange::between(thread * EACH, (thread + 1) * EACH).parts(PART) {
                    blob.insert(range.offset(), sample.part(range)).unwrap();
                    look(range);
                }
            });
        }
    });
}

#[test]
fn inserts_beside_an_evictor_keep_to_the_size_limit() {
    const LIMIT: u64 = 4 << 20;
    for is_another_process in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let sample = Sample::new((THREADS * EACH) as usize + LIMIT as usize, 1);
        let cache = open(dir.path(), Some(LIMIT));
        let blob = cache.blob(&sample.plain("a")).unwrap();
        // Another handle behaves as another process does.
        let other = cache.storage.directory.open_lock(EVICT_LOCK).unwrap();
        let thread = if is_another_process {
            assert!(locks::try_lock(&other, &(0..1), Mode::Exclusive).unwrap());
            None
        } else {
            Some(cache.storage.evictor.lock())
        };
        insert_at_once(&sample, &blob, &|range| {
            assert!(sample.reads(&blob, range), "a read that waits completes");
            let (taken, held) = (cache.storage.state.taken_bytes(), blocks(dir.path()));
            assert!(taken <= LIMIT && held <= LIMIT + (64 << 10), "{taken} bytes, {held} on disk");
        });
        let counters = cache.counters();
        assert!(
            counters.inserted_bytes > LIMIT - THREADS * PART - (64 << 10),
            "the room that was free is used"
        );
        assert_eq!(counters.inserted_bytes + counters.bypassed_bytes, THREADS * EACH);
        assert_eq!(counters.evicted_bytes, 0);
        // An evictor that ends makes room.
        drop(thread);
        locks::unlock(&other, &(0..1));
        cache.storage.bypass_ended();
        for range in ByteRange::between(THREADS * EACH, blob.len()).parts(PART) {
            sample.fill(&blob, range);
            assert!(cache.storage.state.taken_bytes() <= LIMIT, "{}", cache.storage.state.taken_bytes());
        }
        assert_eq!(cache.counters().bypassed_bytes, counters.bypassed_bytes);
    }
}

#[test]
fn an_evictor_that_does_not_end_has_the_disk_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(8 << 20, 1);
    let cache = open(dir.path(), Some(1 << 20));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    let other = cache.storage.directory.open_lock(EVICT_LOCK).unwrap();
    assert!(locks::try_lock(&other, &(0..1), Mode::Exclusive).unwrap());
    let mut inserts = 0;
    wait_for("the disk is left alone", TIMEOUT, || {
        for _ in 0..100 {
            if blob.is_bypassed() {
                return Ok(());
            }
            let unit = inserts % (blob.len() / UNIT);
            blob.insert(unit * UNIT, sample.part(units(unit, unit + 1))).unwrap();
            inserts += 1;
        }
        Err(inserts)
    });
    assert!(cache.storage.state.taken_bytes() <= 1 << 20);
}

/// Evictions and inserts of many threads at once; a count under way meanwhile misses none of them.
#[test]
fn no_insert_beside_a_real_evictor_is_lost_to_the_count() {
    const LIMIT: u64 = 4 << 20;
    // Bytes that are being inserted while they are counted may count twice until the next eviction.
    const MOST: u64 = LIMIT + 2 * THREADS * PART;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new((THREADS * EACH) as usize, 1);
    let cache = open(dir.path(), Some(LIMIT));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    insert_at_once(&sample, &blob, &|_| {
        assert!(cache.storage.state.taken_bytes() <= MOST, "{}", cache.storage.state.taken_bytes());
    });
    let (usage, counters) = (cache.usage().unwrap(), cache.counters());
    assert!(usage.local_bytes + usage.sidecar_bytes <= cache.storage.state.taken_bytes(), "{usage:?}");
    assert_eq!(counters.inserted_bytes + counters.bypassed_bytes, THREADS * EACH);
    assert!(counters.evicted_bytes > 0);
}

#[test]
fn an_eviction_tells_whether_enough_could_go() {
    const FILLED: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(FILLED as usize, 1);
    let cache = open(dir.path(), Some(2 * FILLED));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    let all = ByteRange::between(0, FILLED);
    sample.fill(&blob, all);
    let evict = |target| {
        let evicted = evict::evict(&cache.storage, target).unwrap().unwrap();
        (evicted.bytes, evicted.is_stuck)
    };
    assert_eq!(evict(2 * FILLED), (0, false), "it is at its target");
    let pins = [all, ByteRange::between(0, FILLED / 2)].map(|range| blob.pin(range).unwrap());
    assert_eq!(evict(FILLED / 2), (0, true));
    let [whole, half] = pins;
    drop(whole);
    assert_eq!(evict(FILLED / 4), (FILLED / 2, true));
    drop(half);
    assert!(!evict(FILLED / 2).1);
    // The files that describe a blob in use stay.
    assert!(evict(1).1);
}

/// An insert that no eviction makes room for, in a cache that others use too.
#[test]
fn an_insert_larger_than_the_limit_evicts_nothing() {
    const LIMIT: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(2 * LIMIT as usize, 1);
    let cache = open(dir.path(), Some(LIMIT));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    sample.fill(&blob, ByteRange::between(0, LIMIT / 2));
    sample.fill(&blob, ByteRange::between(LIMIT / 2, 2 * LIMIT));
    assert!(sample.reads(&blob, ByteRange::between(0, 2 * LIMIT)), "reads that wait complete");
    assert!(blob.is_bypassed());
    assert_eq!((blob.local_bytes(), cache.counters().evicted_bytes), (LIMIT / 2, 0));
}

/// Others fill what an eviction gives back before the insert that it was for.
#[test]
fn a_cache_whose_room_others_take_first_is_not_full() {
    const LIMIT: u64 = 4 << 20;
    const WANTED: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LIMIT as usize, 1);
    let cache = open(dir.path(), Some(LIMIT));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    // With the blob's sidecar that is a little more than an eviction leaves.
    sample.fill(&blob, ByteRange::between(0, LIMIT - WANTED));
    let local = blob.local_bytes();
    // The evictor waits for the end of a write before it gives back what it has forgotten, for a second.
    let writing = Writing::begin(&blob.writers, blob.present_files().unwrap()).unwrap();
    let made = std::thread::scope(|scope| {
        let making = scope.spawn(|| Room::make(&cache.storage, WANTED).map(|room| room.is_some()));
        wait_until("something is evicted", TIMEOUT, || blob.local_bytes() < local);
        // As another process does.
        cache.storage.state.add(WANTED);
        drop(writing);
        making.join().unwrap()
    });
    // There may be no room yet, but the cache is not full.
    assert!(made.is_ok(), "{made:?}");
    assert_eq!(Room::make(&cache.storage, LIMIT + 1).map(|_| ()).unwrap_err().kind(), ErrorKind::NoSpace);
}

/// Chunks go although the bytes to be written would fit beside those that are there: others have found the room first.
#[test]
fn room_that_others_are_about_to_fill_is_made_by_an_eviction() {
    const LIMIT: u64 = 4 << 20;
    const WANTED: u64 = LIMIT / 32;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LIMIT as usize, 1);
    let cache = open(dir.path(), Some(LIMIT));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    sample.fill(&blob, ByteRange::between(0, LIMIT - 2 * WANTED));
    let first = Room::make(&cache.storage, WANTED).unwrap();
    assert!(first.is_some() && cache.counters().evicted_bytes == 0);
    assert!(Room::make(&cache.storage, WANTED).unwrap().is_some() && cache.counters().evicted_bytes > 0);
}

#[test]
fn a_cache_full_of_pinned_bytes_says_so_and_its_disk_is_left_alone() {
    const LIMIT: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(2 * LIMIT as usize, 1);
    let cache = open(dir.path(), Some(LIMIT));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    let pinned = ByteRange::between(0, LIMIT - (256 << 10));
    let pin = blob.pin(pinned).unwrap();
    sample.fill(&blob, pinned);
    let made = Room::make(&cache.storage, 512 << 10).map(|room| room.is_some());
    assert_eq!(made.unwrap_err().kind(), ErrorKind::NoSpace);
    blob.insert(LIMIT, sample.part(ByteRange::between(LIMIT, LIMIT + (512 << 10)))).unwrap();
    assert!(blob.is_bypassed() && blob.is_local(pinned));
    drop(pin);
}

#[test]
fn room_that_is_found_ends_the_time_without_it() {
    const LIMIT: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Some(LIMIT));
    let other = cache.storage.directory.open_lock(EVICT_LOCK).unwrap();
    assert!(locks::try_lock(&other, &(0..1), Mode::Exclusive).unwrap());
    let is_crowded_out = || cache.storage.crowded_since.load(Ordering::Relaxed) > 0;
    cache.storage.state.occupy(LIMIT);
    assert!(Room::make(&cache.storage, UNIT).unwrap().is_none() && is_crowded_out());
    // The other evictor is done with some of it.
    cache.storage.state.subtract(LIMIT / 2);
    assert!(Room::make(&cache.storage, UNIT).unwrap().is_some() && !is_crowded_out());
}

/// Not even the files of a blob of which nothing is there and that no process uses.
#[test]
fn a_prune_to_a_size_that_is_kept_already_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    let sample = Sample::new(4 * UNIT as usize, 1);
    let blob = cache.blob(&sample.plain("a")).unwrap();
    sample.fill(&blob, units(0, 4));
    cache.prune(0).unwrap();
    drop(blob);
    assert_eq!((cache.prune(1 << 20).unwrap().left_blobs, cache.usage().unwrap().blobs), (1, 1));
    assert_eq!((cache.prune(0).unwrap().left_blobs, cache.usage().unwrap().blobs), (0, 0));
}

/// Bytes that the file system holds for all files of the cache.
fn all_blocks(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| entry.metadata().unwrap().blocks() * 512).sum()
}

/// Blobs without hash trees, of which something is claimed.
fn claimed(cache: &Arc<Cache>, count: u64, len: u64) -> Vec<Arc<CachedBlob>> {
    let claim = |n: u64| {
        let digest = Digest::of(&n.to_le_bytes());
        let spec = BlobSpec { digest, len, tree: None, origin: Some("http://a".to_owned()) };
        let blob = cache.blob(&spec).unwrap();
        assert_eq!(blob.claim(units(0, 4)).unwrap().owned(), [units(0, 4)]);
        blob
    };
    (0..count).map(claim).collect()
}

#[test]
fn lengths_that_nothing_proves_take_no_space() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    let (before, taken) = (all_blocks(dir.path()), cache.storage.state.taken_bytes());
    // Long blobs have no files.
    let long = claimed(&cache, 40, 2 << 30);
    assert_eq!(all_blocks(dir.path()), before);
    drop(long);
    // Shorter ones have files as long as they are in use.
    let short = claimed(&cache, 40, 1 << 30);
    assert!(all_blocks(dir.path()) > before + (1 << 20));
    assert_eq!(cache.usage().unwrap().sidecar_bytes, cache.storage.state.taken_bytes() - taken);
    drop(short);
    assert_eq!((all_blocks(dir.path()), cache.storage.state.taken_bytes()), (before, taken));
    // Another process that uses the files keeps them, and removes them itself.
    let short = claimed(&cache, 1, 1 << 30);
    let elsewhere = open(dir.path(), None);
    let other = claimed(&elsewhere, 1, 1 << 30);
    drop(short);
    assert!(other[0].present_files().is_some() && cache.usage().unwrap().sidecar_bytes > 1 << 14);
    drop(other);
    assert_eq!(all_blocks(dir.path()), before);
}

#[test]
fn files_stay_for_what_came_and_not_for_what_was_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    let sample = Sample::new(4 * UNIT as usize, 1);
    let open = || cache.blob(&sample.plain("a")).unwrap();
    let blobs = || cache.usage().unwrap().blobs;
    let blob = open();
    sample.fill(&blob, units(0, 2));
    drop(blob);
    assert!(sample.reads(&open(), units(0, 2)));
    // Evicted while it is in use: its files stay.
    let blob = open();
    sample.fill(&blob, units(2, 3));
    cache.prune(0).unwrap();
    drop(blob);
    assert_eq!(blobs(), 1);
    // Discarded because it was wrong: nothing of it stays.
    let blob = open();
    sample.fill(&blob, units(0, 2));
    blob.discard(units(0, 1)).unwrap();
    assert_eq!(blob.local_bytes(), UNIT);
    blob.discard(units(1, 2)).unwrap();
    drop(blob);
    assert_eq!((blobs(), cache.storage.state.taken_bytes()), (0, 0));
}

/// Claims take only free room, and inserts make no sidecar beside another evictor: that evictor cannot know of them.
#[test]
fn sidecars_do_not_pass_the_size_limit() {
    const LIMIT: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Some(LIMIT));
    let sample = Sample::new(1 << 20, 1);
    let used = cache.blob(&sample.plain("a")).unwrap();
    sample.fill(&used, ByteRange::between(0, used.len()));
    let held = claimed(&cache, 40, 1 << 30);
    assert!(used.is_local(ByteRange::between(0, used.len())) && cache.counters().bypassed_bytes == 0);
    assert!(cache.storage.state.taken_bytes() <= LIMIT, "{}", cache.storage.state.taken_bytes());
    drop((held, used));
    let evicting = cache.storage.directory.open_lock(EVICT_LOCK).unwrap();
    assert!(locks::try_lock(&evicting, &(0..1), Mode::Exclusive).unwrap());
    let filled = claimed(&cache, 20, 8 << 30);
    for blob in &filled {
        blob.insert(0, &[1; UNIT as usize]).unwrap();
        assert!(blob.is_local(units(0, 1)));
        let (taken, held) = (cache.storage.state.taken_bytes(), all_blocks(dir.path()));
        assert!(taken <= LIMIT && held <= LIMIT + (64 << 10), "{taken} bytes, {held} on disk");
    }
    locks::unlock(&evicting, &(0..1));
    drop(filled);
    cache.prune(0).unwrap();
    assert_eq!(cache.usage().unwrap().sidecar_bytes, 0);
}

/// Files of many blobs, and of one, that threads make at the same moment; no eviction corrects what they count.
#[test]
fn files_made_at_once_keep_to_the_size_limit() {
    const LIMIT: u64 = 3 << 20;
    const ROUNDS: u64 = 8;
    for are_many in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), Some(LIMIT));
        let evicting = cache.storage.directory.open_lock(EVICT_LOCK).unwrap();
        assert!(locks::try_lock(&evicting, &(0..1), Mode::Exclusive).unwrap());
        let blob = |n: u64| {
            let digest = Digest::of(&n.to_le_bytes());
            let spec = BlobSpec { digest, len: 1 << 30, tree: None, origin: Some("http://a".to_owned()) };
            cache.blob(&spec).unwrap()
        };
        let start = Barrier::new(THREADS as usize);
        // A thread that fails must not keep the others waiting.
        let insert = |thread: u64| {
            let mut most = Ok(0);
            for round in 0..ROUNDS {
                let blob = blob(if are_many { thread * ROUNDS + round } else { round });
                let unit = units(thread, thread + 1);
                start.wait();
                let inserted = blob.insert(unit.offset(), &[1; UNIT as usize]);
                most =
                    most.and_then(|most: u64| inserted.map(|()| most.max(cache.storage.state.taken_bytes())));
                // No other thread drops the blob before.
                start.wait();
            }
            most
        };
        std::thread::scope(|scope| {
            let insert = &insert;
            let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || insert(n))).collect();
            for thread in threads {
                let most = thread.join().unwrap().unwrap();
                assert!(most <= LIMIT, "{most} bytes were taken");
            }
        });
        let (usage, held) = (cache.usage().unwrap(), all_blocks(dir.path()));
        let one = usage.sidecar_bytes / usage.blobs;
        assert_eq!(usage.sidecar_bytes + usage.local_bytes, cache.storage.state.taken_bytes(), "{usage:?}");
        assert!(held <= LIMIT + (64 << 10), "{held} on disk");
        if are_many {
            assert!(
                cache.storage.state.taken_bytes() > LIMIT - THREADS * one,
                "the room that was free is used"
            );
        } else {
            assert_eq!(usage.blobs, ROUNDS);
        }
    }
}

/// Threads that found room for files and wait to make them, while others look for room.
#[test]
fn room_for_files_is_found_once() {
    const LIMIT: u64 = 512 << 10;
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), Some(LIMIT));
    let evicting = cache.storage.directory.open_lock(EVICT_LOCK).unwrap();
    assert!(locks::try_lock(&evicting, &(0..1), Mode::Exclusive).unwrap());
    let blobs: Vec<_> = (0..THREADS)
        .map(|n| {
            let digest = Digest::of(&n.to_le_bytes());
            let spec = BlobSpec { digest, len: 1 << 30, tree: None, origin: Some("http://a".to_owned()) };
            cache.blob(&spec).unwrap()
        })
        .collect();
    // A sidecar of 1 GiB has more than 64 KiB for its chunks alone.
    let most = LIMIT / (64 << 10);
    #[expect(clippy::disallowed_methods, reason = "a test that hangs fails")]
    let since = std::time::Instant::now();
    std::thread::scope(|scope| {
        let changing = cache.storage.directory.change().unwrap();
        for blob in &blobs {
            scope.spawn(|| blob.insert(0, &[1; UNIT as usize]).unwrap());
        }
        let are_in_memory = || cache.counters().bypassed_bytes >= (THREADS - most) * UNIT;
        while !are_in_memory() && since.elapsed() < TIMEOUT {
            std::thread::yield_now();
        }
        drop(changing);
    });
    let usage = cache.usage().unwrap();
    assert!(usage.blobs <= most && usage.sidecar_bytes + usage.local_bytes <= LIMIT, "{usage:?}");
    assert_eq!(usage.sidecar_bytes + usage.local_bytes, cache.storage.state.taken_bytes(), "{usage:?}");
}
