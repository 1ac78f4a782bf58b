//! Inodes, byte by byte: the extended form, and what follows it.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | bit 0: extended; bits 1 to 3: the layout of the content |
//! | 2 | 2 | extended attributes, in units of 4 bytes |
//! | 4 | 2 | kind and permissions |
//! | 8 | 8 | size |
//! | 16 | 4 | first block; or device; or form of the table of chunks |
//! | 24, 28 | 4, 4 | owner, group |
//! | 32, 40 | 8, 4 | time of modification: seconds, nanoseconds |
//! | 44 | 4 | number of names |
//! | 64 | | extended attributes, then the target of a link or the table of chunks |

use crate::superblock::{bytes_at, u16_at, u32_at};
use crate::xattr;
use headstart_block::{Error, Result, to_usize};
use headstart_file_blocks::{BLOCK_SIZE, FileKind, blocks_for};

/// Bytes of the fields.
pub(crate) const HEAD: usize = 64;
/// The most chunks of a file. Larger files have larger chunks.
pub(crate) const MAX_CHUNKS: u64 = 16_384;
/// The place of a chunk that is a hole.
pub(crate) const HOLE: u32 = u32::MAX;
/// The unit of places of inodes, in bytes.
pub(crate) const SLOT: u64 = 32;

const EXTENDED: u16 = 1;
const PLAIN: u16 = 0;
const INLINE: u16 = 2;
const CHUNKS: u16 = 4;

/// The place of the content of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InodeContent {
    /// There is none.
    None,
    /// The number of a device, as the kernel encodes it.
    Device(u32),
    /// Consecutive blocks from this one on; of an empty file, none.
    Blocks(u32),
    /// Chunks of 4096 << `bits` bytes, each with its first block or [`HOLE`].
    Chunks { bits: u8, starts: Vec<u32> },
    /// The target of a symbolic link, behind the inode.
    Target(Vec<u8>),
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: FileKind,
    /// Permissions: 12 bits.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// Seconds and nanoseconds after the beginning of 1970.
    pub(crate) mtime: (u64, u32),
    pub(crate) links: u32,
    /// Extended attributes, encoded.
    pub(crate) xattrs: Vec<u8>,
    pub(crate) content: InodeContent,
}

impl Inode {
    /// The bytes of the inode and of what follows it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut raw = vec![0; HEAD];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        let (layout, place) = match &self.content {
            InodeContent::None => (PLAIN, 0),
            InodeContent::Device(place) | InodeContent::Blocks(place) => (PLAIN, *place),
            InodeContent::Chunks { bits, .. } => (CHUNKS, u32::from(*bits)),
            InodeContent::Target(_) => (INLINE, 0),
        };
        put(0, &(EXTENDED | layout << 1).to_le_bytes());
        put(2, &xattr::count(&self.xattrs).to_le_bytes());
        put(4, &(self.kind.mode_bits() | self.mode & 0o7777).to_le_bytes());
        put(8, &self.size.to_le_bytes());
        put(16, &place.to_le_bytes());
        put(24, &self.uid.to_le_bytes());
        put(28, &self.gid.to_le_bytes());
        put(32, &self.mtime.0.to_le_bytes());
        put(40, &self.mtime.1.to_le_bytes());
        put(44, &self.links.to_le_bytes());
        raw.extend(&self.xattrs);
        match &self.content {
            InodeContent::Chunks { starts, .. } => raw.extend(starts.iter().flat_map(|at| at.to_le_bytes())),
            InodeContent::Target(target) => raw.extend(target),
            _ => {}
        }
        raw
    }

    /// Decodes an inode from its bytes and those that follow it, [`record_length`] in all.
    ///
    /// # Errors
    /// As [`record_length`].
    pub(crate) fn decode(raw: &[u8]) -> Result<Self> {
        let shape = Shape::of(raw)?;
        let damaged = || Error::corrupt("an inode is cut off");
        let (xattrs, behind) = raw[HEAD..].split_at_checked(shape.xattrs).ok_or_else(damaged)?;
        let behind = behind.get(..shape.behind).ok_or_else(damaged)?;
        let place = u32_at(raw, 16);
        let content = match (shape.layout, shape.kind) {
            (CHUNKS, _) => InodeContent::Chunks {
                bits: raw[16],
                starts: behind.chunks_exact(4).map(|start| u32_at(start, 0)).collect(),
            },
            (INLINE, _) => InodeContent::Target(behind.to_vec()),
            (_, FileKind::CharDevice | FileKind::BlockDevice) => InodeContent::Device(place),
            (_, FileKind::Fifo | FileKind::Socket) => InodeContent::None,
            _ => InodeContent::Blocks(place),
        };
        Ok(Self {
            kind: shape.kind,
            mode: u16_at(raw, 4) & 0o7777,
            uid: u32_at(raw, 24),
            gid: u32_at(raw, 28),
            size: u64::from_le_bytes(bytes_at(raw, 8)),
            mtime: (u64::from_le_bytes(bytes_at(raw, 32)), u32_at(raw, 40)),
            links: u32_at(raw, 44),
            xattrs: xattrs.to_vec(),
            content,
        })
    }

    /// The block of a file's content with the number `block`, as far as those behind it follow: their range. `None` for
    /// a hole of that many blocks.
    pub(crate) fn run_of(&self, block: u64) -> (Option<u64>, u64) {
        let blocks = blocks_for(self.size);
        match &self.content {
            InodeContent::Blocks(start) => (Some(u64::from(*start) + block), blocks.saturating_sub(block)),
            InodeContent::Chunks { bits, starts } => {
                let len = 1_u64 << bits;
                let (chunk, inside) = (block / len, block % len);
                let start = starts.get(to_usize(chunk)).copied().unwrap_or(HOLE);
                ((start != HOLE).then(|| u64::from(start) + inside), len - inside)
            }
            _ => (None, u64::MAX),
        }
    }

    /// Number of a device; zeros for other files.
    pub(crate) fn device(&self) -> (u32, u32) {
        match self.content {
            InodeContent::Device(number) => {
                ((number & 0xf_ff00) >> 8, number & 0xff | (number >> 12) & 0xf_ff00)
            }
            _ => (0, 0),
        }
    }
}

/// The number of a device as the kernel encodes it.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the major number has more than 12 bits, or the minor more than 20.
pub(crate) fn encode_device(major: u32, minor: u32) -> Result<u32> {
    if major >= 1 << 12 || minor >= 1 << 20 {
        return Err(Error::invalid(format!("no device has the numbers {major} and {minor}")));
    }
    Ok(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}

/// Bytes of an inode and of what follows it, from its fields.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if it is damaged; `Unsupported` if it has another form than this crate's.
pub(crate) fn record_length(head: &[u8]) -> Result<usize> {
    let shape = Shape::of(head)?;
    Ok(HEAD + shape.xattrs + shape.behind)
}

/// The bits of a chunk's length in blocks, such that a file has not too many of them.
pub(crate) fn chunk_bits(size: u64) -> u8 {
    let blocks = blocks_for(size);
    (0..31).find(|bits| blocks.div_ceil(1 << bits) <= MAX_CHUNKS).unwrap_or(31)
}

/// Slots of 32 bytes that so many bytes take.
pub(crate) fn slots(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(SLOT)
}

/// Parts of an inode.
struct Shape {
    kind: FileKind,
    layout: u16,
    /// Bytes of extended attributes.
    xattrs: usize,
    /// Bytes behind them.
    behind: usize,
}

impl Shape {
    fn of(head: &[u8]) -> Result<Self> {
        let damaged = |of: &str| Error::corrupt(format!("an inode has a damaged {of}"));
        let foreign =
            |of: &str| Error::unsupported(format!("an inode has {of}, as other programs make them"));
        if head.len() < HEAD {
            return Err(Error::corrupt("an inode is cut off"));
        }
        let format = u16_at(head, 0);
        if format & EXTENDED == 0 {
            return Err(foreign("the compact form"));
        }
        let kind = FileKind::of_mode(u16_at(head, 4)).ok_or_else(|| damaged("mode"))?;
        let size = u64::from_le_bytes(bytes_at(head, 8));
        let layout = format >> 1;
        let behind = match layout {
            PLAIN => 0,
            INLINE if kind == FileKind::Symlink => size,
            CHUNKS if kind == FileKind::Regular => {
                let bits = head[16];
                if bits != chunk_bits(size) || head[17..20] != [0; 3] {
                    return Err(foreign("another table of chunks"));
                }
                blocks_for(size).div_ceil(1 << bits) * 4
            }
            _ => return Err(foreign("another layout")),
        };
        let is_target = kind == FileKind::Symlink;
        if is_target && (size == 0 || size >= BLOCK_SIZE as u64) || behind > MAX_CHUNKS * 4 {
            return Err(damaged("size"));
        }
        if kind == FileKind::Directory && (size == 0 || !size.is_multiple_of(BLOCK_SIZE as u64)) {
            return Err(foreign("a directory that has no whole blocks"));
        }
        Ok(Self { kind, layout, xattrs: xattr::length(u16_at(head, 2)), behind: to_usize(behind) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;

    fn inode(kind: FileKind, size: u64, content: InodeContent) -> Inode {
        Inode {
            kind,
            mode: 0o4755,
            uid: 70_000,
            gid: 5,
            size,
            mtime: (1 << 33, 999_999_999),
            links: 3,
            xattrs: vec![0; 16],
            content,
        }
    }

    #[test]
    fn inodes_are_read_as_they_were_written() {
        let large = 1 << 40;
        let bits = chunk_bits(large);
        assert_eq!(
            (bits, chunk_bits(64 << 20), chunk_bits((64 << 20) + 1), chunk_bits(1 << 63)),
            (14, 0, 1, 31)
        );
        let starts = (0..16_384).map(|at| if at % 3 == 0 { HOLE } else { at }).collect();
        for inode in [
            inode(FileKind::Regular, 0, InodeContent::Blocks(0)),
            inode(FileKind::Regular, 5, InodeContent::Blocks(7)),
            inode(FileKind::Regular, large, InodeContent::Chunks { bits, starts }),
            inode(FileKind::Directory, 8192, InodeContent::Blocks(9)),
            inode(FileKind::Symlink, 3, InodeContent::Target(b"abc".to_vec())),
            inode(FileKind::Symlink, 4090, InodeContent::Blocks(1)),
            inode(FileKind::CharDevice, 0, InodeContent::Device(encode_device(4095, 1_048_575).unwrap())),
            inode(FileKind::Socket, 0, InodeContent::None),
        ] {
            let raw = inode.encode();
            assert_eq!(record_length(&raw[..HEAD]).unwrap(), raw.len());
            assert_eq!(Inode::decode(&raw).unwrap(), inode);
        }
    }

    #[test]
    fn devices_have_the_numbers_that_they_got() {
        for (major, minor) in [(0, 0), (8, 1), (4095, 1_048_575), (255, 256)] {
            let content = InodeContent::Device(encode_device(major, minor).unwrap());
            assert_eq!(inode(FileKind::BlockDevice, 0, content).device(), (major, minor));
        }
        assert!(encode_device(4096, 0).is_err() && encode_device(0, 1 << 20).is_err());
    }

    #[test]
    fn other_forms_are_refused() {
        let good = inode(FileKind::Regular, 5, InodeContent::Blocks(7)).encode();
        for (at, value, kind) in [
            (0, 0, ErrorKind::Unsupported),
            (0, 3, ErrorKind::Unsupported),
            (0, 0x21, ErrorKind::Unsupported),
            (5, 0xf0, ErrorKind::Corrupt),
            (5, 0x40, ErrorKind::Unsupported),
        ] {
            let mut raw = good.clone();
            raw[at] = value;
            assert_eq!(record_length(&raw).unwrap_err().kind(), kind, "{at}: {value}");
        }
        assert!(Inode::decode(&good[..HEAD + 3]).is_err() && Inode::decode(&[]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(raw in prop::collection::vec(any::<u8>(), HEAD..300), layout in 0..5_u8) {
            let mut raw = raw;
            raw[0] = 1 | layout << 1;
            raw[1] = 0;
            if let Ok(inode) = Inode::decode(&raw) {
                prop_assert_eq!(Inode::decode(&inode.encode()).unwrap(), inode);
            }
        }
    }
}
