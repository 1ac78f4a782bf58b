//! Outboards as version 0.1.0 cached them: under no root.

use super::{Sample, UNIT, open};
use crate::sidecar::{Identity, Kind};
use crate::{BlobSpec, Cache, CachedBlob, presence};
use headstart_block::ByteRange;
use headstart_hash_tree::{TREE_PAGE, Tree, TreeRoot};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// An outboard of five pages.
const LEN: usize = 300 * UNIT as usize + 5;

/// Writes `outboard` as version 0.1.0 did, except the pages in `missing`.
fn cache_as_before(cache: &Cache, sample: &Sample, outboard: &[u8], missing: &[u64]) {
    let tree = sample.spec.tree.unwrap();
    let nothing = [0; 32];
    let identity = Identity {
        kind: Kind::Outboard,
        digest: tree.digest,
        len: tree.size,
        root: nothing,
        outboard: nothing,
        origin: nothing,
    };
    let files = cache.storage.directory.open_blob(&identity, true).unwrap().unwrap();
    files.data.write_all_at(outboard, 0).unwrap();
    for page in (0..tree.size.div_ceil(TREE_PAGE)).filter(|page| !missing.contains(page)) {
        presence::set(files.sidecar.local(), &(page..page + 1));
    }
}

/// The pages of the tree that are here.
fn pages(blob: &CachedBlob, sample: &Sample) -> Vec<bool> {
    let all = ByteRange::between(0, sample.outboard.len() as u64);
    all.parts(TREE_PAGE).map(|page| blob.tree().unwrap().is_local(page)).collect()
}

#[test]
fn pages_that_prove_are_taken_over_once() {
    let sample = Sample::new(LEN, 5);
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    cache_as_before(&cache, &sample, &sample.outboard, &[]);
    let blob = cache.blob(&sample.spec).unwrap();
    assert_eq!(pages(&blob, &sample), [true; 5]);
    let mut whole = ByteRange::between(0, LEN as u64).parts(UNIT);
    assert!(whole.all(|unit| blob.insert(unit.offset(), sample.part(unit)).is_ok()));
    // Pages that are forgotten later do not come back.
    blob.tree().unwrap().discard(ByteRange::between(0, TREE_PAGE)).unwrap();
    drop(blob);
    let blob = cache.blob(&sample.spec).unwrap();
    assert_eq!(pages(&blob, &sample), [false, true, true, true, true]);
}

#[test]
fn pages_that_are_wrong_or_missing_keep_no_others_back() {
    for (wrong, missing) in [(Some(3), None), (None, Some(3)), (Some(4), Some(2))] {
        let sample = Sample::new(LEN, 6);
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), None);
        let mut outboard = sample.outboard.clone();
        if let Some(page) = wrong {
            outboard[page * TREE_PAGE as usize + 500] ^= 1;
        }
        cache_as_before(&cache, &sample, &outboard, missing.as_slice());
        let blob = cache.blob(&sample.spec).unwrap();
        let taken = pages(&blob, &sample);
        assert!(taken[0] && taken[1] && taken.contains(&false), "{taken:?}");
        let lost = missing.map_or_else(|| wrong.unwrap(), |page| page as usize);
        assert!(!taken[lost], "{taken:?}");
        // The rest is fetched, and all of it is right.
        sample.fill(&blob, ByteRange::between(0, LEN as u64));
        assert!(sample.reads(&blob, ByteRange::between(0, LEN as u64)));
        assert_eq!(cache.counters().corrupt_inserts, 0);
    }
}

#[test]
fn pages_are_not_taken_over_under_another_root() {
    let sample = Sample::new(LEN, 7);
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), None);
    cache_as_before(&cache, &sample, &sample.outboard, &[]);
    let tree = Tree { root: TreeRoot::of(b"another"), ..sample.spec.tree.unwrap() };
    let spec = BlobSpec { tree: Some(tree), ..sample.spec.clone() };
    let blob: Arc<CachedBlob> = cache.blob(&spec).unwrap();
    assert_eq!(pages(&blob, &sample), [false; 5]);
}
