//! The descriptor of a group: where its bitmaps and its inode table are, and how much of it is free.
//!
//! 32 bytes, or 64 with the feature `64bit`; little-endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0, 32 | 4, 4 | block of the bitmap of blocks, low and high |
//! | 4, 36 | 4, 4 | block of the bitmap of inodes |
//! | 8, 40 | 4, 4 | first block of the table of inodes |
//! | 12, 44 | 2, 2 | free blocks |
//! | 14, 46 | 2, 2 | free inodes |
//! | 16, 48 | 2, 2 | inodes that are directories |
//! | 18 | 2 | flags: 1 inodes never used, 2 blocks never used, 4 the table of inodes is zeroed |
//! | 20, 52 | 4, 4 | bitmap of snapshots, not used |
//! | 24, 26, 56, 58 | 2 each | checksums of the bitmaps, with `metadata_csum` only |
//! | 28, 50 | 2, 2 | inodes at the end of the table that were never used |
//! | 30 | 2 | checksum |
//! | 60 | 4 | reserved |
//!
//! With `uninit_bg`, the checksum is the CRC-16, started at 0xFFFF, of the file system's UUID, of the group's number
//! in 4 bytes, and of the descriptor without the checksum. Otherwise it is not used, and neither are the flags.

use crate::crc16::crc16;
use crate::features::UNINIT_BG;
use crate::geometry::Geometry;
use crate::little_endian::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::superblock::Superblock;
use headstart_block::{Error, Result};

/// Flag: no inode of the group was ever used, and its bitmap of inodes need not exist.
pub(crate) const INODE_UNINIT: u16 = 1;
/// Flag: no block of the group but those of its tables was ever used, and its bitmap of blocks need not exist.
pub(crate) const BLOCK_UNINIT: u16 = 2;
/// Flag: the inodes that were never used are zeros.
pub(crate) const INODE_ZEROED: u16 = 4;

/// Byte of the checksum.
const CHECKSUM: usize = 30;
/// Bytes of a descriptor without the feature `64bit`.
const SHORT: usize = 32;

/// The means of computing the checksums of one file system's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorChecksum {
    /// The checksum of the UUID; `None` if descriptors have no checksums.
    start: Option<u16>,
}

impl DescriptorChecksum {
    /// The checksums of the file system with this superblock.
    pub(crate) fn new(superblock: &Superblock) -> Self {
        Self { start: superblock.features.has(UNINIT_BG).then(|| crc16(u16::MAX, &superblock.uuid)) }
    }

    /// The checksum of the descriptor of `group`, of 32 or 64 bytes; `None` if descriptors have none.
    fn of(self, group: u32, bytes: &[u8]) -> Option<u16> {
        let before = crc16(crc16(self.start?, &group.to_le_bytes()), &bytes[..CHECKSUM]);
        Some(crc16(before, &bytes[CHECKSUM + 2..]))
    }
}

/// The descriptor of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupDescriptor {
    /// Block that has the bitmap of blocks.
    pub(crate) block_bitmap: u64,
    /// Block that has the bitmap of inodes.
    pub(crate) inode_bitmap: u64,
    /// First block of the table of inodes.
    pub(crate) inode_table: u64,
    /// Number of free blocks.
    pub(crate) free_blocks: u32,
    /// Number of free inodes.
    pub(crate) free_inodes: u32,
    /// Number of inodes that are directories.
    pub(crate) used_directories: u32,
    /// Number of inodes at the end of the table that were never used.
    pub(crate) unused_inodes: u32,
    /// [`INODE_UNINIT`], [`BLOCK_UNINIT`], [`INODE_ZEROED`] and bits that have no meaning here. They count with the
    /// feature `uninit_bg` only, and are 0 without it.
    pub(crate) flags: u16,
}

impl GroupDescriptor {
    /// Decodes the descriptor of `group`, 32 or 64 bytes, verifies its checksum, and checks it against the geometry.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the checksum is wrong, a bitmap or the table of inodes is where it
    /// cannot be, or a number is larger than the group.
    pub(crate) fn decode(
        bytes: &[u8],
        group: u32,
        checksum: DescriptorChecksum,
        geometry: &Geometry,
    ) -> Result<Self> {
        if checksum.of(group, bytes).is_some_and(|right| right != u16_at(bytes, CHECKSUM)) {
            return Err(Error::corrupt(format!("the descriptor of group {group} has a wrong checksum")));
        }
        let is_long = bytes.len() > SHORT;
        let block =
            |low, high| if is_long { u64_at(bytes, low, high) } else { u64::from(u32_at(bytes, low)) };
        let count = |low, high| {
            let high = if is_long { u32::from(u16_at(bytes, high)) } else { 0 };
            u32::from(u16_at(bytes, low)) | high << 16
        };
        let descriptor = Self {
            block_bitmap: block(0, 32),
            inode_bitmap: block(4, 36),
            inode_table: block(8, 40),
            free_blocks: count(12, 44),
            free_inodes: count(14, 46),
            used_directories: count(16, 48),
            unused_inodes: count(28, 50),
            flags: if checksum.start.is_some() { u16_at(bytes, 18) } else { 0 },
        };
        descriptor.check(group, geometry)?;
        Ok(descriptor)
    }

    /// Checks the descriptor against the geometry.
    fn check(&self, group: u32, geometry: &Geometry) -> Result<()> {
        let table = u64::from(geometry.inode_table_blocks());
        for (name, first, blocks) in [
            ("bitmap of blocks", self.block_bitmap, 1),
            ("bitmap of inodes", self.inode_bitmap, 1),
            ("table of inodes", self.inode_table, table),
        ] {
            let end = first.checked_add(blocks);
            if first <= u64::from(geometry.gdt_blocks()) || end.is_none_or(|end| end > geometry.blocks()) {
                let cause = format!("the {name} of group {group} is at block {first}, where it cannot be");
                return Err(Error::corrupt(cause));
            }
        }
        self.check_counts(group, geometry.blocks_in_group(group), geometry.inodes_per_group())
    }

    fn check_counts(&self, group: u32, blocks: u32, inodes: u32) -> Result<()> {
        for (name, number, most) in [
            ("free blocks", self.free_blocks, blocks),
            ("free inodes", self.free_inodes, inodes),
            ("directories", self.used_directories, inodes),
            ("inodes that were never used", self.unused_inodes, inodes),
        ] {
            if number > most {
                return Err(Error::corrupt(format!("group {group} has {number} {name}, of {most}")));
            }
        }
        Ok(())
    }

    /// Stores the descriptor of `group` in `bytes`, which has 32 or 64 bytes. Fields that are not used keep the bytes
    /// that were there.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a number is larger than the group: the file system counted wrong
    /// before it was changed.
    pub(crate) fn encode_into(
        &self,
        bytes: &mut [u8],
        group: u32,
        checksum: DescriptorChecksum,
        geometry: &Geometry,
    ) -> Result<()> {
        self.check(group, geometry)?;
        for (low, high, block) in
            [(0, 32, self.block_bitmap), (4, 36, self.inode_bitmap), (8, 40, self.inode_table)]
        {
            if bytes.len() > SHORT {
                put_u64(bytes, low, high, block);
            } else {
                let block =
                    u32::try_from(block).map_err(|_| Error::corrupt("a table lies beyond block 2^32"))?;
                put_u32(bytes, low, block);
            }
        }
        for (low, high, count) in [
            (12, 44, self.free_blocks),
            (14, 46, self.free_inodes),
            (16, 48, self.used_directories),
            (28, 50, self.unused_inodes),
        ] {
            let count = count.to_le_bytes();
            bytes[low..low + 2].copy_from_slice(&count[..2]);
            if bytes.len() > SHORT {
                bytes[high..high + 2].copy_from_slice(&count[2..]);
            }
        }
        if checksum.start.is_some() {
            put_u16(bytes, 18, self.flags);
        }
        if let Some(checksum) = checksum.of(group, bytes) {
            put_u16(bytes, CHECKSUM, checksum);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
