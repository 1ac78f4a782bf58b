//! Maps of sparse files: which parts of a file have data.
//!
//! An extent is an offset in the file and a length, both in bytes. Extents are in order and do not overlap; the stored
//! content is the data of all, one after the other. The forms of GNU tar are:
//!
//! * Old (typeflag `S`): the header has four extents (see `header`), and further ones are in blocks between the header
//!   and the content, which the size of the entry does not count. A table ends early at an offset that starts with a
//!   NUL byte.
//!
//!   ```text
//!   0    504   21 extents, each an offset and a length of 12 bytes
//!   504  1     not 0 if another block follows
//!   ```
//! * PAX 0.0: the records `GNU.sparse.offset` and `GNU.sparse.numbytes` in turn; `GNU.sparse.numblocks` is the number
//!   of extents and `GNU.sparse.size` the size of the file.
//! * PAX 0.1: the same, but `GNU.sparse.map` has all extents, as numbers with commas between them, and
//!   `GNU.sparse.name` has the name of the file.
//! * PAX 1.0: `GNU.sparse.major` and `minor` are 1 and 0, `GNU.sparse.realsize` is the size of the file; the map is at
//!   the start of the content, in whole blocks, which the size of the entry counts: decimal numbers, each on a line,
//!   first the number of extents, then the offset and the length of each.

use crate::header::BLOCK;
use crate::limits::check;
use crate::number::{self, decimal};
use crate::pax::{SparseRecords, malformed};
use headstart_block::{ByteRange, Error, Result};
use std::ops::Range;

/// The places of the first extents, the mark of further ones, and the size of the file in a GNU header.
const HEADER_TABLE: Range<usize> = 386..482;
const HEADER_MORE: usize = 482;
const HEADER_REAL_SIZE: Range<usize> = 483..495;
/// The places of extents and of the mark of further ones in a block of extents.
const BLOCK_TABLE: Range<usize> = 0..504;
const BLOCK_MORE: usize = 504;
/// The bytes of an extent in a table, half of them for the offset.
const TABLE_EXTENT: usize = 24;

/// The place of the map of a sparse file in PAX format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PaxMap {
    /// In the records: versions 0.0 and 0.1.
    InRecords,
    /// At the start of the content: version 1.0.
    InContent,
}

impl SparseRecords {
    /// The place of the map; `None` if the entry is not a sparse file.
    ///
    /// # Errors
    /// Unsupported if the version is unknown.
    pub(crate) fn place(&self) -> Result<Option<PaxMap>> {
        let version = |part: &Option<Vec<u8>>| part.clone().unwrap_or_default();
        match (version(&self.major).as_slice(), version(&self.minor).as_slice()) {
            (b"0", b"0" | b"1") => Ok(Some(PaxMap::InRecords)),
            (b"1", b"0") => Ok(Some(PaxMap::InContent)),
            (b"", b"") => Ok(self.map.as_ref().map(|_| PaxMap::InRecords)),
            (major, minor) => Err(Error::unsupported(format!(
                "is a sparse file of the unknown version \"{}.{}\"",
                major.escape_ascii(),
                minor.escape_ascii()
            ))),
        }
    }

    /// The size of the file, holes included; `None` if no record says it.
    ///
    /// # Errors
    /// Corrupt if the record is no number.
    pub(crate) fn file_size(&self) -> Result<Option<i64>> {
        let text = self.size.as_ref().or(self.real_size.as_ref());
        text.map(|text| decimal(text).ok_or_else(|| malformed("sparse size", text))).transpose()
    }

    /// Adds the extents in the records to `map`.
    ///
    /// # Errors
    /// Corrupt if they are not as many as the records say, or are no extents.
    pub(crate) fn read_map(&self, map: &mut SparseMap) -> Result<()> {
        let text = self.map.as_deref().unwrap_or_default();
        let numbers = if text.is_empty() { 0 } else { text.split(|byte| *byte == b',').count() as u64 };
        let count = self.count.as_deref().and_then(decimal).and_then(|count| u64::try_from(count).ok());
        if count.and_then(|count| count.checked_mul(2)) != Some(numbers) {
            return Err(Error::corrupt("its sparse map has another length than its PAX header says"));
        }
        if numbers > 0 {
            map.add_numbers(text.split(|byte| *byte == b','))?;
        }
        Ok(())
    }
}

/// The extents of a sparse file, checked as they are added.
#[derive(Debug)]
pub(crate) struct SparseMap {
    extents: Vec<ByteRange>,
    /// The size of the file.
    size: u64,
    /// The number of extents so far, empty ones included, and the most there may be.
    count: u64,
    limit: u64,
    /// The end of the last extent.
    end: u64,
    /// The length of all extents together.
    data: u64,
}

impl SparseMap {
    /// The map of a file of `size` bytes without extents yet.
    pub(crate) fn new(size: u64, limit: u64) -> Self {
        Self { extents: Vec::new(), size, count: 0, limit, end: 0, data: 0 }
    }

    fn add(&mut self, offset: Option<i64>, len: Option<i64>) -> Result<()> {
        self.count += 1;
        check(self.count, self.limit, "sparse_extents", "or more extents of a sparse file")?;
        let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        let extent = number(offset)
            .zip(number(len))
            .and_then(|(offset, len)| ByteRange::new(offset, len))
            .filter(|extent| extent.offset() >= self.end && extent.end() <= self.size)
            .ok_or_else(|| {
                let number = self.count;
                Error::corrupt(format!(
                    "extent {number} of its sparse map is not one, overlaps, or is outside"
                ))
            })?;
        self.end = extent.end();
        self.data += extent.len();
        if !extent.is_empty() {
            self.extents.push(extent);
        }
        Ok(())
    }

    /// Adds extents from decimal numbers, offset and length in turn.
    pub(crate) fn add_numbers<'a>(&mut self, numbers: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let mut numbers = numbers.map(decimal);
        while let Some(offset) = numbers.next() {
            self.add(offset, numbers.next().flatten())?;
        }
        Ok(())
    }

    /// Adds the extents in a GNU header; `true` if a block of further ones follows.
    pub(crate) fn add_header(&mut self, header: &[u8; BLOCK]) -> Result<bool> {
        self.add_table(&header[HEADER_TABLE])?;
        Ok(header[HEADER_MORE] > 0)
    }

    /// Adds the extents in a block; `true` if another block follows.
    pub(crate) fn add_block(&mut self, block: &[u8; BLOCK]) -> Result<bool> {
        self.add_table(&block[BLOCK_TABLE])?;
        Ok(block[BLOCK_MORE] > 0)
    }

    fn add_table(&mut self, table: &[u8]) -> Result<()> {
        for extent in table.chunks_exact(TABLE_EXTENT).take_while(|extent| extent[0] != 0) {
            let (offset, len) = extent.split_at(TABLE_EXTENT / 2);
            self.add(number::field(offset), number::field(len))?;
        }
        Ok(())
    }

    /// Returns the extents that are not empty.
    ///
    /// # Errors
    /// Corrupt if they are not `stored` bytes together.
    pub(crate) fn finish(self, stored: u64) -> Result<Vec<ByteRange>> {
        if self.data == stored {
            return Ok(self.extents);
        }
        let data = self.data;
        Err(Error::corrupt(format!("has {stored} bytes of content for {data} bytes in its sparse map")))
    }
}

/// The size of a sparse file in a GNU header; `None` if it is no number.
pub(crate) fn old_file_size(header: &[u8; BLOCK]) -> Option<i64> {
    number::field(&header[HEADER_REAL_SIZE])
}
