//! Writing a sealed layer as a stream: header, data, table, trailer.
//!
//! The output is byte for byte the one that OverlayBD's commit writes for the same segments. The data is contiguous
//! from sector 8 on, in ascending order. It is recorded in pieces of at most 64 sectors. Neighbouring pieces that
//! continue each other are joined, from left to right, into segments of fewer than 16383 sectors; only zeros that are
//! given as one range get a segment of 16383. The table is filled up with padding records to a multiple of 256 records,
//! and its recorded size includes them. The writer never seeks, so its output can go straight through a compressor and
//! a hasher; the table is held in memory (16 bytes a record).
//!
//! A writer [in any order](LayerWriter::in_any_order) stores data in the order in which it is given, whatever its place
//! on the disk, so that data which is read together is stored together. All readers of the format accept such a layer:
//! its table is sorted by the disk's sectors, and a segment's data may be anywhere in the layer, as in a sealed
//! writable layer.
//!
//! Data may also be [stored](LayerWriter::store) before it is known which sectors of the disk show it, and be
//! [referred to](LayerWriter::refer) later, or never: this is how layers are sealed ahead of a commit
//! ([`crate::writable`]).
//!
//! A writer [with a target](LayerWriter::with_target) also takes ranges whose bytes are in another file
//! ([`crate::layer`]). Their records have the tag 1, and as with OverlayBD, the table has no padding records then.

use crate::Segment;
use crate::format::{FIRST_DATA_SECTOR, Flags, PAGE_SIZE, Page, UserTag};
use crate::layer::{MAX_RECORDS, TARGET_TAG};
use headstart_block::{BlockDevice, ByteRange, Error, Result, SECTOR_SIZE};
use serde::{Deserialize, Serialize};
use std::io::{BufWriter, IntoInnerError, Write};
use uuid::Uuid;

/// The reference copies data in pieces of 32 KiB, and records each.
const PIECE_SECTORS: u64 = 64;
/// Bytes of the largest disk that segments can name.
const NAMEABLE: u64 = Segment::PADDING_OFFSET * SECTOR_SIZE;
/// Bytes gathered before they are written: files written in small pieces get small pages in the page cache, which
/// made reading them a fifth slower.
const BUFFER: usize = 512 << 10;
const RECORDS_PER_PAGE: usize = PAGE_SIZE / Segment::RECORD_SIZE;

/// The fields that a new layer's header and trailer get.
#[derive(Clone, Debug, Default)]
pub struct LayerMeta {
    /// Size of the disk in bytes; 0 if the disk has the size that the layers below give it.
    pub virtual_size: u64,
    /// The id of the layer; the tools of OverlayBD write the nil UUID by default.
    pub uuid: Uuid,
    /// The id of the layer below; the nil UUID to name none.
    pub parent_uuid: Uuid,
    /// Free text that readers show and do not interpret; empty by default.
    pub user_tag: UserTag,
}

/// The size of a layer that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSummary {
    /// Bytes of data in the layer, without header, table and trailer.
    pub data_bytes: u64,
    /// Number of segments in the layer's table, without padding records.
    pub segments: u64,
    /// Length of the whole layer in bytes, with header, table and trailer.
    pub file_size: u64,
}

impl LayerSummary {
    /// Offset of the table of segments from the beginning of the layer, in bytes. Opening the layer reads
    /// only the header and the bytes from this offset to the end.
    #[must_use]
    pub fn index_offset(&self) -> u64 {
        PAGE_SIZE as u64 + self.data_bytes
    }
}

/// Writes a sealed layer as a stream. The caller gives the ranges of the disk that the layer has; they must
/// not overlap, and must ascend unless the writer takes them [in any order](LayerWriter::in_any_order). The
/// layer is complete only after [`LayerWriter::finish`].
pub struct LayerWriter<W: Write> {
    out: BufWriter<W>,
    meta: LayerMeta,
    table: Vec<Segment>,
    /// The next sector of the file that data will take.
    data_end: u64,
    /// The first sector of the disk that may still be given.
    cursor: u64,
    /// The data that was given last, and may go on.
    run: Option<Run>,
    /// `true` if runs come in any order.
    any_order: bool,
    /// `true` if the layer may have bytes in a target.
    has_target: bool,
}

/// Data of the sectors `[start, end)` of the disk, one after the other in the file from `moffset` on.
struct Run {
    start: u64,
    end: u64,
    moffset: u64,
}

impl<W: Write> LayerWriter<W> {
    /// Starts a layer, and writes its header to `out`.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn new(out: W, meta: LayerMeta) -> Result<Self> {
        let mut out = BufWriter::with_capacity(BUFFER, out);
        let header = page(&meta, Flags::HEADER | Flags::DATA | Flags::SEALED, 0, 0);
        out.write_all(&header.encode())?;
        Ok(Self {
            out,
            meta,
            table: Vec::new(),
            data_end: FIRST_DATA_SECTOR,
            cursor: 0,
            run: None,
            any_order: false,
            has_target: false,
        })
    }

    /// Makes the writer take ranges of the disk in any order, and store their data in the order in which they
    /// are given. [`LayerWriter::finish`] then fails if two ranges overlap.
    #[must_use]
    pub fn in_any_order(self) -> Self {
        Self { any_order: true, ..self }
    }

    /// Makes the layer one with a target, a file that has a part of the layer's bytes:
    /// [`Layer::open_with_target`](crate::Layer::open_with_target) opens it.
    #[must_use]
    pub fn with_target(self) -> Self {
        Self { has_target: true, ..self }
    }

    /// Appends `data`, the content of the disk from byte `offset` on. Both `offset` and the length must be
    /// multiples of 512 bytes. The layer does not depend on how consecutive data is divided into calls.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the range is unaligned, exceeds the disk or does not
    /// ascend, or if the layer has more segments than readers accept; errors of the output.
    pub fn data(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let start = self.advance(offset, data.len() as u64, self.limit())?;
        self.extend_run(start, self.data_end);
        self.out.write_all(data)?;
        self.data_end += self.cursor - start;
        self.check_table()
    }

    /// Appends `data`, whole sectors, which has no place on the disk yet. Returns the sector of the layer where it is
    /// stored, for [`LayerWriter::refer`].
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if these are no whole sectors; errors of the output.
    pub fn store(&mut self, data: &[u8]) -> Result<u64> {
        let len = data.len() as u64;
        if !len.is_multiple_of(SECTOR_SIZE) {
            return Err(Error::invalid(format!("{len} bytes are not whole sectors")));
        }
        let at = self.data_end;
        self.out.write_all(data)?;
        self.data_end += len / SECTOR_SIZE;
        Ok(at)
    }

    /// Records that the content of the disk in `range` is stored in the layer from sector `at` on, as
    /// [`LayerWriter::store`] returned it. Offset and length must be multiples of 512 bytes.
    ///
    /// # Errors
    /// Those of [`LayerWriter::data`]; [`headstart_block::ErrorKind::Invalid`] also if the layer has nothing there.
    pub fn refer(&mut self, range: ByteRange, at: u64) -> Result<()> {
        let end = at.checked_add(range.len() / SECTOR_SIZE);
        if at < FIRST_DATA_SECTOR || end.is_none_or(|end| end > self.data_end) {
            return Err(Error::invalid(format!("nothing is stored in sector {at} of the layer")));
        }
        let start = self.advance(range.offset(), range.len(), self.limit())?;
        self.extend_run(start, at);
        self.check_table()
    }

    /// Gives the trailer, by which readers go, other fields than the header.
    #[must_use]
    pub fn with_meta(self, meta: LayerMeta) -> Self {
        Self { meta, ..self }
    }

    /// Bytes of data that were given so far.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        (self.data_end - FIRST_DATA_SECTOR) * SECTOR_SIZE
    }

    /// Records that `range` reads as zeros, whatever the layers below have there. The zeros take no space for data.
    /// Offset and length must be multiples of 512 bytes. The range may exceed the disk, to hide data of the
    /// layers below that would show if the disk grew. As in OverlayBD, a range longer than `Segment::MAX_LEN` is
    /// divided into several segments, from its beginning on. So the layer depends on how zeros are divided into calls:
    /// a caller that wants identical layers must always give identical ranges.
    ///
    /// # Errors
    /// Those of [`LayerWriter::data`], except that the range may exceed the disk.
    pub fn zeroes(&mut self, range: ByteRange) -> Result<()> {
        let mut start = self.advance(range.offset(), range.len(), NAMEABLE)?;
        self.end_run();
        while start < self.cursor {
            let len = (self.cursor - start).min(Segment::MAX_LEN);
            self.record(Segment::zeroed(start, len, self.data_end));
            start += len;
        }
        self.check_table()
    }

    /// Records that the content of the disk in `range` is in the target, from byte `place` of it on. Offset, length and
    /// place must be multiples of 512 bytes.
    ///
    /// # Errors
    /// Those of [`LayerWriter::data`]; [`headstart_block::ErrorKind::Invalid`] also if the layer has no target, or
    /// `place` is beyond what a segment can name.
    pub fn target(&mut self, range: ByteRange, place: u64) -> Result<()> {
        let end = place.checked_add(range.len()).filter(|_| place.is_multiple_of(SECTOR_SIZE));
        let is_nameable = end.is_some_and(|end| end / SECTOR_SIZE <= Segment::MAX_MOFFSET);
        if !self.has_target || !is_nameable {
            return Err(Error::invalid(format!("byte {place} is no sector of a target of the layer")));
        }
        let (mut start, mut moffset) =
            (self.advance(range.offset(), range.len(), self.limit())?, place / SECTOR_SIZE);
        self.end_run();
        while start < self.cursor {
            let len = (self.cursor - start).min(Segment::MAX_LEN);
            self.record(Segment::data(start, len, moffset).with_layer(TARGET_TAG));
            start += len;
            moffset += len;
        }
        self.check_table()
    }

    /// Writes the table of segments and the trailer, and returns the output and the size of the layer.
    ///
    /// # Errors
    /// Errors of the output; [`headstart_block::ErrorKind::Invalid`] if ranges that were given in any order
    /// overlap.
    pub fn finish(mut self) -> Result<(W, LayerSummary)> {
        self.end_run();
        if self.any_order {
            self.sort_table()?;
        }
        let segments = self.table.len();
        if !self.has_target {
            self.table.resize(segments.next_multiple_of(RECORDS_PER_PAGE), Segment::PADDING);
        }
        let mut page_bytes = Vec::with_capacity(PAGE_SIZE);
        for records in self.table.chunks(RECORDS_PER_PAGE) {
            page_bytes.clear();
            page_bytes.extend(records.iter().flat_map(|segment| segment.to_record()));
            self.out.write_all(&page_bytes)?;
        }
        let index_offset = self.data_end * SECTOR_SIZE;
        let trailer = page(&self.meta, Flags::DATA | Flags::SEALED, index_offset, self.table.len() as u64);
        self.out.write_all(&trailer.encode())?;
        let summary = LayerSummary {
            data_bytes: index_offset - PAGE_SIZE as u64,
            segments: segments as u64,
            file_size: index_offset + (self.table.len() * Segment::RECORD_SIZE + PAGE_SIZE) as u64,
        };
        let out = self.out.into_inner().map_err(IntoInnerError::into_error)?;
        Ok((out, summary))
    }

    /// One past the last byte of data that may be given.
    fn limit(&self) -> u64 {
        match self.meta.virtual_size {
            // The layer takes its size from those below.
            0 => NAMEABLE,
            // A disk whose size is no multiple of a sector still has its last sector whole.
            size => size.div_ceil(SECTOR_SIZE).min(Segment::PADDING_OFFSET) * SECTOR_SIZE,
        }
    }

    /// Checks a run and moves the cursor past it; returns its first sector.
    fn advance(&mut self, offset: u64, len: u64, limit: u64) -> Result<u64> {
        let range = ByteRange::new(offset, len).filter(|range| range.is_aligned(SECTOR_SIZE));
        let Some(range) = range.filter(|range| range.end() <= limit) else {
            return Err(Error::invalid(format!(
                "{len} bytes at {offset} are not whole sectors of a disk of {limit} bytes"
            )));
        };
        let start = range.offset() / SECTOR_SIZE;
        if start < self.cursor && !self.any_order {
            return Err(Error::invalid(format!("sector {start} comes after sector {}", self.cursor)));
        }
        self.cursor = range.end() / SECTOR_SIZE;
        Ok(start)
    }

    /// Makes the sectors from `start` to the cursor, whose data is in the layer from sector `at` on, a part of the
    /// present run, or begins another.
    fn extend_run(&mut self, start: u64, at: u64) {
        match &mut self.run {
            Some(run) if run.end == start && run.moffset + (start - run.start) == at => run.end = self.cursor,
            _ => {
                self.end_run();
                self.run = Some(Run { start, end: self.cursor, moffset: at });
            }
        }
    }

    /// Records the run of data that has come to its end.
    fn end_run(&mut self) {
        let Some(Run { mut start, end, mut moffset }) = self.run.take() else { return };
        while start < end {
            let len = (end - start).min(PIECE_SECTORS);
            self.record(Segment::data(start, len, moffset));
            start += len;
            moffset += len;
        }
    }

    /// Puts the table in the order of the disk.
    fn sort_table(&mut self) -> Result<()> {
        // An empty run may begin where another does.
        self.table.sort_unstable_by_key(|segment| (segment.offset(), segment.end()));
        match self.table.windows(2).find(|pair| pair[1].offset() < pair[0].end()) {
            Some(pair) => Err(Error::invalid(format!("sector {} is given twice", pair[1].offset()))),
            None => Ok(()),
        }
    }

    /// Refuses a table that no reader takes.
    fn check_table(&self) -> Result<()> {
        if self.table.len() as u64 >= MAX_RECORDS {
            return Err(Error::invalid(format!("the layer would have more than {MAX_RECORDS} segments"))
                .remedy("the disk is too fragmented for one layer: import it in several steps with --base"));
        }
        Ok(())
    }

    fn record(&mut self, next: Segment) {
        if let Some(last) = self.table.last_mut()
            && last.is_continued_by(next)
            && last.len() + next.len() < Segment::MAX_LEN
        {
            *last = last.lengthened(next.len());
        } else {
            self.table.push(next);
        }
    }
}

fn page(meta: &LayerMeta, flags: u32, index_offset: u64, index_size: u64) -> Page {
    Page {
        flags: Flags(flags),
        index_offset,
        index_size,
        virtual_size: meta.virtual_size,
        uuid: meta.uuid,
        parent_uuid: meta.parent_uuid,
        user_tag: meta.user_tag.clone(),
    }
}

/// Copies the content of `segments`, which are ranges of `disk` in ascending order, into a layer. Sectors past the end
/// of the disk are left out, because the layers of a disk may be larger than the disk. `copied` is called after each
/// part with the number of bytes of the disk in that part, in whole sectors of 512 bytes also at the end of the disk.
/// An error from `copied` ends the copy.
///
/// # Errors
/// Errors of the disk, the writer or `copied`.
pub fn copy_segments<W: Write>(
    disk: &(impl BlockDevice + ?Sized),
    segments: impl IntoIterator<Item = Segment>,
    writer: &mut LayerWriter<W>,
    copied: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let mut buf = vec![0; COPY_CHUNK];
    let sectors = disk.size().div_ceil(SECTOR_SIZE);
    for segment in segments.into_iter().take_while(|segment| segment.offset() < sectors) {
        let range =
            ByteRange::between(segment.offset() * SECTOR_SIZE, segment.end().min(sectors) * SECTOR_SIZE);
        if segment.is_zeroed() {
            writer.zeroes(range)?;
            copied(range.len())?;
            continue;
        }
        let mut offset = range.offset();
        while offset < range.end() {
            #[expect(clippy::cast_possible_truncation, reason = "at most COPY_CHUNK")]
            let part = &mut buf[..(range.end() - offset).min(COPY_CHUNK as u64) as usize];
            read_padded(disk, part, offset)?;
            writer.data(offset, part)?;
            offset += part.len() as u64;
            copied(part.len() as u64)?;
        }
    }
    Ok(())
}

/// Reads whole sectors: a disk whose size is no multiple of a sector ends in zeros.
fn read_padded(disk: &(impl BlockDevice + ?Sized), part: &mut [u8], offset: u64) -> Result<()> {
    #[expect(clippy::cast_possible_truncation, reason = "at most the length of a buffer")]
    let inside = disk.size().saturating_sub(offset).min(part.len() as u64) as usize;
    let (inside, beyond) = part.split_at_mut(inside);
    beyond.fill(0);
    disk.read_at(inside, offset)
}

/// Bytes copied at once: a multiple of the piece that is recorded.
const COPY_CHUNK: usize = 1 << 20;
