//! The header block: 512 bytes in front of each entry.
//!
//! ```text
//! 0    100  name, ends at a NUL if it is shorter      257  6   magic    "ustar\0", GNU "ustar "
//! 100  8    mode                                      263  2   version  "00", GNU " \0"
//! 108  8    uid                                       265  32  user name, not used here
//! 116  8    gid                                       297  32  group name, not used here
//! 124  12   size of the content                       329  8   major number of a device
//! 136  12   mtime, seconds                            337  8   minor number of a device
//! 148  8    checksum: the sum of all bytes, these     345      the rest depends on the format
//!           eight counted as spaces
//! 156  1    typeflag
//! 157  100  target of a link
//!
//! ustar:  345  155  prefix: the name is prefix "/" name, if the prefix is not empty
//! star:   345  131  prefix       476  12  atime    488  12  ctime    508  4  "tar\0"
//! GNU:    345  12   atime        357  12  ctime
//!         386  96   four extents of a sparse file, each an offset and a length of 12 bytes
//!         482  1    not 0 if a block of further extents follows
//!         483  12   size of a sparse file, holes included
//! ```
//!
//! A block that has neither magic is one of version 7, which ends before offset 257. Early versions of Go wrote GNU
//! headers with a prefix; a prefix is taken from those whose atime or ctime is no number, as Go does.

use crate::number::{self, until_nul};
use headstart_block::{Error, Result};
use std::ops::Range;

/// The length of a header block, and the unit that contents are padded to, in bytes.
pub(crate) const BLOCK: usize = 512;

const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHECKSUM: Range<usize> = 148..156;
const TYPEFLAG: usize = 156;
const LINK: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..263;
const VERSION: Range<usize> = 263..265;
const MAJOR: Range<usize> = 329..337;
const MINOR: Range<usize> = 337..345;
const USTAR_PREFIX: Range<usize> = 345..500;
const STAR_PREFIX: Range<usize> = 345..476;
const STAR_ATIME: Range<usize> = 476..488;
const STAR_CTIME: Range<usize> = 488..500;
const STAR_TRAILER: Range<usize> = 508..512;
const GNU_ATIME: Range<usize> = 345..357;
const GNU_CTIME: Range<usize> = 357..369;

/// The formats of header blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFormat {
    V7,
    Ustar,
    Star,
    Gnu,
}

/// The fields of a header block. Numbers have any sign: their users check them.
#[derive(Debug)]
pub(crate) struct TarHeader<'a> {
    pub(crate) format: HeaderFormat,
    pub(crate) typeflag: u8,
    prefix: &'a [u8],
    name: &'a [u8],
    pub(crate) link: &'a [u8],
    pub(crate) size: i64,
    pub(crate) mode: i64,
    pub(crate) uid: i64,
    pub(crate) gid: i64,
    pub(crate) mtime: i64,
    /// The major and the minor number.
    pub(crate) device: (i64, i64),
}

impl<'a> TarHeader<'a> {
    /// Parses a block of the format `format`.
    ///
    /// # Errors
    /// Corrupt if a field is no number.
    pub(crate) fn parse(block: &'a [u8; BLOCK], format: HeaderFormat) -> Result<Self> {
        let name = until_nul(&block[NAME]);
        let number = |range: Range<usize>, what: &str| {
            let field = &block[range];
            number::field(field).ok_or_else(|| {
                let text = field.escape_ascii();
                Error::corrupt(format!("the {what} in its header, \"{text}\", is not a number of 64 bits"))
            })
        };
        let mut header = Self {
            format,
            typeflag: block[TYPEFLAG],
            prefix: &[],
            name,
            link: until_nul(&block[LINK]),
            size: number(SIZE, "size")?,
            mode: number(MODE, "mode")?,
            uid: number(UID, "uid")?,
            gid: number(GID, "gid")?,
            mtime: number(MTIME, "mtime")?,
            device: (0, 0),
        };
        if format == HeaderFormat::V7 {
            return Ok(header);
        }
        header.device = (number(MAJOR, "major number")?, number(MINOR, "minor number")?);
        header.prefix = match format {
            HeaderFormat::V7 => &[],
            HeaderFormat::Ustar => until_nul(&block[USTAR_PREFIX]),
            HeaderFormat::Star => {
                number(STAR_ATIME, "atime")?;
                number(STAR_CTIME, "ctime")?;
                until_nul(&block[STAR_PREFIX])
            }
            HeaderFormat::Gnu => gnu_prefix(block),
        };
        Ok(header)
    }

    /// The name, with its prefix.
    pub(crate) fn path(&self) -> Vec<u8> {
        if self.prefix.is_empty() { self.name.to_vec() } else { [self.prefix, b"/", self.name].concat() }
    }
}

/// The prefix in the place of the times of a GNU header, if they are no times.
fn gnu_prefix(block: &[u8; BLOCK]) -> &[u8] {
    let is_time = |field: &[u8]| field.first() == Some(&0) || number::field(field).is_some();
    let prefix = until_nul(&block[USTAR_PREFIX]);
    let has_times = is_time(&block[GNU_ATIME]) && is_time(&block[GNU_CTIME]);
    if has_times || !prefix.is_ascii() { &[] } else { prefix }
}

/// Returns the format of a header block; `None` if its checksum is wrong, so that it is none.
pub(crate) fn format_of(block: &[u8; BLOCK]) -> Option<HeaderFormat> {
    let sum = number::octal(&block[CHECKSUM])?;
    let counted = || (0..).zip(block).map(|(at, byte)| if CHECKSUM.contains(&at) { b' ' } else { *byte });
    let unsigned: i64 = counted().map(i64::from).sum();
    if sum != unsigned && sum != counted().map(|byte| i64::from(byte.cast_signed())).sum::<i64>() {
        return None;
    }
    Some(match &block[MAGIC] {
        b"ustar\0" if block[STAR_TRAILER] == *b"tar\0" => HeaderFormat::Star,
        b"ustar\0" => HeaderFormat::Ustar,
        b"ustar " if block[VERSION] == *b" \0" => HeaderFormat::Gnu,
        _ => HeaderFormat::V7,
    })
}
