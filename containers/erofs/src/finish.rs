//! Opening the file system of a parent, or starting with an empty one, and writing the changed metadata at the end.

use crate::directory_blocks;
use crate::file_system::{ErofsAttributes, ErofsFileSystem};
use crate::inode::{Inode, InodeContent};
use crate::inode_places::InodePlaces;
use crate::state::State;
use crate::superblock::{ROOT_NID, Superblock};
use crate::table::Table;
use headstart_block::{Error, ReadAt, Result, saturating};
use headstart_file_blocks::{BLOCK_SIZE, BlockReader, BlockSink, ChangedBlocks, FileKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A file system that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewErofs {
    /// Size of the disk in bytes: 1 MiB to 16 TiB less 4 KiB, a multiple of 4096.
    pub size: u64,
    /// Id of the file system.
    pub uuid: [u8; 16],
    /// Attributes of the root directory.
    pub root: ErofsAttributes,
}

impl NewErofs {
    /// Makes the file system. Everything goes to `sink`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the size is out of range; `Unsupported` if the root's attributes
    /// cannot be stored.
    pub fn make<S: BlockSink>(&self, sink: S) -> Result<ErofsFileSystem<S>> {
        let size = self.size;
        let disk_blocks = u32::try_from(size / BLOCK_SIZE as u64).ok();
        let disk_blocks =
            disk_blocks.filter(|blocks| *blocks >= 256 && size.is_multiple_of(BLOCK_SIZE as u64));
        let disk_blocks = disk_blocks.ok_or_else(|| {
            Error::invalid(format!("an EROFS on a disk of {size} bytes is not possible"))
                .remedy("choose a multiple of 4 KiB from 1 MiB to less than 16 TiB")
        })?;
        let superblock = Superblock { inodes: 1, blocks: 1, uuid: self.uuid, has_chunked_files: false };
        let blocks = ChangedBlocks::new(None);
        let mut fs = with_state(superblock, blocks, disk_blocks, sink);
        fs.state.parent_end = 0;
        let root = Inode {
            kind: FileKind::Directory,
            mode: 0,
            uid: 0,
            gid: 0,
            size: BLOCK_SIZE as u64,
            mtime: (0, 0),
            links: 2,
            xattrs: Vec::new(),
            content: InodeContent::Blocks(0),
        };
        for name in [&b"."[..], b".."] {
            fs.state.put_name(ROOT_NID, name, ROOT_NID, root.kind.entry_type())?;
        }
        fs.state.put_inode(ROOT_NID, &root)?;
        fs.set_attributes(fs.root(), &self.root)?;
        Ok(fs)
    }
}

fn with_state<S: BlockSink>(
    superblock: Superblock,
    blocks: ChangedBlocks,
    disk_blocks: u32,
    sink: S,
) -> ErofsFileSystem<S> {
    let parent_end = superblock.blocks;
    let state = State { superblock, blocks, changes: Table::new(), parent_end, disk_blocks, made: 0 };
    ErofsFileSystem { state, sink, listed: BTreeMap::new() }
}

/// The counts of a finished file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErofsSummary {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Blocks of 4 KiB behind the last one that is used.
    pub free_blocks: u64,
    /// Blocks of metadata that were written, because they differ from the parent's.
    pub metadata_blocks: u64,
}

impl<S: BlockSink> ErofsFileSystem<S> {
    /// Opens the file system on `parent`, a disk, to change it. Reads the superblock; everything else is read when it
    /// is needed. The content of files goes to `sink`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if there is no EROFS, or it is damaged; `Unsupported` if another program
    /// made it, or it has features that are not supported, by their names; errors of reading the parent.
    pub fn open(parent: Arc<dyn ReadAt>, sink: S) -> Result<Self> {
        let disk = parent.len() / BLOCK_SIZE as u64;
        let mut blocks = ChangedBlocks::new(Some(BlockReader::new(parent)));
        let superblock = blocks.with(0, Superblock::decode)?;
        if superblock.blocks == 0 || u64::from(superblock.blocks) > disk {
            let cause = format!("its EROFS has {} blocks of 4 KiB, the disk {disk}", superblock.blocks);
            return Err(Error::corrupt(cause));
        }
        let disk_blocks = saturating(disk);
        Ok(with_state(superblock, blocks, disk_blocks, sink))
    }

    /// Writes the metadata that differs from the parent's, in ascending order of blocks, and returns the sink.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the parent is damaged; `Invalid` if the file system is full; errors
    /// of the parent and of the sink.
    pub fn finish(self) -> Result<(S, ErofsSummary)> {
        let Self { mut state, mut sink, .. } = self;
        let places = InodePlaces::find(&mut state)?;
        directory_blocks::write(&mut state, &places)?;
        places.write(&mut state)?;
        let State { superblock, mut blocks, disk_blocks, .. } = state;
        superblock.encode(blocks.get_mut(0)?);
        let metadata_blocks = blocks.write_to(&mut sink)?;
        let summary = ErofsSummary {
            size: u64::from(disk_blocks) * BLOCK_SIZE as u64,
            free_blocks: (disk_blocks - superblock.blocks).into(),
            metadata_blocks,
        };
        Ok((sink, summary))
    }
}
