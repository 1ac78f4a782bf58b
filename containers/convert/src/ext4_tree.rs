//! An ext4 file system as the tree that layers change: see [`headstart_ext4`].

use crate::file_system_tree::{FileSystemTree, LayerFileSystem, node_kind};
use crate::file_tree::{NodeAttributes, NodeStatus, NodeXattr};
use headstart_block::{Error, Result, exact};
use headstart_ext4::{FileSystem, InodeAttributes, InodeNumber, InodeTime};
use headstart_file_blocks::{BlockSink, FileContent, NewInode};
use headstart_tar::TarTime;

/// An ext4 file system that layers change.
pub type Ext4Tree<S> = FileSystemTree<FileSystem<S>>;

impl<S: BlockSink> LayerFileSystem for FileSystem<S> {
    type Node = InodeNumber;
    type Attributes = InodeAttributes;

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

    fn root(&self) -> InodeNumber {
        self.root()
    }

    fn lookup(&mut self, dir: InodeNumber, name: &[u8]) -> Result<Option<InodeNumber>> {
        self.lookup(dir, name)
    }

    fn status(&mut self, node: InodeNumber) -> Result<NodeStatus> {
        let status = self.status(node)?;
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
        self.link_target(node)
    }

    fn xattrs(&mut self, node: InodeNumber) -> Result<Vec<NodeXattr>> {
        Ok(self.xattrs(node)?.into_iter().collect())
    }

    fn names(&mut self, dir: InodeNumber, part: u32) -> Result<Option<Vec<Vec<u8>>>> {
        Ok(self.entries(dir, part)?.map(|entries| entries.into_keys().collect()))
    }

    fn create(
        &mut self,
        dir: InodeNumber,
        name: &[u8],
        node: &NewInode<'_>,
        attributes: &InodeAttributes,
    ) -> Result<InodeNumber> {
        self.create(dir, name, node, attributes)
    }

    fn link(&mut self, dir: InodeNumber, name: &[u8], node: InodeNumber) -> Result<()> {
        self.link(dir, name, node)
    }

    fn remove(&mut self, dir: InodeNumber, name: &[u8]) -> Result<bool> {
        self.remove(dir, name)
    }

    fn set_attributes(&mut self, node: InodeNumber, attributes: &InodeAttributes) -> Result<()> {
        self.set_attributes(node, attributes)
    }

    fn write_content(&mut self, node: InodeNumber, content: &mut dyn FileContent) -> Result<()> {
        self.write_content(node, content)
    }

    fn replace(
        &mut self,
        dir: InodeNumber,
        name: &[u8],
        attributes: &InodeAttributes,
        content: &mut dyn FileContent,
    ) -> Result<()> {
        self.replace(dir, name, attributes, content).map(drop)
    }
}
