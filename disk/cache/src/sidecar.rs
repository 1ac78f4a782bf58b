//! The sidecar of a blob's data file: the units of the blob that are there, and the evidence by which they are trusted.
//!
//! # The file, byte by byte
//!
//! Numbers are in the host's byte order: these files never leave their host (the version would tell).
//! Version 1:
//!
//! ```text
//!    0   8  magic: "hs-cache"
//!    8   4  version: 1
//!   12   4  unit of presence in bytes: 16384 for data, 4096 for an outboard
//!   16   8  length of the blob in bytes
//!   24   4  kind: 1 data with a hash tree, 2 data without, 3 outboard
//!   28   4  0
//!   32  32  digest of the blob (SHA-256)
//!   64  32  root of its hash tree (BLAKE3); for an outboard, that of the tree it belongs to; zeros without. Version
//!           0.1.0 wrote zeros for outboards too: of such a file, the pages that prove under a root are taken over
//!   96  32  digest of its outboard; zeros without
//!  128  32  SHA-256 of the name of the store it comes from, where there is no tree; zeros otherwise
//!  160   8  inode of the data file
//!  168  32  SHA-256 of bytes 0 to 168
//!  200  56  0
//!  256  16  id of the boot in which bitmap `local` was last in use
//!  272   8  generation: the number of times that units were forgotten
//!  280   8  generation + 1 in which the whole blob was found to match its digest; 0: never
//!  288  32  root of the hash tree found then (BLAKE3)
//!  320 ...  0
//! 4096   B  bitmap `local`: a bit a unit, in 64-bit words, lowest bit first
//!  ...   A  a 32-bit word for each 64 KiB chunk: its accesses, see `policy`
//!  ...   S  slot 0 of `durable`: 8 sequence number, 32 SHA-256 of bytes 0 to 168 of the file, the sequence number and
//!           the bitmap, 24 zeros, then the bitmap as above
//!  ...   S  slot 1, the same
//! ```
//!
//! B, A and S are rounded up to 4096. Fields that never change come first, under their own sum; fields that all
//! processes change all the time are stored together and mapped; the slots, which must survive a loss of power, are
//! apart, and are only ever written as a whole.
//!
//! # Trust
//!
//! * `local` says which units' bytes are in the data file *as the running kernel sees it*. It is trusted within the
//!   boot that it names. It needs no sum: a program that can change it can change the data as well. Any crash of a
//!   process leaves it right, because a bit is set only after the bytes were written.
//! * `durable` says which units survive a loss of power. A slot is written only after `fdatasync` of the data
//!   file has covered all units in it. In another boot, `local` starts as a copy of the valid slot with the
//!   highest sequence number. There are two so that a torn write loses one of them, never both.
//! * Before the bytes of a unit are given back to the disk, both slots are without it (see `durable`).
//! * A sidecar that is damaged, has another version, describes something else or another data file is not trusted in
//!   anything: both files are unlinked and the blob starts empty.
//! * The inode ties it to its data file, so that a copy of the directory, which may be torn, is not trusted.
//!
//! The locks on the file's bytes (far past its end, so that they are on nothing; see [`Locks`]) keep their
//! places in all versions.

use crate::mapping::Mapping;
use headstart_block::{Digest, Error, Result, to_usize};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes in a chunk: the unit of eviction, pins and access marks.
pub(crate) const CHUNK: u64 = 64 << 10;
/// Bytes in a unit of presence of data: the group that a hash tree covers.
pub(crate) const DATA_UNIT: u64 = headstart_hash_tree::GROUP_SIZE;
/// Bytes in a unit of presence of an outboard.
pub(crate) const TREE_UNIT: u64 = headstart_hash_tree::TREE_PAGE;
/// Longest blob, in bytes: its sidecar has 88 MiB. Lengths come from manifests, and the sidecar takes space for them.
pub(crate) const MAX_LEN: u64 = 1 << 40;

const MAGIC: &[u8; 8] = b"hs-cache";
/// The version that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;
const PAGE: u64 = 4096;
/// Bytes of the header: a page.
const HEADER_LEN: usize = 4096;
const FIXED: usize = 168;
const SUM: usize = 168;
const BOOT: u64 = 256;
const GENERATION: usize = 272;
const WHOLE_AT: usize = 280;
const WHOLE_ROOT: u64 = 288;
/// Bytes in front of a slot's bitmap.
pub(crate) const SLOT_HEADER: usize = 64;

/// The id of a run of the kernel.
pub(crate) type BootId = [u8; 16];

/// Places of locks in a sidecar, as byte ranges.
pub(crate) struct Locks;

impl Locks {
    /// The lock that users of the files hold shared, and a process that unlinks them exclusively.
    pub(crate) const USE: Range<u64> = 1 << 62..(1 << 62) + 1;
    /// The lock that is held shared while bytes are written and their bits set, exclusively while space is given back.
    pub(crate) const WRITE: Range<u64> = (1 << 62) + 1..(1 << 62) + 2;
    /// The lock that is held exclusively while `durable` is written.
    pub(crate) const DURABLE: Range<u64> = (1 << 62) + 2..(1 << 62) + 3;
    /// The lock that the process that checks the whole blob by its digest holds exclusively.
    pub(crate) const CHECK: Range<u64> = (1 << 62) + 3..(1 << 62) + 4;

    /// The lock that the claim of these units holds exclusively.
    pub(crate) fn claim(units: &Range<u64>) -> Range<u64> {
        (1 << 60) + units.start..(1 << 60) + units.end
    }

    /// The lock that a pin of these chunks holds shared, and an evictor of them exclusively.
    pub(crate) fn pin(chunks: &Range<u64>) -> Range<u64> {
        (1 << 61) + chunks.start..(1 << 61) + chunks.end
    }
}

/// The kind of a cached blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data that is checked against its hash tree before it is taken.
    Verified,
    /// Data without a hash tree, trusted as it came from the store until the blob is whole.
    Plain,
    /// The outboard of a hash tree: proven whenever it is used.
    Outboard,
}

/// The identity of a blob in the cache: all that its bytes depend on.
///
/// The root is part of it, because a hostile manifest may name a digest together with a root of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) kind: Kind,
    pub(crate) digest: Digest,
    pub(crate) len: u64,
    pub(crate) root: [u8; 32],
    pub(crate) outboard: [u8; 32],
    pub(crate) origin: [u8; 32],
}

impl Identity {
    pub(crate) fn unit(&self) -> u64 {
        match self.kind {
            Kind::Outboard => TREE_UNIT,
            Kind::Verified | Kind::Plain => DATA_UNIT,
        }
    }

    /// The start of the header, up to the inode.
    fn encode(&self) -> Vec<u8> {
        let kind: u32 = match self.kind {
            Kind::Verified => 1,
            Kind::Plain => 2,
            Kind::Outboard => 3,
        };
        #[expect(clippy::cast_possible_truncation, reason = "16384 or 4096")]
        let unit = self.unit() as u32;
        let parts: [&[u8]; 10] = [
            MAGIC,
            &VERSION.to_ne_bytes(),
            &unit.to_ne_bytes(),
            &self.len.to_ne_bytes(),
            &kind.to_ne_bytes(),
            &[0; 4],
            self.digest.as_bytes(),
            &self.root,
            &self.outboard,
            &self.origin,
        ];
        parts.concat()
    }

    /// The name of its files without their extension: the digest, so that people find it, and a sum of the rest.
    pub(crate) fn file_stem(&self) -> String {
        format!("{}.{}", self.digest.hex(), &Digest::of(&self.encode()).hex()[..32])
    }
}

/// The part of a header that never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) identity: Identity,
    pub(crate) data_inode: u64,
}

impl Header {
    /// The encoded header with its sum.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.identity.encode();
        bytes.extend(self.data_inode.to_ne_bytes());
        let sum = Digest::of(&bytes);
        bytes.extend(sum.as_bytes());
        bytes
    }

    /// Reads the header of a sidecar that is at least as long as the header says.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and `Corrupt` if the file is too short.
    pub(crate) fn read(file: &File) -> Result<Self> {
        let too_short = || Error::corrupt("its sidecar is too short");
        let mut page = [0; HEADER_LEN];
        file.read_exact_at(&mut page, 0).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => too_short(),
            _ => Error::io("cannot read its header", e),
        })?;
        let header = Self::parse(&page)?;
        if file.metadata()?.len() < Layout::of(&header.identity).file_len() {
            return Err(too_short());
        }
        Ok(header)
    }

    /// Parses the bytes of a header.
    ///
    /// # Errors
    /// `Unsupported` for another version, `Corrupt` for everything that this version would not write.
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self> {
        let word = |at: usize| u32::from_ne_bytes(field(bytes, at));
        let long = |at: usize| u64::from_ne_bytes(field(bytes, at));
        if field::<8>(bytes, 0) != *MAGIC {
            return Err(Error::corrupt("is not a sidecar of this host"));
        }
        if word(8) != VERSION {
            return Err(Error::unsupported(format!("has version {}, not {VERSION}", word(8))));
        }
        if Digest::of(&bytes[..FIXED]).as_bytes() != &field(bytes, SUM) {
            return Err(Error::corrupt("its header does not match its sum"));
        }
        let kind = match word(24) {
            1 => Kind::Verified,
            2 => Kind::Plain,
            3 => Kind::Outboard,
            kind => return Err(Error::corrupt(format!("is of kind {kind}"))),
        };
        let identity = Identity {
            kind,
            digest: Digest::from_bytes(field(bytes, 32)),
            len: long(16),
            root: field(bytes, 64),
            outboard: field(bytes, 96),
            origin: field(bytes, 128),
        };
        if u64::from(word(12)) != identity.unit() || identity.len > MAX_LEN {
            return Err(Error::corrupt("its unit or its length is wrong"));
        }
        Ok(Self { identity, data_inode: long(160) })
    }
}

/// `N` bytes of a header.
fn field<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

/// The places of the parts of a blob's sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) len: u64,
    pub(crate) unit: u64,
}

impl Layout {
    pub(crate) fn of(identity: &Identity) -> Self {
        Self { len: identity.len, unit: identity.unit() }
    }

    pub(crate) fn units(self) -> u64 {
        self.len.div_ceil(self.unit)
    }

    pub(crate) fn chunks(self) -> u64 {
        self.len.div_ceil(CHUNK)
    }

    /// The units that touch the bytes from `start` to `end`, which are within the blob.
    pub(crate) fn units_of(self, start: u64, end: u64) -> Range<u64> {
        start / self.unit..end.div_ceil(self.unit)
    }

    /// The units of a chunk.
    pub(crate) fn units_of_chunk(self, chunk: u64) -> Range<u64> {
        let per_chunk = CHUNK / self.unit;
        chunk * per_chunk..((chunk + 1) * per_chunk).min(self.units())
    }

    /// Bytes in `units`, the last of which may be short.
    pub(crate) fn bytes_of(self, units: &Range<u64>) -> u64 {
        (units.end * self.unit).min(self.len).saturating_sub(units.start * self.unit)
    }

    /// The number of words of a bitmap.
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_LEN / 4096 / 64")]
    pub(crate) fn words(self) -> usize {
        self.units().div_ceil(64) as usize
    }

    fn bitmap_len(self) -> u64 {
        (self.words() as u64 * 8).next_multiple_of(PAGE)
    }

    fn access_offset(self) -> u64 {
        PAGE + self.bitmap_len()
    }

    /// The number of bytes that are mapped: all up to the slots.
    fn mapped_len(self) -> u64 {
        self.access_offset() + (self.chunks() * 4).next_multiple_of(PAGE)
    }

    /// The number of bytes of a slot: its header and its bitmap.
    pub(crate) fn slot_len(self) -> usize {
        SLOT_HEADER + self.words() * 8
    }

    /// The offset of slot 0 or 1.
    pub(crate) fn slot_offset(self, slot: usize) -> u64 {
        let len = (self.slot_len() as u64).next_multiple_of(PAGE);
        self.mapped_len() + if slot == 0 { 0 } else { len }
    }

    /// Length of the file.
    pub(crate) fn file_len(self) -> u64 {
        self.slot_offset(1) + (self.slot_len() as u64).next_multiple_of(PAGE)
    }
}

/// A sidecar in use.
pub(crate) struct Sidecar {
    pub(crate) file: File,
    pub(crate) layout: Layout,
    /// The header's fixed part, which the slots' sums cover too.
    pub(crate) fixed: Vec<u8>,
    mapping: Mapping,
}

impl Sidecar {
    /// Writes a new sidecar, without any unit, into an empty `file`. Its blocks are allocated, so that a full disk is
    /// noticed here and not by a fault later.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn write_new(file: &File, header: &Header, boot: &BootId) -> io::Result<()> {
        let len = Layout::of(&header.identity).file_len();
        allocate(file, len)?;
        file.write_all_at(&header.encode(), 0)?;
        file.write_all_at(boot, BOOT)
    }

    /// Reads the bytes that will be mapped: a page that the disk cannot read is an error here, and would be a lost
    /// mapping later.
    ///
    /// # Errors
    /// Errors of reading.
    pub(crate) fn read_through(file: &File, header: &Header) -> io::Result<()> {
        let len = Layout::of(&header.identity).mapped_len();
        let mut bytes = vec![0; to_usize(len.min(1 << 16))];
        let mut at = 0;
        while at < len {
            let part = to_usize(len - at).min(bytes.len());
            file.read_exact_at(&mut bytes[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }

    /// Maps a file whose header was read from it, and which is long enough for it.
    ///
    /// # Errors
    /// Errors of mapping.
    pub(crate) fn new(file: File, header: &Header) -> io::Result<Self> {
        let layout = Layout::of(&header.identity);
        let len = usize::try_from(layout.mapped_len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::of_file(&file, len)?;
        let mut fixed = header.encode();
        fixed.truncate(FIXED);
        Ok(Self { file, layout, fixed, mapping })
    }

    /// The bitmap of the units that are there.
    pub(crate) fn local(&self) -> &[AtomicU64] {
        self.mapping.words(HEADER_LEN, self.layout.words())
    }

    /// The access words of the chunks.
    #[expect(clippy::cast_possible_truncation, reason = "within MAX_LEN / 65536 words of a mapping")]
    pub(crate) fn access(&self) -> &[AtomicU32] {
        self.mapping.half_words(self.layout.access_offset() as usize, self.layout.chunks() as usize)
    }

    /// The number of times that units were forgotten.
    pub(crate) fn generation(&self) -> &AtomicU64 {
        &self.mapping.words(GENERATION, 1)[0]
    }

    /// One more than the generation in which the whole blob was found right.
    pub(crate) fn whole_at(&self) -> &AtomicU64 {
        &self.mapping.words(WHOLE_AT, 1)[0]
    }

    /// Stores the root of the hash tree that was computed when the whole blob was found right.
    ///
    /// # Errors
    /// Errors of writing.
    pub(crate) fn write_whole_root(&self, root: &[u8; 32]) -> io::Result<()> {
        self.file.write_all_at(root, WHOLE_ROOT)
    }

    /// The boot in which the file's bitmap `local` was in use.
    ///
    /// # Errors
    /// Errors of reading.
    pub(crate) fn boot(file: &File) -> io::Result<BootId> {
        let mut boot = [0; 16];
        file.read_exact_at(&mut boot, BOOT)?;
        Ok(boot)
    }

    /// Notes that `local` is of this boot.
    ///
    /// # Errors
    /// Errors of writing.
    pub(crate) fn write_boot(&self, boot: &BootId) -> io::Result<()> {
        self.file.write_all_at(boot, BOOT)
    }
}

/// Words of a bitmap from the bytes of a file.
pub(crate) fn to_words(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// Gives an empty file blocks for `len` bytes, all zeros.
pub(crate) fn allocate(file: &File, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let zeros = vec![0; 1 << 16];
    let mut at = 0;
    while at < len {
        let part = to_usize(len - at).min(zeros.len());
        file.write_all_at(&zeros[..part], at)?;
        at += part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn identity(kind: Kind, len: u64) -> Identity {
        Identity { kind, digest: Digest::of(b"x"), len, root: [1; 32], outboard: [2; 32], origin: [0; 32] }
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_no_bit_may_change() {
        for kind in [Kind::Verified, Kind::Plain, Kind::Outboard] {
            let header = Header { identity: identity(kind, 1_234_567), data_inode: 99 };
            let mut page = [0; HEADER_LEN];
            let bytes = header.encode();
            assert_eq!(bytes.len(), 200);
            page[..200].copy_from_slice(&bytes);
            assert_eq!(Header::parse(&page).unwrap(), header);
            for at in 0..200 {
                page[at] ^= 1;
                assert!(Header::parse(&page).is_err(), "byte {at}");
                page[at] ^= 1;
            }
        }
        let too_long = Header { identity: identity(Kind::Plain, MAX_LEN + 1), data_inode: 99 };
        let mut page = [0; HEADER_LEN];
        page[..200].copy_from_slice(&too_long.encode());
        assert!(Header::parse(&page).is_err());
    }

    #[test]
    fn a_sidecar_that_was_cut_short_is_not_read() {
        let header = Header { identity: identity(Kind::Plain, 1_234_567), data_inode: 99 };
        let file = tempfile::tempfile().unwrap();
        Sidecar::write_new(&file, &header, &[7; 16]).unwrap();
        let len = Layout::of(&header.identity).file_len();
        for (cut, is_read) in [(len, true), (len + 1, true), (len - 1, false), (PAGE, false)] {
            file.set_len(cut).unwrap();
            assert_eq!(Header::read(&file).is_ok_and(|read| read == header), is_read, "{cut} of {len}");
        }
    }

    #[test]
    fn parts_of_a_sidecar_do_not_overlap() {
        for len in [0, 1, 16384, 16385, 5 << 20, (10 << 30) + 1, MAX_LEN] {
            for kind in [Kind::Plain, Kind::Outboard] {
                let layout = Layout::of(&identity(kind, len));
                let ends = [
                    PAGE + layout.words() as u64 * 8,
                    layout.access_offset(),
                    layout.access_offset() + layout.chunks() * 4,
                    layout.slot_offset(0),
                    layout.slot_offset(0) + layout.slot_len() as u64,
                    layout.slot_offset(1),
                    layout.slot_offset(1) + layout.slot_len() as u64,
                    layout.file_len(),
                ];
                assert!(ends.is_sorted(), "{ends:?}");
                assert!(layout.mapped_len() <= layout.slot_offset(0));
            }
        }
    }

    #[test]
    fn all_that_bytes_depend_on_is_in_the_name() {
        let one = identity(Kind::Verified, 1000);
        let others = [
            Identity { len: 1001, ..one.clone() },
            Identity { root: [3; 32], ..one.clone() },
            Identity { kind: Kind::Plain, ..one.clone() },
            Identity { origin: [4; 32], ..one.clone() },
        ];
        for other in others {
            assert_ne!(other.file_stem(), one.file_stem(), "{other:?}");
        }
    }
}
