//! The same operations give the same bytes.

use super::support::{
    Bytes, Record, all_kinds, attributes, check, content, find, long_name, over, put, put_dir, recorded,
};
use crate::file_system::FileSystem;
use crate::support::skip_without;
use headstart_block::{FileSource, ReadAt};
use headstart_file_blocks::BlockSink;
use std::sync::Arc;

/// Size of the disks here.
const SIZE: usize = 96 << 20;

fn change<S: BlockSink>(fs: &mut FileSystem<S>) {
    let root = fs.root();
    let usr = find(fs, root, b"usr").unwrap();
    let many = find(fs, usr, b"many").unwrap();
    for number in (0..600).step_by(2) {
        assert!(fs.remove(many, long_name(number).as_bytes()).unwrap());
    }
    for number in 1000..1300 {
        put(fs, many, long_name(number).as_bytes(), &content(number, 5000)).unwrap();
    }
    for number in 0..200 {
        let dir = put_dir(fs, usr, format!("directory {number}").as_bytes()).unwrap();
        put(fs, dir, b"file", &content(number, 10)).unwrap();
    }
    fs.replace(usr, b"large", &attributes(0o600), &mut Bytes::new(content(1, 5_000_001))).unwrap();
    assert!(fs.remove(root, b"longest").unwrap());
}

/// Makes a base and a layer on it; returns what they wrote, and the base's disk. Few changed blocks stay in memory if
/// there is a limit.
fn make(limit: Option<usize>) -> (Record, Record, Arc<Vec<u8>>) {
    let mut fs = recorded(SIZE as u64);
    if let Some(limit) = limit {
        fs.state.blocks.limit(limit);
    }
    all_kinds(&mut fs, 600).unwrap();
    let (base, _) = fs.finish().unwrap();
    let mut bytes = vec![0; SIZE];
    base.apply(&mut bytes);
    let bytes = Arc::new(bytes);
    let mut fs = over(&bytes);
    if let Some(limit) = limit {
        fs.state.blocks.limit(limit);
    }
    change(&mut fs);
    (base, fs.finish().unwrap().0, bytes)
}

#[test]
fn the_same_operations_give_the_same_bytes() {
    let (base, top, bytes) = make(None);
    let again = make(None);
    assert!(base == again.0 && top == again.1 && bytes == again.2);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, &**bytes).unwrap();
    let parent: Arc<dyn ReadAt> = Arc::new(FileSource::open(&path).unwrap());
    let mut fs = FileSystem::open(parent, Record::default()).unwrap();
    change(&mut fs);
    assert!(fs.finish().unwrap().0 == top);
}

#[test]
fn nothing_is_different_if_metadata_has_no_room_in_memory() {
    let (base, top, _) = make(None);
    for limit in [1, 2, 7, 50] {
        let (limited_base, limited_top, _) = make(Some(limit));
        assert!(limited_base == base && limited_top == top, "{limit}");
    }
}

#[test]
fn blocks_are_written_once_and_metadata_last_in_ascending_order() {
    let (base, top, bytes) = make(None);
    for record in [base, top] {
        let mut places: Vec<_> = record
            .writes
            .iter()
            .flat_map(|(offset, bytes)| (*offset..offset + bytes.len() as u64).step_by(4096))
            .collect();
        let first = record.writes.iter().position(|(offset, _)| *offset == 0).unwrap();
        assert!(record.writes[first..].windows(2).all(|pair| pair[0].0 < pair[1].0));
        let count = places.len();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), count);
        assert!(record.writes.iter().all(|(offset, bytes)| offset % 4096 == 0 && bytes.len() % 4096 == 0));
    }
    let mut fs = over(&bytes);
    let root = fs.root();
    find(&mut fs, root, b"usr").unwrap();
    assert!(fs.finish().unwrap().0.writes.is_empty(), "a layer without changes has no blocks");
}

#[test]
fn layers_in_memory_are_clean() {
    let Some(_) = skip_without("layers in memory", &["e2fsck"]) else { return };
    let (_, top, bytes) = make(Some(3));
    let mut bytes = bytes.to_vec();
    top.apply(&mut bytes);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, bytes).unwrap();
    check(&path);
}
