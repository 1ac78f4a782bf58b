//! Writing an index: windows as they come, and the table and the header at the end.

use crate::format::{ENTRY_SIZE, HEADER_SIZE, IndexHeader, IndexPacking, RestartPoint, WINDOW_SIZE};
use headstart_block::{Error, Result, exact};
use miniz_oxide::deflate::compress_to_vec_zlib;

/// The level at which windows and table are packed, as by the reference.
const LEVEL: u8 = 6;

/// Gathers restart points and gives the index file. The same points give the same bytes.
#[derive(Debug)]
pub struct IndexWriter {
    span: u32,
    points: Vec<RestartPoint>,
    /// The stored windows, which follow the header.
    windows: Vec<u8>,
    /// The place of the first window of zeros, which serves all others like it.
    zeros: Option<(u64, u32)>,
}

impl IndexWriter {
    /// Starts an index; `span` is the distance of restart points that is aimed at, in uncompressed bytes, and is only
    /// recorded.
    #[must_use]
    pub fn new(span: u32) -> Self {
        Self { span, points: Vec::new(), windows: Vec::new(), zeros: None }
    }

    /// Adds a restart point; see [`RestartPoint`] for the numbers. `window` is the 32 KiB of data before it. Windows of
    /// zeros are stored once.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the window has another length, or there are more than 7 bits.
    pub fn push(&mut self, inflated: u64, compressed: u64, bits: u8, window: &[u8]) -> Result<()> {
        if window.len() != WINDOW_SIZE || bits > 7 {
            return Err(Error::invalid("a restart point has a window of 32 KiB and at most 7 bits"));
        }
        let is_zero = window.iter().all(|&byte| byte == 0);
        let (window_offset, window_len) = match self.zeros.filter(|_| is_zero) {
            Some(place) => place,
            None => self.store(window),
        };
        if is_zero {
            self.zeros = Some((window_offset, window_len));
        }
        self.points.push(RestartPoint { inflated, compressed, bits, window_offset, window_len });
        Ok(())
    }

    fn store(&mut self, window: &[u8]) -> (u64, u32) {
        let packed = compress_to_vec_zlib(window, LEVEL);
        let offset = (HEADER_SIZE + self.windows.len()) as u64;
        self.windows.extend_from_slice(&packed);
        (offset, exact(packed.len(), "32 KiB do not grow much by packing"))
    }

    /// Returns the number of restart points so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// `true` if there is no restart point yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Returns the bytes of the index file, for a gzip file of `gzip_size` bytes with `inflated_size` bytes of
    /// uncompressed data.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there is no restart point, or a number is too large for the format.
    pub fn finish(self, gzip_size: u64, inflated_size: u64) -> Result<Vec<u8>> {
        if self.points.is_empty() {
            return Err(Error::invalid("an index has at least one restart point"));
        }
        let mut table = Vec::with_capacity(self.points.len() * ENTRY_SIZE);
        for point in &self.points {
            table.extend_from_slice(&point.encode()?);
        }
        let table = compress_to_vec_zlib(&table, LEVEL);
        let table_start = (HEADER_SIZE + self.windows.len()) as u64;
        let header = IndexHeader {
            packing: IndexPacking::Zlib,
            level: exact(LEVEL, "levels end with 10"),
            span: self.span,
            entries: self.points.len() as u64,
            gzip_size,
            index_size: table_start + table.len() as u64,
            inflated_size,
            table_start,
            table_len: table.len() as u64,
        };
        Ok([header.encode()?.as_slice(), &self.windows, &table].concat())
    }
}
