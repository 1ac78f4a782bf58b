//! Inodes: 256 bytes of a table, of which the first 128 are those of the format's first version.
//!
//! All numbers are little-endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 2 | kind of file (upper 4 bits) and permissions |
//! | 2, 120 | 2, 2 | owner, low and high |
//! | 4, 108 | 4, 4 | size in bytes, low and high; the high part counts for regular files only |
//! | 8, 12, 16 | 4 each | times of access, change and modification, seconds since 1970, signed |
//! | 20 | 4 | time of deletion |
//! | 24, 122 | 2, 2 | group, low and high |
//! | 26 | 2 | hard links |
//! | 28, 116 | 4, 2 | blocks in units of 512 bytes, low and high |
//! | 32 | 4 | flags |
//! | 36 | 4 | version |
//! | 40 | 60 | the places of the blocks, or a short target of a symbolic link, or a device number |
//! | 100 | 4 | generation |
//! | 104, 118 | 4, 2 | block with extended attributes, low and high; 0 for none |
//! | 128 | 2 | bytes behind the first 128 that fields use: 32 for all of these |
//! | 132, 136, 140 | 4 each | more of the times of change, modification and access |
//! | 144, 148 | 4, 4 | time of creation, and more of it |
//! | 152, 156 | 4, 4 | high part of the version; project |
//!
//! Extended attributes take what is left behind the fields: see [`crate::xattr`]. "More" of a time are nanoseconds in
//! the upper 30 bits and, in the lower two, a number that counts 2^32 seconds each.
//!
//! An inode that was decoded keeps the bytes of other fields as they were.

use crate::little_endian::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use headstart_block::{Error, Result, exact, to_usize};
use headstart_file_blocks::FileKind;

/// Bytes of an inode.
const SIZE: usize = 256;
/// Bytes of an inode in the first version of the format.
const OLD_SIZE: usize = 128;
/// Bytes behind the first 128 that all fields take.
const EXTRA: u16 = 32;
/// Bytes behind the first 128 that the times take.
const EXTRA_OF_TIMES: u16 = 24;
/// Bytes for the places of blocks; a target of a symbolic link that fits, with a NUL, is stored there.
pub(crate) const PLACES: usize = 60;

/// Flag: a directory has an index by hashes.
pub(crate) const INDEXED: u32 = 0x1000;
/// Flag: blocks are counted in units of 4096 bytes.
const COUNTS_BLOCKS: u32 = 0x4_0000;
/// Flag: the places of blocks are stored as extents.
pub(crate) const USES_EXTENTS: u32 = 0x8_0000;
/// Flags with which an inode has another meaning than the one that is read here, and their names.
const REFUSED: [(u32, &str); 3] = [
    (0x800, "is encrypted"),
    (0x20_0000, "is the value of an extended attribute"),
    (0x1000_0000, "has its data inline"),
];

/// The most blocks, in units of 512 bytes, that are taken for a true count: 8 PiB, larger than any supported disk.
const MAX_SECTORS: u64 = 1 << 44;
/// The largest minor number of a device.
const MAX_MINOR: u32 = 0xf_ffff;
/// The largest major number of a device.
const MAX_MAJOR: u32 = 0xfff;

/// A time of an inode: from 1901-12-13 to 2446-05-10, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeTime {
    seconds: i64,
    nanoseconds: u32,
}

impl InodeTime {
    /// The earliest time, in seconds since 1970: -2^31.
    pub const MIN_SECONDS: i64 = -(1 << 31);
    /// The latest time, in seconds since 1970: 2^34 - 2^31 - 1.
    pub const MAX_SECONDS: i64 = (1 << 34) - (1 << 31) - 1;

    /// The time `seconds` after the beginning of 1970, and `nanoseconds` (less than 10^9) more; `None` if an inode
    /// cannot store it.
    #[must_use]
    pub fn new(seconds: i64, nanoseconds: u32) -> Option<Self> {
        let is_stored =
            (Self::MIN_SECONDS..=Self::MAX_SECONDS).contains(&seconds) && nanoseconds < 1_000_000_000;
        is_stored.then_some(Self { seconds, nanoseconds })
    }

    /// Seconds since the beginning of 1970; negative before.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    /// Nanoseconds after [`InodeTime::seconds`], less than 10^9.
    #[must_use]
    pub fn nanoseconds(self) -> u32 {
        self.nanoseconds
    }

    fn decode(raw: &[u8; SIZE], at: usize, more_at: usize) -> Result<Self> {
        let more = u32_at(raw, more_at);
        let seconds = i64::from(u32_at(raw, at).cast_signed()) + (i64::from(more & 3) << 32);
        Self::new(seconds, more >> 2)
            .ok_or_else(|| Error::corrupt("an inode has a time with more than 10^9 nanoseconds"))
    }

    fn encode(self, raw: &mut [u8; SIZE], at: usize, more_at: usize) {
        // In units of 2^32 seconds, rounded to the nearest, because the lower part is signed.
        let epoch =
            exact::<u32>((self.seconds + (1 << 31)) >> 32, "the latest time is in the last of four epochs");
        raw[at..at + 4].copy_from_slice(&self.seconds.to_le_bytes()[..4]);
        put_u32(raw, more_at, self.nanoseconds << 2 | epoch);
    }
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    /// Kind and permissions; 0 if the inode was never used.
    pub(crate) mode: u16,
    /// Id of the owner.
    pub(crate) uid: u32,
    /// Id of the group.
    pub(crate) gid: u32,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Number of names, at most 65,535; 1 for a directory with more directories in it than can be counted.
    pub(crate) links: u32,
    /// Blocks with content, tree of extents and attributes, in units of 512 bytes, at most 2^48 - 1. Beyond 2^32 - 1,
    /// the file system needs the feature `huge_file`.
    pub(crate) blocks: u64,
    /// Flags such as [`USES_EXTENTS`].
    pub(crate) flags: u32,
    /// Time of the last access.
    pub(crate) atime: InodeTime,
    /// Time of the last change of content or attributes.
    pub(crate) ctime: InodeTime,
    /// Time of the last change of content.
    pub(crate) mtime: InodeTime,
    /// Time of creation.
    pub(crate) crtime: InodeTime,
    /// Time of deletion, or 0; of an inode in a list of orphans, the next of them.
    pub(crate) dtime: u32,
    /// The places of blocks, or a short target, or a device number.
    pub(crate) block: [u8; PLACES],
    /// Block with extended attributes, less than 2^48; 0 for none.
    pub(crate) file_acl: u64,
    /// Number that network file systems tell successive files of one inode by.
    pub(crate) generation: u32,
    /// The bytes behind the fields, for extended attributes: [`Inode::attribute_space`] of them.
    pub(crate) in_inode: Vec<u8>,
    /// Bytes behind the first 128 that fields use: a multiple of 4 from 24 to 128.
    extra_isize: u16,
    /// The bytes that it was decoded from.
    raw: Box<[u8; SIZE]>,
}

impl Inode {
    /// An inode without permissions, names and content, all of whose times are the beginning of 1970. Its fields take
    /// `want_extra_isize` bytes behind the first 128 (a multiple of 4 up to 128), but no less than there are fields
    /// for.
    pub(crate) fn new(kind: FileKind, want_extra_isize: u16) -> Self {
        let extra_isize =
            want_extra_isize.clamp(EXTRA, exact(SIZE - OLD_SIZE, "the old size is half the new one"));
        let time = InodeTime::default();
        Self {
            mode: kind.mode_bits(),
            uid: 0,
            gid: 0,
            size: 0,
            links: 0,
            blocks: 0,
            flags: 0,
            atime: time,
            ctime: time,
            mtime: time,
            crtime: time,
            dtime: 0,
            block: [0; PLACES],
            file_acl: 0,
            generation: 0,
            in_inode: vec![0; SIZE - OLD_SIZE - usize::from(extra_isize)],
            extra_isize,
            raw: Box::new([0; SIZE]),
        }
    }

    /// Decodes an inode. One of a program that knew the first 128 bytes only gets room for the other fields, as in the
    /// kernel.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if its numbers are impossible;
    /// [`headstart_block::ErrorKind::Unsupported`] if its content is stored in a way that is not known.
    pub(crate) fn decode(raw: &[u8; SIZE]) -> Result<Self> {
        let mut raw = Box::new(*raw);
        if u16_at(&*raw, 128) == 0 {
            // No field or attribute was stored there.
            raw[OLD_SIZE..].fill(0);
            put_u16(&mut *raw, 128, EXTRA);
        }
        let extra_isize = u16_at(&*raw, 128);
        let start = OLD_SIZE + usize::from(extra_isize);
        if start > SIZE || !extra_isize.is_multiple_of(4) {
            return Err(Error::corrupt(format!("an inode has {extra_isize} bytes behind the first 128")));
        }
        if extra_isize < EXTRA_OF_TIMES {
            return Err(Error::unsupported("an inode has no room for the nanoseconds of times"));
        }
        let (mode, flags) = (u16_at(&*raw, 0), u32_at(&*raw, 32));
        if let Some((_, what)) = REFUSED.iter().find(|(bit, _)| flags & bit != 0) {
            return Err(Error::unsupported(format!("an inode {what}, which is not supported")));
        }
        // Programs of old had another field there for directories.
        let is_long = FileKind::of_mode(mode) == Some(FileKind::Regular);
        let size = if is_long { u64_at(&*raw, 4, 108) } else { u64::from(u32_at(&*raw, 4)) };
        let mut block = [0; PLACES];
        block.copy_from_slice(&raw[40..40 + PLACES]);
        Ok(Self {
            mode,
            uid: u32::from(u16_at(&*raw, 2)) | u32::from(u16_at(&*raw, 120)) << 16,
            gid: u32::from(u16_at(&*raw, 24)) | u32::from(u16_at(&*raw, 122)) << 16,
            size,
            links: u32::from(u16_at(&*raw, 26)),
            blocks: sectors(&raw, flags)?,
            flags: flags & !COUNTS_BLOCKS,
            atime: InodeTime::decode(&raw, 8, 140)?,
            ctime: InodeTime::decode(&raw, 12, 132)?,
            mtime: InodeTime::decode(&raw, 16, 136)?,
            crtime: InodeTime::decode(&raw, 144, 148)?,
            dtime: u32_at(&*raw, 20),
            block,
            file_acl: u64::from(u32_at(&*raw, 104)) | u64::from(u16_at(&*raw, 118)) << 32,
            generation: u32_at(&*raw, 100),
            in_inode: raw[start..].to_vec(),
            extra_isize,
            raw,
        })
    }

    /// Encodes the inode. Blocks are counted in units of 512 bytes, however they were counted before.
    ///
    /// # Panics
    /// If a number is larger than its field's documentation allows, or `in_inode` has another length: a fault of this
    /// program, because no number of a decoded inode is.
    pub(crate) fn encode(&self) -> [u8; SIZE] {
        let mut raw = *self.raw;
        put_u16(&mut raw, 0, self.mode);
        for (low, high, id) in [(2, 120, self.uid), (24, 122, self.gid)] {
            let bytes = id.to_le_bytes();
            raw[low..low + 2].copy_from_slice(&bytes[..2]);
            raw[high..high + 2].copy_from_slice(&bytes[2..]);
        }
        let is_long = FileKind::of_mode(self.mode) == Some(FileKind::Regular);
        if is_long {
            put_u64(&mut raw, 4, 108, self.size);
        } else {
            put_u32(&mut raw, 4, exact(self.size, "only regular files have 4 GiB and more"));
        }
        put_u32(&mut raw, 20, self.dtime);
        put_u16(&mut raw, 26, exact(self.links, "a file has at most 65,000 names"));
        put_u16(&mut raw, 116, exact(self.blocks >> 32, "files have less than 2^48 sectors"));
        put_u32(&mut raw, 28, exact(self.blocks & u64::from(u32::MAX), "the lower half"));
        put_u32(&mut raw, 32, self.flags);
        raw[40..40 + PLACES].copy_from_slice(&self.block);
        put_u32(&mut raw, 100, self.generation);
        put_u32(&mut raw, 104, exact(self.file_acl & u64::from(u32::MAX), "the lower half"));
        put_u16(&mut raw, 118, exact(self.file_acl >> 32, "disks have less than 2^48 blocks"));
        put_u16(&mut raw, 128, self.extra_isize);
        self.atime.encode(&mut raw, 8, 140);
        self.ctime.encode(&mut raw, 12, 132);
        self.mtime.encode(&mut raw, 16, 136);
        self.crtime.encode(&mut raw, 144, 148);
        raw[OLD_SIZE + usize::from(self.extra_isize)..].copy_from_slice(&self.in_inode);
        raw
    }

    /// The kind of file.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the inode has none: it is not in use, or damaged.
    pub(crate) fn kind(&self) -> Result<FileKind> {
        FileKind::of_mode(self.mode).ok_or_else(|| {
            Error::corrupt(format!("an inode has mode {:o}, which is that of no file", self.mode))
        })
    }

    /// Bytes for extended attributes in the inode, header and end included.
    pub(crate) fn attribute_space(&self) -> usize {
        SIZE - OLD_SIZE - usize::from(self.extra_isize)
    }

    /// `true` if the directory has an index by hashes.
    pub(crate) fn is_indexed(&self) -> bool {
        self.flags & INDEXED != 0
    }

    /// `true` if the inode has places of blocks: a regular file, a directory, or a symbolic link whose target is not
    /// in the inode.
    pub(crate) fn has_blocks(&self) -> bool {
        match FileKind::of_mode(self.mode) {
            Some(FileKind::Regular | FileKind::Directory) => true,
            // The rule of the kernel: the length of the target does not count.
            Some(FileKind::Symlink) => self.blocks > if self.file_acl == 0 { 0 } else { 8 },
            _ => false,
        }
    }

    /// Sets all times.
    pub(crate) fn set_times(&mut self, time: InodeTime) {
        (self.atime, self.ctime, self.mtime, self.crtime) = (time, time, time, time);
    }

    /// Major and minor number of a device; zeros for other files.
    pub(crate) fn device(&self) -> (u32, u32) {
        if !matches!(FileKind::of_mode(self.mode), Some(FileKind::CharDevice | FileKind::BlockDevice)) {
            return (0, 0);
        }
        let (old, new) = (u32_at(&self.block, 0), u32_at(&self.block, 4));
        if old != 0 {
            (old >> 8 & 0xff, old & 0xff)
        } else {
            (new >> 8 & MAX_MAJOR, new & 0xff | new >> 12 & (MAX_MINOR & !0xff))
        }
    }

    /// Makes this the inode of a device. Numbers up to 255 are stored in the old form, as in the kernel.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if the major number has more than 12 bits, or the minor one more
    /// than 20.
    pub(crate) fn set_device(&mut self, major: u32, minor: u32) -> Result<()> {
        if major > MAX_MAJOR || minor > MAX_MINOR {
            let cause = format!(
                "the device {major}:{minor} is beyond {MAX_MAJOR}:{MAX_MINOR}, the last that Linux knows"
            );
            return Err(Error::unsupported(cause));
        }
        self.block.fill(0);
        if major < 256 && minor < 256 {
            put_u32(&mut self.block, 0, major << 8 | minor);
        } else {
            put_u32(&mut self.block, 4, minor & 0xff | major << 8 | (minor & !0xff) << 12);
        }
        Ok(())
    }

    /// The target of a symbolic link that is stored in the inode; `None` if it is in a block, and for other files.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the target does not have the length of the file.
    pub(crate) fn fast_symlink(&self) -> Result<Option<&[u8]>> {
        if FileKind::of_mode(self.mode) != Some(FileKind::Symlink) || self.has_blocks() {
            return Ok(None);
        }
        let damaged =
            || Error::corrupt("an inode has the target of a symbolic link with another length than its size");
        let target = self
            .block
            .get(..to_usize(self.size))
            .filter(|target| target.len() < PLACES)
            .ok_or_else(damaged)?;
        if target.contains(&0) || self.block[target.len()] != 0 {
            return Err(damaged());
        }
        Ok(Some(target))
    }

    /// Stores the target of a symbolic link in the inode; `false` if it does not fit, with 60 bytes and more.
    pub(crate) fn set_fast_symlink(&mut self, target: &[u8]) -> bool {
        if target.len() >= PLACES {
            return false;
        }
        self.block.fill(0);
        self.block[..target.len()].copy_from_slice(target);
        self.size = target.len() as u64;
        self.flags &= !USES_EXTENTS;
        true
    }
}

/// The number of blocks in units of 512 bytes.
fn sectors(raw: &[u8; SIZE], flags: u32) -> Result<u64> {
    let stored = u64::from(u32_at(raw, 28)) | u64::from(u16_at(raw, 116)) << 32;
    let sectors = if flags & COUNTS_BLOCKS != 0 { stored * 8 } else { stored };
    if sectors > MAX_SECTORS {
        return Err(Error::corrupt(format!("an inode counts {sectors} sectors, more than any disk has")));
    }
    Ok(sectors)
}

#[cfg(test)]
mod tests;
