//! File systems that e2fsck, the kernel and a second model of their files judge.

mod foreign;
mod hostile;
mod kernel;
mod limits;
mod model;
mod sameness;
mod support;

use super::*;
use crate::format::NewFileSystem;
use crate::support::skip_without;
use headstart_block::to_usize;
use support::{
    AllKinds, Bytes, all_kinds, attributes, check, content, disk, find, layer, long_name, new, read_back,
};

#[test]
fn new_file_systems_of_all_sizes_are_clean() {
    let Some(_) = skip_without("file systems and layers", &["e2fsck"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mib = 1 << 20;
    for size in [
        mib,
        5 * mib,
        127 * mib,
        128 * mib,
        129 * mib,
        160 * mib,
        1025 * mib,
        2049 * mib,
        2100 * mib,
        65_536 * mib,
    ] {
        let path = dir.path().join("disk");
        let (disk, summary) = new(&path, size).finish().unwrap();
        check(&path);
        assert!(summary.size <= size && disk.written < 64, "{size}: {summary:?}, {} blocks", disk.written);
        std::fs::remove_file(&path).unwrap();
    }
    let tiny = NewFileSystem { size: 4096, uuid: [0; 16], hash_seed: [0; 4], root: attributes(0o755) };
    assert!(tiny.make(disk(&dir.path().join("disk"), 4096)).is_err());
}

#[test]
fn all_kinds_of_files_are_clean_and_read_back() {
    let Some(_) = skip_without("file systems and layers", &["e2fsck"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (base, top) = (dir.path().join("base"), dir.path().join("top"));
    let mut fs = new(&base, 1 << 30);
    let root = fs.root();
    let AllKinds { usr, many, holes, with_xattrs } = all_kinds(&mut fs, 3000).unwrap();
    let large = find(&mut fs, usr, b"large").unwrap();
    fs.finish().unwrap();
    check(&base);

    let mut fs = layer(&base, &top);
    let found = fs.lookup(root, b"usr").unwrap().unwrap();
    assert_eq!(found, usr);
    assert_eq!(fs.all_entries(many).unwrap().len(), 3000);
    for number in [0, 1, 17, 2999] {
        let file = fs.lookup(many, long_name(number).as_bytes()).unwrap().unwrap();
        assert_eq!(read_back(&mut fs, file), content(number, to_usize(number % 9000)));
    }
    assert_eq!(read_back(&mut fs, large), content(1, 5_000_001));
    let file = fs.lookup(usr, b"sparse").unwrap().unwrap();
    assert!(read_back(&mut fs, file) == holes);
    assert_eq!(fs.xattrs(large).unwrap(), with_xattrs.xattrs);
    let status = fs.status(large).unwrap();
    assert_eq!((status.mode, status.links, status.uid, status.mtime), (0o4755, 2, 70_000, with_xattrs.mtime));
    let longest = fs.lookup(root, b"longest").unwrap().unwrap();
    assert_eq!(fs.link_target(longest).unwrap(), vec![b'/'; 4095]);
    let device = fs.lookup(root, b"disk").unwrap().unwrap();
    assert_eq!(fs.status(device).unwrap().device, (259, 70_000));
    fs.remove(usr, b"many").unwrap();
    fs.remove(root, b"hard link").unwrap();
    fs.remove(usr, b"large").unwrap();
    fs.remove(root, b"longest").unwrap();
    let (_, summary) = fs.finish().unwrap();
    check(&top);
    assert!(summary.metadata_blocks < 300, "{summary:?}");
}

#[test]
fn a_layer_with_one_file_writes_a_few_blocks() {
    let Some(_) = skip_without("file systems and layers", &["e2fsck"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (base, top) = (dir.path().join("base"), dir.path().join("top"));
    let mut fs = new(&base, 64 << 30);
    let root = fs.root();
    for number in 0..5000_u64 {
        let file =
            fs.create(root, number.to_string().as_bytes(), &NewInode::Regular, &attributes(0o644)).unwrap();
        fs.write_content(file, &mut Bytes::new(content(number, 10_000))).unwrap();
    }
    fs.finish().unwrap();
    check(&base);
    let mut fs = layer(&base, &top);
    let file = fs.create(root, b"one", &NewInode::Regular, &attributes(0o644)).unwrap();
    fs.write_content(file, &mut Bytes::new(vec![1])).unwrap();
    let (disk, summary) = fs.finish().unwrap();
    check(&top);
    // Superblock, descriptors, two bitmaps, a block of inodes, a block of the directory; and the file.
    assert_eq!((summary.metadata_blocks, disk.written), (6, 7));
}

#[test]
fn content_that_stays_the_same_keeps_its_blocks() {
    let Some(_) = skip_without("file systems and layers", &["e2fsck"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (base, top) = (dir.path().join("base"), dir.path().join("top"));
    let mut fs = new(&base, 1 << 30);
    let root = fs.root();
    let bytes = content(3, 3_000_000);
    for name in [&b"same"[..], b"changed", b"two names"] {
        let file = fs.create(root, name, &NewInode::Regular, &attributes(0o644)).unwrap();
        fs.write_content(file, &mut Bytes::new(bytes.clone())).unwrap();
    }
    let file = fs.lookup(root, b"two names").unwrap().unwrap();
    fs.link(root, b"other name", file).unwrap();
    fs.finish().unwrap();
    let mut fs = layer(&base, &top);
    fs.replace(root, b"same", &attributes(0o600), &mut Bytes::new(bytes.clone())).unwrap();
    assert_eq!(fs.sink.written, 0);
    let mut changed = bytes.clone();
    changed[2_500_000] ^= 1;
    fs.replace(root, b"changed", &attributes(0o600), &mut Bytes::new(changed.clone())).unwrap();
    assert_eq!(fs.sink.written, 733);
    fs.replace(root, b"two names", &attributes(0o600), &mut Bytes::new(bytes.clone())).unwrap();
    fs.finish().unwrap();
    check(&top);
    let mut fs = layer(&top, &dir.path().join("third"));
    for (name, mode, expected) in [
        (&b"same"[..], 0o600, &bytes),
        (b"changed", 0o600, &changed),
        (b"two names", 0o600, &bytes),
        (b"other name", 0o644, &bytes),
    ] {
        let file = fs.lookup(root, name).unwrap().unwrap();
        assert_eq!(fs.status(file).unwrap().mode, mode);
        assert!(read_back(&mut fs, file) == *expected, "{}", name.escape_ascii());
    }
}
