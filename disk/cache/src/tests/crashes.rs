//! Damaged, foreign, old and lost files.

use super::model::lose_power;
use super::{Sample, UNIT, open, open_in, units};
use crate::Cache;
use headstart_block::{ByteRange, Digest};
use headstart_testkit::soak;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

fn files_ending(dir: &Path, end: &str) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_str().unwrap().ends_with(end));
    paths.sort();
    paths
}

fn only(dir: &Path, end: &str) -> PathBuf {
    let [path] = files_ending(dir, end).try_into().unwrap();
    path
}

/// A cache that holds units 2 to 5 durably and 7 to 9 not durably.
fn prepared(dir: &Path, sample: &Sample) {
    let cache = open(dir, None);
    let blob = cache.blob(&sample.plain("a")).unwrap();
    sample.fill(&blob, units(2, 5));
    cache.sync().unwrap();
    sample.fill(&blob, units(7, 9));
}

fn local_units(cache: &std::sync::Arc<Cache>, sample: &Sample) -> Vec<usize> {
    let blob = cache.blob(&sample.plain("a")).unwrap();
    sample.units(&blob).iter().enumerate().filter(|(_, there)| **there).map(|(unit, _)| unit).collect()
}

#[test]
fn an_end_of_the_process_loses_nothing_and_a_loss_of_power_what_was_not_synced() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(20 * UNIT as usize, 1);
    prepared(dir.path(), &sample);
    assert_eq!(local_units(&open(dir.path(), None), &sample), [2, 3, 4, 7, 8]);
    lose_power(&open(dir.path(), None));
    assert_eq!(local_units(&open_in(dir.path(), None, [8; 16]), &sample), [2, 3, 4]);
    assert_eq!(local_units(&open_in(dir.path(), None, [9; 16]), &sample), [2, 3, 4]);
}

/// The bytes of a sidecar of `len` bytes that mean something, without those before `from`: every third of them, and all
/// in `make soak`.
fn places(from: u64, len: u64) -> impl Iterator<Item = u64> {
    let all = (from..400).chain((4096..len).filter(move |at| *at >= from && at % 4096 < 80));
    all.step_by(if soak::is_on() { 1 } else { 3 })
}

#[test]
fn a_sidecar_with_any_byte_changed_never_makes_wrong_bytes_visible() {
    let base = tempfile::tempdir().unwrap();
    let sample = Sample::new(20 * UNIT as usize, 1);
    let len = {
        prepared(base.path(), &sample);
        lose_power(&open(base.path(), None));
        fs::metadata(only(base.path(), ".map")).unwrap().len()
    };
    let map = only(base.path(), ".map");
    let original = fs::read(&map).unwrap();
    for (case, at) in places(0, len).enumerate() {
        let file = fs::File::options().write(true).open(&map).unwrap();
        file.write_all_at(&original, 0).unwrap();
        file.write_all_at(&[original[at as usize] ^ (1 << (case % 8))], at).unwrap();
        drop(file);
        let data = only(base.path(), ".data");
        let cache = open_in(base.path(), None, [case as u8 | 1; 16]);
        let there = local_units(&cache, &sample);
        assert!(there.is_empty() || there == [2, 3, 4], "byte {at}: {there:?}");
        drop(cache);
        if !data.exists()
            || only(base.path(), ".data") != data
            || fs::read(&map).unwrap()[..200] != original[..200]
        {
            // The files were made again: begin from the prepared state again.
            fs::remove_dir_all(base.path()).unwrap();
            prepared(base.path(), &sample);
            lose_power(&open(base.path(), None));
            let fresh = fs::read(only(base.path(), ".map")).unwrap();
            assert_eq!(fresh.len(), original.len());
            return continue_with(base.path(), &sample, at + 1, len);
        }
    }
}

/// The rest of the test above, after the files were made again, with another inode.
fn continue_with(dir: &Path, sample: &Sample, from: u64, len: u64) {
    for (case, at) in places(from, len).enumerate() {
        fs::remove_dir_all(dir).unwrap();
        prepared(dir, sample);
        lose_power(&open(dir, None));
        let map = only(dir, ".map");
        let byte = fs::read(&map).unwrap()[at as usize];
        fs::File::options()
            .write(true)
            .open(&map)
            .unwrap()
            .write_all_at(&[byte ^ (1 << (case % 8))], at)
            .unwrap();
        let there = local_units(&open_in(dir, None, [8; 16]), sample);
        assert!(there.is_empty() || there == [2, 3, 4], "byte {at}: {there:?}");
    }
}

#[test]
fn files_that_are_cut_lost_or_swapped_start_empty() {
    let sample = Sample::new(20 * UNIT as usize, 1);
    let damages: [fn(&Path, &Path); 7] = [
        |map, _| fs::write(map, "").unwrap(),
        |map, _| fs::File::options().write(true).open(map).unwrap().set_len(5000).unwrap(),
        |map, _| fs::remove_file(map).unwrap(),
        |_, data| fs::remove_file(data).unwrap(),
        |_, data| fs::File::options().write(true).open(data).unwrap().set_len(UNIT).unwrap(),
        |_, data| {
            fs::copy(data, data.with_extension("copy")).unwrap();
            fs::rename(data.with_extension("copy"), data).unwrap();
        },
        |map, _| fs::File::options().write(true).open(map).unwrap().write_all_at(&[2], 8).unwrap(),
    ];
    for (case, damage) in damages.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        prepared(dir.path(), &sample);
        damage(&only(dir.path(), ".map"), &only(dir.path(), ".data"));
        let cache = open(dir.path(), None);
        assert_eq!(cache.list().unwrap().len(), 0, "case {case}");
        assert_eq!(local_units(&cache, &sample), [0; 0], "case {case}");
        let blob = cache.blob(&sample.plain("a")).unwrap();
        sample.fill(&blob, units(0, 20));
        drop(blob);
        assert_eq!(local_units(&open(dir.path(), None), &sample).len(), 20, "case {case}");
    }
}

#[test]
fn a_blob_in_use_survives_the_replacement_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(20 * UNIT as usize, 1);
    prepared(dir.path(), &sample);
    let old = open(dir.path(), None).blob(&sample.plain("a")).unwrap();
    fs::remove_file(only(dir.path(), ".data")).unwrap();
    let new = open(dir.path(), None).blob(&sample.plain("a")).unwrap();
    assert_eq!(new.local_bytes(), 0);
    sample.fill(&new, units(10, 12));
    sample.fill(&old, units(0, 2));
    assert_eq!(sample.units(&old).iter().filter(|there| **there).count(), 7);
    assert_eq!(sample.units(&new).iter().filter(|there| **there).count(), 2);
}

#[test]
fn pruning_removes_what_cannot_be_believed() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(20 * UNIT as usize, 1);
    prepared(dir.path(), &sample);
    fs::write(only(dir.path(), ".map"), [1; 9000]).unwrap();
    open(dir.path(), None).prune(0).unwrap();
    assert!(files_ending(dir.path(), ".map").is_empty() && files_ending(dir.path(), ".data").is_empty());
}

/// The format of version 1, written down a second time: the next versions must open or drop the files of this one, and
/// this test then says which.
#[test]
fn a_directory_of_version_1_opens() {
    let dir = tempfile::tempdir().unwrap();
    let sample = Sample::new(5 * UNIT as usize + 1000, 3);
    let digest = sample.spec.digest;
    let origin = Digest::of(b"a");
    let len = sample.bytes.len() as u64;
    let identity = [
        &b"hs-cache"[..],
        &1u32.to_ne_bytes(),
        &16384u32.to_ne_bytes(),
        &len.to_ne_bytes(),
        &2u32.to_ne_bytes(),
        &[0; 4],
        digest.as_bytes(),
        &[0; 32],
        &[0; 32],
        origin.as_bytes(),
    ]
    .concat();
    let stem = format!("{}.{}", digest.hex(), &Digest::of(&identity).hex()[..32]);
    let data = dir.path().join(format!("{stem}.data"));
    fs::write(&data, &sample.bytes).unwrap();
    let mut fixed = identity;
    fixed.extend(fs::metadata(&data).unwrap().ino().to_ne_bytes());
    assert_eq!(fixed.len(), 168);

    let mut map = vec![0; 5 * 4096];
    map[..168].copy_from_slice(&fixed);
    map[168..200].copy_from_slice(Digest::of(&fixed).as_bytes());
    map[256..272].fill(3);
    for (slot, sequence, units) in [(3, 4u64, 0b10_0110u64), (4, 3, 0b11_1111)] {
        let [sequence, units] = [sequence, units].map(u64::to_ne_bytes);
        let at = slot * 4096;
        map[at..at + 8].copy_from_slice(&sequence);
        let sum = Digest::of(&[&fixed, &sequence[..], &units[..]].concat());
        map[at + 8..at + 40].copy_from_slice(sum.as_bytes());
        map[at + 64..at + 72].copy_from_slice(&units);
    }
    fs::write(dir.path().join(format!("{stem}.map")), map).unwrap();
    let mut state = vec![0; 4096];
    state[..8].copy_from_slice(b"hs-state");
    state[8..16].copy_from_slice(&77u64.to_ne_bytes());
    fs::write(dir.path().join("state.1"), state).unwrap();

    let cache = open(dir.path(), None);
    assert_eq!(cache.storage.state.taken_bytes(), 77);
    assert_eq!(local_units(&cache, &sample), [1, 2, 5]);
    assert!(sample.reads(&cache.blob(&sample.plain("a")).unwrap(), ByteRange::between(5 * UNIT, len)));
}
