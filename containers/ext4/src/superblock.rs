//! The superblock: 1024 bytes at byte 1024 of the disk, and at byte 0 of the blocks that have its backups.
//!
//! All numbers are little-endian. The fields that are read or written here:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | number of inodes |
//! | 4, 336 | 4, 4 | number of blocks, low and high |
//! | 8, 340 | 4, 4 | blocks that only root may take, low and high |
//! | 12, 344 | 4, 4 | free blocks, low and high |
//! | 16 | 4 | free inodes |
//! | 20 | 4 | block with this superblock: 0, because it is not alone in its block |
//! | 24, 28 | 4 | size of a block, of a cluster: 1024 shifted left by this |
//! | 32, 36 | 4 | blocks, clusters in a group |
//! | 40 | 4 | inodes in a group |
//! | 44, 629 | 4, 1 | time of the last mount, seconds since 1970, low and high |
//! | 48, 628 | 4, 1 | time of the last write |
//! | 54 | 2 | mounts until the next check: -1 is never |
//! | 56 | 2 | 0xEF53 |
//! | 58 | 2 | state: 1 clean, 2 with errors, 4 with orphans |
//! | 60 | 2 | behaviour on errors: 1 goes on |
//! | 64, 631 | 4, 1 | time of the last check |
//! | 72 | 4 | operating system of the writer: 0 Linux |
//! | 76 | 4 | revision: 1 |
//! | 84 | 4 | first inode that is not reserved |
//! | 88 | 2 | bytes of an inode |
//! | 90 | 2 | group that this copy is in |
//! | 92, 96, 100 | 4 | features: compat, incompat, ro compat |
//! | 104 | 16 | UUID |
//! | 206 | 2 | blocks reserved behind the descriptors |
//! | 232 | 4 | first of the inodes that were deleted while they were open |
//! | 236 | 16 | seed of directory hashes |
//! | 252 | 1 | algorithm of directory hashes |
//! | 254 | 2 | bytes of a group descriptor, with `64bit` |
//! | 264, 630 | 4, 1 | time of creation |
//! | 348, 350 | 2 | bytes behind the first 128 that inodes have at least, that new ones have |
//! | 352 | 4 | flags: 1 hashes of signed bytes, 2 of unsigned ones |
//! | 372 | 1 | binary logarithm of the groups whose tables lie together |
//! | 588 | 8 | groups with backups, with `sparse_super2` |
//!
//! A superblock that was decoded keeps the other bytes as they were.

use crate::BLOCK_SIZE;
use crate::features::{BITS_64, Features};
use crate::hash::HashSettings;
use crate::little_endian::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use headstart_block::{Error, Result, exact};

/// Bytes of a superblock.
pub(crate) const SUPERBLOCK_SIZE: usize = 1024;
/// Byte of the disk at which the superblock begins.
pub(crate) const SUPERBLOCK_OFFSET: usize = 1024;
/// Bytes of an inode.
pub(crate) const INODE_SIZE: u16 = 256;
/// Blocks of a group: as many as one block of bitmap has bits.
pub(crate) const BLOCKS_PER_GROUP: u32 = 32_768;
/// The most groups: 512 TiB. The descriptors of all of them are in memory.
const MAX_GROUPS: u64 = 1 << 22;
/// Inodes in a block of a table.
pub(crate) const INODES_PER_BLOCK: u32 = 16;
/// First inode that is not reserved, at least.
const FIRST_INODE: u32 = 11;
/// Bytes of an inode in the first version of the format.
const OLD_INODE_SIZE: u16 = 128;
/// Number of a superblock's kind.
const MAGIC: u16 = 0xef53;
/// Binary logarithm of the size of a block in KiB.
const LOG_BLOCK_SIZE: u32 = 2;
/// Flag: hashes of directories take bytes for signed.
const SIGNED_HASH: u32 = 1;
/// Flag: hashes of directories take bytes for unsigned.
const UNSIGNED_HASH: u32 = 2;
/// State of a file system that was unmounted without errors.
const CLEAN: u16 = 1;
/// State: errors were found.
const WITH_ERRORS: u16 = 2;
/// The last of the algorithms of directory hashes: legacy, half MD4, TEA.
const MAX_HASH: u8 = 2;
/// A time in a superblock: seconds since 1970, with 40 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SuperblockTime(u64);

impl SuperblockTime {
    /// The time `seconds` after the beginning of 1970; `None` for 2^40 and more, in the year 36812.
    #[cfg(test)]
    pub(crate) fn new(seconds: u64) -> Option<Self> {
        (seconds < 1 << 40).then_some(Self(seconds))
    }

    fn decode(raw: &[u8; SUPERBLOCK_SIZE], low: usize, high: usize) -> Self {
        Self(u64::from(u32_at(raw, low)) | u64::from(raw[high]) << 32)
    }

    fn encode(self, raw: &mut [u8; SUPERBLOCK_SIZE], low: usize, high: usize) {
        let bytes = self.0.to_le_bytes();
        raw[low..low + 4].copy_from_slice(&bytes[..4]);
        raw[high] = bytes[4];
    }
}

/// A superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Number of inodes, at least 1; those of all groups.
    pub(crate) inodes_count: u32,
    /// Number of blocks, at least 1.
    pub(crate) blocks_count: u64,
    /// Blocks that only root may take.
    pub(crate) reserved_blocks: u64,
    /// Number of free blocks.
    pub(crate) free_blocks: u64,
    /// Number of free inodes.
    pub(crate) free_inodes: u32,
    /// Blocks in a group: 32,768.
    pub(crate) blocks_per_group: u32,
    /// Inodes in a group: a multiple of 16 up to 32,768.
    pub(crate) inodes_per_group: u32,
    /// Bytes of an inode: 256.
    pub(crate) inode_size: u16,
    /// Number of the first inode that is not reserved, at least 11.
    pub(crate) first_inode: u32,
    /// Group that this copy of the superblock is in.
    pub(crate) group: u16,
    /// Features of the file system.
    pub(crate) features: Features,
    /// Identity of the file system.
    pub(crate) uuid: [u8; 16],
    /// Seed of directory hashes; zeros stand for a fixed one.
    pub(crate) hash_seed: [u32; 4],
    /// Algorithm of directory hashes: 0 legacy, 1 half MD4, 2 TEA.
    pub(crate) default_hash: u8,
    /// `true` if hashes of directories take bytes for unsigned.
    pub(crate) unsigned_hash: bool,
    /// Bytes of a group descriptor: 32, or 64 with the feature `64bit`.
    pub(crate) descriptor_size: u16,
    /// Blocks that are reserved behind the descriptors, for more of them: up to 1024.
    pub(crate) reserved_gdt_blocks: u16,
    /// Binary logarithm of the number of groups whose tables lie together, less than 32.
    pub(crate) log_groups_per_flex: u8,
    /// Groups that have backups with the feature `sparse_super2`; 0 is none.
    pub(crate) backup_groups: [u32; 2],
    /// Bytes behind the first 128 that every inode uses at least: a multiple of 4 up to 128.
    pub(crate) min_extra_isize: u16,
    /// Bytes behind the first 128 that new inodes use: a multiple of 4 up to 128.
    pub(crate) want_extra_isize: u16,
    /// Time of creation.
    pub(crate) created: SuperblockTime,
    /// Time of the last write.
    pub(crate) written: SuperblockTime,
    /// Time of the last mount; 0 if there was none.
    pub(crate) mounted: SuperblockTime,
    /// Time of the last check.
    pub(crate) checked: SuperblockTime,
    /// The bytes that it was decoded from, for those of other fields.
    pub(crate) raw: Box<[u8; SUPERBLOCK_SIZE]>,
}

impl Superblock {
    /// A superblock without blocks, inodes, features and times: clean, of revision 1, never to be checked for its age,
    /// with hashes of signed bytes.
    pub(crate) fn blank() -> Self {
        let mut raw = Box::new([0; SUPERBLOCK_SIZE]);
        put_u32(&mut *raw, 24, LOG_BLOCK_SIZE);
        put_u32(&mut *raw, 28, LOG_BLOCK_SIZE);
        put_u16(&mut *raw, 54, u16::MAX);
        put_u16(&mut *raw, 56, MAGIC);
        put_u16(&mut *raw, 58, CLEAN);
        put_u16(&mut *raw, 60, 1);
        put_u32(&mut *raw, 76, 1);
        put_u32(&mut *raw, 352, SIGNED_HASH);
        Self {
            blocks_per_group: BLOCKS_PER_GROUP,
            inode_size: INODE_SIZE,
            first_inode: FIRST_INODE,
            ..Self::of_fields(raw)
        }
    }

    /// Decodes a superblock, and checks that its file system can be changed.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if it has another size of blocks or inodes, features that are not
    /// supported, was not unmounted or has errors; [`headstart_block::ErrorKind::Corrupt`] if it is none or its numbers
    /// contradict each other.
    pub(crate) fn decode(raw: &[u8; SUPERBLOCK_SIZE]) -> Result<Self> {
        if u16_at(raw, 56) != MAGIC {
            return Err(Error::corrupt(
                "has no ext4 file system: the magic number of its superblock is wrong",
            ));
        }
        check_kind(raw)?;
        let superblock = Self::of_fields(Box::new(*raw));
        superblock.features.check_supported()?;
        check_state(raw)?;
        superblock.check_groups()?;
        superblock.check_inodes()?;
        superblock.check_options()?;
        Ok(superblock)
    }

    fn of_fields(raw: Box<[u8; SUPERBLOCK_SIZE]>) -> Self {
        let features = Features {
            compat: u32_at(&*raw, 92),
            incompat: u32_at(&*raw, 96),
            ro_compat: u32_at(&*raw, 100),
        };
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw[104..120]);
        Self {
            inodes_count: u32_at(&*raw, 0),
            blocks_count: with_high(&raw, features, 4, 336),
            reserved_blocks: with_high(&raw, features, 8, 340),
            free_blocks: with_high(&raw, features, 12, 344),
            free_inodes: u32_at(&*raw, 16),
            blocks_per_group: u32_at(&*raw, 32),
            inodes_per_group: u32_at(&*raw, 40),
            inode_size: u16_at(&*raw, 88),
            first_inode: u32_at(&*raw, 84),
            group: u16_at(&*raw, 90),
            features,
            uuid,
            hash_seed: [236, 240, 244, 248].map(|at| u32_at(&*raw, at)),
            default_hash: raw[252],
            unsigned_hash: u32_at(&*raw, 352) & UNSIGNED_HASH != 0,
            descriptor_size: if features.has(BITS_64) { u16_at(&*raw, 254) } else { 32 },
            reserved_gdt_blocks: u16_at(&*raw, 206),
            log_groups_per_flex: raw[372],
            backup_groups: [588, 592].map(|at| u32_at(&*raw, at)),
            min_extra_isize: u16_at(&*raw, 348),
            want_extra_isize: u16_at(&*raw, 350),
            created: SuperblockTime::decode(&raw, 264, 630),
            written: SuperblockTime::decode(&raw, 48, 628),
            mounted: SuperblockTime::decode(&raw, 44, 629),
            checked: SuperblockTime::decode(&raw, 64, 631),
            raw,
        }
    }

    /// Encodes the superblock.
    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = *self.raw;
        put_u32(&mut raw, 0, self.inodes_count);
        for (low, high, number) in
            [(4, 336, self.blocks_count), (8, 340, self.reserved_blocks), (12, 344, self.free_blocks)]
        {
            if self.features.has(BITS_64) {
                put_u64(&mut raw, low, high, number);
            } else {
                put_u32(
                    &mut raw,
                    low,
                    exact(number, "a file system without `64bit` has less than 2^32 blocks"),
                );
            }
        }
        put_u32(&mut raw, 16, self.free_inodes);
        put_u32(&mut raw, 32, self.blocks_per_group);
        put_u32(&mut raw, 36, self.blocks_per_group);
        put_u32(&mut raw, 40, self.inodes_per_group);
        put_u16(&mut raw, 88, self.inode_size);
        put_u32(&mut raw, 84, self.first_inode);
        put_u16(&mut raw, 90, self.group);
        put_u32(&mut raw, 92, self.features.compat);
        put_u32(&mut raw, 96, self.features.incompat);
        put_u32(&mut raw, 100, self.features.ro_compat);
        raw[104..120].copy_from_slice(&self.uuid);
        for (at, part) in [236, 240, 244, 248].into_iter().zip(self.hash_seed) {
            put_u32(&mut raw, at, part);
        }
        raw[252] = self.default_hash;
        let flags = u32_at(&raw, 352);
        if (flags & UNSIGNED_HASH != 0) != self.unsigned_hash {
            let kind = if self.unsigned_hash { UNSIGNED_HASH } else { SIGNED_HASH };
            put_u32(&mut raw, 352, flags & !(SIGNED_HASH | UNSIGNED_HASH) | kind);
        }
        // Without `64bit`, some programs leave a number here that means nothing.
        if self.features.has(BITS_64) {
            put_u16(&mut raw, 254, self.descriptor_size);
        }
        put_u16(&mut raw, 206, self.reserved_gdt_blocks);
        raw[372] = self.log_groups_per_flex;
        put_u32(&mut raw, 588, self.backup_groups[0]);
        put_u32(&mut raw, 592, self.backup_groups[1]);
        put_u16(&mut raw, 348, self.min_extra_isize);
        put_u16(&mut raw, 350, self.want_extra_isize);
        self.created.encode(&mut raw, 264, 630);
        self.written.encode(&mut raw, 48, 628);
        self.mounted.encode(&mut raw, 44, 629);
        self.checked.encode(&mut raw, 64, 631);
        raw
    }

    /// Number of groups, the last of which may be shorter.
    pub(crate) fn groups(&self) -> u32 {
        exact(
            self.blocks_count.div_ceil(u64::from(self.blocks_per_group.max(1))),
            "a superblock has at most 2^22 groups",
        )
    }

    /// The settings of directory hashes.
    pub(crate) fn hash_settings(&self) -> HashSettings {
        HashSettings { version: self.default_hash, seed: self.hash_seed, unsigned: self.unsigned_hash }
    }

    fn check_groups(&self) -> Result<()> {
        if self.blocks_per_group != BLOCKS_PER_GROUP {
            let cause = format!(
                "its groups have {} blocks, and only {BLOCKS_PER_GROUP} are supported",
                self.blocks_per_group
            );
            return Err(Error::unsupported(cause));
        }
        if u32_at(&*self.raw, 36) != self.blocks_per_group || u32_at(&*self.raw, 28) != LOG_BLOCK_SIZE {
            return Err(contradiction("has clusters without the feature bigalloc"));
        }
        if self.blocks_count == 0 || u32_at(&*self.raw, 20) != 0 {
            return Err(contradiction("has no blocks, or does not begin at block 0"));
        }
        if self.blocks_count.div_ceil(u64::from(BLOCKS_PER_GROUP)) > MAX_GROUPS {
            let cause = format!("its file system has {} blocks, more than 512 TiB", self.blocks_count);
            return Err(Error::unsupported(cause));
        }
        if self.descriptor_size != if self.features.has(BITS_64) { 64 } else { 32 } {
            return Err(Error::unsupported(format!(
                "its group descriptors have {} bytes",
                self.descriptor_size
            )));
        }
        if self.free_blocks > self.blocks_count || self.reserved_blocks > self.blocks_count {
            return Err(contradiction("has more blocks free or reserved than there are"));
        }
        let groups = self.groups();
        let descriptors = u64::from(groups) * u64::from(self.descriptor_size);
        let overhead = 1 + descriptors.div_ceil(BLOCK_SIZE as u64) + u64::from(self.reserved_gdt_blocks);
        if overhead >= self.blocks_count.min(u64::from(BLOCKS_PER_GROUP)) {
            return Err(contradiction("has more blocks of group descriptors than a group holds"));
        }
        if self.backup_groups.iter().any(|&group| group != 0 && group >= groups) {
            return Err(contradiction("has a backup in a group that does not exist"));
        }
        Ok(())
    }

    fn check_inodes(&self) -> Result<()> {
        if self.inode_size != INODE_SIZE {
            let cause =
                format!("its inodes have {} bytes, and only {INODE_SIZE} are supported", self.inode_size);
            return Err(Error::unsupported(cause).remedy("make it with mke2fs -I 256"));
        }
        let per_group = self.inodes_per_group;
        if per_group == 0 || !per_group.is_multiple_of(INODES_PER_BLOCK) || per_group > BLOCKS_PER_GROUP {
            return Err(contradiction(&format!("has {per_group} inodes in a group")));
        }
        if u64::from(self.inodes_count) != u64::from(self.groups()) * u64::from(per_group) {
            return Err(contradiction(&format!(
                "has {} inodes, not {per_group} in each group",
                self.inodes_count
            )));
        }
        if self.free_inodes > self.inodes_count {
            return Err(contradiction("has more inodes free than there are"));
        }
        if !(FIRST_INODE..=self.inodes_count).contains(&self.first_inode) {
            return Err(contradiction(&format!("has inode {} as the first for files", self.first_inode)));
        }
        for extra in [self.min_extra_isize, self.want_extra_isize] {
            if extra > INODE_SIZE - OLD_INODE_SIZE || !extra.is_multiple_of(4) {
                return Err(contradiction(&format!("has {extra} bytes behind the first 128 of an inode")));
            }
        }
        Ok(())
    }

    fn check_options(&self) -> Result<()> {
        if usize::from(self.reserved_gdt_blocks) > BLOCK_SIZE / 4 {
            return Err(contradiction(&format!(
                "reserves {} blocks for descriptors",
                self.reserved_gdt_blocks
            )));
        }
        if self.log_groups_per_flex > 31 {
            return Err(contradiction(&format!("joins 2^{} groups", self.log_groups_per_flex)));
        }
        if self.default_hash > MAX_HASH {
            let cause =
                format!("its directories have hashes of algorithm {}, which is not known", self.default_hash);
            return Err(Error::unsupported(cause));
        }
        if u32_at(&*self.raw, 352) & (SIGNED_HASH | UNSIGNED_HASH) == SIGNED_HASH | UNSIGNED_HASH {
            return Err(contradiction("hashes names both as signed and as unsigned bytes"));
        }
        Ok(())
    }
}

/// A number whose upper 32 bits count with the feature `64bit` only.
fn with_high(raw: &[u8; SUPERBLOCK_SIZE], features: Features, low: usize, high: usize) -> u64 {
    if features.has(BITS_64) { u64_at(raw, low, high) } else { u64::from(u32_at(raw, low)) }
}

fn contradiction(what: &str) -> Error {
    Error::corrupt(format!("its superblock {what}"))
}

/// Checks the revision of the format, the size of blocks and the writer's operating system.
fn check_kind(raw: &[u8; SUPERBLOCK_SIZE]) -> Result<()> {
    let (revision, log_size, system) = (u32_at(raw, 76), u32_at(raw, 24), u32_at(raw, 72));
    if revision != 1 {
        return Err(Error::unsupported(format!(
            "its file system has revision {revision} of the format, not 1"
        )));
    }
    if log_size != LOG_BLOCK_SIZE {
        if log_size > 6 {
            return Err(contradiction("has no possible size of blocks"));
        }
        let cause =
            format!("its blocks have {} bytes, and only {BLOCK_SIZE} are supported", 1024 << log_size);
        return Err(Error::unsupported(cause).remedy("make it with mke2fs -b 4096"));
    }
    if system != 0 {
        let name = match system {
            1 => "GNU Hurd".to_owned(),
            2 => "Masix".to_owned(),
            3 => "FreeBSD".to_owned(),
            4 => "Lites".to_owned(),
            other => format!("operating system {other}"),
        };
        return Err(Error::unsupported(format!("its file system was made for {name}, not for Linux")));
    }
    Ok(())
}

/// Checks that nothing has to be repaired before the file system is changed.
fn check_state(raw: &[u8; SUPERBLOCK_SIZE]) -> Result<()> {
    let (state, orphan) = (u16_at(raw, 58), u32_at(raw, 232));
    let cause = if state & WITH_ERRORS != 0 {
        "its file system has errors"
    } else if state != CLEAN || orphan != 0 {
        "its file system was not unmounted"
    } else {
        return Ok(());
    };
    Err(Error::unsupported(cause).remedy("repair it with e2fsck -f"))
}

#[cfg(test)]
mod tests;
