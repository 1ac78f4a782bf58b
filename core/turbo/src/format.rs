//! The index of a gzip file: `gzip.meta`, OverlayBD's format, version 1.0.
//!
//! An index lists *restart points*: places in the compressed file at which a deflate block begins, with the 32 KiB of
//! uncompressed bytes before them (the *window*), to which the block may refer. All numbers are little-endian, and
//! nothing is aligned.
//!
//! # The file
//!
//! | bytes | content |
//! |---|---|
//! | 0..333 | the header |
//! | 333..S | the windows, one after the other, each packed on its own |
//! | S..end | the table of entries, packed; S is the *index start* of the header |
//!
//! # The header
//!
//! | bytes | field | notes |
//! |---|---|---|
//! | 0..8 | magic | `ddgzidx\0` |
//! | 8 | major version | 1; readers refuse others |
//! | 9 | minor version | 0; not checked |
//! | 10 | packing of windows and table | 0 none, 1 a zlib stream |
//! | 11 | level of the packing | signed, 6; of no use to readers |
//! | 12 | flag | 0 |
//! | 13..17 | span | i32; the distance of restart points that the writer aimed at, in uncompressed bytes: 1 MiB |
//! | 17..21 | window | i32; bytes of a window: 32,768 |
//! | 21..25 | size of an entry | i32; 29 |
//! | 25..33 | number of entries | i64; 1 or more |
//! | 33..41 | size of the gzip file | i64; readers refuse a file of another size |
//! | 41..49 | size of the index file | i64; readers refuse a file of another size |
//! | 49..57 | uncompressed size | i64 |
//! | 57..313 | reserved | 0 |
//! | 313..321 | index start | i64; offset of the table in the index file |
//! | 321..329 | index length | i64; stored bytes of the table: index start + index length = size of the index file |
//! | 329..333 | checksum | CRC-32C of bytes 0..329, with a register of 0 at the start and no inversion |
//!
//! # An entry
//!
//! | bytes | field | notes |
//! |---|---|---|
//! | 0..8 | uncompressed position | i64; ascending, 0 in the first entry |
//! | 8..16 | compressed position | i64; ascending: the first byte of the gzip file that the inflater has not seen |
//! | 16..24 | window position | i64; offset of the window in the index file |
//! | 24 | bits | 0 to 7: so many high bits of the byte before the compressed position belong to the block, too |
//! | 25..29 | window length | u32; stored bytes of the window |
//!
//! Bytes of a window that lie before the start of the uncompressed data are zeros.

use crc_fast::{CrcAlgorithm, Digest};
use headstart_block::{Error, Result, exact, to_usize};

/// Length of the header in bytes.
pub const HEADER_SIZE: usize = 333;
/// Length of an entry of the unpacked table in bytes.
pub const ENTRY_SIZE: usize = 29;
/// Length of an unpacked window in bytes: the farthest that a deflate block can refer back.
pub const WINDOW_SIZE: usize = 32 << 10;
/// Distance of restart points that the reference aims at by default, in uncompressed bytes.
pub const DEFAULT_SPAN: u32 = 1 << 20;
/// The smallest distance that writers aim at, in uncompressed bytes; the reference refuses smaller ones.
pub const MIN_SPAN: u32 = 64 << 10;

/// The most restart points of an index, each of which takes 32 bytes of memory: those of 1 TiB of data at the default
/// distance.
pub const MAX_POINTS: u64 = 1 << 20;

pub(crate) const MAGIC: [u8; 8] = *b"ddgzidx\0";
const MAJOR_VERSION: u8 = 1;
const CHECKED: usize = HEADER_SIZE - 4;

/// The form in which windows and table are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexPacking {
    /// Plain bytes.
    None,
    /// Zlib streams.
    Zlib,
}

/// The header of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexHeader {
    /// The form in which windows and table are stored.
    pub packing: IndexPacking,
    /// The level of the packing, which readers do not need.
    pub level: i8,
    /// The distance of restart points that the writer aimed at, in uncompressed bytes; at least 1.
    pub span: u32,
    /// The number of entries, at least 1.
    pub entries: u64,
    /// Length of the gzip file in bytes.
    pub gzip_size: u64,
    /// Length of the index file in bytes.
    pub index_size: u64,
    /// Length of the uncompressed data in bytes.
    pub inflated_size: u64,
    /// Offset of the table in the index file, in bytes.
    pub table_start: u64,
    /// Length of the stored table in bytes.
    pub table_len: u64,
}

/// A place at which the inflater can start, as an entry of the table says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPoint {
    /// Offset of the first byte that the block gives, in the uncompressed data.
    pub inflated: u64,
    /// Offset of the first byte of the gzip file that belongs to the block as a whole.
    pub compressed: u64,
    /// Number of high bits, 0 to 7, of the byte before [`RestartPoint::compressed`] that belong to the block.
    pub bits: u8,
    /// Offset of the stored window in the index file.
    pub window_offset: u64,
    /// Length of the stored window in bytes.
    pub window_len: u32,
}

impl RestartPoint {
    /// Offset of the first byte of the gzip file that starting here reads.
    #[must_use]
    pub fn first_byte(&self) -> u64 {
        self.compressed - u64::from(self.bits > 0)
    }

    /// Encodes the entry as the table has it.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if a position exceeds the largest signed 64-bit number.
    pub fn encode(&self) -> Result<[u8; ENTRY_SIZE]> {
        let mut entry = [0; ENTRY_SIZE];
        entry[..8].copy_from_slice(&signed(self.inflated)?);
        entry[8..16].copy_from_slice(&signed(self.compressed)?);
        entry[16..24].copy_from_slice(&signed(self.window_offset)?);
        entry[24] = self.bits;
        entry[25..].copy_from_slice(&self.window_len.to_le_bytes());
        Ok(entry)
    }

    /// Decodes an entry of the table. Only the signs and the number of bits are checked.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a position is negative, there are more than 7 bits, or there are bits
    /// but no byte before the position.
    pub fn decode(entry: &[u8; ENTRY_SIZE]) -> Result<Self> {
        let point = Self {
            inflated: position(entry, 0)?,
            compressed: position(entry, 8)?,
            window_offset: position(entry, 16)?,
            bits: entry[24],
            window_len: u32::from_le_bytes(bytes(entry, 25)),
        };
        if point.bits > 7 || (point.bits > 0 && point.compressed == 0) {
            return Err(Error::corrupt(format!(
                "has a restart point with {} bits before byte {}",
                point.bits, point.compressed
            )));
        }
        Ok(point)
    }
}

impl IndexHeader {
    /// Encodes the header with its checksum.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if a size exceeds the largest signed 64-bit number, or the span the
    /// largest signed 32-bit number.
    pub fn encode(&self) -> Result<[u8; HEADER_SIZE]> {
        let span =
            i32::try_from(self.span).map_err(|_| Error::invalid("the span of an index is too large"))?;
        let window: i32 = exact(WINDOW_SIZE, "a window has 32 KiB");
        let entry: i32 = exact(ENTRY_SIZE, "an entry has 29 bytes");
        let mut header = [0; HEADER_SIZE];
        header[..8].copy_from_slice(&MAGIC);
        header[8] = MAJOR_VERSION;
        header[10] = u8::from(self.packing == IndexPacking::Zlib);
        header[11..12].copy_from_slice(&self.level.to_le_bytes());
        header[13..17].copy_from_slice(&span.to_le_bytes());
        header[17..21].copy_from_slice(&window.to_le_bytes());
        header[21..25].copy_from_slice(&entry.to_le_bytes());
        header[25..33].copy_from_slice(&signed(self.entries)?);
        header[33..41].copy_from_slice(&signed(self.gzip_size)?);
        header[41..49].copy_from_slice(&signed(self.index_size)?);
        header[49..57].copy_from_slice(&signed(self.inflated_size)?);
        header[313..321].copy_from_slice(&signed(self.table_start)?);
        header[321..329].copy_from_slice(&signed(self.table_len)?);
        let crc = checksum(&header[..CHECKED]);
        header[CHECKED..].copy_from_slice(&crc.to_le_bytes());
        Ok(header)
    }

    /// Decodes a header and checks all that it says of itself: magic bytes, version, checksum, sizes that do not
    /// depend on the file, and whether windows and table can be where it says.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the header is damaged or contradicts itself;
    /// [`headstart_block::ErrorKind::Unsupported`] if the version or the packing is not known.
    pub fn decode(header: &[u8; HEADER_SIZE]) -> Result<Self> {
        if header[..8] != MAGIC {
            return Err(Error::corrupt("is no index of a gzip file: it has no magic bytes"));
        }
        let crc = checksum(&header[..CHECKED]);
        if crc.to_le_bytes() != header[CHECKED..] {
            return Err(Error::corrupt("the checksum of the header is wrong"));
        }
        if header[8] != MAJOR_VERSION {
            return Err(Error::unsupported(format!("has the version {}.{}, not 1.0", header[8], header[9])));
        }
        let packing = match header[10] {
            0 => IndexPacking::None,
            1 => IndexPacking::Zlib,
            other => return Err(Error::unsupported(format!("is packed in the unknown way {other}"))),
        };
        let number = |at: usize| i32::from_le_bytes(bytes(header, at));
        let (span, window, entry) = (number(13), number(17), number(21));
        let is_size = |number: i32, size: usize| usize::try_from(number).is_ok_and(|number| number == size);
        if !is_size(window, WINDOW_SIZE) || !is_size(entry, ENTRY_SIZE) || span < 1 {
            return Err(Error::corrupt(format!(
                "has windows of {window}, entries of {entry} bytes and a span of {span}, not of {WINDOW_SIZE}, \
                 {ENTRY_SIZE} and 1 or more"
            )));
        }
        let decoded = Self {
            packing,
            level: i8::from_le_bytes([header[11]]),
            span: exact(span, "it is positive"),
            entries: position(header, 25)?,
            gzip_size: position(header, 33)?,
            index_size: position(header, 41)?,
            inflated_size: position(header, 49)?,
            table_start: position(header, 313)?,
            table_len: position(header, 321)?,
        };
        decoded.check_places()?;
        Ok(decoded)
    }

    fn check_places(&self) -> Result<()> {
        let end = self.table_start.checked_add(self.table_len);
        if self.table_start < HEADER_SIZE as u64 || end != Some(self.index_size) {
            return Err(Error::corrupt(format!(
                "its table of {} bytes at byte {} does not end with the file of {} bytes",
                self.table_len, self.table_start, self.index_size
            )));
        }
        if self.entries == 0 {
            return Err(Error::corrupt("has no restart point"));
        }
        Ok(())
    }
}

/// The header's checksum: CRC-32C in the raw form that OverlayBD uses, with nothing inverted.
#[expect(clippy::cast_possible_truncation, reason = "a CRC-32 is the low half of the library's u64")]
fn checksum(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, 0);
    digest.update(bytes);
    !(digest.finalize() as u32)
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| from[at + i])
}

/// The number of 8 bytes at `at`, which must not be negative.
fn position(from: &[u8], at: usize) -> Result<u64> {
    let number = i64::from_le_bytes(bytes(from, at));
    u64::try_from(number)
        .map_err(|_| Error::corrupt(format!("has the negative number {number} at byte {at}")))
}

fn signed(number: u64) -> Result<[u8; 8]> {
    let number = i64::try_from(number);
    number.map(i64::to_le_bytes).map_err(|_| Error::invalid("a position is larger than the format can say"))
}

/// The CRC-32 of gzip, continued over parts.
pub(crate) struct GzipCrc(Digest);

impl GzipCrc {
    pub(crate) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32IsoHdlc))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    #[expect(clippy::cast_possible_truncation, reason = "a CRC-32 is the low half of the library's u64")]
    pub(crate) fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// The low 32 bits of a length, as the end of a gzip file has them.
pub(crate) fn low_half(len: u64) -> [u8; 4] {
    bytes(&len.to_le_bytes(), 0)
}

/// A length of a window in memory.
pub(crate) fn stored_len(point: &RestartPoint) -> usize {
    to_usize(u64::from(point.window_len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;

    fn header() -> IndexHeader {
        IndexHeader {
            packing: IndexPacking::Zlib,
            level: 6,
            span: DEFAULT_SPAN,
            entries: 4,
            gzip_size: 384_286,
            index_size: 6416,
            inflated_size: 4_055_040,
            table_start: 6344,
            table_len: 72,
        }
    }

    #[test]
    fn a_header_of_the_reference_has_the_checksum_that_it_computes() {
        // The numbers are those of a golden index, its checksum 2203675592.
        let bytes = header().encode().unwrap();
        assert_eq!(bytes[329..], 2_203_675_592_u32.to_le_bytes());
        assert_eq!(IndexHeader::decode(&bytes).unwrap(), header());
    }

    #[test]
    fn every_changed_byte_of_a_header_is_noticed() {
        let bytes = header().encode().unwrap();
        for at in 0..HEADER_SIZE {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(IndexHeader::decode(&changed).unwrap_err().kind(), ErrorKind::Corrupt, "{at}");
        }
    }

    #[test]
    fn other_versions_and_packings_are_not_supported() {
        for (at, value) in [(8, 2), (10, 2)] {
            let mut bytes = header().encode().unwrap();
            bytes[at] = value;
            let crc = checksum(&bytes[..CHECKED]);
            bytes[CHECKED..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(IndexHeader::decode(&bytes).unwrap_err().kind(), ErrorKind::Unsupported, "{at}");
        }
    }

    proptest! {
        #[test]
        fn an_entry_survives_encoding(
            inflated in 0..i64::MAX, compressed in 1..i64::MAX, window in 0..i64::MAX, bits in 0..8_u8, len: u32,
        ) {
            let number = |number: i64| u64::try_from(number).unwrap();
            let point = RestartPoint {
                inflated: number(inflated),
                compressed: number(compressed),
                bits,
                window_offset: number(window),
                window_len: len,
            };
            prop_assert_eq!(RestartPoint::decode(&point.encode().unwrap()).unwrap(), point);
        }

        #[test]
        fn any_bytes_are_an_entry_or_an_error(bytes: [u8; ENTRY_SIZE]) {
            if let Ok(point) = RestartPoint::decode(&bytes) {
                prop_assert_eq!(point.encode().unwrap(), bytes);
                prop_assert!(point.first_byte() <= point.compressed);
            }
        }
    }
}
