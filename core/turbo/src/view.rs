//! Any range of the uncompressed bytes of a gzip blob.
//!
//! A view cuts each piece of the blob (the bytes between two restart points, [`crate::index`]) into parts of
//! [`PART_SIZE`] bytes. A read takes its parts from the [cache](crate::cache). If one is missing, the piece is inflated
//! from its restart point, or from where an earlier read of the piece stopped, up to the end of that part, and all
//! parts on the way enter the cache. So a first read inflates half a span on average, and reading on inflates nothing
//! twice.
//!
//! A lock for each piece sees to it that two readers of the same piece do not inflate it both. No other lock is held
//! while bytes are fetched or inflated.
//!
//! Every length is checked: a piece has to give exactly the bytes between its restart points, the last one has to end
//! with the deflate stream, and the length behind the stream has to be that of the index. Bytes are not checked: gzip
//! has one checksum for all of them, and only the digest of the blob tells whether it is the right one.

use crate::cache::{InflatedCache, PartKey};
use crate::format::low_half;
use crate::index::{GzipIndex, GzipPiece};
use crate::inflater::RawInflater;
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result, to_usize};
use parking_lot::Mutex;
use std::sync::Arc;

/// Uncompressed bytes that enter the cache as one.
pub const PART_SIZE: u64 = 64 << 10;

/// The uncompressed bytes of a gzip blob, readable at any offset.
pub struct InflatedView<B> {
    blob: B,
    index: Arc<GzipIndex>,
    cache: Arc<InflatedCache>,
    /// The number of the view in the cache.
    id: u64,
    /// For each piece, held while it is inflated.
    inflating: Box<[Mutex<()>]>,
}

impl<B: ReadAt> InflatedView<B> {
    /// Makes a view of `blob`, a gzip file, by its index.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the index is that of a blob of another length.
    pub fn new(blob: B, index: Arc<GzipIndex>, cache: Arc<InflatedCache>) -> Result<Self> {
        let size = index.header().gzip_size;
        if blob.len() != size {
            return Err(Error::corrupt(format!(
                "has {} bytes, the index is of a blob of {size}",
                blob.len()
            ))
            .remedy("the index belongs to another blob, or the blob is truncated: fetch both again"));
        }
        let id = cache.new_view();
        let inflating = index.points().iter().map(|_| Mutex::new(())).collect();
        Ok(Self { blob, index, cache, id, inflating })
    }

    /// Returns the index of the blob.
    #[must_use]
    pub fn index(&self) -> &GzipIndex {
        &self.index
    }

    /// The part with byte `offset`, and the offset of its first byte.
    fn part_at(&self, offset: u64) -> Result<(u64, Arc<[u8]>)> {
        let number = self.index.piece_at(offset);
        let piece = self.index.piece(number);
        let part = (offset - piece.inflated.offset()) / PART_SIZE;
        let start = piece.inflated.offset() + part * PART_SIZE;
        let key = PartKey { view: self.id, piece: number, part };
        if let Some(bytes) = self.cache.get(key) {
            return Ok((start, bytes));
        }
        let _inflating = self.inflating[number].lock();
        // Another reader may have been quicker.
        let bytes = match self.cache.get(key) {
            Some(bytes) => bytes,
            None => self.inflate(key, &piece)?,
        };
        Ok((start, bytes))
    }

    /// Inflates a piece up to the end of the part `key`, and returns that part. If the piece turns out damaged, parts
    /// of it that were inflated before are given up, too: the fault may have been in the bytes before.
    #[cold]
    fn inflate(&self, key: PartKey, piece: &GzipPiece) -> Result<Arc<[u8]>> {
        let inflated = self.inflate_to(key, piece);
        if inflated.as_ref().is_err_and(|e| e.kind() == ErrorKind::Corrupt) {
            self.cache.forget_piece(key);
        }
        inflated
    }

    fn inflate_to(&self, key: PartKey, piece: &GzipPiece) -> Result<Arc<[u8]>> {
        let cleared = self.cache.times_cleared();
        let (first, mut inflater) = match self.cache.resume(key) {
            Some(found) => found,
            None => (0, self.restart(key.piece)?),
        };
        let mut input = Vec::new();
        let mut at = PartKey { part: first, ..key };
        loop {
            let start = piece.inflated.offset() + at.part * PART_SIZE;
            let len = (piece.inflated.end() - start).min(PART_SIZE);
            let mut bytes = vec![0; to_usize(len)];
            inflater
                .fill(&self.blob, piece.compressed.end(), &mut input, &mut bytes)
                .map_err(|e| e.about(format!("byte {start} of the uncompressed data")))?;
            let is_last = start + len == piece.inflated.end();
            if is_last && start + len == self.len() {
                self.check_end(&mut inflater, &mut input)
                    .map_err(|e| e.about(format!("byte {} of the uncompressed data", self.len())))?;
            }
            let bytes: Arc<[u8]> = bytes.into();
            self.cache.insert(at, Arc::clone(&bytes), cleared);
            at.part += 1;
            if at.part > key.part {
                if !is_last {
                    self.cache.pause(at, inflater, cleared);
                }
                return Ok(bytes);
            }
        }
    }

    fn restart(&self, number: usize) -> Result<RawInflater> {
        let point = &self.index.points()[number];
        let window = self.index.window(number)?;
        let mut before = [0];
        if point.bits > 0 {
            self.blob.read_at(&mut before, point.first_byte())?;
        }
        RawInflater::restart(&window, point.compressed, point.bits, before[0])
    }

    /// Checks that the stream ends with the data, and that the length behind it is the data's. An index may cover the
    /// first of several members only, so more may follow.
    fn check_end(&self, inflater: &mut RawInflater, input: &mut Vec<u8>) -> Result<()> {
        inflater.expect_end(&self.blob, self.blob.len(), input)?;
        let mut trailer = [0; 8];
        self.blob.read_at(&mut trailer, inflater.next())?;
        // The length is that of the last member, which begins with a restart point at a whole byte.
        let is_length = |start: u64| trailer[4..] == low_half(self.len() - start);
        if !self.index.points().iter().any(|point| point.bits == 0 && is_length(point.inflated)) {
            return Err(Error::corrupt(format!(
                "the length at byte {} of the compressed blob is not that of the index, {}",
                inflater.next() + 4,
                self.len()
            )));
        }
        Ok(())
    }
}

impl<B: ReadAt> ReadAt for InflatedView<B> {
    fn len(&self) -> u64 {
        self.index.header().inflated_size
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let wanted = ByteRange::new(offset, buf.len() as u64).filter(|range| range.end() <= self.len());
        if wanted.is_none() {
            return Err(Error::corrupt(format!(
                "needs {} bytes at offset {offset}, but only {} are uncompressed in all",
                buf.len(),
                self.len()
            )));
        }
        let (mut rest, mut at) = (buf, offset);
        while !rest.is_empty() {
            let (start, part) = self.part_at(at)?;
            let part = &part[to_usize(at - start)..];
            let (now, later) = rest.split_at_mut(part.len().min(rest.len()));
            now.copy_from_slice(&part[..now.len()]);
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    fn stored_range(&self, range: ByteRange) -> ByteRange {
        self.blob.stored_range(self.index.compressed_range(range))
    }

    fn decode_unit(&self) -> u64 {
        // A read in the middle of a piece, which has the mean length.
        (self.len() / self.index.points().len() as u64 / 2).max(PART_SIZE.min(self.len()))
    }
}

#[cfg(test)]
mod tests;
