//! Bytes that change on the disk after they were found right.

use super::{Sample, UNIT, missing, open, units};
use crate::{Cache, CachedBlob, Findings};
use headstart_block::{ByteRange, ReadAt};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const LEN: usize = 20 * UNIT as usize + 77;

fn all() -> ByteRange {
    ByteRange::between(0, LEN as u64)
}

/// Flips a bit behind the cache's back.
fn flip(blob: &CachedBlob, at: u64) {
    let file = &blob.present_files().unwrap().data;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 8], at).unwrap();
}

/// A blob that is wholly local, with its tree.
fn filled(cache: &Arc<Cache>, sample: &Sample) -> Arc<CachedBlob> {
    let blob = cache.blob(&sample.spec).unwrap();
    sample.fill(&blob, all());
    blob
}

fn verified(cache: &Arc<Cache>, repair: bool) -> Findings {
    let (mut found, mut read) = (Findings::default(), 0);
    let mut on_read = |bytes| {
        read += bytes;
        Ok(())
    };
    cache.verify(repair, &mut on_read, &mut |blob| found += blob.found).unwrap();
    assert!(read <= found.bytes());
    found
}

#[test]
fn only_units_that_changed_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, sample) = (open(dir.path(), None), Sample::new(LEN, 3));
    let blob = filled(&cache, &sample);
    assert!(!blob.discard_wrong(all()).unwrap());
    for at in [5 * UNIT + 3, 20 * UNIT + 70] {
        flip(&blob, at);
    }
    // A caller that looks at another range forgets nothing.
    assert!(!blob.discard_wrong(units(6, 20)).unwrap());
    assert!(blob.discard_wrong(ByteRange::between(5 * UNIT + 9, 5 * UNIT + 10)).unwrap());
    assert_eq!(missing(&blob, all()), [units(5, 6)]);
    let last = ByteRange::between(20 * UNIT, LEN as u64);
    let found = blob.recheck(units(18, 22)).unwrap();
    assert_eq!((found.right_bytes, found.wrong_bytes, found.unproven_bytes), (2 * UNIT, last.len(), 0));
    assert_eq!(missing(&blob, all()), [units(5, 6), last]);
    assert_eq!(cache.counters().damaged_bytes, UNIT + last.len());
    sample.fill(&blob, all());
    assert!(sample.reads(&blob, all()));
}

#[test]
fn bytes_for_other_hosts_are_compared_with_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, sample) = (open(dir.path(), None), Sample::new(LEN, 4));
    let blob = filled(&cache, &sample);
    flip(&blob, 9 * UNIT);
    let mut bytes = vec![0; 4 * UNIT as usize];
    for (first, right) in [(4, true), (8, false)] {
        blob.read_at(&mut bytes, first * UNIT).unwrap();
        assert_eq!(blob.is_right(first * UNIT, &bytes), right);
    }
    assert_eq!(missing(&blob, all()), [units(9, 10)]);
    // Bytes that cannot be compared are not forgotten, and not given to other hosts either.
    blob.tree().unwrap().discard(ByteRange::between(0, 8)).unwrap();
    blob.read_at(&mut bytes, 4 * UNIT).unwrap();
    assert!(!blob.is_right(4 * UNIT, &bytes) && blob.is_local(units(4, 8)));
    // But a caller that found them wrong by other means wants them again.
    assert!(blob.discard_wrong(units(4, 5)).unwrap() && !blob.is_local(units(4, 5)));
}

#[test]
fn a_cache_is_verified_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, sample) = (open(dir.path(), None), Sample::new(LEN, 5));
    let blob = filled(&cache, &sample);
    let plain = cache.blob(&sample.plain("a")).unwrap();
    sample.fill(&plain, units(0, 4));
    let tree = sample.outboard.len() as u64;
    let expected = |right_bytes, wrong_bytes| Findings { right_bytes, wrong_bytes, unproven_bytes: 4 * UNIT };
    let len = LEN as u64;
    assert_eq!(verified(&cache, false), expected(len + tree, 0));
    flip(&blob, 7 * UNIT + 1);
    for repair in [false, true] {
        assert_eq!(verified(&cache, repair), expected(len + tree - UNIT, UNIT));
    }
    assert_eq!(missing(&blob, all()), [units(7, 8)]);
    assert_eq!(verified(&cache, false), expected(len + tree - UNIT, 0));
    sample.fill(&blob, all());
    // The last missing bytes of the other: it is compared with its digest from now on.
    sample.fill(&plain, all());
    let found = verified(&cache, false);
    assert_eq!(found, Findings { right_bytes: 2 * len + tree, ..Findings::default() });
    flip(&plain, 12);
    let found = verified(&cache, true);
    assert_eq!(found, Findings { right_bytes: len + tree, wrong_bytes: len, unproven_bytes: 0 });
    assert_eq!(plain.local_bytes(), 0);
}

#[test]
fn a_hash_tree_that_changed_is_forgotten_and_the_data_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (cache, sample) = (open(dir.path(), None), Sample::new(LEN, 6));
    let blob = filled(&cache, &sample);
    for at in [3, 100, 1000] {
        flip(blob.tree().unwrap(), at);
        let found = verified(&cache, true);
        assert!(found.wrong_bytes > 0 && found.unproven_bytes >= LEN as u64, "{found:?}");
        assert!(blob.is_local(all()) && !missing(blob.tree().unwrap(), units(0, 1)).is_empty());
        sample.fill(&blob, all());
        let page = &sample.outboard;
        blob.tree().unwrap().insert(0, page).unwrap();
        assert_eq!(verified(&cache, false).wrong_bytes, 0);
    }
}
