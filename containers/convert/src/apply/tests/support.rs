//! Layers in memory, and how they are applied.

use crate::apply::resolve::resolve;
use crate::apply::{Applier, ApplyLimits, LayerCounts};
use crate::file_tree::{FileTree, LayerContent, NodeXattr};
use crate::model_tree::{ModelTree, Row};
use headstart_block::{ByteRange, Result};
use headstart_tar::{TarEntry, TarKind, TarTime};

/// An entry and its stored bytes.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) entry: TarEntry,
    pub(crate) stored: Vec<u8>,
}

impl Item {
    pub(crate) fn new(kind: TarKind, path: impl AsRef<[u8]>) -> Self {
        let entry = TarEntry {
            path: path.as_ref().to_vec(),
            kind,
            mode: if kind == TarKind::Directory { 0o755 } else { 0o644 },
            uid: 0,
            gid: 0,
            mtime: TarTime { seconds: 1_000_000_000, nanoseconds: 5 },
            size: 0,
            stored_size: 0,
            link_target: Vec::new(),
            device: (0, 0),
            xattrs: Vec::new(),
            sparse: None,
            header_offset: 0,
            content_offset: 512,
        };
        Self { entry, stored: Vec::new() }
    }

    pub(crate) fn mode(mut self, mode: u32) -> Self {
        self.entry.mode = mode;
        self
    }

    pub(crate) fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.entry.uid, self.entry.gid) = (uid, gid);
        self
    }

    pub(crate) fn time(mut self, seconds: i64) -> Self {
        self.entry.mtime = TarTime { seconds, nanoseconds: 0 };
        self
    }

    pub(crate) fn xattr(mut self, name: &str, value: &str) -> Self {
        self.entry.xattrs.push((name.into(), value.into()));
        self.entry.xattrs.sort();
        self
    }

    /// A sparse file of `size` bytes, whose stored bytes are those of `extents`.
    pub(crate) fn sparse(mut self, size: u64, extents: &[ByteRange]) -> Self {
        self.entry.size = size;
        self.entry.sparse = Some(extents.to_vec());
        self
    }
}

pub(crate) fn dir(path: impl AsRef<[u8]>) -> Item {
    Item::new(TarKind::Directory, path)
}

pub(crate) fn file(path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Item {
    let mut item = Item::new(TarKind::Regular, path);
    item.stored = content.as_ref().to_vec();
    item.entry.size = item.stored.len() as u64;
    item.entry.stored_size = item.entry.size;
    item
}

fn to(kind: TarKind, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Item {
    let mut item = Item::new(kind, path);
    item.entry.link_target = target.as_ref().to_vec();
    item
}

/// A symbolic link to `target`.
pub(crate) fn symlink(target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Item {
    to(TarKind::Symlink, target, path)
}

/// A hard link to `target`.
pub(crate) fn link(target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Item {
    to(TarKind::HardLink, target, path)
}

/// A content in memory.
struct Stored<'a> {
    entry: &'a TarEntry,
    rest: &'a [u8],
}

impl LayerContent for Stored<'_> {
    fn size(&self) -> u64 {
        self.entry.size
    }

    fn extents(&self) -> Option<&[ByteRange]> {
        self.entry.sparse.as_deref()
    }

    fn tar_offset(&self) -> u64 {
        self.entry.content_offset
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let n = buf.len().min(self.rest.len());
        let (now, rest) = self.rest.split_at(n);
        buf[..n].copy_from_slice(now);
        self.rest = rest;
        Ok(n)
    }
}

/// Applies a layer.
pub(crate) fn apply<T: FileTree>(tree: &mut T, items: &[Item]) -> Result<LayerCounts> {
    apply_within(tree, items, ApplyLimits::default())
}

pub(crate) fn apply_within<T: FileTree>(
    tree: &mut T,
    items: &[Item],
    limits: ApplyLimits,
) -> Result<LayerCounts> {
    let mut applier = Applier::new(tree, limits);
    for item in items {
        applier.apply(&item.entry, &mut Stored { entry: &item.entry, rest: &item.stored })?;
    }
    applier.finish()
}

/// The tree of a layer by itself.
pub(crate) fn apply_alone(items: &[Item]) -> Result<ModelTree> {
    let mut tree = ModelTree::new();
    let mut applier = Applier::new(&mut tree, ApplyLimits::default()).keeping_whiteouts();
    for item in items {
        applier.apply(&item.entry, &mut Stored { entry: &item.entry, rest: &item.stored })?;
    }
    applier.finish()?;
    Ok(tree)
}

/// The tree after all of those layers.
#[track_caller]
pub(crate) fn tree_of(layers: &[&[Item]]) -> ModelTree {
    let mut tree = ModelTree::new();
    for layer in layers {
        apply(&mut tree, layer).unwrap();
        tree.rows();
    }
    tree
}

/// The paths of a tree, without the root's.
pub(crate) fn paths(tree: &ModelTree) -> Vec<String> {
    tree.rows()
        .into_keys()
        .filter(|path| !path.is_empty())
        .map(|path| String::from_utf8(path).unwrap())
        .collect()
}

/// The row at a path, which there must be.
#[track_caller]
pub(crate) fn row(tree: &ModelTree, path: &str) -> Row {
    tree.rows().remove(path.as_bytes()).expect("there is a node at the path")
}

pub(crate) fn xattrs(row: &Row) -> Vec<(&str, &str)> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    row.xattrs.iter().map(|(name, value): &NodeXattr| (text(name), text(value))).collect()
}

/// The path without links of the file or directory that a path leads to.
#[track_caller]
pub(crate) fn followed(tree: &ModelTree, path: &str) -> String {
    let path =
        resolve(&mut tree.clone(), path.as_bytes().split(|b| *b == b'/').filter(|c| !c.is_empty()), 1024);
    String::from_utf8(path.unwrap().names.join(&b'/')).unwrap()
}
