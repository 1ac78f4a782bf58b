//! A new file system: where its tables are, and what is in it at first.
//!
//! # Layout
//! Groups of 32,768 blocks of 4 KiB; the bitmaps and tables of 16 groups lie together in the first of them
//! (`flex_bg`), so that metadata which is read together is near, and the content of a file is in one piece wherever
//! possible. An inode of 256 bytes for each 16 KiB of the disk. Superblock and descriptors have no copies
//! (`sparse_super2` without backup groups): a layer would have to write them again and again, and a damaged image is
//! fetched again rather than repaired. No journal, and no checksums of metadata but those of the descriptors, which
//! make it possible that most groups have no bitmap yet (`uninit_bg`): the image's own hash tree protects every byte.
//!
//! Nothing depends on the time or on chance: times are 0, the ids are given.

use crate::BLOCK_SIZE;
use crate::allocation::Allocator;
use crate::content;
use crate::features::{
    BITS_64, DIR_INDEX, DIR_NLINK, EXT_ATTR, EXTENT, EXTRA_ISIZE, FILETYPE, FLEX_BG, Feature, Features,
    HUGE_FILE, LARGE_FILE, SPARSE_SUPER, SPARSE_SUPER2, UNINIT_BG,
};
use crate::file_system::{FileSystem, InodeAttributes};
use crate::geometry::Geometry;
use crate::group::{BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT, INODE_ZEROED};
use crate::hash::HALF_MD4;
use crate::inode::Inode;
use crate::state::{INODE_SIZE, ROOT, State};
use crate::superblock::Superblock;
use headstart_block::{Error, Result, exact};
use headstart_file_blocks::{BlockSink, ChangedBlocks, FileKind};

/// The features of a new file system.
const FEATURES: [Feature; 13] = [
    EXT_ATTR,
    DIR_INDEX,
    SPARSE_SUPER2,
    FILETYPE,
    EXTENT,
    BITS_64,
    FLEX_BG,
    SPARSE_SUPER,
    LARGE_FILE,
    HUGE_FILE,
    UNINIT_BG,
    DIR_NLINK,
    EXTRA_ISIZE,
];
/// Bytes of an inode behind the first 128 that have fields: nanoseconds, and the time of creation.
const EXTRA_BYTES: u16 = 32;
/// Blocks of a group.
const GROUP: u64 = 32_768;
/// Groups whose tables lie together, as a power of 2.
const LOG_FLEX: u8 = 4;
/// Bytes of the disk for each inode.
const BYTES_PER_INODE: u64 = 16 << 10;
/// The smallest file system, in bytes: smaller ones have hardly a block for files.
const SMALLEST: u64 = 1 << 20;
/// The largest file system, in bytes: 16 TiB. Larger ones need descriptors in several places.
const LARGEST: u64 = 16 << 40;
/// Inodes that the format reserves; the next one is the first for files.
const RESERVED_INODES: u32 = 10;

/// The fields of a new file system that its maker chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFileSystem {
    /// Size of the disk in bytes, 1 MiB to 16 TiB. An end that is too small for a group of blocks is not used.
    pub size: u64,
    /// The file system's id.
    pub uuid: [u8; 16],
    /// Seed of the hashes of names in large directories.
    pub hash_seed: [u32; 4],
    /// Attributes of the root directory.
    pub root: InodeAttributes,
}

impl NewFileSystem {
    /// Makes the file system, empty but for its root directory. The content of files goes to `sink` as they are
    /// written, and everything else at the end ([`FileSystem::finish`]).
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the size is out of range.
    pub fn make<S: BlockSink>(&self, sink: S) -> Result<FileSystem<S>> {
        let superblock = self.superblock()?;
        let geometry = Geometry::new(&superblock);
        let mut blocks = ChangedBlocks::new(None);
        let allocator = Allocator::make(geometry, descriptors(&geometry), RESERVED_INODES, &mut blocks)?;
        let state = State { superblock, geometry, blocks, allocator };
        let mut made = FileSystem { state, sink };
        made.make_root(&self.root)?;
        Ok(made)
    }

    fn superblock(&self) -> Result<Superblock> {
        if !(SMALLEST..=LARGEST).contains(&self.size) {
            return Err(Error::invalid(format!("a file system of {} bytes is not possible", self.size))
                .remedy("choose a size from 1 MiB to 16 TiB"));
        }
        let mut blocks = self.size / BLOCK_SIZE as u64;
        let per_group = (blocks.min(GROUP) * BLOCK_SIZE as u64 / BYTES_PER_INODE).next_multiple_of(16);
        let table = per_group * INODE_SIZE as u64 / BLOCK_SIZE as u64;
        // The first of the groups whose tables lie together must have room for them all; else they are left out.
        let flex = GROUP << LOG_FLEX;
        let rest = blocks % flex;
        let tables = rest.div_ceil(GROUP) * (table + 2) + 1 + blocks.div_ceil(GROUP).div_ceil(64);
        if blocks > flex && rest.min(GROUP) < tables + 64 {
            blocks -= rest;
        }
        let inodes = blocks.div_ceil(GROUP) * per_group;
        Ok(Superblock {
            blocks_count: blocks,
            inodes_count: u32::try_from(inodes)
                .map_err(|_| Error::invalid("the file system has too many inodes"))?,
            inodes_per_group: exact(per_group, "at most 8192"),
            features: FEATURES.into_iter().fold(Features::default(), Features::with),
            uuid: self.uuid,
            hash_seed: self.hash_seed,
            default_hash: HALF_MD4,
            descriptor_size: 64,
            log_groups_per_flex: LOG_FLEX,
            min_extra_isize: EXTRA_BYTES,
            want_extra_isize: EXTRA_BYTES,
            ..Superblock::blank()
        })
    }
}

/// The descriptors of a new file system: all groups are unused, with their tables at the beginning of each 16 groups.
fn descriptors(geometry: &Geometry) -> Vec<GroupDescriptor> {
    let groups = geometry.groups();
    let flex = 1 << LOG_FLEX;
    (0..groups)
        .map(|group| {
            let first = group - group % flex;
            let (index, count) = (u64::from(group - first), u64::from((groups - first).min(flex)));
            let base = geometry.first_block(first) + geometry.descriptor_blocks_at(first);
            let table = u64::from(geometry.inode_table_blocks());
            GroupDescriptor {
                block_bitmap: base + index,
                inode_bitmap: base + count + index,
                inode_table: base + 2 * count + index * table,
                free_blocks: geometry.blocks_in_group(group),
                free_inodes: geometry.inodes_per_group(),
                used_directories: 0,
                unused_inodes: geometry.inodes_per_group(),
                flags: BLOCK_UNINIT | INODE_UNINIT | INODE_ZEROED,
            }
        })
        .collect()
}

impl<S: BlockSink> FileSystem<S> {
    fn make_root(&mut self, attributes: &InodeAttributes) -> Result<()> {
        let mut inode = Inode::new(FileKind::Directory, self.state.superblock.want_extra_isize);
        inode.links = 2;
        content::fill_directory(&mut self.state, &mut inode, ROOT, ROOT)?;
        self.state.put_inode(ROOT, &inode)?;
        self.set_attributes(self.root(), attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{Discard, plain_attributes};
    use proptest::prelude::*;
    use std::ops::Range;

    fn new(size: u64) -> NewFileSystem {
        NewFileSystem { size, uuid: [1; 16], hash_seed: [2; 4], root: plain_attributes(0o755) }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn tables_lie_on_the_disk_and_do_not_overlap(
            size in prop_oneof![SMALLEST..SMALLEST << 5, SMALLEST << 5..1 << 34, 1_u64 << 34..1 << 41],
        ) {
            let superblock = new(size).superblock().unwrap();
            let geometry = Geometry::new(&superblock);
            prop_assert!(geometry.blocks() * BLOCK_SIZE as u64 <= size);
            let table = u64::from(geometry.inode_table_blocks());
            let mut places: Vec<Range<u64>> = std::iter::once(0..geometry.descriptor_blocks_at(0)).collect();
            for group in descriptors(&geometry) {
                places.push(group.block_bitmap..group.block_bitmap + 1);
                places.push(group.inode_bitmap..group.inode_bitmap + 1);
                places.push(group.inode_table..group.inode_table + table);
            }
            places.sort_by_key(|place| place.start);
            prop_assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(places.last().unwrap().end < geometry.blocks());
            let inodes = u64::from(superblock.inodes_count);
            prop_assert!((inodes + 1) * BYTES_PER_INODE > geometry.blocks() * BLOCK_SIZE as u64);
        }
    }

    #[test]
    fn the_largest_file_system_is_made_and_others_are_refused() {
        for size in [SMALLEST, LARGEST] {
            let fs = new(size).make(Discard).unwrap();
            assert_eq!(fs.state.geometry.blocks() * BLOCK_SIZE as u64, size);
        }
        for size in [0, SMALLEST - 1, LARGEST + 1, u64::MAX] {
            assert!(new(size).make(Discard).is_err());
        }
    }
}
