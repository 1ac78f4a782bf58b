//! Checking ranges of a blob against its hash tree; see the module above.

use super::{
    GROUP_SIZE, NODE, PREFIX, TreeRoot, group_count, group_cv, left_groups, merge, merge_root, outboard_len,
};
use blake3::hazmat::ChainingValue;
use headstart_block::{ByteRange, Error, ReadAt, Result};

/// Most bytes of the blob read at once: few calls, and still in the cache when they are hashed.
const BLOB_WINDOW: u64 = 256 * 1024;

/// Most bytes of the outboard read at once: 64 nodes, which lie under one another in pre-order.
const NODE_WINDOW: u64 = 4096;

/// The hash tree of a blob: its root, known from a manifest, and the outboard, which need not be trusted.
pub struct HashTree<S> {
    root: TreeRoot,
    outboard: S,
    blob_len: u64,
}

impl<S: ReadAt> HashTree<S> {
    /// Opens the tree of a blob of `blob_len` bytes.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] where the outboard is not that of a blob of this length.
    pub fn open(root: TreeRoot, outboard: S, blob_len: u64) -> Result<Self> {
        let expected = outboard_len(blob_len);
        if outboard.len() != expected {
            return Err(Error::corrupt(format!(
                "the hash tree has {} bytes, that of a blob of {blob_len} bytes has {expected}",
                outboard.len()
            )));
        }
        let mut prefix = [0; PREFIX];
        outboard.read_at(&mut prefix, 0)?;
        let said = u64::from_le_bytes(prefix);
        if said != blob_len {
            return Err(Error::corrupt(format!(
                "the hash tree is that of a blob of {said} bytes, this one has {blob_len}"
            )));
        }
        Ok(Self { root, outboard, blob_len })
    }

    /// Length in bytes of the blob.
    #[must_use]
    pub fn blob_len(&self) -> u64 {
        self.blob_len
    }

    /// Checks the groups of `blob` that hold `range`. An empty range checks nothing.
    ///
    /// To check a whole blob with progress or in parallel, call this for one part after the other: the
    /// nodes above a part are few.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] where a node or a group is wrong, naming the first, or the blob
    /// has another length; [`headstart_block::ErrorKind::Invalid`] where the range is not within the blob.
    pub fn verify(&self, blob: &(impl ReadAt + ?Sized), range: ByteRange) -> Result<()> {
        if blob.len() != self.blob_len {
            return Err(Error::corrupt(format!(
                "has {} bytes, its hash tree is that of {}",
                blob.len(),
                self.blob_len
            )));
        }
        if range.end() > self.blob_len {
            return Err(Error::invalid(format!("{range} is not within its {} bytes", self.blob_len)));
        }
        if range.is_empty() && self.blob_len > 0 {
            return Ok(());
        }
        let first = range.offset() / GROUP_SIZE;
        let end = range.end().div_ceil(GROUP_SIZE).max(first + 1);
        let mut walk = Walk {
            nodes: Window::new(&self.outboard, NODE_WINDOW, outboard_len(self.blob_len)),
            blob: Window::new(blob, BLOB_WINDOW, self.blob_len.min(end.saturating_mul(GROUP_SIZE))),
            blob_len: self.blob_len,
            first,
            end,
        };
        let whole = Subtree { first: 0, groups: group_count(self.blob_len), node: 0 };
        walk.visit(whole, &Expected::Root(self.root))
    }

    /// Checks every byte of `blob`.
    ///
    /// # Errors
    /// As [`HashTree::verify`].
    pub fn verify_all(&self, blob: &(impl ReadAt + ?Sized)) -> Result<()> {
        self.verify(blob, ByteRange::between(0, self.blob_len))
    }
}

/// What the node above says that a subtree hashes to.
enum Expected {
    /// It is the whole tree.
    Root(TreeRoot),
    /// It is below a node.
    Inner(ChainingValue),
}

/// The groups `[first, first + groups)`, whose topmost node is the outboard's `node`-th.
#[derive(Clone, Copy)]
struct Subtree {
    first: u64,
    groups: u64,
    node: u64,
}

/// A walk from the root to the groups `[first, end)`.
struct Walk<'a, N: ?Sized, B: ?Sized> {
    nodes: Window<'a, N>,
    blob: Window<'a, B>,
    blob_len: u64,
    first: u64,
    end: u64,
}

impl<N: ReadAt + ?Sized, B: ReadAt + ?Sized> Walk<'_, N, B> {
    /// Recursion is at most 50 deep: there are at most 2^50 groups.
    fn visit(&mut self, tree: Subtree, expected: &Expected) -> Result<()> {
        if tree.first >= self.end || tree.first + tree.groups <= self.first {
            return Ok(());
        }
        if tree.groups == 1 {
            return self.check_group(tree.first, expected);
        }
        let node = self.nodes.get(PREFIX as u64 + tree.node * NODE as u64, NODE)?;
        let (mut left, mut right) = ([0; 32], [0; 32]);
        left.copy_from_slice(&node[..32]);
        right.copy_from_slice(&node[32..]);
        let right_so = match expected {
            Expected::Root(root) => merge_root(&left, &right) == *root,
            Expected::Inner(cv) => merge(&left, &right) == *cv,
        };
        if !right_so {
            return Err(Error::corrupt(format!(
                "node {} of the hash tree (over groups {} to {}) does not match the root",
                tree.node,
                tree.first,
                tree.first + tree.groups - 1
            )));
        }
        let on_left = left_groups(tree.groups);
        let below = Subtree { groups: on_left, node: tree.node + 1, ..tree };
        self.visit(below, &Expected::Inner(left))?;
        let below =
            Subtree { first: tree.first + on_left, groups: tree.groups - on_left, node: tree.node + on_left };
        self.visit(below, &Expected::Inner(right))
    }

    fn check_group(&mut self, group: u64, expected: &Expected) -> Result<()> {
        let offset = group * GROUP_SIZE;
        let len = (self.blob_len - offset).min(GROUP_SIZE);
        let bytes = self.blob.get(offset, len as usize)?;
        let matches = match expected {
            Expected::Root(root) => TreeRoot::of(bytes) == *root,
            Expected::Inner(cv) => group_cv(group, bytes) == *cv,
        };
        if matches {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "16 KiB group {group} (bytes {}) does not match the hash tree",
            ByteRange::between(offset, offset + len)
        )))
    }
}

/// Reads a source from front to back in larger pieces than it is asked for; no copy where it is in memory.
struct Window<'a, S: ?Sized> {
    source: &'a S,
    /// Bytes to read at once.
    size: u64,
    /// Nothing past here is read.
    end: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl<'a, S: ReadAt + ?Sized> Window<'a, S> {
    fn new(source: &'a S, size: u64, end: u64) -> Self {
        Self { source, size, end, offset: 0, bytes: Vec::new() }
    }

    /// `len` bytes at `offset`; the caller knows that they are before the end.
    fn get(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        if let Some(bytes) = self.source.as_slice() {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let found = start.checked_add(len).and_then(|end| bytes.get(start..end));
            return found.ok_or_else(|| Error::corrupt("ends before its length"));
        }
        let loaded = ByteRange::between(self.offset, self.offset + self.bytes.len() as u64);
        if offset < loaded.offset() || offset + len as u64 > loaded.end() {
            let size = self.size.min(self.end.saturating_sub(offset)).max(len as u64);
            #[expect(clippy::cast_possible_truncation, reason = "at most the window or a group")]
            self.bytes.resize(size as usize, 0);
            self.offset = offset;
            if let Err(error) = self.source.read_at(&mut self.bytes, offset) {
                self.bytes.clear();
                return Err(error);
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "within the window")]
        let start = (offset - self.offset) as usize;
        Ok(&self.bytes[start..start + len])
    }
}
