//! Blobs without a hash tree: the check once they are whole, and its consequences.

use super::{Sample, UNIT, missing, open, units};
use crate::locks::{self, Mode};
use crate::sidecar::Locks;
use crate::whole::{Checked, check};
use crate::{Cache, CacheSettings, CachedBlob, EntryKind, Watcher};
use headstart_block::{ByteRange, ErrorKind, ReadAt};
use headstart_testkit::wait::wait_until;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

const LEN: usize = 200_000;

fn all() -> ByteRange {
    ByteRange::between(0, LEN as u64)
}

/// A cache that checks whole blobs by itself.
fn checking(dir: &Path) -> Arc<Cache> {
    Cache::open(dir, CacheSettings::default()).unwrap()
}

/// A limit that nothing here exceeds on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Inserts everything that is missing, with one byte of it wrong.
fn fill_wrongly(sample: &Sample, blob: &CachedBlob) {
    let mut wrong = sample.part(units(3, 4)).to_vec();
    wrong[77] ^= 1;
    blob.insert(3 * UNIT, &wrong).unwrap();
    sample.fill(blob, all());
}

#[test]
fn a_plain_blob_is_checked_once_whole() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LEN, 5);
    let cache = open(dir.path(), None);
    let blob = cache.blob(&sample.plain("a")).unwrap();
    let check = || check(&blob, &|| false).unwrap();
    assert!(matches!(check(), Checked::NotWhole));
    blob.insert(0, &[9; 16384]).unwrap();
    assert!(matches!(check(), Checked::NotWhole) && !blob.is_proven());
    sample.fill(&blob, all());
    let Checked::Wrong(error) = check() else { panic!("it is wrong") };
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(&sample.spec.digest.to_string()), "{error}");
    assert_eq!(blob.local_bytes(), 0);
    sample.fill(&blob, all());
    assert!(matches!(check(), Checked::Right) && matches!(check(), Checked::Right) && blob.is_proven());
    assert_eq!((cache.counters().proven_blobs, cache.counters().wrong_blobs), (1, 1));
    assert_eq!(cache.list().unwrap()[0].kind, EntryKind::Whole);
    blob.discard(units(2, 3)).unwrap();
    assert_eq!(cache.list().unwrap()[0].kind, EntryKind::Unverified);
    blob.insert(2 * UNIT, &[1; 16384]).unwrap();
    assert!(matches!(check(), Checked::Wrong(_)));
}

#[test]
fn the_root_of_a_blob_that_was_found_right_is_kept_in_its_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LEN, 5);
    let blob = open(dir.path(), None).blob(&sample.plain("a")).unwrap();
    sample.fill(&blob, all());
    let root = || {
        let mut root = [0; 32];
        blob.present_files().unwrap().sidecar.file.read_exact_at(&mut root, 288).unwrap();
        root
    };
    assert_eq!(root(), [0; 32]);
    assert!(matches!(check(&blob, &|| false).unwrap(), Checked::Right));
    assert_eq!(&root(), sample.spec.tree.unwrap().root.as_bytes());
}

#[test]
fn a_check_ends_where_nobody_wants_it_and_is_left_to_who_is_at_it() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LEN, 5);
    let blobs = [(); 2].map(|()| open(dir.path(), None).blob(&sample.plain("a")).unwrap());
    sample.fill(&blobs[0], all());
    sample.fill(&blobs[1], all());
    assert_eq!(check(&blobs[0], &|| true).unwrap_err().kind(), ErrorKind::Cancelled);
    // Another handle behaves as another process does.
    let other = &blobs[0].present_files().unwrap().sidecar.file;
    assert!(locks::try_lock(other, &Locks::CHECK, Mode::Exclusive).unwrap());
    assert!(matches!(check(&blobs[1], &|| false).unwrap(), Checked::Elsewhere));
    locks::unlock(other, &Locks::CHECK);
    assert!(matches!(check(&blobs[1], &|| false).unwrap(), Checked::Right));
    assert!(blobs[0].is_proven());
}

#[derive(Default)]
struct WrongCount(AtomicU32);

impl Watcher for WrongCount {
    fn found_wrong(self: Arc<Self>, _: &Arc<CachedBlob>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_wrong_blob_is_dropped_by_itself_and_taken_again() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LEN, 6);
    let cache = checking(dir.path());
    let blob = cache.blob(&sample.plain("a")).unwrap();
    let wrong_count = Arc::new(WrongCount::default());
    let watcher = Arc::clone(&wrong_count) as Arc<dyn Watcher>;
    blob.watch(Arc::downgrade(&watcher));
    let gone: Weak<WrongCount> = Weak::new();
    blob.watch(gone);
    fill_wrongly(&sample, &blob);
    wait_until("it is found out", LIMIT, || wrong_count.0.load(Ordering::Relaxed) == 1);
    assert_eq!((cache.counters().wrong_blobs, blob.local_bytes()), (1, 0));
    assert_eq!(missing(&blob, all()), [all()]);
    sample.fill(&blob, all());
    wait_until("it is found right", LIMIT, || blob.is_proven() && cache.counters().proven_blobs == 1);
    assert!(sample.reads(&blob, all()));
    assert_eq!((wrong_count.0.load(Ordering::Relaxed), cache.counters().proven_blobs), (1, 1));
}

#[test]
fn a_blob_that_is_always_wrong_is_not_taken_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LEN, 7);
    let cache = checking(dir.path());
    let blob = cache.blob(&sample.plain("a")).unwrap();
    for round in 1..=3 {
        fill_wrongly(&sample, &blob);
        wait_until("it is found out", LIMIT, || {
            cache.counters().wrong_blobs == round && blob.local_bytes() == 0
        });
    }
    let errors = [
        blob.read_at(&mut [0; 10], 5).unwrap_err(),
        blob.insert(0, sample.part(units(0, 1))).unwrap_err(),
        blob.claim(all()).err().unwrap(),
    ];
    for error in errors {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
        assert!(text.contains(&sample.spec.digest.to_string()) && text.contains("repair"), "{text}");
    }
    // A blob that is opened again starts again.
    drop(blob);
    wait_until("it is taken again", LIMIT, || {
        let blob = cache.blob(&sample.plain("a")).unwrap();
        blob.insert(0, sample.part(units(0, 1))).is_ok()
    });
}

#[test]
fn an_unchecked_whole_blob_is_checked_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LEN, 8);
    for right in [true, false] {
        let cache = Cache::open(dir.path(), CacheSettings { check_whole: false, ..CacheSettings::default() });
        let blob = cache.unwrap().blob(&sample.plain(&right.to_string())).unwrap();
        if right {
            sample.fill(&blob, all());
        } else {
            fill_wrongly(&sample, &blob);
        }
        drop(blob);
        let cache = checking(dir.path());
        let blob = cache.blob(&sample.plain(&right.to_string())).unwrap();
        wait_until("it is checked", LIMIT, || {
            cache.counters().proven_blobs + cache.counters().wrong_blobs == 1
        });
        wait_until("what follows", LIMIT, || if right { blob.is_proven() } else { blob.local_bytes() == 0 });
    }
}

#[test]
fn reported_bytes_are_dropped_unless_the_digest_proves_them() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(LEN, 9);
    let cache = open(dir.path(), None);
    let blob = cache.blob(&sample.plain("a")).unwrap();
    sample.fill(&blob, units(2, 5));
    assert!(!blob.discard_wrong(units(0, 2)).unwrap(), "there is none");
    assert!(blob.discard_wrong(ByteRange::between(UNIT, 2 * UNIT + 1)).unwrap());
    assert_eq!(missing(&blob, units(0, 5)), [units(0, 3)]);
    sample.fill(&blob, all());
    assert!(matches!(check(&blob, &|| false).unwrap(), Checked::Right));
    // The digest proves it: its errors were so in the store.
    assert!(!blob.discard_wrong(units(2, 4)).unwrap() && blob.is_proven());
    blob.present_files().unwrap().data.write_all_at(&[!sample.bytes[9]], 9).unwrap();
    assert!(blob.discard_wrong(units(2, 4)).unwrap() && !blob.is_proven());
    assert_eq!((missing(&blob, all()), cache.counters().damaged_bytes), (vec![units(2, 4)], 2 * UNIT));
    let verified = cache.blob(&sample.spec).unwrap();
    sample.fill(&verified, all());
    assert!(!verified.discard_wrong(all()).unwrap() && verified.is_local(all()));
}
