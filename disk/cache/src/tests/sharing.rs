//! Many threads, two handles, everything at once: reads are right or absent, and in the end nothing is lost.

#![expect(clippy::disallowed_methods, reason = "nothing here may hang")]

use super::{Sample, UNIT, missing, open, units};
use crate::CachedBlob;
use headstart_block::{ByteRange, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest time of a test: one that hangs fails.
const LIMIT: Duration = Duration::from_secs(60);

/// A small generator: tests must repeat.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn some_units(state: &mut u64, all: u64) -> ByteRange {
    let from = next(state) % all;
    units(from, (from + 1 + next(state) % 6).min(all))
}

#[test]
fn reads_race_with_inserts_evictions_and_discards() {
    const UNITS: u64 = 64;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new((UNITS * UNIT) as usize, 1);
    let caches = [(); 2].map(|()| open(dir.path(), None));
    let blobs = caches.each_ref().map(|cache| cache.blob(&sample.plain("a")).unwrap());
    sample.fill(&blobs[0], units(0, UNITS));
    let (stop, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    // This ends also if the thread that would set the flag has failed.
    let until = Instant::now() + LIMIT;
    let goes_on = || !stop.load(Ordering::Relaxed) && Instant::now() < until;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (blob, sample, goes_on, hits) = (&blobs[thread as usize % 2], &sample, &goes_on, &hits);
            scope.spawn(move || {
                let mut state = thread + 1;
                while goes_on() {
                    let range = some_units(&mut state, UNITS);
                    hits.fetch_add(u64::from(sample.reads(blob, range)), Ordering::Relaxed);
                }
            });
        }
        for thread in 0..2u64 {
            let (blob, sample, goes_on) = (&blobs[thread as usize], &sample, &goes_on);
            scope.spawn(move || {
                let mut state = thread + 100;
                while goes_on() {
                    let range = some_units(&mut state, UNITS);
                    sample.fill(blob, range);
                }
            });
        }
        // This makes the inserts race with reads.
        while hits.load(Ordering::Relaxed) == 0 && goes_on() {
            std::thread::yield_now();
        }
        let mut state = 99;
        for round in 0..150 {
            let cache = &caches[round % 2];
            match round % 5 {
                0 => blobs[round % 2].discard(some_units(&mut state, UNITS)).unwrap(),
                1 => cache.sync().unwrap(),
                _ => {
                    if let Err(e) = cache.prune(next(&mut state) % (UNITS * UNIT)) {
                        assert_eq!(e.kind(), ErrorKind::Conflict);
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(hits.load(Ordering::Relaxed) > 0);
    sample.fill(&blobs[1], units(0, UNITS));
    assert!(sample.reads(&blobs[0], units(0, UNITS)));
    assert!(missing(&blobs[1], units(0, UNITS)).is_empty());
}

/// Reads a range as a disk does: claim, fetch the owned ranges, wait for the others.
fn pull(sample: &Sample, blob: &Arc<CachedBlob>, range: ByteRange, fetched: &AtomicU64) {
    let started = Instant::now();
    while !sample.reads(blob, range) {
        assert!(started.elapsed() < LIMIT, "waits for ever");
        let claim = blob.claim(range).unwrap();
        for run in claim.owned() {
            std::thread::yield_now();
            fetched.fetch_add(run.len(), Ordering::Relaxed);
            sample.fill(blob, *run);
        }
        std::thread::yield_now();
    }
}

#[test]
fn each_range_is_fetched_once_on_a_host() {
    const UNITS: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new((UNITS * UNIT) as usize, 1);
    let blobs: Vec<_> = (0..4).map(|_| open(dir.path(), None).blob(&sample.spec).unwrap()).collect();
    let fetched = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (blob, sample, fetched) = (&blobs[thread as usize % 4], &sample, &fetched);
            scope.spawn(move || {
                let mut state = thread + 1;
                for _ in 0..50 {
                    pull(sample, blob, some_units(&mut state, UNITS), fetched);
                }
                pull(sample, blob, units(0, UNITS), fetched);
            });
        }
    });
    assert_eq!(fetched.load(Ordering::Relaxed), UNITS * UNIT);
}

#[test]
fn files_that_another_process_made_are_seen_after_looking_again() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(4 * UNIT as usize, 3);
    let [early, other] = [(); 2].map(|()| open(dir.path(), None).blob(&sample.spec).unwrap());
    early.look_again();
    sample.fill(&other, units(0, 2));
    assert_eq!(early.local_bytes(), 0);
    early.look_again();
    assert!(early.is_local(units(0, 2)) && !early.is_local(units(0, 3)));
    assert!(sample.reads(&early, units(0, 2)));
}

#[test]
fn slots_are_shared_by_all_that_have_the_directory_open() {
    let dir = tempfile::tempdir().unwrap();
    let caches = [(); 2].map(|()| open(dir.path(), None));
    let mut held: Vec<_> = (0..3).map(|n| caches[n % 2].take_slot(3).unwrap()).collect();
    for cache in &caches {
        assert!(cache.take_slot(3).is_none());
        assert!(cache.take_slot(1).is_none());
    }
    // Slots hinder no changes of the directory, and no process that opens it.
    let sample = Sample::new(UNIT as usize, 1);
    sample.fill(&open(dir.path(), None).blob(&sample.plain("a")).unwrap(), units(0, 1));
    held.remove(1);
    held.push(caches[0].take_slot(3).unwrap());
    assert!(caches[1].take_slot(3).is_none());
    drop(held);
    assert!(caches[1].take_slot(1).is_some());
}
