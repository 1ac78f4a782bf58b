//! A file system as the tree that layers change: what the trees of all file systems have in common.
//!
//! Everything but the form of the calls is the file system's: see [`headstart_ext4`] and [`headstart_erofs`]. Its
//! errors do not know the paths of files; the applier adds the entry whose call failed.

use crate::file_tree::{FileTree, LayerContent, NewNode, NodeAttributes, NodeKind, NodeStatus, NodeXattr};
use headstart_block::{Error, Result};
use headstart_file_blocks::{FileContent, FileKind, NewInode};
use std::fmt::Debug;
use std::ops::Range;

/// A file system in the blocks of a layer, as its library offers it.
pub trait LayerFileSystem {
    /// The library's name of a node.
    type Node: Copy + Eq + Ord + Debug + Into<u64>;
    /// The attributes of a node as the library takes them.
    type Attributes;

    /// Attributes as the library takes them.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] for a time that the file system cannot store.
    fn attributes(of: &NodeAttributes<'_>) -> Result<Self::Attributes>;

    /// The root directory.
    fn root(&self) -> Self::Node;

    /// The node with a name in a directory.
    ///
    /// # Errors
    /// Errors of the file system, as those of all methods below.
    fn lookup(&mut self, dir: Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;

    /// The kind and the attributes of a node.
    fn status(&mut self, node: Self::Node) -> Result<NodeStatus>;

    /// The target of a symbolic link.
    fn link_target(&mut self, node: Self::Node) -> Result<Vec<u8>>;

    /// The extended attributes of a node.
    fn xattrs(&mut self, node: Self::Node) -> Result<Vec<NodeXattr>>;

    /// The names in a part of a directory; `None` behind the last part.
    fn names(&mut self, dir: Self::Node, part: u32) -> Result<Option<Vec<Vec<u8>>>>;

    /// Makes a node.
    fn create(
        &mut self,
        dir: Self::Node,
        name: &[u8],
        node: &NewInode<'_>,
        attributes: &Self::Attributes,
    ) -> Result<Self::Node>;

    /// Gives a node one more name.
    fn link(&mut self, dir: Self::Node, name: &[u8], node: Self::Node) -> Result<()>;

    /// Removes a name and all that is below it; `false` if there is no such name.
    fn remove(&mut self, dir: Self::Node, name: &[u8]) -> Result<bool>;

    /// Changes the attributes of a node.
    fn set_attributes(&mut self, node: Self::Node, attributes: &Self::Attributes) -> Result<()>;

    /// Writes the content of a new file.
    fn write_content(&mut self, node: Self::Node, content: &mut dyn FileContent) -> Result<()>;

    /// Puts a file with this content in the place of another one.
    fn replace(
        &mut self,
        dir: Self::Node,
        name: &[u8],
        attributes: &Self::Attributes,
        content: &mut dyn FileContent,
    ) -> Result<()>;
}

/// A file system that layers change, block by block.
pub struct FileSystemTree<F> {
    pub(crate) fs: F,
    /// `true` if the tar stays, so that content can be referred to in it.
    has_tar: bool,
}

impl<F: LayerFileSystem> FileSystemTree<F> {
    /// The tree of a file system, new or opened.
    pub fn new(fs: F) -> Self {
        Self { fs, has_tar: false }
    }

    /// The same tree, of layers whose tars stay: the sink gets to know where in the tar the content of files is.
    pub(crate) fn over_tars(self) -> Self {
        Self { has_tar: true, ..self }
    }

    /// The file system, which has yet to be finished.
    pub fn into_inner(self) -> F {
        self.fs
    }

    /// Removes a name that must be there.
    fn remove(&mut self, dir: F::Node, name: &[u8]) -> Result<()> {
        if self.fs.remove(dir, name)? {
            return Ok(());
        }
        Err(Error::corrupt(format!("the directory lost the name `{}`", name.escape_ascii())))
    }
}

impl<F: LayerFileSystem> FileTree for FileSystemTree<F> {
    type Node = F::Node;

    fn number(node: F::Node) -> u64 {
        node.into()
    }

    fn root(&self) -> F::Node {
        self.fs.root()
    }

    fn lookup(&mut self, dir: F::Node, name: &[u8]) -> Result<Option<F::Node>> {
        self.fs.lookup(dir, name)
    }

    fn status(&mut self, node: F::Node) -> Result<NodeStatus> {
        self.fs.status(node)
    }

    fn link_target(&mut self, node: F::Node) -> Result<Vec<u8>> {
        self.fs.link_target(node)
    }

    fn xattrs(&mut self, node: F::Node) -> Result<Vec<NodeXattr>> {
        self.fs.xattrs(node)
    }

    fn names(&mut self, dir: F::Node, part: u32) -> Result<Option<Vec<Vec<u8>>>> {
        self.fs.names(dir, part)
    }

    fn create(
        &mut self,
        dir: F::Node,
        name: &[u8],
        node: NewNode<'_>,
        attributes: &NodeAttributes<'_>,
    ) -> Result<F::Node> {
        self.fs.create(dir, name, &new_inode(node), &F::attributes(attributes)?)
    }

    fn link(&mut self, dir: F::Node, name: &[u8], node: F::Node) -> Result<()> {
        self.fs.link(dir, name, node)
    }

    fn unlink(&mut self, dir: F::Node, name: &[u8]) -> Result<()> {
        self.remove(dir, name)
    }

    fn remove_tree(&mut self, dir: F::Node, name: &[u8]) -> Result<()> {
        self.remove(dir, name)
    }

    fn set_attributes(&mut self, node: F::Node, attributes: &NodeAttributes<'_>) -> Result<()> {
        self.fs.set_attributes(node, &F::attributes(attributes)?)
    }

    fn write_content(&mut self, node: F::Node, content: &mut dyn LayerContent) -> Result<()> {
        self.fs.write_content(node, &mut StreamedContent::new(content, self.has_tar))
    }

    fn replace_content(
        &mut self,
        dir: F::Node,
        name: &[u8],
        _node: F::Node,
        attributes: &NodeAttributes<'_>,
        content: &mut dyn LayerContent,
    ) -> Result<()> {
        let attributes = F::attributes(attributes)?;
        self.fs.replace(dir, name, &attributes, &mut StreamedContent::new(content, self.has_tar))
    }
}

/// A node that is to be created, as file systems take it.
fn new_inode(node: NewNode<'_>) -> NewInode<'_> {
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
struct StreamedContent<'a> {
    content: &'a mut dyn LayerContent,
    runs: Vec<Range<u64>>,
    /// The offset of the content in a tar that stays.
    place: Option<u64>,
}

impl<'a> StreamedContent<'a> {
    /// The content; with its place in the tar, if that stays.
    fn new(content: &'a mut dyn LayerContent, has_tar: bool) -> Self {
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
