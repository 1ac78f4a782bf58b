//! An EROFS file system as the tree that layers change: see [`headstart_erofs`].

use crate::file_system_tree::{FileSystemTree, LayerFileSystem, node_kind};
use crate::file_tree::{NodeAttributes, NodeStatus, NodeXattr};
use headstart_block::{Error, Result, exact};
use headstart_erofs::{ErofsAttributes, ErofsFileSystem, ErofsNode};
use headstart_file_blocks::{BlockSink, FileContent, NewInode};
use headstart_tar::TarTime;

/// An EROFS file system that layers change.
pub type ErofsTree<S> = FileSystemTree<ErofsFileSystem<S>>;

impl<S: BlockSink> LayerFileSystem for ErofsFileSystem<S> {
    type Node = ErofsNode;
    type Attributes = ErofsAttributes;

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

    fn root(&self) -> ErofsNode {
        self.root()
    }

    fn lookup(&mut self, dir: ErofsNode, name: &[u8]) -> Result<Option<ErofsNode>> {
        self.lookup(dir, name)
    }

    fn status(&mut self, node: ErofsNode) -> Result<NodeStatus> {
        let status = self.status(node)?;
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
        self.link_target(node)
    }

    fn xattrs(&mut self, node: ErofsNode) -> Result<Vec<NodeXattr>> {
        Ok(self.xattrs(node)?.into_iter().collect())
    }

    fn names(&mut self, dir: ErofsNode, part: u32) -> Result<Option<Vec<Vec<u8>>>> {
        self.names(dir, part)
    }

    fn create(
        &mut self,
        dir: ErofsNode,
        name: &[u8],
        node: &NewInode<'_>,
        attributes: &ErofsAttributes,
    ) -> Result<ErofsNode> {
        self.create(dir, name, node, attributes)
    }

    fn link(&mut self, dir: ErofsNode, name: &[u8], node: ErofsNode) -> Result<()> {
        self.link(dir, name, node)
    }

    fn remove(&mut self, dir: ErofsNode, name: &[u8]) -> Result<bool> {
        self.remove(dir, name)
    }

    fn set_attributes(&mut self, node: ErofsNode, attributes: &ErofsAttributes) -> Result<()> {
        self.set_attributes(node, attributes)
    }

    fn write_content(&mut self, node: ErofsNode, content: &mut dyn FileContent) -> Result<()> {
        self.write_content(node, content)
    }

    fn replace(
        &mut self,
        dir: ErofsNode,
        name: &[u8],
        attributes: &ErofsAttributes,
        content: &mut dyn FileContent,
    ) -> Result<()> {
        self.replace(dir, name, attributes, content)
    }
}
