//! Disks, contents of files, and operations on file systems, for tests.

use crate::file_system::{FileSystem, InodeAttributes, InodeNumber, NewInode};
use crate::format::NewFileSystem;
use crate::inode::InodeTime;
use crate::support::skip_without;
use headstart_block::{Error, FileSource, ReadAt, Result, to_usize};
use headstart_file_blocks::{BlockSink, FileContent};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A disk in a file, and the number of blocks that were written to it.
pub(super) struct Disk {
    file: File,
    pub(super) written: u64,
}

impl BlockSink for Disk {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).unwrap();
        self.written += (bytes.len() / 4096) as u64;
        Ok(())
    }
}

/// Content in memory.
pub(super) struct Bytes {
    bytes: Vec<u8>,
    runs: Vec<Range<u64>>,
    /// Next run, and the bytes of it that were read.
    at: (usize, u64),
}

impl Bytes {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let runs = if bytes.is_empty() { vec![] } else { std::iter::once(0..bytes.len() as u64).collect() };
        Self { bytes, runs, at: (0, 0) }
    }

    pub(super) fn sparse(bytes: Vec<u8>, runs: Vec<Range<u64>>) -> Self {
        Self { bytes, runs, at: (0, 0) }
    }
}

impl FileContent for Bytes {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let run = self.runs[self.at.0].clone();
            let start = run.start + self.at.1;
            let len = (run.end - start).min((buf.len() - done) as u64);
            buf[done..done + to_usize(len)]
                .copy_from_slice(&self.bytes[to_usize(start)..to_usize(start + len)]);
            done += to_usize(len);
            self.at = if start + len == run.end { (self.at.0 + 1, 0) } else { (self.at.0, self.at.1 + len) };
        }
        Ok(())
    }
}

pub(super) fn attributes(mode: u16) -> InodeAttributes {
    InodeAttributes {
        mode,
        uid: 70_000,
        gid: 5,
        mtime: InodeTime::new(2_147_484_648, 123_456_789).unwrap(),
        xattrs: BTreeMap::new(),
    }
}

pub(super) fn disk(path: &Path, size: u64) -> Disk {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(size).unwrap();
    Disk { file, written: 0 }
}

pub(super) fn new(path: &Path, size: u64) -> FileSystem<Disk> {
    let new = NewFileSystem { size, uuid: [7; 16], hash_seed: [1, 2, 3, 4], root: attributes(0o755) };
    new.make(disk(path, size)).unwrap()
}

/// Opens a layer over a copy of the disk; the copy is the layer's own disk.
pub(super) fn layer(parent: &Path, path: &Path) -> FileSystem<Disk> {
    Command::new("cp").arg("--sparse=always").args([parent, path]).status().unwrap();
    let size = parent.metadata().unwrap().len();
    FileSystem::open(Arc::new(FileSource::open(parent).unwrap()) as Arc<dyn ReadAt>, disk(path, size))
        .unwrap()
}

/// Checks that e2fsck finds nothing to repair.
pub(super) fn check(path: &Path) {
    let programs = skip_without("the check of a file system", &["e2fsck"]).unwrap();
    let output = Command::new(&programs[0]).arg("-fn").arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("WARNING"), "{text}");
}

pub(super) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

/// The bytes of a file on the finished disk.
pub(super) fn read_back<S: BlockSink>(fs: &mut FileSystem<S>, file: InodeNumber) -> Vec<u8> {
    let inode = fs.state.inode(file.0).unwrap();
    let map = fs.state.extents(&inode).unwrap();
    let mut bytes = vec![0; to_usize(inode.size.next_multiple_of(4096))];
    for extent in map.extents {
        let (at, len) = (to_usize(u64::from(extent.logical)) * 4096, usize::from(extent.len) * 4096);
        fs.state.blocks.parent().unwrap().read(extent.start * 4096, &mut bytes[at..at + len]).unwrap();
    }
    assert!(
        bytes[to_usize(inode.size)..].iter().all(|&byte| byte == 0),
        "the end of the last block is not zeros"
    );
    bytes.truncate(to_usize(inode.size));
    bytes
}

/// All that was written, in its order.
#[derive(Default, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) writes: Vec<(u64, Vec<u8>)>,
}

impl BlockSink for Record {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.writes.push((offset, bytes.to_vec()));
        Ok(())
    }
}

impl Record {
    /// Puts what was written into a disk in memory.
    pub(super) fn apply(&self, disk: &mut [u8]) {
        for (offset, bytes) in &self.writes {
            disk[to_usize(*offset)..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// A new file system of `size` bytes, whose blocks are recorded.
pub(super) fn recorded(size: u64) -> FileSystem<Record> {
    let new = NewFileSystem { size, uuid: [7; 16], hash_seed: [1, 2, 3, 4], root: attributes(0o755) };
    new.make(Record::default()).unwrap()
}

/// A layer over a disk in memory.
pub(super) fn over(disk: &Arc<Vec<u8>>) -> FileSystem<Record> {
    FileSystem::open(disk.clone() as Arc<dyn ReadAt>, Record::default()).unwrap()
}

/// Creates a regular file.
pub(super) fn put<S: BlockSink>(
    fs: &mut FileSystem<S>,
    dir: InodeNumber,
    name: &[u8],
    bytes: &[u8],
) -> Result<()> {
    let file = fs.create(dir, name, &NewInode::Regular, &attributes(0o644))?;
    fs.write_content(file, &mut Bytes::new(bytes.to_vec()))
}

/// Creates a directory.
pub(super) fn put_dir<S: BlockSink>(
    fs: &mut FileSystem<S>,
    dir: InodeNumber,
    name: &[u8],
) -> Result<InodeNumber> {
    fs.create(dir, name, &NewInode::Directory, &attributes(0o755))
}

/// The name of a file that must exist.
pub(super) fn find<S: BlockSink>(
    fs: &mut FileSystem<S>,
    dir: InodeNumber,
    name: &[u8],
) -> Result<InodeNumber> {
    fs.lookup(dir, name)?.ok_or_else(|| Error::invalid(format!("there is no {}", name.escape_ascii())))
}

/// The files that [`all_kinds`] made.
pub(super) struct AllKinds {
    pub(super) usr: InodeNumber,
    pub(super) many: InodeNumber,
    /// The content of the sparse file.
    pub(super) holes: Vec<u8>,
    /// The attributes of the large file.
    pub(super) with_xattrs: InodeAttributes,
}

/// Puts files of all kinds into a file system, `many` of them into one directory.
pub(super) fn all_kinds<S: BlockSink>(fs: &mut FileSystem<S>, many: u64) -> Result<AllKinds> {
    let root = fs.root();
    let mut with_xattrs = attributes(0o4755);
    with_xattrs.xattrs.insert(b"user.small".to_vec(), b"value".to_vec());
    with_xattrs.xattrs.insert(b"user.large".to_vec(), vec![b'x'; 2000]);
    let capability = vec![1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    with_xattrs.xattrs.insert(b"security.capability".to_vec(), capability);
    let usr = put_dir(fs, root, b"usr")?;
    let directory = put_dir(fs, usr, b"many")?;
    for number in 0..many {
        let bytes = content(number, to_usize(number % 9000));
        put(fs, directory, long_name(number).as_bytes(), &bytes)?;
    }
    let large = fs.create(usr, b"large", &NewInode::Regular, &with_xattrs)?;
    fs.write_content(large, &mut Bytes::new(content(1, 5_000_001)))?;
    let sparse = content(2, 8 << 20);
    let runs: Vec<_> = (0..30).map(|run| run << 18..(run << 18) + 5000).collect();
    let mut holes = vec![0; sparse.len()];
    for run in &runs {
        let run = to_usize(run.start)..to_usize(run.end);
        holes[run.clone()].copy_from_slice(&sparse[run]);
    }
    let file = fs.create(usr, b"sparse", &NewInode::Regular, &attributes(0o600))?;
    fs.write_content(file, &mut Bytes::sparse(sparse, runs))?;
    for (name, target) in
        [(&b"short"[..], vec![b's'; 59]), (b"long", vec![b'l'; 60]), (b"longest", vec![b'/'; 4095])]
    {
        fs.create(root, name, &NewInode::Symlink(&target), &attributes(0o777))?;
    }
    fs.create(root, b"null", &NewInode::CharDevice(1, 3), &attributes(0o666))?;
    fs.create(root, b"disk", &NewInode::BlockDevice(259, 70_000), &attributes(0o660))?;
    fs.create(root, b"pipe", &NewInode::Fifo, &with_xattrs)?;
    fs.create(root, b"socket", &NewInode::Socket, &attributes(0o600))?;
    fs.link(root, b"hard link", large)?;
    let gone = put_dir(fs, root, b"gone")?;
    put_dir(fs, gone, b"with it")?;
    fs.link(gone, b"large", large)?;
    assert!(fs.remove(root, b"gone")? && !fs.remove(root, b"gone")?);
    Ok(AllKinds { usr, many: directory, holes, with_xattrs })
}

/// The name of a file in a directory of many.
pub(super) fn long_name(number: u64) -> String {
    format!("a file with a rather long name, number {number}")
}
