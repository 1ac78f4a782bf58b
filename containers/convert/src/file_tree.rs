//! The tree of files that layers change, as the applier sees it.
//!
//! A tree has nodes (inodes), and directories that give nodes names. It holds what all lower layers left, and takes the
//! changes of one more. Implementations differ in where the state is: in memory for tests, in the blocks of a file
//! system for a conversion.
//!
//! # Times
//!
//! No call changes a time that it does not name: a directory keeps its own when a name is created or removed in it, and
//! a file when it gets or loses a link. There is no clock, so a tree has no other time to set, and the times that the
//! layers give need no second pass that restores them.
//!
//! # Callers
//!
//! The applier calls a tree only as the methods allow: names are 1 to 255 bytes without `/` and NUL and are neither `.`
//! nor `..`; a name is created only where there is none. A tree may check it, and need not.

use headstart_block::{ByteRange, Result};
use headstart_tar::TarTime;
use std::fmt::Debug;

/// An extended attribute: its full name, such as `user.origin`, and its value.
pub type NodeXattr = (Vec<u8>, Vec<u8>);

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKind {
    /// A directory.
    Directory,
    /// A file with content.
    Regular,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket. No layer makes one, but a disk that was made otherwise may have it.
    Socket,
}

/// The state of a node, without its content and its extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The kind of the node.
    pub kind: NodeKind,
    /// Permission bits, set-user-id, set-group-id and sticky: the lowest 12 bits, without the kind.
    pub mode: u32,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The time of the last change of the content.
    pub mtime: TarTime,
    /// The number of names; of a directory as the file system counts it.
    pub links: u32,
    /// The length of the content in bytes, holes included; of a symbolic link that of its target.
    pub size: u64,
}

/// A node that is to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNode<'a> {
    /// An empty directory.
    Directory,
    /// An empty file, which [`FileTree::write_content`] fills.
    File,
    /// A symbolic link to `target`: 1 to 4,095 bytes without NUL, stored as they are.
    Symlink {
        /// The path that the link leads to.
        target: &'a [u8],
    },
    /// A character device.
    CharDevice {
        /// The major number, at most 4,095.
        major: u32,
        /// The minor number, at most 1,048,575.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// The major number, at most 4,095.
        major: u32,
        /// The minor number, at most 1,048,575.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
}

/// The attributes that a node gets: all of them, in place of those it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAttributes<'a> {
    /// Permission bits, set-user-id, set-group-id and sticky: the lowest 12 bits. 0777 for symbolic links.
    pub mode: u32,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The time of the last change of the content, from 1970-01-01 to 2262-04-11.
    pub mtime: TarTime,
    /// All extended attributes, sorted by name, each name once.
    pub xattrs: &'a [NodeXattr],
}

/// The content of a regular file in a layer: bytes that are read once, from front to back.
pub trait LayerContent {
    /// Length of the file in bytes, holes included.
    fn size(&self) -> u64;

    /// The ranges of the file whose bytes are stored: sorted, disjoint, inside `size`; everything else is zeros. `None`
    /// if all of the file is stored.
    fn extents(&self) -> Option<&[ByteRange]>;

    /// The offset in the uncompressed tar of the first byte that is stored. Later ones follow without gaps.
    fn tar_offset(&self) -> u64;

    /// Reads the next stored bytes, as many as `buf` takes at most, and returns their number: 0 at the end, or if `buf`
    /// is empty.
    ///
    /// # Errors
    /// Errors of the tar, such as an end in the middle of the content.
    fn read(&mut self, buf: &mut [u8]) -> Result<usize>;

    /// Called when all stored bytes were read: `true` if there are zeros behind them in the tar, up to the next
    /// multiple of 512 bytes, as there should be.
    ///
    /// # Errors
    /// Errors of the tar.
    fn ends_in_zeros(&mut self) -> Result<bool> {
        Ok(false)
    }
}

/// A tree of files. See the [module](self) for its times and for what a caller may ask.
pub trait FileTree {
    /// A node's number. It stays the node's until its last name is gone; then another node may get it.
    type Node: Copy + Eq + Ord + Debug;

    /// The number of a node, which no other node has. A bit is kept for each number up to the largest, so the numbers
    /// should be dense.
    fn number(node: Self::Node) -> u64;

    /// The root directory.
    fn root(&self) -> Self::Node;

    /// Returns the node that is called `name` in the directory `dir`, without following it if it is a symbolic link.
    /// `None` if there is none.
    ///
    /// # Errors
    /// Errors of reading the state.
    fn lookup(&mut self, dir: Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;

    /// Returns the state of a node.
    ///
    /// # Errors
    /// Errors of reading the state.
    fn status(&mut self, node: Self::Node) -> Result<NodeStatus>;

    /// Returns the target of a symbolic link, as it was stored.
    ///
    /// # Errors
    /// Errors of reading the state.
    fn link_target(&mut self, node: Self::Node) -> Result<Vec<u8>>;

    /// Returns the extended attributes of a node, sorted by name; empty if it has none.
    ///
    /// # Errors
    /// Errors of reading the state.
    fn xattrs(&mut self, node: Self::Node) -> Result<Vec<NodeXattr>>;

    /// Returns the names in one part of a directory, sorted by their bytes, without `.` and `..`. Parts are numbered
    /// from 0 on, have some thousand names at most, and may have none; `None` behind the last one. Each name is in one
    /// part, and stays there when others are removed, so a directory can be emptied part by part.
    ///
    /// # Errors
    /// Errors of reading the state.
    fn names(&mut self, dir: Self::Node, part: u32) -> Result<Option<Vec<Vec<u8>>>>;

    /// Creates a node in the directory `dir`, in which `name` is free, and returns it.
    ///
    /// # Errors
    /// Errors of space, and of attributes that the file system cannot represent.
    fn create(
        &mut self,
        dir: Self::Node,
        name: &[u8],
        node: NewNode<'_>,
        attributes: &NodeAttributes<'_>,
    ) -> Result<Self::Node>;

    /// Gives a node, which is not a directory, one more name in `dir`, in which `name` is free.
    ///
    /// # Errors
    /// Errors of space, and of a node that has all the names it can have.
    fn link(&mut self, dir: Self::Node, name: &[u8], node: Self::Node) -> Result<()>;

    /// Removes a name of a node that is not a directory, and the node with its last name.
    ///
    /// # Errors
    /// Errors of the state.
    fn unlink(&mut self, dir: Self::Node, name: &[u8]) -> Result<()>;

    /// Removes a directory with everything below it. Nodes that have names elsewhere stay.
    ///
    /// # Errors
    /// Errors of the state.
    fn remove_tree(&mut self, dir: Self::Node, name: &[u8]) -> Result<()>;

    /// Gives a node of any kind new attributes, in place of all that it had.
    ///
    /// # Errors
    /// Errors of space, and of attributes that the file system cannot represent.
    fn set_attributes(&mut self, node: Self::Node, attributes: &NodeAttributes<'_>) -> Result<()>;

    /// Fills a regular file that [`create`](FileTree::create) just made. Called once for each, also if the content is
    /// empty.
    ///
    /// # Errors
    /// Errors of `content` and of space.
    fn write_content(&mut self, node: Self::Node, content: &mut dyn LayerContent) -> Result<()>;

    /// Gives a regular file of a lower layer, which is called `name` in `dir` and has no other name, new attributes and
    /// a new content. Afterwards `name` is a regular file with both, and it is the tree's choice by which node: where
    /// the content is the old one, the file can keep its blocks, and only the attributes change.
    ///
    /// # Errors
    /// As [`create`](FileTree::create) and [`write_content`](FileTree::write_content).
    fn replace_content(
        &mut self,
        dir: Self::Node,
        name: &[u8],
        node: Self::Node,
        attributes: &NodeAttributes<'_>,
        content: &mut dyn LayerContent,
    ) -> Result<()>;
}
