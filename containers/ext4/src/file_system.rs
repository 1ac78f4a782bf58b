//! The files and directories of a file system, and the changes to them.
//!
//! Names and directories are as in a kernel: a directory has no hard links but `.` and `..`, a name has 1 to 255 bytes.
//! Times of creation, change and access are those of the last modification, because an image gives no others.

use crate::content;
use crate::directory::{self, DirectoryEntry, HashSettings};
use crate::features::{DIR_INDEX, DIR_NLINK};
use crate::inode::{INDEXED, Inode, InodeTime};
use crate::open_directory::OpenDirectory;
use crate::remove;
use crate::state::{ROOT, State};
use crate::xattr::ExtendedAttribute;
use headstart_block::{Error, Result};
use headstart_file_blocks::{BlockSink, FileContent, FileKind, NewInode, check_name, check_target};
use std::collections::BTreeMap;

/// The most hard links that a file may have: the kernel's limit.
const MAX_LINKS: u32 = 65_000;

/// The number of an inode: a file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub(crate) u32);

impl From<InodeNumber> for u64 {
    fn from(number: InodeNumber) -> Self {
        number.0.into()
    }
}

/// The parts of a file's description that an entry of a layer gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeAttributes {
    /// Permissions with the bits for set-user-id, set-group-id and sticky: 12 bits. Others are ignored.
    pub mode: u16,
    /// Id of the owner.
    pub uid: u32,
    /// Id of the group.
    pub gid: u32,
    /// Time of the last modification.
    pub mtime: InodeTime,
    /// Extended attributes, by their full names.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The description of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeStatus {
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
    /// Time of the last modification.
    pub mtime: InodeTime,
    /// Number of names of a file. A directory has two, and one more for each directory in it; 1 if there are too many
    /// to count.
    pub links: u32,
    /// Major and minor number of a device; zeros for other files.
    pub device: (u32, u32),
}

/// A file system that is being changed. Content of files goes to `S` at once, and metadata at the end.
pub struct FileSystem<S: BlockSink> {
    pub(crate) state: State,
    pub(crate) sink: S,
}

impl<S: BlockSink> FileSystem<S> {
    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeNumber {
        InodeNumber(ROOT)
    }

    /// Returns the file with this name in a directory; `None` if there is none.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the directory is damaged; errors of reading the parent.
    pub fn lookup(&mut self, directory: InodeNumber, name: &[u8]) -> Result<Option<InodeNumber>> {
        let hash = self.hash();
        let mut open = OpenDirectory::open(&mut self.state, directory.0)?;
        let indexed = open.is_indexed();
        Ok(directory::lookup(&mut open, indexed, &hash, name)?.map(|(number, _)| InodeNumber(number)))
    }

    /// Returns the description of a file.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if its inode is damaged; errors of reading the parent.
    pub fn status(&mut self, file: InodeNumber) -> Result<InodeStatus> {
        let inode = self.state.inode(file.0)?;
        Ok(InodeStatus {
            kind: inode.kind()?,
            mode: inode.mode & 0o7777,
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
    pub fn xattrs(&mut self, file: InodeNumber) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let inode = self.state.inode(file.0)?;
        self.state.attributes(&inode)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file is none; `Corrupt` if it is damaged; errors of the parent.
    pub fn link_target(&mut self, link: InodeNumber) -> Result<Vec<u8>> {
        let inode = self.state.inode(link.0)?;
        if inode.kind()? != FileKind::Symlink {
            return Err(Error::invalid("the file is not a symbolic link"));
        }
        content::link_target(&mut self.state, &inode)
    }

    /// Returns the names in one part of a directory, without `.` and `..`, and their files, sorted by name. Parts are
    /// numbered from 0 on, and have some thousand names at most; `None` behind the last one. A name stays in its part
    /// until another one is added to the directory.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the directory is damaged; errors of reading the parent.
    pub fn entries(
        &mut self,
        directory: InodeNumber,
        part: u32,
    ) -> Result<Option<BTreeMap<Vec<u8>, InodeNumber>>> {
        let mut open = OpenDirectory::open(&mut self.state, directory.0)?;
        let Some(blocks) = directory::part(&open, part) else { return Ok(None) };
        let mut entries = BTreeMap::new();
        directory::each_entry(&mut open, blocks, &mut |name, number, _| {
            entries.insert(name.to_vec(), InodeNumber(number));
            Ok(())
        })?;
        Ok(Some(entries))
    }

    /// Creates a file in a directory that has no file of this name; returns it.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the name or the target of a link is too long, or the file system is
    /// full; `Unsupported` if the attributes cannot be stored; errors of reading the parent.
    pub fn create(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        new: &NewInode<'_>,
        attributes: &InodeAttributes,
    ) -> Result<InodeNumber> {
        check_name(name)?;
        let kind = new.kind();
        let mut inode = Inode::new(kind, self.state.superblock.want_extra_isize);
        match *new {
            NewInode::Symlink(target) => check_target(target)?,
            NewInode::CharDevice(major, minor) | NewInode::BlockDevice(major, minor) => {
                inode.set_device(major, minor)?;
            }
            _ => {}
        }
        self.describe(&mut inode, attributes)?;
        // After all that can be refused: what is taken is not given back.
        let number = self.state.take_inode(kind == FileKind::Directory)?;
        match *new {
            NewInode::Regular => self.state.set_extents(&mut inode, &[], &[])?,
            NewInode::Directory => content::fill_directory(&mut self.state, &mut inode, number, directory.0)?,
            NewInode::Symlink(target) => content::fill_symlink(&mut self.state, &mut inode, target)?,
            _ => {}
        }
        inode.links = if kind == FileKind::Directory { 2 } else { 1 };
        self.state.put_inode(number, &inode)?;
        self.add_name(directory.0, name, number, kind)?;
        Ok(InodeNumber(number))
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file is a directory, has 65,000 names already, or the name is too
    /// long; errors of reading the parent.
    pub fn link(&mut self, directory: InodeNumber, name: &[u8], file: InodeNumber) -> Result<()> {
        check_name(name)?;
        let mut inode = self.state.inode(file.0)?;
        let kind = inode.kind()?;
        if kind == FileKind::Directory {
            return Err(Error::invalid("a directory cannot have a hard link"));
        }
        if inode.links >= MAX_LINKS {
            return Err(Error::invalid(format!(
                "the file has {MAX_LINKS} hard links already, the most that ext4 allows"
            )));
        }
        inode.links += 1;
        self.state.put_inode(file.0, &inode)?;
        self.add_name(directory.0, name, file.0, kind)
    }

    /// Removes a name, and its file if that has no other name; a directory with everything in it. `false` if there is
    /// no such name.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a directory or an inode is damaged; errors of reading the parent.
    pub fn remove(&mut self, directory: InodeNumber, name: &[u8]) -> Result<bool> {
        let hash = self.hash();
        let mut open = OpenDirectory::open(&mut self.state, directory.0)?;
        let indexed = open.is_indexed();
        let Some((number, _)) = directory::remove(&mut open, indexed, &hash, name)? else { return Ok(false) };
        open.close()?;
        if remove::drop_name(&mut self.state, number)? == FileKind::Directory {
            self.count_subdirectory(directory.0, false)?;
        }
        Ok(true)
    }

    /// Gives a file other attributes; extended attributes that are not among them are removed.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if the attributes cannot be stored; errors of reading the parent.
    pub fn set_attributes(&mut self, file: InodeNumber, attributes: &InodeAttributes) -> Result<()> {
        let mut inode = self.state.inode(file.0)?;
        self.describe(&mut inode, attributes)?;
        self.state.put_inode(file.0, &inode)
    }

    /// Writes the content of a file that is empty.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file is not empty or not a regular one, or if the file system is
    /// full; errors of `content` and of the sink.
    pub fn write_content(&mut self, file: InodeNumber, content: &mut dyn FileContent) -> Result<()> {
        let mut inode = self.state.inode(file.0)?;
        if inode.kind()? != FileKind::Regular || inode.size != 0 {
            return Err(Error::invalid("content can be written to an empty file only"));
        }
        content::write(&mut self.state, &mut self.sink, &mut inode, content)?;
        self.state.put_inode(file.0, &inode)
    }

    /// Gives the name of a file of the parent a new file with this content. If the content is the same and the file has
    /// no other name, the file keeps its blocks, and only its attributes change; except for content that has a place
    /// ([`FileContent::place`]), which is not compared.
    ///
    /// # Errors
    /// As [`FileSystem::create`] and [`FileSystem::write_content`].
    pub fn replace(
        &mut self,
        directory: InodeNumber,
        name: &[u8],
        attributes: &InodeAttributes,
        content: &mut dyn FileContent,
    ) -> Result<InodeNumber> {
        if let Some(old) = self.lookup(directory, name)? {
            let mut inode = self.state.inode(old.0)?;
            let alone = inode.links == 1 && inode.kind()? == FileKind::Regular;
            let compared = alone && content.place().is_none();
            if compared && inode.size == content.size() && self.state.has_content_of_parent(&inode)? {
                content::keep_or_write(&mut self.state, &mut self.sink, &mut inode, content)?;
                self.describe(&mut inode, attributes)?;
                self.state.put_inode(old.0, &inode)?;
                return Ok(old);
            }
            self.remove(directory, name)?;
        }
        let file = self.create(directory, name, &NewInode::Regular, attributes)?;
        self.write_content(file, content)?;
        Ok(file)
    }

    /// Fills `buf` with the content of a regular file from byte `offset` on, holes as zeros. Only content of the parent
    /// can be read: what this layer writes is given to the sink, and is not kept.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the file is not a regular one, ends before `buf` is full, or has
    /// content of this layer; `Corrupt` if it is damaged; errors of reading the parent.
    pub fn read_content(&mut self, file: InodeNumber, offset: u64, buf: &mut [u8]) -> Result<()> {
        let inode = self.state.inode(file.0)?;
        let is_inside = offset.checked_add(buf.len() as u64).is_some_and(|end| end <= inode.size);
        if inode.kind()? != FileKind::Regular || !is_inside {
            return Err(Error::invalid(format!(
                "{} bytes at {offset} are not inside of a regular file's content",
                buf.len()
            )));
        }
        if !self.state.has_content_of_parent(&inode)? {
            return Err(Error::invalid("the content was written by this layer, and is not kept"));
        }
        content::read(&mut self.state, &inode, offset, buf)
    }

    fn hash(&self) -> HashSettings {
        self.state.superblock.hash_settings()
    }

    /// Puts attributes into an inode.
    fn describe(&mut self, inode: &mut Inode, attributes: &InodeAttributes) -> Result<()> {
        inode.mode = inode.mode & !0o7777 | attributes.mode & 0o7777;
        (inode.uid, inode.gid) = (attributes.uid, attributes.gid);
        inode.set_times(attributes.mtime);
        let xattrs: Vec<_> = attributes
            .xattrs
            .iter()
            .map(|(name, value)| ExtendedAttribute { name: name.clone(), value: value.clone() })
            .collect();
        self.state.set_attributes(inode, &xattrs)
    }

    fn add_name(&mut self, directory: u32, name: &[u8], number: u32, kind: FileKind) -> Result<()> {
        let hash = self.hash();
        let may_be_indexed = self.state.superblock.features.has(DIR_INDEX);
        let mut open = OpenDirectory::open(&mut self.state, directory)?;
        let was_indexed = open.is_indexed();
        let entry = DirectoryEntry { name, inode: number, kind: kind.entry_type() };
        if !was_indexed && !may_be_indexed {
            directory::insert_linear(&mut open, &entry)?;
        } else if directory::insert(&mut open, was_indexed, &hash, &entry)? && !was_indexed {
            open.inode_mut().flags |= INDEXED;
        }
        open.close()?;
        if kind == FileKind::Directory {
            self.count_subdirectory(directory, true)?;
        }
        Ok(())
    }

    /// Counts one more, or one less, `..` that leads to a directory.
    fn count_subdirectory(&mut self, directory: u32, more: bool) -> Result<()> {
        let mut inode = self.state.inode(directory)?;
        if inode.kind()? != FileKind::Directory {
            return Err(Error::corrupt(format!(
                "the directory with inode {directory} lay in one of those below it"
            )));
        }
        inode.links = match (inode.links, more) {
            // With too many to count, a directory has 1 for ever.
            (0 | 1, _) => 1,
            (links, true) if links >= MAX_LINKS => {
                if !self.state.superblock.features.has(DIR_NLINK) {
                    return Err(Error::unsupported(format!(
                        "a directory has {MAX_LINKS} directories in it, the most without dir_nlink"
                    ))
                    .remedy("make the file system with the feature dir_nlink"));
                }
                1
            }
            (links, true) => links + 1,
            (links, false) => (links - 1).max(2),
        };
        self.state.put_inode(directory, &inode)
    }
}

#[cfg(test)]
mod tests;
