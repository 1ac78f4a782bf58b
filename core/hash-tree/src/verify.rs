//! Checking ranges of a blob against its hash tree; see the parent module.

use super::geometry::{Subtree, TREE_PAGE, groups_of};
use super::{GROUP_SIZE, NODE, PREFIX, TreeRoot, group_cv, merge, merge_root, outboard_len};
use blake3::hazmat::ChainingValue;
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result, to_usize};

/// The most bytes of the blob read at once: few calls, and still in the cache when they are hashed.
const BLOB_WINDOW: u64 = 256 * 1024;

/// Verifies ranges of a blob against its hash tree. The root comes from a trusted manifest; the source `S` of
/// the outboard (the other nodes) need not be trusted.
pub struct HashTree<S> {
    root: TreeRoot,
    outboard: S,
    blob_len: u64,
}

impl<S: ReadAt> HashTree<S> {
    /// Opens the tree of a blob of `blob_len` bytes. Only the length of the outboard and the length in it are
    /// checked here.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if one of these two lengths is wrong for a blob of `blob_len` bytes;
    /// errors of reading the outboard.
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
        let hashed_len = u64::from_le_bytes(prefix);
        if hashed_len != blob_len {
            return Err(Error::corrupt(format!(
                "the hash tree is that of a blob of {hashed_len} bytes, this one has {blob_len}"
            )));
        }
        Ok(Self { root, outboard, blob_len })
    }

    /// Length of the blob in bytes.
    #[must_use]
    pub fn blob_len(&self) -> u64 {
        self.blob_len
    }

    /// Checks the length of `blob`, the 16 KiB groups that overlap `range`, and the nodes above them. With an empty
    /// range, only the length is checked, unless the blob itself is empty: then its hash is compared with the root.
    ///
    /// To check a whole blob with progress or in parallel, call this for one part after the other. The nodes
    /// above a part are few, so checking them again costs little.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a node or a group does not match (the message names the
    /// first), or the blob has another length; [`headstart_block::ErrorKind::Invalid`] if the range exceeds
    /// the blob; errors of reading blob and outboard.
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
        let (_, end) = groups_of(range);
        self.walk(range, Window::new(blob, BLOB_WINDOW, 1, self.blob_len.min(end.saturating_mul(GROUP_SIZE))))
    }

    /// Checks that `bytes`, which are in memory, are the bytes of the blob from `offset` on. `offset` must be a
    /// multiple of 16 KiB, and so must the end, unless it is the end of the blob. With empty `bytes`, nothing is
    /// checked, unless the blob itself is empty.
    ///
    /// # Errors
    /// Those of [`HashTree::verify`]; [`headstart_block::ErrorKind::Invalid`] also if `offset` or the end is within
    /// a group.
    pub fn verify_part(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, bytes.len() as u64).filter(|range| range.end() <= self.blob_len);
        let whole = |end: u64| end.is_multiple_of(GROUP_SIZE) || end == self.blob_len;
        let Some(range) =
            range.filter(|range| whole(range.end()) && range.offset().is_multiple_of(GROUP_SIZE))
        else {
            return Err(Error::invalid(format!(
                "{} bytes at {offset} are not whole groups of a blob of {} bytes",
                bytes.len(),
                self.blob_len
            )));
        };
        if range.is_empty() && self.blob_len > 0 {
            return Ok(());
        }
        self.walk(range, Part { bytes, offset })
    }

    /// Checks the nodes from the root to the groups of `range`, without the bytes of the blob. After a failed
    /// [`HashTree::verify`], this tells whether the outboard is the damaged part. The range is cut at the end of the
    /// blob; with an empty range, nothing is checked.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a node does not match; errors of reading the outboard.
    pub fn verify_nodes(&self, range: ByteRange) -> Result<()> {
        let range = range.intersect(ByteRange::between(0, self.blob_len));
        if range.is_empty() {
            return Ok(());
        }
        self.walk(range, NoBytes)
    }

    /// Checks the nodes that are wholly within `part`, a range of the outboard, and the nodes above them. This is for
    /// callers that take parts of an outboard from untrusted hosts. Nodes that are not on this host
    /// ([`ErrorKind::Absent`]) are no error, but the nodes below them cannot be checked. A wrong node is no error
    /// either: the result names it.
    ///
    /// # Errors
    /// Errors of reading the outboard, other than [`ErrorKind::Absent`].
    pub fn check_outboard(&self, part: ByteRange) -> Result<OutboardCheck> {
        let nodes = Window::new(&self.outboard, TREE_PAGE, TREE_PAGE, outboard_len(self.blob_len));
        let mut walk = OutboardWalk { nodes, part, is_complete: true };
        let wrong = walk.visit(Subtree::whole(self.blob_len), &Expected::Root(self.root))?;
        Ok(OutboardCheck { wrong, is_complete: walk.is_complete })
    }

    fn walk(&self, range: ByteRange, blob: impl Bytes) -> Result<()> {
        let (first, end) = groups_of(range);
        let nodes = Window::new(&self.outboard, TREE_PAGE, TREE_PAGE, outboard_len(self.blob_len));
        let mut walk = Walk { nodes, blob, blob_len: self.blob_len, first, end };
        walk.visit(Subtree::whole(self.blob_len), &Expected::Root(self.root))
    }
}

/// The expected hash of a subtree, from the node above.
enum Expected {
    /// The hash of the whole tree.
    Root(TreeRoot),
    /// The hash of a subtree below a node.
    Inner(ChainingValue),
}

impl Expected {
    /// `true` if it is the hash of the node above these two.
    fn is_above(&self, left: &ChainingValue, right: &ChainingValue) -> bool {
        match self {
            Self::Root(root) => merge_root(left, right) == *root,
            Self::Inner(cv) => merge(left, right) == *cv,
        }
    }
}

/// The result of [`HashTree::check_outboard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboardCheck {
    /// The place in the outboard, in bytes, of the first node that does not match the node above it (for the topmost
    /// node: the root). The nodes after it were not checked. `None` if every checked node matches.
    pub wrong: Option<ByteRange>,
    /// `true` if every node that the check tried to read was on this host. If none is wrong either, every node of the
    /// part was checked.
    pub is_complete: bool,
}

/// A walk from the root to the nodes in a part of the outboard.
struct OutboardWalk<'a, N: ?Sized> {
    nodes: Window<'a, N>,
    part: ByteRange,
    is_complete: bool,
}

impl<N: ReadAt + ?Sized> OutboardWalk<'_, N> {
    /// Checks a subtree. Recursion is at most 50 deep, as below.
    fn visit(&mut self, tree: Subtree, expected: &Expected) -> Result<Option<ByteRange>> {
        let start = tree.node_offset();
        let node = ByteRange::between(start, start + NODE as u64);
        let below = ByteRange::between(node.end(), start + (tree.groups - 1) * NODE as u64);
        let is_within = self.part.offset() <= node.offset() && node.end() <= self.part.end();
        if tree.groups == 1 || !is_within && below.intersect(self.part).is_empty() {
            return Ok(None);
        }
        let (mut left, mut right) = ([0; 32], [0; 32]);
        match self.nodes.get(start, NODE) {
            Ok(bytes) => {
                left.copy_from_slice(&bytes[..32]);
                right.copy_from_slice(&bytes[32..]);
            }
            Err(error) if error.kind() == ErrorKind::Absent => {
                self.is_complete = false;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        if !expected.is_above(&left, &right) {
            return Ok(Some(node));
        }
        let (below_left, below_right) = tree.children();
        if let Some(wrong) = self.visit(below_left, &Expected::Inner(left))? {
            return Ok(Some(wrong));
        }
        self.visit(below_right, &Expected::Inner(right))
    }
}

/// A walk from the root to the groups `[first, end)`.
struct Walk<'a, N: ?Sized, B> {
    nodes: Window<'a, N>,
    blob: B,
    blob_len: u64,
    first: u64,
    end: u64,
}

impl<N: ReadAt + ?Sized, B: Bytes> Walk<'_, N, B> {
    /// Checks a subtree. Recursion is at most 50 deep: there are at most 2^50 groups.
    fn visit(&mut self, tree: Subtree, expected: &Expected) -> Result<()> {
        if tree.first >= self.end || tree.end() <= self.first {
            return Ok(());
        }
        if tree.groups == 1 {
            return self.check_group(tree.first, expected);
        }
        let node = self.nodes.get(tree.node_offset(), NODE)?;
        let (mut left, mut right) = ([0; 32], [0; 32]);
        left.copy_from_slice(&node[..32]);
        right.copy_from_slice(&node[32..]);
        if !expected.is_above(&left, &right) {
            let start = tree.first * GROUP_SIZE;
            let len = tree.end().saturating_mul(GROUP_SIZE).min(self.blob_len) - start;
            return Err(Error::corrupt(format!(
                "the {len} bytes at {start} are below node {} of the hash tree, which does not match the root",
                tree.node
            )));
        }
        let (below_left, below_right) = tree.children();
        self.visit(below_left, &Expected::Inner(left))?;
        self.visit(below_right, &Expected::Inner(right))
    }

    fn check_group(&mut self, group: u64, expected: &Expected) -> Result<()> {
        let offset = group * GROUP_SIZE;
        let len = (self.blob_len - offset).min(GROUP_SIZE);
        let Some(bytes) = self.blob.bytes(offset, len as usize)? else { return Ok(()) };
        let matches = match expected {
            Expected::Root(root) => TreeRoot::of(bytes) == *root,
            Expected::Inner(cv) => group_cv(group, bytes) == *cv,
        };
        if matches {
            return Ok(());
        }
        Err(Error::corrupt(format!("the {len} bytes at {offset} do not match the hash tree")))
    }
}

/// The source of the bytes of the groups.
trait Bytes {
    /// `len` bytes at `offset`, within the blob; `None` if only nodes are checked.
    fn bytes(&mut self, offset: u64, len: usize) -> Result<Option<&[u8]>>;
}

/// Bytes in memory that begin at an offset of the blob and hold all requested ones.
struct Part<'a> {
    bytes: &'a [u8],
    offset: u64,
}

impl Bytes for Part<'_> {
    fn bytes(&mut self, offset: u64, len: usize) -> Result<Option<&[u8]>> {
        let start = offset.checked_sub(self.offset).and_then(|start| usize::try_from(start).ok());
        let found = start.and_then(|start| self.bytes.get(start..start.checked_add(len)?));
        found.map(Some).ok_or_else(|| Error::corrupt("ends before its length"))
    }
}

/// No bytes: the groups are not checked.
struct NoBytes;

impl Bytes for NoBytes {
    fn bytes(&mut self, _: u64, _: usize) -> Result<Option<&[u8]>> {
        Ok(None)
    }
}

impl<S: ReadAt + ?Sized> Bytes for Window<'_, S> {
    fn bytes(&mut self, offset: u64, len: usize) -> Result<Option<&[u8]>> {
        self.get(offset, len).map(Some)
    }
}

/// A window that reads a source from front to back in larger pieces than the requested ones; no copy if the source is
/// in memory.
struct Window<'a, S: ?Sized> {
    source: &'a S,
    /// The least number of bytes to read at once.
    size: u64,
    /// The alignment of the beginning and of the end of each read.
    align: u64,
    /// The offset past which nothing is read.
    end: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl<'a, S: ReadAt + ?Sized> Window<'a, S> {
    fn new(source: &'a S, size: u64, align: u64, end: u64) -> Self {
        Self { source, size, align, end, offset: 0, bytes: Vec::new() }
    }

    /// `len` bytes at `offset`; the caller knows that they are before the end.
    fn get(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        if let Some(bytes) = self.source.as_slice() {
            let start = to_usize(offset);
            let found = start.checked_add(len).and_then(|end| bytes.get(start..end));
            return found.ok_or_else(|| Error::corrupt("ends before its length"));
        }
        let loaded = ByteRange::between(self.offset, self.offset + self.bytes.len() as u64);
        if offset < loaded.offset() || offset + len as u64 > loaded.end() {
            self.offset = offset - offset % self.align;
            let wanted_end = (offset + len as u64).next_multiple_of(self.align);
            let end = wanted_end.max(self.offset + self.size).min(self.end).max(offset + len as u64);
            #[expect(clippy::cast_possible_truncation, reason = "at most the window, two pages or a group")]
            self.bytes.resize((end - self.offset) as usize, 0);
            if let Err(error) = self.source.read_at(&mut self.bytes, self.offset) {
                self.bytes.clear();
                return Err(error);
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "within the window")]
        let start = (offset - self.offset) as usize;
        Ok(&self.bytes[start..start + len])
    }
}
