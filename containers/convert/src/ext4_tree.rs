//! An ext4 file system as the tree that layers change.
//!
//! Everything but the form of the calls is the file system's: see [`headstart_ext4`]. Its errors do not know the paths
//! of files; the applier adds the entry whose call failed.

use crate::file_tree::{FileTree, LayerContent, NewNode, NodeAttributes, NodeKind, NodeStatus, NodeXattr};
use headstart_block::{Error, Result, exact};
use headstart_ext4::{FileSystem, InodeAttributes, InodeNumber, InodeTime};
use headstart_file_blocks::{BlockSink, FileContent, FileKind, NewInode};
use headstart_tar::TarTime;
use std::ops::Range;

/// A file system that layers change, block by block.
pub struct Ext4Tree<S: BlockSink> {
    fs: FileSystem<S>,
    /// `true` if the tar stays, so that content can be referred to in it.
    has_tar: bool,
}

impl<S: BlockSink> Ext4Tree<S> {
    /// The tree of a file system, new or opened.
    pub fn new(fs: FileSystem<S>) -> Self {
        Self { fs, has_tar: false }
    }

    /// The same tree, of layers whose tars stay: the sink gets to know where in the tar the content of files is.
    pub(crate) fn over_tars(self) -> Self {
        Self { has_tar: true, ..self }
    }

    /// The content of a file, as the file system takes it.
    fn streamed<'a>(&self, content: &'a mut dyn LayerContent) -> StreamedContent<'a> {
        let place = self.has_tar.then(|| content.tar_offset());
        StreamedContent { place, ..StreamedContent::new(content) }
    }

    /// The file system, which has yet to be finished.
    pub fn into_inner(self) -> FileSystem<S> {
        self.fs
    }

    /// Removes a name that must be there.
    fn remove(&mut self, dir: InodeNumber, name: &[u8]) -> Result<()> {
        if self.fs.remove(dir, name)? {
            return Ok(());
        }
        Err(Error::corrupt(format!("the directory lost the name `{}`", name.escape_ascii())))
    }
}

/// Attributes as inodes have them.
fn attributes(of: &NodeAttributes<'_>) -> Result<InodeAttributes> {
    let TarTime { seconds, nanoseconds } = of.mtime;
    let mtime = InodeTime::new(seconds, nanoseconds).ok_or_else(|| {
        Error::unsupported(format!("has a time that ext4 cannot store: second {seconds} after 1970"))
    })?;
    Ok(InodeAttributes {
        mode: exact(of.mode & 0o7777, "it has 12 bits"),
        uid: of.uid,
        gid: of.gid,
        mtime,
        xattrs: of.xattrs.iter().cloned().collect(),
    })
}

fn node_kind(kind: FileKind) -> NodeKind {
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
struct StreamedContent<'a> {
    content: &'a mut dyn LayerContent,
    runs: Vec<Range<u64>>,
    /// The offset of the content in a tar that stays.
    place: Option<u64>,
}

impl<'a> StreamedContent<'a> {
    fn new(content: &'a mut dyn LayerContent) -> Self {
        let size = content.size();
        let runs = match content.extents() {
            Some(extents) => extents.iter().map(|extent| extent.offset()..extent.end()).collect(),
            None if size == 0 => Vec::new(),
            None => std::iter::once(0..size).collect(),
        };
        Self { content, runs, place: None }
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

impl<S: BlockSink> FileTree for Ext4Tree<S> {
    type Node = InodeNumber;

    fn number(node: InodeNumber) -> u64 {
        node.into()
    }

    fn root(&self) -> InodeNumber {
        self.fs.root()
    }

    fn lookup(&mut self, dir: InodeNumber, name: &[u8]) -> Result<Option<InodeNumber>> {
        self.fs.lookup(dir, name)
    }

    fn status(&mut self, node: InodeNumber) -> Result<NodeStatus> {
        let status = self.fs.status(node)?;
        Ok(NodeStatus {
            kind: node_kind(status.kind),
            mode: u32::from(status.mode),
            uid: status.uid,
            gid: status.gid,
            mtime: TarTime { seconds: status.mtime.seconds(), nanoseconds: status.mtime.nanoseconds() },
            links: status.links,
            size: status.size,
        })
    }

    fn link_target(&mut self, node: InodeNumber) -> Result<Vec<u8>> {
        self.fs.link_target(node)
    }

    fn xattrs(&mut self, node: InodeNumber) -> Result<Vec<NodeXattr>> {
        Ok(self.fs.xattrs(node)?.into_iter().collect())
    }

    fn names(&mut self, dir: InodeNumber, part: u32) -> Result<Option<Vec<Vec<u8>>>> {
        Ok(self.fs.entries(dir, part)?.map(|entries| entries.into_keys().collect()))
    }

    fn create(
        &mut self,
        dir: InodeNumber,
        name: &[u8],
        node: NewNode<'_>,
        attributes: &NodeAttributes<'_>,
    ) -> Result<InodeNumber> {
        let new = match node {
            NewNode::Directory => NewInode::Directory,
            NewNode::File => NewInode::Regular,
            NewNode::Symlink { target } => NewInode::Symlink(target),
            NewNode::CharDevice { major, minor } => NewInode::CharDevice(major, minor),
            NewNode::BlockDevice { major, minor } => NewInode::BlockDevice(major, minor),
            NewNode::Fifo => NewInode::Fifo,
        };
        self.fs.create(dir, name, &new, &self::attributes(attributes)?)
    }

    fn link(&mut self, dir: InodeNumber, name: &[u8], node: InodeNumber) -> Result<()> {
        self.fs.link(dir, name, node)
    }

    fn unlink(&mut self, dir: InodeNumber, name: &[u8]) -> Result<()> {
        self.remove(dir, name)
    }

    fn remove_tree(&mut self, dir: InodeNumber, name: &[u8]) -> Result<()> {
        self.remove(dir, name)
    }

    fn set_attributes(&mut self, node: InodeNumber, attributes: &NodeAttributes<'_>) -> Result<()> {
        self.fs.set_attributes(node, &self::attributes(attributes)?)
    }

    fn write_content(&mut self, node: InodeNumber, content: &mut dyn LayerContent) -> Result<()> {
        let mut content = self.streamed(content);
        self.fs.write_content(node, &mut content)
    }

    fn replace_content(
        &mut self,
        dir: InodeNumber,
        name: &[u8],
        _node: InodeNumber,
        attributes: &NodeAttributes<'_>,
        content: &mut dyn LayerContent,
    ) -> Result<()> {
        let attributes = self::attributes(attributes)?;
        let mut content = self.streamed(content);
        self.fs.replace(dir, name, &attributes, &mut content).map(drop)
    }
}

#[cfg(test)]
pub(crate) mod tests;
