//! Header and trailer, byte by byte, and the checks on them.
//!
//! Both are 512 bytes of the same layout, little-endian:
//!
//! ```text
//! bytes     field
//!   0..8    "ZFile\0\1\0"
//!   8..24   "tuji.yyf@Alibaba" (sixteen characters, used as a uuid)
//!  24..28   96, the bytes in use; no reader looks at it
//!  28..32   digest: raw CRC-32C from 0 over all 512 bytes, this field taken as 0
//!  32..40   flags, see below
//!  40..48   index_offset: where the index starts, in bytes
//!  48..56   index_size: number of its entries, that is, of frames
//!  56..64   original_size: bytes of the content
//!  64..68   index_crc: raw CRC-32C from 0 over the index; 0 for an empty one
//!  68..72   reserved
//!  72..76   frame_size: bytes of content in a frame
//!  76       codec: 1 lz4, 2 zstd
//!  77       level: written 0, ignored
//!  78       use_dict, always 0: no writer makes dictionaries
//!  79..84   padding, reserved
//!  84..88   dict_size, always 0; a dictionary would be between header and frames
//!  88       verify: 1 = a raw CRC-32C from 100007 follows each frame and is counted in its length
//!  89..512  reserved
//! ```
//!
//! A *raw* CRC-32C from `n` begins with the value `n` and is inverted neither before nor after.
//!
//! Only the six low bits of the flags have a meaning. In most published images, the base layer has garbage in the other
//! bits, in the digest and in the reserved bytes, because its writer did not clear its memory. So readers ignore
//! everything reserved, and check the digest and the index checksum only if bit 4 is set.
//!
//! | bit | meaning | header as first written | header overwritten at the end | trailer |
//! |---|---|---|---|---|
//! | 0 | is a header | 1 | 1 | 0 |
//! | 1 | of a data file | 1 | 1 | 1 |
//! | 2 | sealed | 0 | 0 | 1 |
//! | 3 | the header's index fields are valid | 0 | 1 | 0 |
//! | 4 | digests are valid | 1 | 1 | 1 |
//! | 5 | index is compressed: never done, ignored | 0 | 0 | 0 |
//!
//! If bit 3 is set in the header, only the header counts: the trailer is not read, and may be missing. Otherwise the
//! trailer, which is the last 512 bytes, counts, and the header must have the same frame size, codec, `verify` and
//! dictionary fields.
//!
//! Some files that OverlayBD, the reference implementation, accepts are refused here, because they can only be damaged
//! or malicious: an index that does not start where the frames end, a number of frames that does not follow from the
//! sizes, a frame longer than any codec makes it, a trailer whose digest is wrong.

use crate::checksum::raw;
use crate::codec::Codec;
use headstart_block::{Error, Result};

/// Length of the header in bytes, which is also the length of the trailer.
pub const HEADER_SIZE: usize = 512;
/// Bytes of an index entry.
pub(crate) const ENTRY_SIZE: usize = 4;
/// Bytes of the checksum behind a frame.
pub(crate) const FRAME_CRC_SIZE: usize = 4;
/// The largest frame that is read or written, in bytes of uncompressed content: 64 KiB. OverlayBD, the
/// reference implementation, divides by zero above it.
pub const FRAME_SIZE_MAX: u32 = 64 << 10;
/// Most frames that the reference opens.
pub(crate) const FRAMES_MAX: u64 = 1_000_000_000;

const MAGIC: &[u8; 24] = b"ZFile\0\x01\0tuji.yyf@Alibaba";
const BYTES_IN_USE: u32 = 96;
const FLAG_HEADER: u8 = 1;
const FLAG_DATA: u8 = 1 << 1;
const FLAG_SEALED: u8 = 1 << 2;
const FLAG_INDEX_VALID: u8 = 1 << 3;
const FLAG_DIGEST: u8 = 1 << 4;

/// `true` if `first_bytes`, the beginning of a file, has the 24 magic bytes of a ZFile; `false` if it is
/// shorter.
#[must_use]
pub fn is_zfile(first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(MAGIC)
}

/// Describes a ZFile: the fields of its header or trailer, checked against each other and against the file's
/// length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZFileInfo {
    /// The algorithm that compresses the frames.
    pub codec: Codec,
    /// Uncompressed bytes in a frame, 1 to 65536; the last frame may have fewer.
    pub frame_size: u32,
    /// `true` if a 4-byte CRC-32C follows each frame.
    pub crc: bool,
    /// Number of frames in the ZFile; its index has an entry for each.
    pub frames: u64,
    /// Length of the uncompressed content in bytes.
    pub original_size: u64,
    /// Length of the whole ZFile in bytes, with header, index and trailer.
    pub compressed_size: u64,
    /// Offset of the index from the beginning of the ZFile, in bytes. The frames end there.
    pub index_offset: u64,
    /// CRC-32C of the stored index, with the initial value 0 and no inversion before or after. It counts only
    /// if [`digest`](ZFileInfo::digest) is `true`.
    pub index_crc: u32,
    /// `true` if header, trailer and index carry checksums; some early writers of the format made none.
    pub digest: bool,
    /// `true` if the header gives the place of the index, because the header was overwritten when the file was
    /// complete. The trailer is then not read. `false` if only the trailer gives that place.
    pub header_valid: bool,
}

impl ZFileInfo {
    /// Length of the stored index in bytes: 4 for each frame.
    #[must_use]
    pub fn index_size(&self) -> u64 {
        self.frames.saturating_mul(ENTRY_SIZE as u64)
    }
}

/// The place of a [`Part`]: one of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Header,
    Trailer,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Header => "ZFile header",
            Self::Trailer => "ZFile trailer",
        }
    }
}

/// The fields of a header or a trailer, as they are: only [`Part::parse`]'s own checks were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) flags: u8,
    pub(crate) index_offset: u64,
    pub(crate) index_size: u64,
    pub(crate) original_size: u64,
    pub(crate) index_crc: u32,
    pub(crate) frame_size: u32,
    pub(crate) codec: u8,
    pub(crate) use_dict: u8,
    pub(crate) dict_size: u32,
    pub(crate) verify: u8,
}

impl Part {
    /// Reads a header or trailer; checks magic, digest and the flags that say which it is.
    pub(crate) fn parse(bytes: &[u8; HEADER_SIZE], place: Place) -> Result<Self> {
        let part = Self {
            flags: bytes[32],
            index_offset: u64_at(bytes, 40),
            index_size: u64_at(bytes, 48),
            original_size: u64_at(bytes, 56),
            index_crc: u32_at(bytes, 64),
            frame_size: u32_at(bytes, 72),
            codec: bytes[76],
            use_dict: bytes[78],
            dict_size: u32_at(bytes, 84),
            verify: bytes[88],
        };
        let name = place.name();
        if !is_zfile(bytes) {
            return Err(match place {
                Place::Header => Error::corrupt("is not a ZFile: it does not start with the magic bytes"),
                Place::Trailer => Error::corrupt("the last 512 bytes are not a ZFile trailer")
                    .remedy("it is truncated or something was appended: fetch or copy it again"),
            });
        }
        if part.has_digest() && u32_at(bytes, 28) != digest(bytes) {
            return Err(damaged(format!("{name} fails its checksum")));
        }
        let (mask, wanted) = match place {
            Place::Header => (FLAG_HEADER | FLAG_DATA, FLAG_HEADER | FLAG_DATA),
            Place::Trailer => (FLAG_HEADER | FLAG_DATA | FLAG_SEALED, FLAG_DATA | FLAG_SEALED),
        };
        if part.flags & mask != wanted {
            return Err(damaged(format!("{name} has impossible flags {:#04x}", part.flags)));
        }
        Ok(part)
    }

    /// `true` if digest and index checksum mean something.
    pub(crate) fn has_digest(&self) -> bool {
        self.flags & FLAG_DIGEST != 0
    }

    /// `true` if this header makes the trailer unnecessary.
    pub(crate) fn is_index_valid(&self) -> bool {
        self.flags & FLAG_INDEX_VALID != 0
    }

    /// The form of the frames, which must be the same in header and trailer.
    pub(crate) fn frame_form(&self) -> (u32, u8, u8, u8, u32) {
        (self.frame_size, self.codec, self.verify, self.use_dict, self.dict_size)
    }

    /// Checks the fields against each other and against the blob's size, `index_end_max` being where the
    /// index must have ended. After this the index may be read.
    pub(crate) fn check(
        &self,
        compressed_size: u64,
        index_end_max: u64,
        header_valid: bool,
    ) -> Result<ZFileInfo> {
        let codec = Codec::from_number(self.codec)?;
        if self.use_dict != 0 || self.dict_size != 0 {
            return Err(Error::unsupported("uses a compression dictionary, which no known writer makes")
                .remedy("pack it again without one"));
        }
        if !(1..=FRAME_SIZE_MAX).contains(&self.frame_size) {
            return Err(Error::unsupported(format!("has frames of {} bytes", self.frame_size))
                .remedy("frames of up to 64 KiB can be read"));
        }
        if self.verify > 1 {
            return Err(damaged(format!("has an impossible checksum switch {}", self.verify)));
        }
        let frames = self.original_size.div_ceil(u64::from(self.frame_size));
        if self.index_size != frames || frames > FRAMES_MAX {
            return Err(damaged(format!(
                "has {} frames, but {} bytes in frames of {} make {frames}",
                self.index_size, self.original_size, self.frame_size
            )));
        }
        let index_end = self.index_offset.checked_add(frames * ENTRY_SIZE as u64);
        if self.index_offset < HEADER_SIZE as u64 || index_end.is_none_or(|end| end > index_end_max) {
            return Err(damaged(format!(
                "its index of {frames} entries at offset {} is outside of its {compressed_size} bytes",
                self.index_offset
            )));
        }
        Ok(ZFileInfo {
            codec,
            frame_size: self.frame_size,
            crc: self.verify == 1,
            frames,
            original_size: self.original_size,
            compressed_size,
            index_offset: self.index_offset,
            index_crc: self.index_crc,
            digest: self.has_digest(),
            header_valid,
        })
    }
}

/// The header as first written, when nothing is known but the form of the frames.
pub(crate) fn encode_header(info: &ZFileInfo) -> [u8; HEADER_SIZE] {
    encode(info, FLAG_HEADER | FLAG_DATA | FLAG_DIGEST, [0; 3], 0)
}

/// The trailer.
pub(crate) fn encode_trailer(info: &ZFileInfo) -> [u8; HEADER_SIZE] {
    let places = [info.index_offset, info.frames, info.original_size];
    encode(info, FLAG_DATA | FLAG_SEALED | FLAG_DIGEST, places, info.index_crc)
}

fn encode(info: &ZFileInfo, flags: u8, places: [u64; 3], index_crc: u32) -> [u8; HEADER_SIZE] {
    let mut bytes = [0; HEADER_SIZE];
    bytes[..24].copy_from_slice(MAGIC);
    bytes[24..28].copy_from_slice(&BYTES_IN_USE.to_le_bytes());
    bytes[32] = flags;
    bytes[40..48].copy_from_slice(&places[0].to_le_bytes());
    bytes[48..56].copy_from_slice(&places[1].to_le_bytes());
    bytes[56..64].copy_from_slice(&places[2].to_le_bytes());
    bytes[64..68].copy_from_slice(&index_crc.to_le_bytes());
    bytes[72..76].copy_from_slice(&info.frame_size.to_le_bytes());
    bytes[76] = info.codec.number();
    bytes[88] = u8::from(info.crc);
    let digest = digest(&bytes);
    bytes[28..32].copy_from_slice(&digest.to_le_bytes());
    bytes
}

/// The checksum of a header or trailer, its own field taken as 0.
fn digest(bytes: &[u8; HEADER_SIZE]) -> u32 {
    raw(raw(raw(0, &bytes[..28]), &[0; 4]), &bytes[32..])
}

/// The error of damage, with its remedy.
pub(crate) fn damaged(cause: String) -> Error {
    Error::corrupt(cause).remedy("it is damaged: fetch or copy it again")
}

fn u32_at(bytes: &[u8; HEADER_SIZE], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8; HEADER_SIZE], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> ZFileInfo {
        ZFileInfo {
            codec: Codec::Zstd,
            frame_size: 32768,
            crc: true,
            frames: 2,
            original_size: 40_000,
            compressed_size: 512 + 100 + 8 + 512,
            index_offset: 612,
            index_crc: 0x1234_5678,
            digest: true,
            header_valid: false,
        }
    }

    #[test]
    fn the_trailer_gives_back_what_was_written() {
        let part = Part::parse(&encode_trailer(&info()), Place::Trailer).unwrap();
        assert_eq!(part.check(1132, 620, false).unwrap(), info());
        assert!(part.check(1132, 619, false).is_err(), "index one byte too long");
        assert!(Part::parse(&encode_trailer(&info()), Place::Header).is_err());
    }

    #[test]
    fn garbage_in_reserved_places_is_no_damage_where_no_digest_is() {
        let mut bytes = encode_trailer(&info());
        bytes[32] = 0x46;
        bytes[33..40].fill(0xa5);
        bytes[28..32].fill(0xa5);
        bytes[89..].fill(0xa5);
        let part = Part::parse(&bytes, Place::Trailer).unwrap();
        assert_eq!(part.check(1132, 620, false).unwrap(), ZFileInfo { digest: false, ..info() });
    }

    #[test]
    fn forms_that_are_not_read_are_named() {
        let part = Part::parse(&encode_trailer(&info()), Place::Trailer).unwrap();
        let cases: [(Part, &str); 6] = [
            (Part { codec: 7, ..part.clone() }, "unknown codec 7"),
            (Part { codec: 0, ..part.clone() }, "minilzo"),
            (Part { use_dict: 1, ..part.clone() }, "dictionary"),
            (Part { dict_size: 9, ..part.clone() }, "dictionary"),
            (Part { frame_size: 128 << 10, ..part.clone() }, "frames of 131072 bytes"),
            (Part { frame_size: 0, ..part.clone() }, "frames of 0 bytes"),
        ];
        for (part, words) in cases {
            let error = part.check(1132, 620, false).unwrap_err();
            assert_eq!(error.kind(), headstart_block::ErrorKind::Unsupported);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
