//! Conversion of container images: the layers of an image, which are streams of tar entries, become layers of a disk.
//!
//! The modules so far are the front half, which knows no file system's format.
//!
//! | module | subject |
//! |---|---|
//! | [`apply`] | [`Applier`]: the meaning of a layer's entries, as calls of a tree |
//! | [`file_tree`] | [`FileTree`]: the state that lower layers left, and that the calls change |
//! | [`content`] | [`EntryContent`]: files' bytes on their way from the tar to the tree |
//! | [`ext4_tree`] | [`Ext4Tree`]: a file system as such a tree |
//!
//! A back end implements [`FileTree`] for the blocks of a file system.

#![forbid(unsafe_code)]

pub mod apply;
pub mod content;
pub mod ext4_tree;
pub mod file_tree;
#[cfg(test)]
mod model_tree;

pub use apply::{Applier, ApplyLimits, LayerCounts};
pub use content::EntryContent;
pub use ext4_tree::Ext4Tree;
pub use file_tree::{FileTree, LayerContent, NewNode, NodeAttributes, NodeKind, NodeStatus, NodeXattr};
