//! Disks in memory, and the trees on them.

use crate::erofs_tree::ErofsTree;
use crate::ext4_tree::Ext4Tree;
use crate::file_tree::{FileTree, NodeKind};
use crate::model_tree::Row;
use headstart_block::file_system::SUPERBLOCK_AT;
use headstart_block::{ByteRange, Error, FileSystemKind, ReadAt, Result, to_usize};
use headstart_erofs::{ErofsAttributes, ErofsFileSystem, NewErofs};
use headstart_ext4::{FileSystem, InodeAttributes, InodeTime, NewFileSystem};
use headstart_file_blocks::{BLOCK_SIZE, BlockSink};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The blocks of a disk, or of one layer of it; all others are zeros.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BlockMap {
    pub(crate) size: u64,
    pub(crate) blocks: BTreeMap<u64, Vec<u8>>,
}

impl BlockMap {
    pub(crate) fn new(size: u64) -> Self {
        Self { size, blocks: BTreeMap::new() }
    }

    /// The disk after one more layer.
    pub(crate) fn with(&self, layer: &Self) -> Self {
        let mut disk = self.clone();
        disk.blocks.extend(layer.blocks.iter().map(|(number, content)| (*number, content.clone())));
        disk
    }

    /// Puts the disk into a file, in which blocks of zeros are holes.
    pub(crate) fn store(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(self.size).unwrap();
        for (number, content) in &self.blocks {
            file.write_all_at(content, number * BLOCK_SIZE as u64).unwrap();
        }
    }
}

impl ReadAt for BlockMap {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset + buf.len() as u64 > self.size {
            return Err(Error::corrupt("reads past its end"));
        }
        let (mut done, mut at) = (0, offset);
        while done < buf.len() {
            let inside = to_usize(at % BLOCK_SIZE as u64);
            let len = (BLOCK_SIZE - inside).min(buf.len() - done);
            match self.blocks.get(&(at / BLOCK_SIZE as u64)) {
                Some(content) => buf[done..done + len].copy_from_slice(&content[inside..inside + len]),
                None => buf[done..done + len].fill(0),
            }
            done += len;
            at += len as u64;
        }
        Ok(())
    }
}

impl BlockSink for BlockMap {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        assert_eq!((offset % BLOCK_SIZE as u64, bytes.len() % BLOCK_SIZE), (0, 0));
        for (number, content) in (offset / BLOCK_SIZE as u64..).zip(bytes.chunks(BLOCK_SIZE)) {
            let old = self.blocks.insert(number, content.to_vec());
            assert_eq!(old, None, "block {number} is given once");
        }
        Ok(())
    }
}

/// A file system as a tree, for tests.
pub(crate) trait DiskTree: FileTree {
    /// The tree of a layer on `parent`, a disk; of the first layer, if there is none.
    fn layer_on(parent: Option<Arc<dyn ReadAt>>, size: u64) -> Self;

    /// Ends a layer, and returns its blocks.
    fn finished(self) -> BlockMap;

    /// Reads the content of a file from its beginning on.
    fn read(&mut self, node: Self::Node, buf: &mut [u8]);

    /// The numbers of a device; zeros for other files.
    fn device(&mut self, node: Self::Node) -> (u32, u32);
}

impl DiskTree for Ext4Tree<BlockMap> {
    fn layer_on(parent: Option<Arc<dyn ReadAt>>, size: u64) -> Self {
        let layer = BlockMap::new(size);
        let mtime = InodeTime::default();
        let root = InodeAttributes { mode: 0o755, uid: 0, gid: 0, mtime, xattrs: BTreeMap::new() };
        Self::new(match parent {
            Some(parent) => FileSystem::open(parent, layer).unwrap(),
            None => NewFileSystem { size, uuid: [7; 16], hash_seed: [1, 2, 3, 4], root }.make(layer).unwrap(),
        })
    }

    fn finished(self) -> BlockMap {
        self.into_inner().finish().unwrap().0
    }

    fn read(&mut self, node: Self::Node, buf: &mut [u8]) {
        self.fs.read_content(node, 0, buf).unwrap();
    }

    fn device(&mut self, node: Self::Node) -> (u32, u32) {
        self.fs.status(node).unwrap().device
    }
}

impl DiskTree for ErofsTree<BlockMap> {
    fn layer_on(parent: Option<Arc<dyn ReadAt>>, size: u64) -> Self {
        let layer = BlockMap::new(size);
        let root = ErofsAttributes { mode: 0o755, ..ErofsAttributes::default() };
        Self::new(match parent {
            Some(parent) => ErofsFileSystem::open(parent, layer).unwrap(),
            None => NewErofs { size, uuid: [7; 16], root }.make(layer).unwrap(),
        })
    }

    fn finished(self) -> BlockMap {
        self.into_inner().finish().unwrap().0
    }

    fn read(&mut self, node: Self::Node, buf: &mut [u8]) {
        self.fs.read_content(node, 0, buf).unwrap();
    }

    fn device(&mut self, node: Self::Node) -> (u32, u32) {
        self.fs.status(node).unwrap().device
    }
}

/// The kind of file system on a disk.
pub(crate) fn kind_of(disk: &dyn ReadAt) -> FileSystemKind {
    let mut superblock = [0; 4];
    disk.read_at(&mut superblock, SUPERBLOCK_AT).unwrap();
    FileSystemKind::of_superblock(&superblock)
}

/// All paths of the file system on a disk, of either kind, and what they lead to.
pub(crate) fn rows(disk: &Arc<dyn ReadAt>) -> BTreeMap<Vec<u8>, Row> {
    let parent = Some(Arc::clone(disk));
    match kind_of(&**disk) {
        FileSystemKind::Ext4 => rows_in(Ext4Tree::layer_on(parent, disk.len())),
        FileSystemKind::Erofs => rows_in(ErofsTree::layer_on(parent, disk.len())),
    }
}

/// All paths of a tree, and what they lead to.
fn rows_in<T: DiskTree>(mut tree: T) -> BTreeMap<Vec<u8>, Row> {
    let (mut found, mut pending) = (BTreeMap::new(), vec![(Vec::new(), tree.root())]);
    while let Some((path, node)) = pending.pop() {
        let status = tree.status(node).unwrap();
        let mut bytes = Vec::new();
        match status.kind {
            NodeKind::Directory => {
                for name in
                    (0..).map_while(|part| tree.names(node, part).unwrap()).flatten().collect::<Vec<_>>()
                {
                    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                    let child = tree.lookup(node, &name).unwrap().expect("a listed name is found");
                    pending.push(([&path, slash, &name].concat(), child));
                }
            }
            NodeKind::Regular => {
                bytes.resize(to_usize(status.size), 0);
                tree.read(node, &mut bytes);
            }
            NodeKind::Symlink => bytes = tree.link_target(node).unwrap(),
            _ => {}
        }
        let row = Row {
            kind: status.kind,
            mode: status.mode,
            uid: status.uid,
            gid: status.gid,
            mtime: status.mtime,
            xattrs: tree.xattrs(node).unwrap(),
            bytes,
            device: tree.device(node),
            first: Vec::new(),
        };
        found.insert(path, (node, status.links, row));
    }
    let mut names = BTreeMap::new();
    for (path, (node, ..)) in &found {
        names.entry(*node).or_insert_with(Vec::new).push(path.clone());
    }
    let named = found.into_iter().map(|(path, (node, links, mut row))| {
        row.first.clone_from(&names[&node][0]);
        let is_counted = row.kind == NodeKind::Directory || names[&node].len() == to_usize(u64::from(links));
        assert!(is_counted, "{} has {links} links", path.escape_ascii());
        (path, row)
    });
    named.collect()
}

/// The place of `e2fsck`; if it is absent, says that `test` is skipped, and returns `None`.
pub(crate) fn e2fsck(test: &str) -> Option<PathBuf> {
    program("e2fsck", test)
}

/// The place of the program that checks file systems of a kind; if it is absent, says that `test` is skipped.
pub(crate) fn checker(kind: FileSystemKind, test: &str) -> Option<PathBuf> {
    program(if kind == FileSystemKind::Ext4 { "e2fsck" } else { "fsck.erofs" }, test)
}

fn program(name: &str, test: &str) -> Option<PathBuf> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let for_root = ["/sbin", "/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&searched).chain(for_root);
    let found = places.find_map(|place| Some(place.join(name)).filter(|path| path.exists()));
    if found.is_none() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: there is no {name}");
    }
    found
}

/// Puts a disk into a file, in which zeros are holes.
pub(crate) fn store_disk(disk: &Arc<dyn ReadAt>, path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(disk.len()).unwrap();
    let mut buf = vec![0; 64 << 10];
    for part in ByteRange::between(0, disk.len()).parts(64 << 10) {
        buf.resize(to_usize(part.len()), 0);
        disk.read_at(&mut buf, part.offset()).unwrap();
        if buf.iter().any(|&byte| byte != 0) {
            file.write_all_at(&buf, part.offset()).unwrap();
        }
    }
}

/// Checks that `e2fsck` or `fsck.erofs` finds nothing to mend on the disk in a file.
pub(crate) fn check(program: &Path, disk: &Path) {
    let mut command = Command::new(program);
    if program.ends_with("e2fsck") {
        command.arg("-fn");
    } else {
        // All content and attributes are read, too.
        command.args(["-d1", "--extract"]);
    }
    let output = command.arg(disk).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && !text.contains("WARNING"), "{text}");
}
