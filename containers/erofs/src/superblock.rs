//! The superblock, byte by byte; the file systems that are supported.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic number |
//! | 4 | 4 | CRC-32C of the rest of block 0 from the superblock on, this field as zeros |
//! | 8 | 4 | features that readers may ignore |
//! | 12 | 1 | block size as a power of 2 |
//! | 14 | 2 | number of the root's inode |
//! | 16 | 8 | number of inodes |
//! | 24 | 12 | time of creation: 0 |
//! | 36 | 4 | number of blocks in use: the next layer's content begins there |
//! | 40 | 4 | first block of inodes: 0, so that an inode's number is its place in units of 32 bytes |
//! | 48 | 16 | id |
//! | 64 | 16 | name of the volume, by which the writer is known |
//! | 80 | 4 | features that readers must know |

use headstart_block::file_system::{EROFS_NUMBER, SUPERBLOCK_AT};
use headstart_block::{Error, Result};
use headstart_file_blocks::{BLOCK_SIZE, Block};

/// The place of the superblock in block 0.
pub(crate) const SUPERBLOCK_OFFSET: usize = 1024;
const _: () = assert!(SUPERBLOCK_OFFSET as u64 == SUPERBLOCK_AT, "the place is that of both file systems");
/// Its length.
pub(crate) const SUPERBLOCK_SIZE: usize = 128;
/// The number of the root's inode, which follows the superblock.
pub(crate) const ROOT_NID: u64 = ((SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE) / 32) as u64;
/// The most bytes of the root's inode: it stays in block 0.
pub(crate) const ROOT_BYTES: usize = BLOCK_SIZE - SUPERBLOCK_OFFSET - SUPERBLOCK_SIZE;

/// The name of volumes that this crate makes. Its last character is the version of their form.
const VOLUME: [u8; 16] = *b"headstart 1\0\0\0\0\0";

/// The superblock has a checksum; inodes have times of modification.
const COMPATIBLE: u32 = 0x1 | 0x2;
/// Some files have tables of chunks.
const CHUNKED_FILES: u32 = 0x4;
/// The features that readers must know, by their bits.
const FEATURES: [(u32, &str); 8] = [
    (0x1, "zero_padding"),
    (0x2, "compression"),
    (CHUNKED_FILES, "chunked_file"),
    (0x8, "device_table"),
    (0x10, "ztailpacking"),
    (0x20, "fragments"),
    (0x40, "xattr_prefixes"),
    (0x80, "48bit"),
];

/// The state of a file system as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Number of inodes.
    pub(crate) inodes: u64,
    /// Number of blocks in use: those behind are free.
    pub(crate) blocks: u32,
    /// Id of the file system.
    pub(crate) uuid: [u8; 16],
    /// `true` if a file may have a table of chunks.
    pub(crate) has_chunked_files: bool,
}

impl Superblock {
    /// Decodes the superblock in the first block of a disk.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if there is none or it is damaged; `Unsupported` if another program made
    /// the file system, or it has features that are not supported.
    pub(crate) fn decode(block: &Block) -> Result<Self> {
        let raw = &block[SUPERBLOCK_OFFSET..];
        if u32_at(raw, 0) != EROFS_NUMBER {
            return Err(Error::corrupt("there is no EROFS file system on it"));
        }
        if u32_at(raw, 4) != checksum(block) {
            return Err(Error::corrupt("the superblock of its EROFS is damaged: its checksum is wrong"));
        }
        if raw[64..80] != VOLUME {
            return Err(Error::unsupported("its EROFS was made by another program or another version")
                .remedy("convert all layers of the image here"));
        }
        let features = u32_at(raw, 80);
        let mut bits = (0..32).map(|bit| 1 << bit);
        if let Some(bit) = bits.find(|bit| features & bit & !CHUNKED_FILES != 0) {
            let known = FEATURES.iter().find(|(feature, _)| *feature == bit);
            let name = known.map_or_else(|| format!("{bit:#x}"), |(_, name)| (*name).to_owned());
            return Err(Error::unsupported(format!("its EROFS has the feature {name}"))
                .remedy("convert all layers of the image here"));
        }
        let this = Self {
            inodes: u64::from_le_bytes(bytes_at(raw, 16)),
            blocks: u32_at(raw, 36),
            uuid: bytes_at(raw, 48),
            has_chunked_files: features & CHUNKED_FILES != 0,
        };
        let mut same = *block;
        this.encode(&mut same);
        if same[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE] != raw[..SUPERBLOCK_SIZE] {
            return Err(Error::unsupported("the superblock of its EROFS has fields that are not known here"));
        }
        Ok(this)
    }

    /// Puts the superblock into the first block of a disk, whose other content is there already.
    pub(crate) fn encode(&self, block: &mut Block) {
        let raw = &mut block[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE];
        raw.fill(0);
        put(raw, 0, &EROFS_NUMBER.to_le_bytes());
        put(raw, 8, &COMPATIBLE.to_le_bytes());
        raw[12] = 12;
        put(raw, 14, &ROOT_NID.to_le_bytes()[..2]);
        put(raw, 16, &self.inodes.to_le_bytes());
        put(raw, 36, &self.blocks.to_le_bytes());
        put(raw, 48, &self.uuid);
        put(raw, 64, &VOLUME);
        put(raw, 80, &if self.has_chunked_files { CHUNKED_FILES } else { 0 }.to_le_bytes());
        let sum = checksum(block);
        put(block, SUPERBLOCK_OFFSET + 4, &sum.to_le_bytes());
    }
}

/// The checksum of the first block of a disk.
fn checksum(block: &Block) -> u32 {
    let mut sum = u32::MAX;
    for (at, byte) in block.iter().enumerate().skip(SUPERBLOCK_OFFSET) {
        let is_own = (SUPERBLOCK_OFFSET + 4..SUPERBLOCK_OFFSET + 8).contains(&at);
        sum ^= u32::from(if is_own { 0 } else { *byte });
        for _ in 0..8 {
            sum = sum >> 1 ^ if sum & 1 == 0 { 0 } else { 0x82f6_3b78 };
        }
    }
    sum
}

/// The number of 2 bytes at a place; zeros are read behind the end.
pub(crate) fn u16_at(raw: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(raw, at))
}

/// The number of 4 bytes at a place; zeros are read behind the end.
pub(crate) fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(raw, at))
}

/// The bytes at a place; zeros are read behind the end.
pub(crate) fn bytes_at<const LEN: usize>(raw: &[u8], at: usize) -> [u8; LEN] {
    raw.get(at..).and_then(|raw| raw.first_chunk()).copied().unwrap_or([0; LEN])
}

fn put(raw: &mut [u8], at: usize, bytes: &[u8]) {
    raw[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    fn sample() -> (Superblock, Block) {
        let superblock =
            Superblock { inodes: 1 << 33, blocks: 77, uuid: *b"0123456789abcdef", has_chunked_files: true };
        let mut block = [7; BLOCK_SIZE];
        superblock.encode(&mut block);
        (superblock, block)
    }

    #[test]
    fn a_superblock_is_read_as_it_was_written() {
        let (superblock, block) = sample();
        assert_eq!(Superblock::decode(&block).unwrap(), superblock);
        // The beginning of the disk is no part of it.
        assert_eq!(block[..SUPERBLOCK_OFFSET], [7; SUPERBLOCK_OFFSET]);
    }

    #[test]
    fn every_damage_is_seen() {
        let (_, good) = sample();
        for at in SUPERBLOCK_OFFSET..BLOCK_SIZE {
            let mut block = good;
            block[at] ^= 4;
            assert_eq!(Superblock::decode(&block).unwrap_err().kind(), ErrorKind::Corrupt, "{at}");
        }
    }

    #[test]
    fn other_file_systems_are_refused_by_name() {
        let (_, good) = sample();
        for (at, value, named) in
            [(64, b'x', "another program"), (80, 2, "compression"), (83, 1, "0x1000000"), (86, 1, "fields")]
        {
            let mut block = good;
            block[SUPERBLOCK_OFFSET + at] = value;
            let sum = checksum(&block);
            put(&mut block, SUPERBLOCK_OFFSET + 4, &sum.to_le_bytes());
            let error = Superblock::decode(&block).unwrap_err();
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(named), "{error}");
        }
    }
}
