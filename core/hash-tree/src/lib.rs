//! Hash trees: any range of a blob can be checked without the rest of it.
//!
//! # The tree
//!
//! BLAKE3 is a tree by itself: 1 KiB chunks at the leaves, the plain hash of the blob (`b3sum`) at the root. That tree
//! is stored here down to *groups* of 16 chunks, 16 KiB, as a Bao outboard in pre-order, so that other Bao tools read
//! it and the overhead is 0.4% of the blob:
//!
//! ```text
//! 0   8  length of the blob, little-endian
//! 8   64 root node: chaining values of its left and of its right subtree, 32 bytes each
//! 72  ..  nodes of the left subtree, then of the right one; a single group has no node
//! ```
//!
//! A tree over `n > 1` groups has the largest power of two below `n` groups on the left, the rest on the right, so it
//! has `n - 1` nodes in all. The place of any node follows by arithmetic: if the topmost node of a subtree is at place
//! `p`, and `l` groups are on its left side, then its right child is at place `p + l`. In pre-order, a reader that
//! walks from the root to a range finds each next node further on, and the nodes of a subtree are stored together.
//!
//! # Building in one pass
//!
//! Pre-order begins with the root, which is known last. One property helps: the nodes of a complete, aligned subtree
//! are contiguous, and are final once its last group is hashed. So [`TreeBuilder`] keeps only the chaining values of
//! the groups of the current *region* (1024 groups, 16 MiB of blob). When a region is full, its nodes are written to a
//! temporary store (the *spool*), and only its chaining value is kept. At the end the few nodes above the regions are
//! computed and written, in pre-order, between the copied regions. The memory needed is some 200 KiB, up to 4 MiB of
//! spool (a longer spool is a file), and about 4 bytes for each MiB of blob. A region is sealed only when the group
//! after it begins, so that the topmost node is never in the spool: the root is computed in another way than chaining
//! values are.
//!
//! The crate `bao-tree`, whose outboards the tests compare with these, cannot build a tree in that way: it needs the
//! length before the first byte, and writes the nodes of a pre-order outboard at places all over it. Here the length of
//! a blob becomes known only at the end, and each byte is seen once.
//!
//! # Verifying
//!
//! [`HashTree::verify`] walks from the root to the groups of a range, checks each node against its parent before it
//! uses it, and each group against its node. Nothing in the outboard is trusted: a wrong length is refused at the
//! start, a wrong node or group is named in the error. The nodes are read in whole pages of [`TREE_PAGE`] bytes, and
//! only those pages that [`pages`] names, so that the outboard can be fetched lazily.
//!
//! [`sums`] has the writers that compute the digest of a blob, and its tree, while its bytes pass through.

#![forbid(unsafe_code)]

mod build;
mod geometry;
pub mod sums;
mod verify;

#[cfg(test)]
mod tests;

pub use build::TreeBuilder;
pub use geometry::{TREE_PAGE, nodes, pages, proof_pages};
pub use verify::{HashTree, OutboardCheck};

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use headstart_block::digest::parse_hex;
use headstart_block::{Digest, Error, Result};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Length of a group in bytes: 16 KiB. A group is the unit of verification; only the last one of a blob may
/// be shorter. With 16 KiB, a read of a 64 KiB slice fetches at most 1.25 times its bytes, and BLAKE3 still
/// runs at its full width (16 chunks).
pub const GROUP_SIZE: u64 = 16 * 1024;

/// The same as the length of a buffer.
const GROUP: usize = 16 * 1024;

/// The number of bytes of a node: the chaining values of its two subtrees.
const NODE: usize = 64;

/// The number of bytes of the length in front of the nodes.
const PREFIX: usize = 8;

/// The root of a hash tree. It equals the plain BLAKE3 hash of the blob, and is written as 64 hexadecimal
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TreeRoot(blake3::Hash);

impl TreeRoot {
    /// Computes the root of the tree over `bytes`, a whole blob.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes))
    }

    /// Makes a root from its 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes.into())
    }

    /// The 32 bytes of the root.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl FromStr for TreeRoot {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_hex(text).map(|bytes| Self(bytes.into())).ok_or_else(|| {
            Error::invalid(format!("`{}` is not the root of a hash tree", text.escape_debug()))
                .remedy("a root is 64 lower-case hexadecimal digits")
        })
    }
}

impl fmt::Display for TreeRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl fmt::Debug for TreeRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TreeRoot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The hash tree of a blob, as a manifest describes it: the root, and the digest and length of the outboard, a second
/// blob that stores the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The root of the tree, against which the blob is verified.
    pub root: TreeRoot,
    /// The SHA-256 of the outboard: its name in a store.
    pub digest: Digest,
    /// Length of the outboard in bytes.
    pub size: u64,
}

/// The number of groups of a blob of `blob_len` bytes: at least one, also for an empty blob.
fn group_count(blob_len: u64) -> u64 {
    blob_len.div_ceil(GROUP_SIZE).max(1)
}

/// Returns the length in bytes of the outboard of a blob of `blob_len` bytes: 8 for the blob's length, and a node of 64
/// for each 16 KiB group after the first.
#[must_use]
pub fn outboard_len(blob_len: u64) -> u64 {
    // No overflow: there are at most 2^50 groups.
    PREFIX as u64 + (group_count(blob_len) - 1) * NODE as u64
}

/// The number of groups in the left subtree of a tree over `groups > 1` groups: the largest power of two below it.
fn left_groups(groups: u64) -> u64 {
    1 << (groups - 1).ilog2()
}

/// The chaining value of a group that is not the whole blob. `bytes` are 1 to 16384.
fn group_cv(index: u64, bytes: &[u8]) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(index * GROUP_SIZE);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// The chaining value of the node above two subtrees, as a subtree of something larger.
fn merge(left: &ChainingValue, right: &ChainingValue) -> ChainingValue {
    merge_subtrees_non_root(left, right, Mode::Hash)
}

/// The root above two subtrees, which are the whole tree.
fn merge_root(left: &ChainingValue, right: &ChainingValue) -> TreeRoot {
    TreeRoot(merge_subtrees_root(left, right, Mode::Hash))
}
