//! An EROFS file system as the tree that layers change.
//!
//! Everything but the form of the calls is the file system's: see [`headstart_erofs`]. Its errors do not know the paths
//! of files; the applier adds the entry whose call failed.

use crate::file_tree::{FileTree, LayerContent, NewNode, NodeAttributes, NodeStatus, NodeXattr};
use crate::tree_parts::{StreamedContent, new_inode, node_kind};
use headstart_block::{Error, Result, exact};
use headstart_erofs::{ErofsAttributes, ErofsFileSystem, ErofsNode};
use headstart_file_blocks::BlockSink;
use headstart_tar::TarTime;

/// A file system that layers change, block by block.
pub struct ErofsTree<S: BlockSink> {
    pub(crate) fs: ErofsFileSystem<S>,
    /// `true` if the tar stays, so that content can be referred to in it.
    has_tar: bool,
}

impl<S: BlockSink> ErofsTree<S> {
    /// The tree of a file system, new or opened.
    pub fn new(fs: ErofsFileSystem<S>) -> Self {
        Self { fs, has_tar: false }
    }

    /// The same tree, of layers whose tars stay: the sink gets to know where in the tar the content of files is.
    pub(crate) fn over_tars(self) -> Self {
        Self { has_tar: true, ..self }
    }

    /// The file system, which has yet to be finished.
    pub fn into_inner(self) -> ErofsFileSystem<S> {
        self.fs
    }

    /// Removes a name that must be there.
    fn remove(&mut self, dir: ErofsNode, name: &[u8]) -> Result<()> {
        if self.fs.remove(dir, name)? {
            return Ok(());
        }
        Err(Error::corrupt(format!("the directory lost the name `{}`", name.escape_ascii())))
    }
}

/// Attributes as inodes have them.
fn attributes(of: &NodeAttributes<'_>) -> Result<ErofsAttributes> {
    let TarTime { seconds, nanoseconds } = of.mtime;
    let seconds = u64::try_from(seconds).map_err(|_| {
        Error::unsupported(format!("has a time that EROFS cannot store: second {seconds} after 1970"))
    })?;
    Ok(ErofsAttributes {
        mode: exact(of.mode & 0o7777, "it has 12 bits"),
        uid: of.uid,
        gid: of.gid,
        mtime: (seconds, nanoseconds),
        xattrs: of.xattrs.iter().cloned().collect(),
    })
}

impl<S: BlockSink> FileTree for ErofsTree<S> {
    type Node = ErofsNode;

    fn number(node: ErofsNode) -> u64 {
        node.into()
    }

    fn root(&self) -> ErofsNode {
        self.fs.root()
    }

    fn lookup(&mut self, dir: ErofsNode, name: &[u8]) -> Result<Option<ErofsNode>> {
        self.fs.lookup(dir, name)
    }

    fn status(&mut self, node: ErofsNode) -> Result<NodeStatus> {
        let status = self.fs.status(node)?;
        Ok(NodeStatus {
            kind: node_kind(status.kind),
            mode: u32::from(status.mode),
            uid: status.uid,
            gid: status.gid,
            mtime: TarTime { seconds: status.mtime.0.cast_signed(), nanoseconds: status.mtime.1 },
            links: status.links,
            size: status.size,
        })
    }

    fn link_target(&mut self, node: ErofsNode) -> Result<Vec<u8>> {
        self.fs.link_target(node)
    }

    fn xattrs(&mut self, node: ErofsNode) -> Result<Vec<NodeXattr>> {
        Ok(self.fs.xattrs(node)?.into_iter().collect())
    }

    fn names(&mut self, dir: ErofsNode, part: u32) -> Result<Option<Vec<Vec<u8>>>> {
        self.fs.names(dir, part)
    }

    fn create(
        &mut self,
        dir: ErofsNode,
        name: &[u8],
        node: NewNode<'_>,
        attributes: &NodeAttributes<'_>,
    ) -> Result<ErofsNode> {
        self.fs.create(dir, name, &new_inode(node), &self::attributes(attributes)?)
    }

    fn link(&mut self, dir: ErofsNode, name: &[u8], node: ErofsNode) -> Result<()> {
        self.fs.link(dir, name, node)
    }

    fn unlink(&mut self, dir: ErofsNode, name: &[u8]) -> Result<()> {
        self.remove(dir, name)
    }

    fn remove_tree(&mut self, dir: ErofsNode, name: &[u8]) -> Result<()> {
        self.remove(dir, name)
    }

    fn set_attributes(&mut self, node: ErofsNode, attributes: &NodeAttributes<'_>) -> Result<()> {
        self.fs.set_attributes(node, &self::attributes(attributes)?)
    }

    fn write_content(&mut self, node: ErofsNode, content: &mut dyn LayerContent) -> Result<()> {
        let mut content = StreamedContent::new(content, self.has_tar);
        self.fs.write_content(node, &mut content)
    }

    fn replace_content(
        &mut self,
        dir: ErofsNode,
        name: &[u8],
        _node: ErofsNode,
        attributes: &NodeAttributes<'_>,
        content: &mut dyn LayerContent,
    ) -> Result<()> {
        let attributes = self::attributes(attributes)?;
        let mut content = StreamedContent::new(content, self.has_tar);
        self.fs.replace(dir, name, &attributes, &mut content)
    }
}
