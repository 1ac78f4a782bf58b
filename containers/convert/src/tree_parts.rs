//! Parts of the trees that are file systems: nodes and content as file systems have them.

use crate::file_tree::{LayerContent, NewNode, NodeKind};
use headstart_block::{Error, Result};
use headstart_file_blocks::{FileContent, FileKind, NewInode};
use std::ops::Range;

/// A node that is to be created, as file systems take it.
pub(crate) fn new_inode(node: NewNode<'_>) -> NewInode<'_> {
    match node {
        NewNode::Directory => NewInode::Directory,
        NewNode::File => NewInode::Regular,
        NewNode::Symlink { target } => NewInode::Symlink(target),
        NewNode::CharDevice { major, minor } => NewInode::CharDevice(major, minor),
        NewNode::BlockDevice { major, minor } => NewInode::BlockDevice(major, minor),
        NewNode::Fifo => NewInode::Fifo,
    }
}

/// The kind of a file, as trees have it.
pub(crate) fn node_kind(kind: FileKind) -> NodeKind {
    match kind {
        FileKind::Regular => NodeKind::Regular,
        FileKind::Directory => NodeKind::Directory,
        FileKind::Symlink => NodeKind::Symlink,
        FileKind::CharDevice => NodeKind::CharDevice,
        FileKind::BlockDevice => NodeKind::BlockDevice,
        FileKind::Fifo => NodeKind::Fifo,
        FileKind::Socket => NodeKind::Socket,
    }
}

/// A layer's content, as the file system takes it.
pub(crate) struct StreamedContent<'a> {
    content: &'a mut dyn LayerContent,
    runs: Vec<Range<u64>>,
    /// The offset of the content in a tar that stays.
    place: Option<u64>,
}

impl<'a> StreamedContent<'a> {
    /// The content; with its place in the tar, if that stays.
    pub(crate) fn new(content: &'a mut dyn LayerContent, has_tar: bool) -> Self {
        let place = has_tar.then(|| content.tar_offset());
        let size = content.size();
        let runs = match content.extents() {
            Some(extents) => extents.iter().map(|extent| extent.offset()..extent.end()).collect(),
            None if size == 0 => Vec::new(),
            None => std::iter::once(0..size).collect(),
        };
        Self { content, runs, place }
    }
}

impl FileContent for StreamedContent<'_> {
    fn size(&self) -> u64 {
        self.content.size()
    }

    fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.content.read(rest)? {
                0 => return Err(Error::corrupt("its content ends early")),
                n => done += n,
            }
        }
        Ok(())
    }

    fn place(&self) -> Option<u64> {
        self.place
    }

    fn ends_in_zeros(&mut self) -> Result<bool> {
        self.content.ends_in_zeros()
    }
}
