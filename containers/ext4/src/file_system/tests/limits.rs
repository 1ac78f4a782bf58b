//! Full file systems, directories of directories, and parents that cannot be read.

use super::support::{
    Bytes, Record, all_kinds, attributes, check, content, disk, find, layer, new, over, put, put_dir,
    read_back, recorded,
};
use crate::features::{DIR_NLINK, Features};
use crate::file_system::{FileSystem, NewInode};
use crate::support::skip_without;
use headstart_block::{Error, ErrorKind, ReadAt, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_full_disk_is_an_error_that_names_the_remedy() {
    for len in [2 << 20, 900 << 10] {
        let mut fs = recorded(1 << 20);
        let root = fs.root();
        let error = (0..3)
            .find_map(|number| put(&mut fs, root, number.to_string().as_bytes(), &content(number, len)).err())
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("is full") && error.to_string().contains("--size"), "{error}");
        assert!(put(&mut fs, root, b"more", &content(9, len)).is_err());
    }
}

#[test]
fn a_disk_full_of_metadata_is_an_error_that_names_the_remedy() {
    let mut fs = recorded(2 << 20);
    let root = fs.root();
    let filler = fs.state.geometry.blocks() * 3 / 4 * 4096;
    put(&mut fs, root, b"filler", &content(1, usize::try_from(filler).unwrap())).unwrap();
    let mut with_xattrs = attributes(0o644);
    with_xattrs.xattrs.insert(b"user.long".to_vec(), vec![7; 3000]);
    let error = (0..200)
        .find_map(|n| fs.create(root, format!("{n}").as_bytes(), &NewInode::Directory, &with_xattrs).err())
        .unwrap();
    assert!(error.to_string().contains("--size"), "{error}");
}

#[test]
fn no_inode_left_is_an_error_that_names_the_remedy() {
    let mut fs = recorded(1 << 20);
    let root = fs.root();
    let free = fs.state.superblock.inodes_count - 10;
    for number in 0..free {
        put(&mut fs, root, number.to_string().as_bytes(), b"").unwrap();
    }
    let error = put(&mut fs, root, b"more", b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("no inode left") && error.to_string().contains("--size"), "{error}");
    assert!(put_dir(&mut fs, root, b"more").is_err());
    // The one that is free again is found in the next layer only.
    assert!(fs.remove(root, b"7").unwrap());
    let (record, summary) = fs.finish().unwrap();
    assert_eq!(summary.free_inodes, 1);
    let mut bytes = vec![0; 1 << 20];
    record.apply(&mut bytes);
    let mut fs = over(&Arc::new(bytes));
    put(&mut fs, root, b"more", b"").unwrap();
    assert!(put(&mut fs, root, b"and more", b"").is_err());
}

#[test]
fn freed_blocks_are_used_when_the_end_of_the_disk_is_reached() {
    let Some(_) = skip_without("small disks", &["e2fsck"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let [base, top, third, look] = ["base", "top", "third", "look"].map(|name| dir.path().join(name));
    let mut fs = new(&base, 8 << 20);
    let root = fs.root();
    for name in [b"a", b"b"] {
        put(&mut fs, root, name, &content(1, 3 << 20)).unwrap();
    }
    fs.finish().unwrap();
    let mut fs = layer(&base, &top);
    assert!(fs.remove(root, b"a").unwrap());
    // What a layer frees, it does not use itself.
    assert!(put(&mut fs, root, b"c", &content(2, 3 << 20)).is_err());
    let mut fs = layer(&base, &top);
    assert!(fs.remove(root, b"a").unwrap());
    fs.finish().unwrap();
    check(&top);
    let mut fs = layer(&top, &third);
    put(&mut fs, root, b"c", &content(2, 3 << 20)).unwrap();
    // Files that were written where the parent has other blocks are not compared with those.
    fs.replace(root, b"c", &attributes(0o600), &mut Bytes::new(content(1, 3 << 20))).unwrap_err();
    let mut fs = layer(&top, &third);
    put(&mut fs, root, b"c", &content(2, 3 << 20)).unwrap();
    fs.finish().unwrap();
    check(&third);
    let mut fs = layer(&third, &look);
    for (name, seed) in [(b"b", 1), (b"c", 2)] {
        let file = find(&mut fs, root, name).unwrap();
        assert!(read_back(&mut fs, file) == content(seed, 3 << 20));
    }
}

#[test]
fn a_file_that_one_layer_replaces_twice_has_its_last_content() {
    let mut fs = recorded(8 << 20);
    let root = fs.root();
    put(&mut fs, root, b"file", &content(1, 8192)).unwrap();
    let mut bytes = vec![0; 8 << 20];
    fs.finish().unwrap().0.apply(&mut bytes);
    let mut fs = over(&Arc::new(bytes.clone()));
    // The new blocks are zeros in the parent, as the last content is.
    for last in [content(2, 8192), vec![0; 8192]] {
        fs.replace(root, b"file", &attributes(0o644), &mut Bytes::new(last)).unwrap();
    }
    put(&mut fs, root, b"new", &content(3, 8192)).unwrap();
    fs.replace(root, b"new", &attributes(0o644), &mut Bytes::new(vec![0; 8192])).unwrap();
    fs.finish().unwrap().0.apply(&mut bytes);
    let mut fs = over(&Arc::new(bytes));
    for name in [&b"file"[..], b"new"] {
        let file = find(&mut fs, root, name).unwrap();
        assert_eq!(read_back(&mut fs, file), vec![0; 8192]);
    }
}

#[test]
fn directories_that_cannot_be_counted_have_one_link() {
    let mut fs = recorded(64 << 20);
    let root = fs.root();
    let parent = put_dir(&mut fs, root, b"parent").unwrap();
    let mut inode = fs.state.inode(parent.0).unwrap();
    inode.links = 64_999;
    fs.state.put_inode(parent.0, &inode).unwrap();
    for (name, links) in [(b"a", 65_000), (b"b", 1), (b"c", 1)] {
        put_dir(&mut fs, parent, name).unwrap();
        assert_eq!(fs.status(parent).unwrap().links, links);
    }
    fs.remove(parent, b"a").unwrap();
    assert_eq!(fs.status(parent).unwrap().links, 1);
    inode.links = 65_000;
    fs.state.put_inode(parent.0, &inode).unwrap();
    let features = fs.state.superblock.features;
    let without = Features {
        ro_compat: features.ro_compat & !Features::default().with(DIR_NLINK).ro_compat,
        ..features
    };
    fs.state.superblock.features = without;
    let error = put_dir(&mut fs, parent, b"d").unwrap_err();
    assert!(error.to_string().contains("dir_nlink"), "{error}");
    put(&mut fs, root, b"file", b"").unwrap();
    let file = find(&mut fs, root, b"file").unwrap();
    let mut inode = fs.state.inode(file.0).unwrap();
    inode.links = 65_000;
    fs.state.put_inode(file.0, &inode).unwrap();
    assert!(fs.link(root, b"one more", file).unwrap_err().to_string().contains("65000 hard links"));
}

#[test]
fn what_is_refused_takes_nothing() {
    let mut fs = recorded(8 << 20);
    let root = fs.root();
    let mut too_many = attributes(0o644);
    too_many.xattrs.insert(b"user.long".to_vec(), vec![7; 5000]);
    let long = [b'x'; 4096];
    for (name, new) in [
        (&b"link"[..], NewInode::Symlink(&long)),
        (b"link", NewInode::Symlink(b"")),
        (b"link", NewInode::Symlink(b"a\0b")),
        (b"device", NewInode::CharDevice(5000, 1)),
        (b"device", NewInode::BlockDevice(1, 1 << 20)),
        (b"", NewInode::Fifo),
        (b"..", NewInode::Fifo),
        (b"a/b", NewInode::Fifo),
        (&[b'x'; 256], NewInode::Fifo),
    ] {
        assert!(fs.create(root, name, &new, &attributes(0o644)).is_err(), "{new:?}");
    }
    assert!(fs.create(root, b"file", &NewInode::Regular, &too_many).is_err());
    let (_, summary) = fs.finish().unwrap();
    let (_, expected) = recorded(8 << 20).finish().unwrap();
    assert_eq!(summary, expected);
}

/// A disk that can be read some times only.
struct Away {
    bytes: Vec<u8>,
    reads_left: AtomicU64,
}

impl ReadAt for Away {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let left =
            self.reads_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_err() {
            return Err(Error::new(ErrorKind::Unavailable, "is away").about("the registry"));
        }
        self.bytes.read_at(buf, offset)
    }
}

#[test]
fn errors_of_the_parent_come_through() {
    let mut fs = recorded(64 << 20);
    all_kinds(&mut fs, 300).unwrap();
    let mut bytes = vec![0; 64 << 20];
    fs.finish().unwrap().0.apply(&mut bytes);
    let mut reads = 0;
    let parent = Arc::new(Away { bytes, reads_left: AtomicU64::new(0) });
    loop {
        parent.reads_left.store(reads, Ordering::Relaxed);
        let change = || {
            let mut fs = FileSystem::open(parent.clone() as Arc<dyn ReadAt>, Record::default())?;
            let root = fs.root();
            let usr = find(&mut fs, root, b"usr")?;
            let large = find(&mut fs, usr, b"large")?;
            fs.xattrs(large)?;
            put(&mut fs, usr, b"new", b"content")?;
            fs.replace(usr, b"sparse", &attributes(0o644), &mut Bytes::new(vec![0; 8 << 20]))?;
            let link = find(&mut fs, root, b"longest")?;
            fs.link_target(link)?;
            fs.remove(usr, b"many")?;
            fs.remove(root, b"hard link")?;
            fs.finish()
        };
        match change() {
            Ok(_) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert!(error.to_string().contains("the registry: is away"), "{error}");
            }
        }
        reads += 1;
    }
    assert!(reads > 20, "{reads}");
}

#[test]
fn errors_of_the_sink_come_through() {
    struct Full;
    impl headstart_file_blocks::BlockSink for Full {
        fn data(&mut self, _: u64, _: &[u8]) -> Result<()> {
            Err(Error::new(ErrorKind::NoSpace, "is full"))
        }
    }
    let made = crate::format::NewFileSystem {
        size: 8 << 20,
        uuid: [0; 16],
        hash_seed: [0; 4],
        root: attributes(0o755),
    };
    let mut fs = made.make(Full).unwrap();
    let root = fs.root();
    assert_eq!(put(&mut fs, root, b"file", b"content").unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(made.make(Full).unwrap().finish().err().unwrap().kind(), ErrorKind::NoSpace);
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(disk(&dir.path().join("disk"), 4096).written, 0);
}
