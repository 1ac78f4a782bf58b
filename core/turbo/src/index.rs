//! Reading an index: which restart point serves a byte, which compressed bytes a range needs, and the windows.
//!
//! The table of entries is read whole and checked when an index is opened; it takes 40 bytes of memory for each restart
//! point. Windows are read and unpacked when they are needed.
//!
//! The restart points cut the uncompressed data into *pieces*: a piece is what lies between one point and the next, and
//! inflating one needs the compressed bytes between both and nothing else.

use crate::format::{
    ENTRY_SIZE, HEADER_SIZE, IndexHeader, IndexPacking, MAX_POINTS, RestartPoint, WINDOW_SIZE, stored_len,
};
use headstart_block::{ByteRange, Error, ReadAt, Result, to_usize};
use std::io::{self, Read};
use std::sync::Arc;
use zlib_rs::{Inflate, InflateFlush, Status};

/// Most stored bytes of a window: a zlib stream of 32 KiB is at most a few bytes longer.
const STORED_WINDOW_MAX: usize = 64 << 10;
/// Bytes of the unpacked table that are decoded at once.
const TABLE_PART: usize = ENTRY_SIZE * 1024;
const DAMAGED: &str = "the index is damaged: fetch it again";

/// The index of a gzip file, open for reading.
pub struct GzipIndex {
    header: IndexHeader,
    points: Box<[RestartPoint]>,
    source: Arc<dyn ReadAt>,
}

/// The part of a gzip file between one restart point and the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GzipPiece {
    /// The bytes of the uncompressed data that the piece gives.
    pub inflated: ByteRange,
    /// The bytes of the gzip file that inflating the piece needs.
    pub compressed: ByteRange,
}

impl GzipIndex {
    /// Opens the index that `source` holds, and checks its header and its table.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the index is damaged, and [`headstart_block::ErrorKind::Unsupported`]
    /// if its version or its packing is not known; errors of `source`.
    pub fn open(source: Arc<dyn ReadAt>) -> Result<Self> {
        if source.len() < HEADER_SIZE as u64 {
            return Err(Error::corrupt(format!("has {} bytes, which are no header", source.len())));
        }
        let mut bytes = [0; HEADER_SIZE];
        source.read_at(&mut bytes, 0)?;
        let header = IndexHeader::decode(&bytes)?;
        if header.index_size != source.len() {
            return Err(Error::corrupt(format!(
                "has {} bytes, its header says {}",
                source.len(),
                header.index_size
            ))
            .remedy(DAMAGED));
        }
        check_points(header.entries)?;
        let points = read_table(&source, &header).map_err(|e| e.remedy(DAMAGED))?;
        Ok(Self { header, points: points.into(), source })
    }

    /// Returns the header of the index.
    #[must_use]
    pub fn header(&self) -> &IndexHeader {
        &self.header
    }

    /// Returns the restart points in the order of the data. There is at least one, the first at byte 0.
    #[must_use]
    pub fn points(&self) -> &[RestartPoint] {
        &self.points
    }

    /// Returns the number of the piece that has byte `offset` of the uncompressed data, counted from 0; the last piece
    /// for an offset past the end.
    #[must_use]
    pub fn piece_at(&self, offset: u64) -> usize {
        self.points.partition_point(|point| point.inflated <= offset).saturating_sub(1)
    }

    /// Returns the place of piece `number`, which must be less than the number of restart points.
    #[must_use]
    pub fn piece(&self, number: usize) -> GzipPiece {
        let point = &self.points[number];
        let (inflated_end, compressed_end) = match self.points.get(number + 1) {
            Some(next) => (next.inflated, next.compressed),
            None => (self.header.inflated_size, self.header.gzip_size),
        };
        GzipPiece {
            inflated: ByteRange::between(point.inflated, inflated_end),
            compressed: ByteRange::between(point.first_byte(), compressed_end),
        }
    }

    /// Returns the bytes of the gzip file that reading `range` of the uncompressed data needs: those of all pieces that
    /// the range touches. An empty range needs an empty range. Bytes past the end are ignored.
    #[must_use]
    pub fn compressed_range(&self, range: ByteRange) -> ByteRange {
        let range = range.intersect(ByteRange::between(0, self.header.inflated_size));
        let first = self.piece(self.piece_at(range.offset())).compressed;
        if range.is_empty() {
            return ByteRange::between(first.offset(), first.offset());
        }
        let last = self.piece(self.piece_at(range.end() - 1)).compressed;
        ByteRange::between(first.offset(), last.end())
    }

    /// Reads and unpacks the window of the restart point `number`, which must be less than the number of restart
    /// points: the 32 KiB of uncompressed data before the point. Bytes that the piece does not refer to may be wrong:
    /// writers may leave them out.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the window does not unpack to 32 KiB; errors of the index's source.
    pub fn window(&self, number: usize) -> Result<Box<[u8]>> {
        let point = &self.points[number];
        let mut stored = vec![0; stored_len(point)];
        self.source.read_at(&mut stored, point.window_offset)?;
        if self.header.packing == IndexPacking::None {
            return Ok(stored.into());
        }
        let mut window = vec![0; WINDOW_SIZE].into_boxed_slice();
        let mut inflate = Inflate::new(true, 15);
        let status = inflate.decompress(&stored, &mut window, InflateFlush::Finish);
        if status != Ok(Status::StreamEnd) || inflate.total_out() != WINDOW_SIZE as u64 {
            return Err(Error::corrupt(format!(
                "the window of restart point {number} at byte {} of the index is damaged",
                point.window_offset
            ))
            .remedy(DAMAGED));
        }
        Ok(window)
    }
}

/// Refuses an index with more restart points than memory is for.
pub(crate) fn check_points(points: u64) -> Result<()> {
    if points <= MAX_POINTS {
        return Ok(());
    }
    let cause = format!("has {points} restart points, more than the {MAX_POINTS} of 1 TiB of data");
    Err(Error::unsupported(cause).remedy("convert the image with --mode native, which needs no index"))
}

/// Reads the table. Memory grows with what is really unpacked and checked: the number of entries is a claim.
fn read_table(source: &Arc<dyn ReadAt>, header: &IndexHeader) -> Result<Vec<RestartPoint>> {
    let area = SourceReader { source, next: header.table_start, end: header.index_size };
    let mut table: Box<dyn Read + '_> = match header.packing {
        IndexPacking::None => Box::new(area),
        IndexPacking::Zlib => Box::new(flate2::read::ZlibDecoder::new(area)),
    };
    let mut points = Vec::new();
    let mut part = vec![0; TABLE_PART];
    loop {
        let filled = fill(&mut table, &mut part)?;
        let (entries, rest) = part[..filled].as_chunks::<ENTRY_SIZE>();
        for entry in entries {
            let point = RestartPoint::decode(entry)?;
            check_point(&point, points.last(), header)?;
            points.push(point);
        }
        check_points(points.len() as u64)?;
        if filled < part.len() {
            if !rest.is_empty() || points.len() as u64 != header.entries {
                return Err(Error::corrupt(format!(
                    "its table has {} entries and {} bytes more, its header says {} entries",
                    points.len(),
                    rest.len(),
                    header.entries
                )));
            }
            return Ok(points);
        }
    }
}

/// Reads until `part` is full or the input ends; returns the number of bytes.
fn fill(input: &mut dyn Read, part: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < part.len() {
        match input.read(&mut part[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) => return Err(decoding_failed(e, "its table does not unpack")),
        }
    }
    Ok(filled)
}

/// The error of a source as it is; an error of the decoder above it means that the bytes are wrong, as `cause` says.
pub(crate) fn decoding_failed(error: io::Error, cause: &'static str) -> Error {
    match error.get_ref() {
        Some(inner) if inner.is::<Error>() => error.into(),
        _ => Error::corrupt(cause),
    }
}

fn check_point(point: &RestartPoint, before: Option<&RestartPoint>, header: &IndexHeader) -> Result<()> {
    let ascends = match before {
        // Deflate blocks may be empty, so two may begin at the same uncompressed byte.
        Some(before) => point.inflated >= before.inflated && point.compressed > before.compressed,
        None => point.inflated == 0,
    };
    if !ascends {
        return Err(Error::corrupt(format!("its restart point {point:?} is not in order")));
    }
    if point.inflated > header.inflated_size || point.compressed >= header.gzip_size {
        return Err(Error::corrupt(format!("its restart point {point:?} lies outside of the gzip file")));
    }
    let end = point.window_offset.checked_add(u64::from(point.window_len));
    let inside =
        point.window_offset >= HEADER_SIZE as u64 && end.is_some_and(|end| end <= header.table_start);
    let has_length = match header.packing {
        IndexPacking::None => stored_len(point) == WINDOW_SIZE,
        IndexPacking::Zlib => stored_len(point) <= STORED_WINDOW_MAX,
    };
    if !inside || !has_length {
        return Err(Error::corrupt(format!("the window of its restart point {point:?} cannot be there")));
    }
    Ok(())
}

/// A part of a source, read from its beginning on.
pub(crate) struct SourceReader<'a> {
    pub(crate) source: &'a dyn ReadAt,
    pub(crate) next: u64,
    pub(crate) end: u64,
}

impl Read for SourceReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.end.saturating_sub(self.next).min(buf.len() as u64);
        let part = buf.get_mut(..to_usize(len)).unwrap_or_default();
        self.source.read_at(part, self.next)?;
        self.next += len;
        Ok(part.len())
    }
}

#[cfg(test)]
mod tests;
