//! Opening the file system of a parent, and writing the changed metadata at the end.

use crate::BLOCK_SIZE;
use crate::allocation::Allocator;
use crate::file_system::FileSystem;
use crate::geometry::Geometry;
use crate::group::{DescriptorChecksum, GroupDescriptor};
use crate::state::State;
use crate::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use headstart_block::{Error, ReadAt, Result, exact};
use headstart_file_blocks::{BlockReader, BlockSink, ChangedBlocks};
use std::sync::Arc;

/// The counts of a finished file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSummary {
    /// Size of the file system in bytes.
    pub size: u64,
    /// Blocks of 4 KiB that are free.
    pub free_blocks: u64,
    /// Inodes that are free.
    pub free_inodes: u32,
    /// Blocks of metadata that were written, because they differ from the parent's.
    pub metadata_blocks: u64,
}

impl<S: BlockSink> FileSystem<S> {
    /// Opens the file system on `parent`, a disk, to change it. Reads the superblock and the descriptors of groups;
    /// everything else is read when it is needed. The content of files goes to `sink`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if there is no ext4 file system, or it is damaged; `Unsupported` if it
    /// has features that cannot be changed here, by their names; errors of reading the parent.
    pub fn open(parent: Arc<dyn ReadAt>, sink: S) -> Result<Self> {
        let disk = parent.len();
        let mut blocks = ChangedBlocks::new(Some(BlockReader::new(parent)));
        let superblock = blocks.with(0, |content| {
            Superblock::decode(
                content[SUPERBLOCK_OFFSET..].first_chunk().ok_or_else(|| Error::corrupt("no superblock"))?,
            )
        })?;
        let geometry = Geometry::new(&superblock);
        if disk / (BLOCK_SIZE as u64) < geometry.blocks() {
            let cause = format!(
                "its file system has {} blocks of 4 KiB, but the disk has {disk} bytes",
                geometry.blocks()
            );
            return Err(Error::corrupt(cause));
        }
        let checksum = DescriptorChecksum::new(&superblock);
        let size = usize::from(superblock.descriptor_size);
        let mut groups = Vec::new();
        for group in 0..geometry.groups() {
            let (block, at) = geometry.descriptor_place(group);
            groups.push(blocks.with(block, |content| {
                GroupDescriptor::decode(&content[at..at + size], group, checksum, &geometry)
            })?);
        }
        let allocator = Allocator::open(geometry, groups, &mut blocks)?;
        Ok(Self { state: State { superblock, geometry, blocks, allocator }, sink })
    }

    /// Writes the metadata that differs from the parent's, in ascending order of blocks, and returns the sink.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the parent's bitmaps contradict its files; errors of the parent and
    /// of the sink.
    pub fn finish(self) -> Result<(S, FileSystemSummary)> {
        let Self { state: State { mut superblock, geometry, mut blocks, allocator, .. }, mut sink } = self;
        let groups = allocator.finish(&mut blocks)?;
        let checksum = DescriptorChecksum::new(&superblock);
        let size = usize::from(superblock.descriptor_size);
        for (number, group) in (0..).zip(&groups) {
            let (block, at) = geometry.descriptor_place(number);
            group.encode_into(&mut blocks.get_mut(block)?[at..at + size], number, checksum, &geometry)?;
        }
        // No group counts more than it has now: that was checked.
        superblock.free_blocks = groups.iter().map(|group| u64::from(group.free_blocks)).sum();
        let free_inodes: u64 = groups.iter().map(|group| u64::from(group.free_inodes)).sum();
        superblock.free_inodes = exact(free_inodes, "no more than there are inodes");
        blocks.get_mut(0)?[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE]
            .copy_from_slice(&superblock.encode());
        let metadata_blocks = blocks.write_to(&mut sink)?;
        let summary = FileSystemSummary {
            size: geometry.blocks() * BLOCK_SIZE as u64,
            free_blocks: superblock.free_blocks,
            free_inodes: superblock.free_inodes,
            metadata_blocks,
        };
        Ok((sink, summary))
    }
}

#[cfg(test)]
mod tests {
    use crate::support::{blank, plain_attributes};
    use headstart_file_blocks::NewInode;

    #[test]
    fn the_summary_counts_what_is_free() {
        let before = blank(64 << 20).finish().unwrap().1;
        assert_eq!(before.size, 64 << 20);
        let mut fs = blank(64 << 20);
        let root = fs.root();
        for (name, new) in
            [(b"a", NewInode::Directory), (b"b", NewInode::Symlink(&[b'x'; 100])), (b"c", NewInode::Fifo)]
        {
            fs.create(root, name, &new, &plain_attributes(0o755)).unwrap();
        }
        let after = fs.finish().unwrap().1;
        assert_eq!((before.free_blocks - after.free_blocks, before.free_inodes - after.free_inodes), (2, 3));
    }

    #[test]
    fn counts_that_contradict_the_bitmaps_are_errors() {
        // A file has blocks that are free.
        let mut fs = blank(64 << 20);
        fs.state.allocator.free_run(9000..9001).unwrap();
        assert!(fs.finish().is_err());
        // A group counts more inodes as free than it has.
        let mut fs = blank(64 << 20);
        fs.state.allocator.count_free_inodes(0, u32::MAX);
        assert!(fs.finish().is_err());
    }
}
