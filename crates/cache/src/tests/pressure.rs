//! Too little space: limits, pins, scans, disks that take nothing.

use super::{Sample, UNIT, missing, open, units};
use crate::{Cache, CacheSettings};
use headstart_block::{ByteRange, ReadAt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
        assert_eq!(taken, cache.state.taken_bytes());
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
        (0..2).for_each(|_| cache.state.next_epoch());
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
fn what_is_pinned_anywhere_stays_and_the_rest_goes_through_memory() {
    const LIMIT: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(6 << 20, 1);
    let cache = open(dir.path(), Some(LIMIT));
    let blob = cache.blob(&sample.plain("a")).unwrap();
    // Another handle is as good as another process; it pins before there is anything, and twice.
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

/// The disk is nearly full: it takes small things and refuses large ones.
#[test]
fn a_disk_that_refuses_by_turns_is_not_spoken_of_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    let said: Vec<u64> = (0..200_000).step_by(1000).filter(|now| cache.is_news(*now)).collect();
    assert_eq!(said, [0, 60_000, 120_000, 180_000]);
}

#[test]
fn the_disk_is_tried_again_after_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(1 << 20, 1);
    let settings = CacheSettings { overlay_limit: 8 * UNIT, ..CacheSettings::default() };
    let cache = Cache::open(dir.path(), settings).unwrap();
    let blob = cache.blob(&sample.plain("a")).unwrap();
    cache.bypass_began(&headstart_block::Error::invalid("a test says that the disk is full"));
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
    #[expect(clippy::disallowed_methods, reason = "the cache leaves a full disk alone for a second")]
    std::thread::sleep(std::time::Duration::from_millis(1100));
    sample.fill(&blob, units(17, 30));
    assert!(sample.reads(&blob, units(16, 30)), "partly in memory, partly in the file");
    assert_eq!(blob.local_bytes(), 10 * UNIT);
}
