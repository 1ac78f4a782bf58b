//! Writing an index: windows as they come, and the table and the header at the end.

use crate::format::{ENTRY_SIZE, HEADER_SIZE, IndexHeader, IndexPacking, RestartPoint, WINDOW_SIZE};
use crate::index::check_points;
use crate::spool::Spool;
use headstart_block::{Error, Result, exact};
use miniz_oxide::deflate::compress_to_vec_zlib;

/// The level at which windows and table are packed, as by the reference.
const LEVEL: u8 = 6;

/// Bytes of an index that stay in memory: of a layer of some 700 MB.
const IN_MEMORY: usize = 8 << 20;

/// Gathers restart points and gives the index file. The same points give the same bytes.
#[derive(Debug)]
pub struct IndexWriter {
    span: u32,
    points: Vec<RestartPoint>,
    /// The file so far: room for the header, and the stored windows.
    file: Spool,
    /// The place of the first window of zeros, which serves all others like it.
    zeros: Option<(u64, u32)>,
}

impl IndexWriter {
    /// Starts an index; `span` is the distance of restart points that is aimed at, in uncompressed bytes, and is only
    /// recorded.
    ///
    /// # Errors
    /// Errors of a temporary file, which takes the windows if they are many.
    pub fn new(span: u32) -> Result<Self> {
        let mut file = Spool::new(IN_MEMORY);
        file.push(&[0; HEADER_SIZE])?;
        Ok(Self { span, points: Vec::new(), file, zeros: None })
    }

    /// Adds a restart point; see [`RestartPoint`] for the numbers. `window` is the 32 KiB of data before it. Windows of
    /// zeros are stored once.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the window has another length, or there are more than 7 bits;
    /// [`headstart_block::ErrorKind::Unsupported`] if there are too many points; errors of a temporary file.
    pub fn push(&mut self, inflated: u64, compressed: u64, bits: u8, window: &[u8]) -> Result<()> {
        if window.len() != WINDOW_SIZE || bits > 7 {
            return Err(Error::invalid("a restart point has a window of 32 KiB and at most 7 bits"));
        }
        let is_zero = window.iter().all(|&byte| byte == 0);
        let (window_offset, window_len) = match self.zeros.filter(|_| is_zero) {
            Some(place) => place,
            None => self.store(window)?,
        };
        check_points(self.points.len() as u64 + 1)?;
        if is_zero {
            self.zeros = Some((window_offset, window_len));
        }
        self.points.push(RestartPoint { inflated, compressed, bits, window_offset, window_len });
        Ok(())
    }

    fn store(&mut self, window: &[u8]) -> Result<(u64, u32)> {
        let packed = compress_to_vec_zlib(window, LEVEL);
        let offset = self.file.len();
        self.file.push(&packed)?;
        Ok((offset, exact(packed.len(), "32 KiB do not grow much by packing")))
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
    /// [`headstart_block::ErrorKind::Invalid`] if there is no restart point, or a number is too large for the format;
    /// errors of a temporary file.
    pub fn finish(mut self, gzip_size: u64, inflated_size: u64) -> Result<Spool> {
        if self.points.is_empty() {
            return Err(Error::invalid("an index has at least one restart point"));
        }
        let mut table = Vec::with_capacity(self.points.len() * ENTRY_SIZE);
        for point in &self.points {
            table.extend_from_slice(&point.encode()?);
        }
        let table = compress_to_vec_zlib(&table, LEVEL);
        let table_start = self.file.len();
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
        self.file.push(&table)?;
        self.file.set_start(&header.encode()?)?;
        Ok(self.file)
    }
}
