//! The places of groups, superblocks, descriptors and inodes, as they follow from the superblock.
//!
//! The disk is divided into groups of 32,768 blocks; the last one may be shorter. Some groups begin with a copy of
//! the superblock (a block), the descriptors of all groups, and blocks that are reserved for more descriptors: group
//! 0, and those that [`Geometry::has_superblock`] names. Bitmaps and tables of inodes lie where the descriptors say.

use crate::BLOCK_SIZE;
use crate::features::{SPARSE_SUPER, SPARSE_SUPER2};
use crate::superblock::{INODES_PER_BLOCK, Superblock};
use headstart_block::{Error, Result, exact, to_usize};

/// Groups that have a copy of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backups {
    /// All groups.
    Everywhere,
    /// Groups 0 and 1, and the powers of 3, 5 and 7: `sparse_super`.
    Powers,
    /// Group 0 and these: `sparse_super2`.
    In([u32; 2]),
}

/// The places of the parts of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    blocks: u64,
    groups: u32,
    blocks_per_group: u32,
    inodes_count: u32,
    inodes_per_group: u32,
    descriptor_size: u16,
    reserved_gdt_blocks: u16,
    backups: Backups,
}

impl Geometry {
    /// The geometry of the file system with this superblock.
    pub(crate) fn new(superblock: &Superblock) -> Self {
        let backups = if superblock.features.has(SPARSE_SUPER2) {
            Backups::In(superblock.backup_groups)
        } else if superblock.features.has(SPARSE_SUPER) {
            Backups::Powers
        } else {
            Backups::Everywhere
        };
        Self {
            blocks: superblock.blocks_count,
            groups: superblock.groups(),
            blocks_per_group: superblock.blocks_per_group,
            inodes_count: superblock.inodes_count,
            inodes_per_group: superblock.inodes_per_group,
            descriptor_size: superblock.descriptor_size,
            reserved_gdt_blocks: superblock.reserved_gdt_blocks,
            backups,
        }
    }

    /// Number of blocks of the file system.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of groups, at most 2^22.
    pub(crate) fn groups(&self) -> u32 {
        self.groups
    }

    /// Blocks of each group but the last: 32,768.
    pub(crate) fn blocks_per_group(&self) -> u32 {
        self.blocks_per_group
    }

    /// Inodes of each group, a multiple of 16.
    pub(crate) fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// Blocks of each group's table of inodes.
    pub(crate) fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(INODES_PER_BLOCK)
    }

    /// The first block of a group.
    pub(crate) fn first_block(&self, group: u32) -> u64 {
        u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Blocks of a group: fewer in the last one, 0 in groups that do not exist.
    pub(crate) fn blocks_in_group(&self, group: u32) -> u32 {
        let rest = self.blocks.saturating_sub(self.first_block(group));
        exact(rest.min(u64::from(self.blocks_per_group)), "a group has at most 32,768 blocks")
    }

    /// `true` if a group has a copy of the superblock and of the descriptors. Group 0 has the first one.
    pub(crate) fn has_superblock(&self, group: u32) -> bool {
        match self.backups {
            _ if group == 0 => true,
            Backups::In(groups) => groups.contains(&group),
            Backups::Everywhere => true,
            Backups::Powers => group == 1 || [3, 5, 7].iter().any(|&base| is_power(group, base)),
        }
    }

    /// Blocks of a copy of the descriptors.
    pub(crate) fn gdt_blocks(&self) -> u32 {
        let bytes = u64::from(self.groups) * u64::from(self.descriptor_size);
        exact(bytes.div_ceil(BLOCK_SIZE as u64), "2^22 descriptors of 64 bytes take 2^16 blocks")
    }

    /// Blocks at the beginning of a group for the superblock, the descriptors and the reserved blocks behind them; 0
    /// in a group without a copy.
    pub(crate) fn descriptor_blocks_at(&self, group: u32) -> u64 {
        if self.has_superblock(group) {
            1 + u64::from(self.gdt_blocks()) + u64::from(self.reserved_gdt_blocks)
        } else {
            0
        }
    }

    /// The block and the byte in it of a group's descriptor, in the first copy. The copy of another group is as many
    /// blocks later as that group begins.
    pub(crate) fn descriptor_place(&self, group: u32) -> (u64, usize) {
        let offset = u64::from(group) * u64::from(self.descriptor_size);
        (1 + offset / BLOCK_SIZE as u64, to_usize(offset % BLOCK_SIZE as u64))
    }

    /// The group of an inode, and its index in the group's table.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if there is no inode with this number.
    pub(crate) fn group_of_inode(&self, inode: u32) -> Result<(u32, u32)> {
        match inode.checked_sub(1) {
            Some(index) if inode <= self.inodes_count => {
                Ok((index / self.inodes_per_group, index % self.inodes_per_group))
            }
            _ => {
                let cause = format!(
                    "its file system refers to inode {inode}, and has inodes 1 to {}",
                    self.inodes_count
                );
                Err(Error::corrupt(cause))
            }
        }
    }
}

/// `true` if `number` is `base` to some power from 1 up.
fn is_power(number: u32, base: u32) -> bool {
    let mut power = u64::from(base);
    while power < u64::from(number) {
        power *= u64::from(base);
    }
    power == u64::from(number)
}

#[cfg(test)]
mod tests;
