//! The files and directories of a file system, and the changes to them.

use crate::content;
use crate::directory_walk::DirectoryWalk;
use crate::dirents::is_dots;
use crate::inode::{HEAD, Inode, InodeContent, encode_device};
use crate::removal;
use crate::state::{NAMED, State, key};
use crate::superblock::{ROOT_BYTES, ROOT_NID};
use crate::xattr::{self, Xattrs};
use headstart_block::{Error, Result};
use headstart_file_blocks::{
    BLOCK_SIZE, BlockSink, FileContent, FileKind, NewInode, check_name, check_target,
};
use std::collections::BTreeMap;

/// Names in a part of a directory.
const PART: usize = 1024;

/// A file, whatever its names: an inode of the parent or a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErofsNode(pub(crate) u64);

impl From<ErofsNode> for u64 {
    fn from(node: ErofsNode) -> Self {
        node.0
    }
}

/// The parts of a file's description that an entry of a layer gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErofsAttributes {
    /// Permissions with the bits for set-user-id, set-group-id and sticky: 12 bits. Others are ignored.
    pub mode: u16,
    /// Id of the owner.
    pub uid: u32,
    /// Id of the group.
    pub gid: u32,
    /// Time of the last modification: seconds since the beginning of 1970, and nanoseconds.
    pub mtime: (u64, u32),
    /// Extended attributes, by their full names.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The description of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErofsStatus {
    /// Kind of file.
    pub kind: FileKind,
    /// Permissions with the bits for set-user-id, set-group-id and sticky: 12 bits.
    pub mode: u16,
    /// Id of the owner.
    pub uid: u32,
    /// Id of the group.
    pub gid: u32,
    /// Length of the content in bytes; of a symbolic link, the length of its target.
    pub size: u64,
    /// Time of the last modification: seconds since the beginning of 1970, and nanoseconds.
    pub mtime: (u64, u32),
    /// Number of names of a file. A directory has two, and one more for each directory in it.
    pub links: u32,
    /// Major and minor number of a device; zeros for other files.
    pub device: (u32, u32),
}

/// A file system that is being changed. Content of files goes to `S` at once, and metadata at the end.
pub struct ErofsFileSystem<S: BlockSink> {
    pub(crate) state: State,
    pub(crate) sink: S,
    /// For directories that are listed: the next part, and the last name before it.
    pub(crate) listed: BTreeMap<u64, (u32, Vec<u8>)>,
}

impl<S: BlockSink> ErofsFileSystem<S> {
    /// The root directory.
    #[must_use]
    pub fn root(&self) -> ErofsNode {
        ErofsNode(ROOT_NID)
    }

    /// Returns the file with this name in a directory; `None` if there is none.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the directory is damaged; errors of reading the parent.
    pub fn lookup(&mut self, directory: ErofsNode, name: &[u8]) -> Result<Option<ErofsNode>> {
        if is_dots(name) {
            return Ok(None);
        }
        Ok(self.state.entry(directory.0, name)?.map(|entry| ErofsNode(entry.node)))
    }

    /// Returns the description of a file.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if its inode is damaged; errors of reading the parent.
    pub fn status(&mut self, file: ErofsNode) -> Result<ErofsStatus> {
        let inode = self.state.inode(file.0)?;
        Ok(ErofsStatus {
            kind: inode.kind,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            mtime: inode.mtime,
            links: inode.links,
            device: inode.device(),
        })
    }

    /// Returns the extended attributes of a file, by their full names.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if they are damaged; errors of reading the parent.
    pub fn xattrs(&mut self, file: ErofsNode) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        xattr::decode(&self.state.inode(file.0)?.xattrs)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file is none; `Corrupt` if it is damaged; errors of the parent.
    pub fn link_target(&mut self, link: ErofsNode) -> Result<Vec<u8>> {
        let inode = self.state.inode(link.0)?;
        if inode.kind != FileKind::Symlink {
            return Err(Error::invalid("the file is not a symbolic link"));
        }
        content::link_target(&mut self.state, &inode)
    }

    /// Returns the names in one part of a directory, sorted, without `.` and `..`. Parts are numbered from 0 on, and
    /// have some thousand names at most; `None` behind the last one. A directory is listed from its first part on;
    /// names may be removed meanwhile.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the directory is damaged; errors of reading the parent.
    pub fn names(&mut self, directory: ErofsNode, part: u32) -> Result<Option<Vec<Vec<u8>>>> {
        let known = self.listed.remove(&directory.0).filter(|(next, _)| *next == part);
        let (mut next, after) = known.unwrap_or_default();
        let mut walk = DirectoryWalk::new(&mut self.state, directory.0, after)?;
        loop {
            let mut names: Vec<Vec<u8>> = Vec::new();
            while names.len() < PART
                && let Some(entry) = walk.next(&mut self.state)?
            {
                if !entry.is_dots() {
                    names.push(entry.name);
                }
            }
            let Some(last) = names.last() else { return Ok((part == 0).then_some(names)) };
            if next == part {
                self.listed.insert(directory.0, (part.saturating_add(1), last.clone()));
                return Ok(Some(names));
            }
            next += 1;
        }
    }

    /// Creates a file in a directory that has no file of this name; returns it.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the name or the target of a link is too long, or the file system is
    /// full; `Unsupported` if the attributes cannot be stored; errors of reading the parent.
    pub fn create(
        &mut self,
        directory: ErofsNode,
        name: &[u8],
        new: &NewInode<'_>,
        attributes: &ErofsAttributes,
    ) -> Result<ErofsNode> {
        check_name(name)?;
        let kind = new.kind();
        let is_directory = kind == FileKind::Directory;
        let (size, content) = match *new {
            NewInode::Regular => (0, InodeContent::Blocks(0)),
            NewInode::Directory => (BLOCK_SIZE as u64, InodeContent::Blocks(0)),
            NewInode::Symlink(target) => {
                check_target(target)?;
                (target.len() as u64, InodeContent::Target(target.to_vec()))
            }
            NewInode::CharDevice(major, minor) | NewInode::BlockDevice(major, minor) => {
                (0, InodeContent::Device(encode_device(major, minor)?))
            }
            NewInode::Fifo | NewInode::Socket => (0, InodeContent::None),
        };
        let links = if is_directory { 2 } else { 1 };
        let (mode, uid, gid, mtime, xattrs) = (0, 0, 0, (0, 0), Vec::new());
        let mut inode = Inode { kind, mode, uid, gid, size, mtime, links, xattrs, content };
        describe(&mut inode, attributes)?;
        self.place_target(&mut inode)?;
        let mut parent = self.state.directory(directory.0)?;
        let node = self.state.make_inode(&inode)?;
        if is_directory {
            let kind = kind.entry_type();
            self.state.put_name(node, b".", node, kind)?;
            self.state.put_name(node, b"..", directory.0, kind)?;
            parent.links = parent.links.saturating_add(1);
            self.state.put_inode(directory.0, &parent)?;
        }
        self.state.put_name(directory.0, name, node, kind.entry_type())?;
        Ok(ErofsNode(node))
    }

    /// Gives the target of a link a block of its own, if it does not fit into one with the inode.
    fn place_target(&mut self, inode: &mut Inode) -> Result<()> {
        let InodeContent::Target(target) = &inode.content else { return Ok(()) };
        if HEAD + inode.xattrs.len() + target.len() > BLOCK_SIZE {
            let block = self.state.take(1)?;
            self.state.blocks.fresh(block.into())?[..target.len()].copy_from_slice(target);
            inode.content = InodeContent::Blocks(block);
        }
        Ok(())
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file is a directory, has all the names that can be counted, or
    /// the name is too long; errors of reading the parent.
    pub fn link(&mut self, directory: ErofsNode, name: &[u8], file: ErofsNode) -> Result<()> {
        check_name(name)?;
        let mut inode = self.state.inode(file.0)?;
        if inode.kind == FileKind::Directory {
            return Err(Error::invalid("a directory cannot have a hard link"));
        }
        inode.links =
            inode.links.checked_add(1).ok_or_else(|| Error::invalid("a file has too many names"))?;
        self.state.put_inode(file.0, &inode)?;
        self.state.put_name(directory.0, name, file.0, inode.kind.entry_type())
    }

    /// Removes a name, and its file if that has no other name; a directory with everything in it. `false` if there is
    /// no such name.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a directory or an inode is damaged; errors of reading the parent.
    pub fn remove(&mut self, directory: ErofsNode, name: &[u8]) -> Result<bool> {
        removal::remove(&mut self.state, directory.0, name)
    }

    /// Gives a file other attributes; extended attributes that are not among them are removed.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if the attributes cannot be stored; errors of reading the parent.
    pub fn set_attributes(&mut self, file: ErofsNode, attributes: &ErofsAttributes) -> Result<()> {
        let mut inode = self.state.inode(file.0)?;
        describe(&mut inode, attributes)?;
        if file.0 == ROOT_NID && HEAD + inode.xattrs.len() > ROOT_BYTES {
            let most = ROOT_BYTES - HEAD;
            let cause = format!("the root directory has more than {most} bytes of extended attributes");
            return Err(Error::unsupported(cause).remedy("use ext4 for this image (--fs ext4)"));
        }
        self.place_target(&mut inode)?;
        self.state.put_inode(file.0, &inode)
    }

    /// Writes the content of a file that is empty.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file is not empty or not a regular one, or if the file system is
    /// full; errors of `content` and of the sink.
    pub fn write_content(&mut self, file: ErofsNode, content: &mut dyn FileContent) -> Result<()> {
        let mut inode = self.state.inode(file.0)?;
        if inode.kind != FileKind::Regular || inode.size != 0 {
            return Err(Error::invalid("content can be written to an empty file only"));
        }
        content::write(&mut self.state, &mut self.sink, &mut inode, content)?;
        self.state.put_inode(file.0, &inode)
    }

    /// Gives the name of a file new content and attributes. A file without other names stays, and keeps its blocks if
    /// the content is that of the parent; except for content that has a place ([`FileContent::place`]), which is not
    /// compared. Otherwise the name gets a new file.
    ///
    /// # Errors
    /// As [`ErofsFileSystem::create`] and [`ErofsFileSystem::write_content`].
    pub fn replace(
        &mut self,
        directory: ErofsNode,
        name: &[u8],
        attributes: &ErofsAttributes,
        content: &mut dyn FileContent,
    ) -> Result<()> {
        if let Some(old) = self.lookup(directory, name)? {
            let mut inode = self.state.inode(old.0)?;
            if inode.links == 1 && inode.kind == FileKind::Regular {
                describe(&mut inode, attributes)?;
                let is_compared = content.place().is_none()
                    && inode.size == content.size()
                    && content::is_of_parent(&self.state, &inode);
                let write = if is_compared { content::keep_or_write } else { content::write };
                write(&mut self.state, &mut self.sink, &mut inode, content)?;
                self.state.put_inode(old.0, &inode)?;
                // If the inode has to move, its only name needs no search.
                self.state.put_name(directory.0, name, old.0, inode.kind.entry_type())?;
                return self.state.changes.put(&key(NAMED, old.0), &[]);
            }
            self.remove(directory, name)?;
        }
        let file = self.create(directory, name, &NewInode::Regular, attributes)?;
        self.write_content(file, content)
    }

    /// Fills `buf` with the content of a regular file from byte `offset` on, holes as zeros. Only content of the parent
    /// can be read: what this layer writes is given to the sink, and is not kept.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file is not a regular one, ends before `buf` is full, or has
    /// content of this layer; `Corrupt` if it is damaged; errors of reading the parent.
    pub fn read_content(&mut self, file: ErofsNode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let inode = self.state.inode(file.0)?;
        let is_inside = offset.checked_add(buf.len() as u64).is_some_and(|end| end <= inode.size);
        if inode.kind != FileKind::Regular || !is_inside || !content::is_of_parent(&self.state, &inode) {
            return Err(Error::invalid(format!(
                "{} bytes at {offset} are not inside of a regular file's content in the parent",
                buf.len()
            )));
        }
        content::read(&mut self.state, &inode, offset, buf)
    }
}

/// Puts attributes into an inode.
fn describe(inode: &mut Inode, attributes: &ErofsAttributes) -> Result<()> {
    let xattrs: &Xattrs = &attributes.xattrs;
    inode.xattrs = xattr::encode(xattrs)?;
    inode.mode = attributes.mode & 0o7777;
    (inode.uid, inode.gid, inode.mtime) = (attributes.uid, attributes.gid, attributes.mtime);
    Ok(())
}
