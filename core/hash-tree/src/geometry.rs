//! The bytes of the outboard that the check of a range reads; see the parent module.
//!
//! This is pure arithmetic on lengths: code that fetches lazily asks here which pages of the outboard to fetch along
//! with the data. Both [`HashTree::verify`](super::HashTree::verify) and this walk the same subtrees.

use super::{GROUP_SIZE, NODE, PREFIX, group_count, left_groups, outboard_len};
use headstart_block::ByteRange;

/// Length of a page of the outboard in bytes: room for 64 nodes, neighbours in pre-order. [`HashTree`](super::HashTree)
/// reads the nodes of the outboard by whole pages, from a multiple of this length on; the last page may be shorter. To
/// check a range of the blob, a `HashTree` reads only the pages that hold a byte named by [`nodes`].
pub const TREE_PAGE: u64 = 4096;

/// The groups `[first, first + groups)`, whose topmost node is the outboard's `node`-th.
#[derive(Clone, Copy)]
pub(super) struct Subtree {
    pub(super) first: u64,
    pub(super) groups: u64,
    pub(super) node: u64,
}

impl Subtree {
    /// The whole tree of a blob.
    pub(super) fn whole(blob_len: u64) -> Self {
        Self { first: 0, groups: group_count(blob_len), node: 0 }
    }

    /// The offset of its topmost node in the outboard.
    pub(super) fn node_offset(self) -> u64 {
        PREFIX as u64 + self.node * NODE as u64
    }

    /// The number one past its last group.
    pub(super) fn end(self) -> u64 {
        self.first + self.groups
    }

    /// The two subtrees below its topmost node. It has more than one group.
    pub(super) fn children(self) -> (Self, Self) {
        let on_left = left_groups(self.groups);
        let left = Self { first: self.first, groups: on_left, node: self.node + 1 };
        let right =
            Self { first: self.first + on_left, groups: self.groups - on_left, node: self.node + on_left };
        (left, right)
    }
}

/// The groups that hold `range`, as first and one past the last; an empty range has one.
pub(super) fn groups_of(range: ByteRange) -> (u64, u64) {
    let first = range.offset() / GROUP_SIZE;
    (first, range.end().div_ceil(GROUP_SIZE).max(first + 1))
}

/// Calls `each` with the bytes of the outboard that checking `range` of a blob of `blob_len` bytes needs: the
/// length in front, and all nodes from the root to the groups of the range. The ranges ascend, are not empty
/// and do not overlap. A `range` that exceeds the blob is cut at the end of the blob; an empty one needs only the
/// length in front.
pub fn nodes(blob_len: u64, range: ByteRange, each: &mut dyn FnMut(ByteRange)) {
    each(ByteRange::between(0, PREFIX as u64));
    let range = ByteRange::between(range.offset().min(blob_len), range.end().min(blob_len));
    if !range.is_empty() {
        visit(Subtree::whole(blob_len), groups_of(range), each);
    }
}

fn visit(tree: Subtree, wanted: (u64, u64), each: &mut dyn FnMut(ByteRange)) {
    let (first, end) = wanted;
    if tree.groups == 1 || tree.first >= end || tree.end() <= first {
        return;
    }
    // A subtree that is wanted whole has all its nodes together.
    let is_whole = first <= tree.first && tree.end() <= end;
    let nodes = if is_whole { tree.groups - 1 } else { 1 };
    each(ByteRange::between(tree.node_offset(), tree.node_offset() + nodes * NODE as u64));
    if !is_whole {
        let (left, right) = tree.children();
        visit(left, wanted, each);
        visit(right, wanted, each);
    }
}

/// Calls `each` with the pages ([`TREE_PAGE`]) of the outboard that hold the bytes named by [`nodes`].
/// Neighbouring pages form one range; the ranges ascend, and the last one is cut at the end of the outboard.
pub fn pages(blob_len: u64, range: ByteRange, each: &mut dyn FnMut(ByteRange)) {
    in_pages(outboard_len(blob_len), |each| nodes(blob_len, range, each), each);
}

/// Calls `each` with the pages of the outboard that checking `part`, a range of the outboard itself, needs:
/// the first page, the pages of the part, and those of all nodes above it. The ranges have the form that [`pages`]
/// describes. A node that is only partly in `part` counts as in it. Bytes of `part` past the end of the outboard are
/// ignored; for an empty part, only the first page is needed.
pub fn proof_pages(blob_len: u64, part: ByteRange, each: &mut dyn FnMut(ByteRange)) {
    let part = part.intersect(ByteRange::between(0, outboard_len(blob_len)));
    let named = |each: &mut dyn FnMut(ByteRange)| {
        each(ByteRange::between(0, PREFIX as u64));
        visit_outboard(Subtree::whole(blob_len), part, each);
    };
    in_pages(outboard_len(blob_len), named, each);
}

fn visit_outboard(tree: Subtree, part: ByteRange, each: &mut dyn FnMut(ByteRange)) {
    let all = ByteRange::between(tree.node_offset(), tree.node_offset() + (tree.groups - 1) * NODE as u64);
    if tree.groups == 1 || all.intersect(part).is_empty() {
        return;
    }
    if part.offset() <= all.offset() && all.end() <= part.end() {
        return each(all);
    }
    each(ByteRange::between(all.offset(), all.offset() + NODE as u64));
    let (left, right) = tree.children();
    visit_outboard(left, part, each);
    visit_outboard(right, part, each);
}

/// The pages of the ranges that `named` names in ascending order, as runs.
fn in_pages(len: u64, named: impl FnOnce(&mut dyn FnMut(ByteRange)), each: &mut dyn FnMut(ByteRange)) {
    let mut run = ByteRange::between(0, 0);
    named(&mut |node| {
        let start = node.offset() - node.offset() % TREE_PAGE;
        let end = node.end().next_multiple_of(TREE_PAGE).min(len);
        if start > run.end() {
            each(run);
            run = ByteRange::between(start, end);
        } else {
            run = ByteRange::between(run.offset(), end.max(run.end()));
        }
    });
    each(run);
}
