//! Building the outboard of a blob in one pass; see the parent module.

use super::{GROUP, NODE, TreeRoot, group_cv, merge, merge_root};
use blake3::hazmat::ChainingValue;
use headstart_block::{Error, Result};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use tempfile::SpooledTempFile;

/// The number of groups in a region: 16 MiB of blob, 64 KiB of nodes. A power of two.
const REGION_GROUPS: usize = 1024;

/// The most bytes of spooled nodes that stay in memory: the trees of blobs up to 1 GiB.
const SPOOL_IN_MEMORY: usize = 4 << 20;

/// Builds the hash tree of a blob in one pass, from its bytes in order; the length need not be known before.
pub struct TreeBuilder {
    /// The bytes of the group that is not complete yet.
    pending: Vec<u8>,
    /// The number of bytes taken so far.
    len: u64,
    /// The root if the first group is found to be the whole blob.
    single_root: TreeRoot,
    /// The number of groups in a region: [`REGION_GROUPS`], fewer in tests.
    region_groups: usize,
    /// Chaining values of the groups of the region that is not sealed yet.
    groups: Vec<ChainingValue>,
    /// Chaining values of the sealed regions.
    regions: Vec<ChainingValue>,
    /// Nodes of the sealed regions, in order.
    spool: SpooledTempFile,
}

impl TreeBuilder {
    /// Starts a tree over no bytes. Up to 4 MiB of finished nodes (those of 1 GiB of the blob) are kept in memory. When
    /// there are more, all of them are kept in an unnamed file in `spool_dir`.
    #[must_use]
    pub fn new(spool_dir: &Path) -> Self {
        Self::with_regions(spool_dir, REGION_GROUPS)
    }

    /// A builder with regions of another power of two of groups, so that tests see many regions in little data.
    pub(super) fn with_regions(spool_dir: &Path, region_groups: usize) -> Self {
        Self {
            pending: Vec::new(),
            len: 0,
            single_root: TreeRoot::of(&[]),
            region_groups,
            groups: Vec::new(),
            regions: Vec::new(),
            spool: SpooledTempFile::new_in(SPOOL_IN_MEMORY, spool_dir),
        }
    }

    /// Adds the next bytes of the blob, any number of them. Whole groups are hashed in place, the rest is copied.
    ///
    /// # Errors
    /// Errors of writing finished nodes to the file in the `spool_dir` of [`TreeBuilder::new`].
    pub fn update(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        if !self.pending.is_empty() {
            let taken = bytes.len().min(GROUP - self.pending.len());
            self.pending.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.pending.len() < GROUP {
                return Ok(());
            }
            let group = std::mem::take(&mut self.pending);
            self.push_group(&group)?;
            self.pending = group;
            self.pending.clear();
        }
        let (groups, rest) = bytes.as_chunks::<GROUP>();
        for group in groups {
            self.push_group(group)?;
        }
        if !rest.is_empty() {
            self.pending.reserve_exact(GROUP);
            self.pending.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Takes a group: 16 KiB, or the last of the blob.
    fn push_group(&mut self, bytes: &[u8]) -> Result<()> {
        if self.groups.len() == self.region_groups {
            self.seal_region()?;
        }
        let index = self.regions.len() * self.region_groups + self.groups.len();
        if index == 0 {
            self.single_root = TreeRoot::of(bytes);
        }
        self.groups.push(group_cv(index as u64, bytes));
        Ok(())
    }

    /// Spools the nodes of the full region and keeps its chaining value.
    fn seal_region(&mut self) -> Result<()> {
        let region = Levels::over(std::mem::take(&mut self.groups));
        let mut nodes = Vec::new();
        region
            .walk(&mut |item| item.write_node(&mut nodes))
            .and_then(|()| self.spool.write_all(&nodes))
            .map_err(|e| Error::io("cannot spool the nodes of a hash tree", e))?;
        self.regions.extend(region.cv());
        Ok(())
    }

    /// Writes the outboard (the blob's length, then all nodes of the tree in pre-order) to `out`, and returns the root.
    ///
    /// # Errors
    /// Errors of writing to `out` or of reading the spooled nodes.
    pub fn finish(mut self, mut out: impl Write) -> Result<TreeRoot> {
        if !self.pending.is_empty() {
            let group = std::mem::take(&mut self.pending);
            self.push_group(&group)?;
        }
        self.write_outboard(&mut out).map_err(|e| Error::io("cannot write a hash tree", e))
    }

    fn write_outboard(mut self, out: &mut impl Write) -> io::Result<TreeRoot> {
        let sealed = self.regions.len();
        let last = Levels::over(self.groups);
        self.regions.extend(last.cv());
        let upper = Levels::over(self.regions);
        let top = upper.top().or_else(|| last.top());
        let root = top.map_or(self.single_root, |(left, right)| merge_root(left, right));

        let region_len = (self.region_groups as u64 - 1) * NODE as u64;
        let spool = &mut self.spool;
        spool.rewind()?;
        out.write_all(&self.len.to_le_bytes())?;
        upper.walk(&mut |item| match item {
            Item::Leaf(region) if region < sealed => copy_exactly(spool, out, region_len),
            Item::Leaf(_) => last.walk(&mut |item| item.write_node(out)),
            node @ Item::Node(..) => node.write_node(out),
        })?;
        out.flush()?;
        Ok(root)
    }
}

/// Copies `len` bytes; the spool holds all regions, so fewer are a fault of the file system.
fn copy_exactly(from: &mut impl Read, to: &mut impl Write, len: u64) -> io::Result<()> {
    match io::copy(&mut from.take(len), to)? {
        copied if copied == len => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A step of a walk in pre-order.
enum Item<'a> {
    /// A node with the chaining values of its subtrees.
    Node(&'a ChainingValue, &'a ChainingValue),
    /// The n-th leaf.
    Leaf(usize),
}

impl Item<'_> {
    /// Writes a node as it is in the outboard; a leaf has no bytes there.
    fn write_node(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Node(left, right) => out.write_all(&[**left, **right].concat()),
            Self::Leaf(_) => Ok(()),
        }
    }
}

/// A tree over chaining values, level by level from the leaves up.
///
/// Level `k` has at `i` the value over the leaves `[i * 2^k, (i + 1) * 2^k)` as far as there are any. An odd last value
/// goes up unchanged: this is the same tree as "the largest power of two on the left".
struct Levels(Vec<Vec<ChainingValue>>);

impl Levels {
    fn over(leaves: Vec<ChainingValue>) -> Self {
        let mut levels = vec![leaves];
        while let Some(level) = levels.last().filter(|level| level.len() > 1) {
            let above = level.chunks(2).map(|pair| match pair {
                [left, right] => merge(left, right),
                rest => rest[0],
            });
            let above = above.collect();
            levels.push(above);
        }
        Self(levels)
    }

    /// The value over all leaves; `None` if there are no leaves.
    fn cv(&self) -> Option<ChainingValue> {
        self.0.last()?.first().copied()
    }

    /// The two values of the topmost node; `None` if there are fewer than two leaves.
    fn top(&self) -> Option<(&ChainingValue, &ChainingValue)> {
        match self.0.get(self.0.len().checked_sub(2)?)?.as_slice() {
            [left, right] => Some((left, right)),
            _ => None,
        }
    }

    /// Visits nodes and leaves in pre-order.
    fn walk(&self, visit: &mut dyn FnMut(Item<'_>) -> io::Result<()>) -> io::Result<()> {
        if self.0[0].is_empty() {
            return Ok(());
        }
        self.walk_from(self.0.len() - 1, 0, visit)
    }

    fn walk_from(
        &self,
        level: usize,
        index: usize,
        visit: &mut dyn FnMut(Item<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(below) = level.checked_sub(1) else { return visit(Item::Leaf(index)) };
        match &self.0[below][2 * index..] {
            [left, right, ..] => {
                visit(Item::Node(left, right))?;
                self.walk_from(below, 2 * index, visit)?;
                self.walk_from(below, 2 * index + 1, visit)
            }
            _ => self.walk_from(below, 2 * index, visit),
        }
    }
}
