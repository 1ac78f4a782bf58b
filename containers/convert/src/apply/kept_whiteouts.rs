//! The whiteouts of a layer that becomes a tree of its own: marks for overlayfs, which puts the trees of layers on
//! each other, in place of removals.
//!
//! | in the layer | in the tree |
//! |---|---|
//! | `.wh.NAME`, and no `NAME` | a character device 0:0 called `NAME` |
//! | `.wh.NAME`, and a directory `NAME` | the directory is opaque: `trusted.overlay.opaque` is `y` |
//! | `.wh.NAME`, and another `NAME` | `NAME`, which hides what is below anyway |
//! | `.wh..wh..opq` | the directory that it is in is opaque |
//!
//! Marks are written when all entries have been applied: until then, a name may be brought, replaced or get other
//! attributes. A directory that is none any more needs no marks.

use super::attributes::{EPOCH, merged_xattrs};
use crate::file_tree::{FileTree, NewNode, NodeAttributes, NodeKind, NodeXattr};
use headstart_block::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The attribute by which overlayfs knows an opaque directory.
const OPAQUE: (&[u8], &[u8]) = (b"trusted.overlay.opaque", b"y");

/// The attributes of a mark. They are never seen.
const MARK: NodeAttributes<'_> = NodeAttributes { mode: 0, uid: 0, gid: 0, mtime: EPOCH, xattrs: &[] };

/// The most memory for the whiteouts of a layer, in bytes.
const MEMORY: usize = 32 << 20;

/// Bytes of memory that each name of a path takes beside its own bytes, about.
const NAME: usize = 64;

/// The whiteouts in a directory.
#[derive(Debug, Default)]
struct Removed {
    /// `true` if it is opaque.
    all: bool,
    names: BTreeSet<Vec<u8>>,
}

/// The whiteouts of a layer.
#[derive(Debug, Default)]
pub(super) struct KeptWhiteouts {
    /// By the paths of their directories, without links.
    removed: BTreeMap<Vec<Vec<u8>>, Removed>,
    memory: usize,
}

impl KeptWhiteouts {
    pub(super) fn remove(&mut self, dir: &[Vec<u8>], name: &[u8]) -> Result<()> {
        if self.in_directory(dir)?.names.insert(name.to_vec()) {
            self.take(name.len() + NAME)?;
        }
        Ok(())
    }

    pub(super) fn remove_all(&mut self, dir: &[Vec<u8>]) -> Result<()> {
        if dir.is_empty() {
            let cause = "removes all files of the layers below, which no layer of overlayfs can";
            return Err(Error::unsupported(cause));
        }
        self.in_directory(dir)?.all = true;
        Ok(())
    }

    fn in_directory(&mut self, dir: &[Vec<u8>]) -> Result<&mut Removed> {
        if !self.removed.contains_key(dir) {
            self.take(dir.iter().map(|name| name.len() + NAME).sum::<usize>() + 2 * NAME)?;
        }
        Ok(self.removed.entry(dir.to_vec()).or_default())
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        self.memory += bytes;
        if self.memory > MEMORY {
            return Err(Error::unsupported("is one whiteout more than a layer by itself can have"));
        }
        Ok(())
    }

    /// Writes the marks.
    pub(super) fn write<T: FileTree>(self, tree: &mut T) -> Result<()> {
        for (path, Removed { all, names }) in self.removed {
            let Some(dir) = directory(tree, &path)? else { continue };
            if all {
                make_opaque(tree, dir)?;
            }
            for name in names {
                match tree.lookup(dir, &name)? {
                    None => {
                        tree.create(dir, &name, NewNode::CharDevice { major: 0, minor: 0 }, &MARK)?;
                    }
                    Some(node) if tree.status(node)?.kind == NodeKind::Directory => make_opaque(tree, node)?,
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// The directory with that path; `None` if something else took its place.
fn directory<T: FileTree>(tree: &mut T, path: &[Vec<u8>]) -> Result<Option<T::Node>> {
    let mut dir = tree.root();
    for name in path {
        let Some(node) = tree.lookup(dir, name)? else { return Ok(None) };
        if tree.status(node)?.kind != NodeKind::Directory {
            return Ok(None);
        }
        dir = node;
    }
    Ok(Some(dir))
}

fn make_opaque<T: FileTree>(tree: &mut T, dir: T::Node) -> Result<()> {
    let status = tree.status(dir)?;
    let mark: NodeXattr = (OPAQUE.0.to_vec(), OPAQUE.1.to_vec());
    let xattrs = merged_xattrs(tree.xattrs(dir)?, vec![mark]);
    let (mode, uid, gid, mtime) = (status.mode, status.uid, status.gid, status.mtime);
    tree.set_attributes(dir, &NodeAttributes { mode, uid, gid, mtime, xattrs: &xattrs })
}
