//! `OverlayBD`'s trace files, which its prefetcher replays: read as plans, and written from plans.
//!
//! ```text
//! 0    4   magic, 0xC2EF1820
//! 8    8   length of the records in bytes
//! 16   4   checksum of the records: CRC-32C in its raw form (start value 0, nothing inverted)
//! 24   ..  records of 24 bytes:  0  1  'R'
//!                                4  4  layer, 0 = lowest
//!                                8  8  length in bytes
//!                                16 8  offset in the layer's file (decompressed, without its tar archive)
//! ```
//!
//! All numbers are little endian. The bytes between the fields are padding: recorders leave arbitrary bytes there, and
//! [`encode`] writes zeros. Nothing follows the records. The prefetcher reads the data of each record into a buffer of
//! [`RECORD_MAX`] bytes without checking the record's length. So the length in a record that [`encode`] writes is at
//! most [`RECORD_MAX`]; [`parse`] also accepts records with a greater length.
//!
//! Such a trace has ranges of layers' files; a plan has ranges of the disk. The image's [`LayerExtent`]s (its merged
//! index) translate between the two. Ranges of a layer that are not on the disk are left out: data that an upper layer
//! hides, and the layer's own header and tables, with which a recorded trace begins. In the other direction, a slice
//! becomes all the ranges of layers that it consists of.

use crc_fast::{CrcAlgorithm, Digest};
use headstart_block::{BLOCK_SIZE, ByteRange, Error, PlanItem, Result, SLICE_SIZE};
use std::collections::HashMap;

/// The greatest length of a read that [`encode`] writes in one record, in bytes; a longer read becomes several records.
/// `OverlayBD`'s prefetcher reads the data of each record into a buffer of this size.
pub const RECORD_MAX: u64 = 1 << 20;

/// The longest file that [`parse`] reads and [`encode`] writes, in bytes. It has room for 2.8 million
/// records.
pub const TRACE_MAX: u64 = 64 << 20;

const MAGIC: u32 = 0xC2EF_1820;
const HEADER_LEN: usize = 24;
const RECORD_LEN: usize = 24;

/// A read of a layer's file: a record of an `OverlayBD` trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerRead {
    /// The number of the layer among those that the disk consists of, 0 for the lowest. Other layers of the
    /// image, such as one that contains a trace, do not count.
    pub layer: u32,
    /// The offset of the first byte in the layer's file, decompressed and without the tar archive around it,
    /// in bytes.
    pub offset: u64,
    /// The length of the read, in bytes.
    pub len: u64,
}

impl LayerRead {
    /// The byte after its last. Below 2^63, which is the most that [`parse`] lets pass.
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// A range of the disk, with the range of a layer's file that has its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerExtent {
    /// The offset of the first byte on the disk, in bytes.
    pub disk: u64,
    /// The length of the range, in bytes.
    pub len: u64,
    /// The number of the layer that has the bytes, 0 for the lowest.
    pub layer: u32,
    /// The offset of the first byte in the layer's file, decompressed and without the tar archive around it,
    /// in bytes.
    pub offset: u64,
}

fn raw_crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, 0);
    digest.update(bytes);
    let [a, b, c, d, ..] = (!digest.finalize()).to_le_bytes();
    [a, b, c, d]
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Parses a trace file of `OverlayBD`. Returns its records in their order, without empty ones.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the file is damaged, cut short or not such a trace, `Unsupported` if the
/// file is longer than [`TRACE_MAX`].
pub fn parse(file: &[u8]) -> Result<Vec<LayerRead>> {
    if file.len() as u64 > TRACE_MAX {
        return Err(Error::unsupported(format!("is a trace of more than {TRACE_MAX} bytes")));
    }
    if u32_at(file, 0) != Some(MAGIC) || file.len() < HEADER_LEN {
        return Err(Error::corrupt("is not a trace file of OverlayBD"));
    }
    let records = &file[HEADER_LEN..];
    if u64_at(file, 8) != Some(records.len() as u64) || !records.len().is_multiple_of(RECORD_LEN) {
        return Err(Error::corrupt(
            "has another length than it says: it was cut short, or is not closed yet",
        ));
    }
    if file.get(16..20) != Some(&raw_crc32c(records)) {
        return Err(Error::corrupt("has a wrong checksum: it is damaged"));
    }
    let mut parsed = Vec::with_capacity(records.len() / RECORD_LEN);
    for (number, bytes) in records.chunks_exact(RECORD_LEN).enumerate() {
        let record = parse_record(bytes)
            .ok_or_else(|| Error::corrupt(format!("has a record {number} that makes no sense")))?;
        if record.len > 0 {
            parsed.push(record);
        }
    }
    Ok(parsed)
}

fn parse_record(bytes: &[u8]) -> Option<LayerRead> {
    let record = LayerRead { layer: u32_at(bytes, 4)?, offset: u64_at(bytes, 16)?, len: u64_at(bytes, 8)? };
    // Offsets are signed in the format.
    let fits = record.offset.checked_add(record.len).is_some_and(|end| i64::try_from(end).is_ok());
    (bytes.first() == Some(&b'R') && fits).then_some(record)
}

/// Returns the content of a trace file with these records, in their order. A read that is longer than [`RECORD_MAX`]
/// becomes several records; empty reads are left out.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] if the file would be longer than [`TRACE_MAX`].
pub fn encode(records: &[LayerRead]) -> Result<Vec<u8>> {
    let cuts = records.iter().fold(0_u64, |sum, record| sum.saturating_add(record.len.div_ceil(RECORD_MAX)));
    let len = cuts.saturating_mul(RECORD_LEN as u64);
    let whole = usize::try_from(len).ok().filter(|_| len <= TRACE_MAX - HEADER_LEN as u64);
    let Some(whole) = whole else {
        return Err(Error::unsupported(format!("would be a trace of more than {TRACE_MAX} bytes")));
    };
    let mut body = Vec::with_capacity(whole);
    for record in records {
        let mut done = 0;
        while done < record.len {
            let part = RECORD_MAX.min(record.len - done);
            body.extend([b'R', 0, 0, 0]);
            body.extend(record.layer.to_le_bytes());
            body.extend(part.to_le_bytes());
            body.extend(record.offset.saturating_add(done).to_le_bytes());
            done += part;
        }
    }
    let mut file = Vec::with_capacity(HEADER_LEN + body.len());
    file.extend(MAGIC.to_le_bytes());
    file.extend([0; 4]);
    file.extend((body.len() as u64).to_le_bytes());
    file.extend(raw_crc32c(&body));
    file.extend([0; 4]);
    file.extend(body);
    Ok(file)
}

/// Calls `each` with the ranges of layers' files that have the bytes of `range`, a range of a disk, in the order of
/// the disk. Bytes that no extent has are skipped. `extents` must be sorted by their offset on the disk, and must
/// not overlap there.
pub fn map(extents: &[LayerExtent], range: ByteRange, each: &mut dyn FnMut(LayerRead)) {
    let first = extents.partition_point(|extent| extent.disk.saturating_add(extent.len) <= range.offset());
    for extent in extents[first..].iter().take_while(|extent| extent.disk < range.end()) {
        let from = range.offset().saturating_sub(extent.disk);
        let to = (range.end() - extent.disk).min(extent.len);
        if from < to {
            each(LayerRead {
                layer: extent.layer,
                offset: extent.offset.saturating_add(from),
                len: to - from,
            });
        }
    }
}

/// Translates a plan for a disk of `disk_size` bytes into the records of a trace, in the order of the plan. Consecutive
/// reads that are adjacent in a layer become one, which may be longer than [`RECORD_MAX`]. `extents` are as for
/// [`map`].
#[must_use]
pub fn of_plan(items: &[PlanItem], extents: &[LayerExtent], disk_size: u64) -> Vec<LayerRead> {
    let mut records: Vec<LayerRead> = Vec::new();
    for part in items.iter().flat_map(|item| item.parts(disk_size)) {
        map(extents, part, &mut |record| match records.last_mut() {
            Some(last) if last.layer == record.layer && last.end() == record.offset => last.len += record.len,
            _ => records.push(record),
        });
    }
    records
}

/// Translates the records of a trace into a plan for a disk of `disk_size` bytes: blocks in the order of
/// their first read, each with all slices of which a byte is read. Bytes of layers that are not on the disk are left
/// out. `extents` may be in any order.
#[must_use]
pub fn plan(records: &[LayerRead], extents: &[LayerExtent], disk_size: u64) -> Vec<PlanItem> {
    let mut by_layer: Vec<LayerExtent> = extents.iter().copied().filter(|extent| extent.len > 0).collect();
    by_layer.sort_by_key(|extent| (extent.layer, extent.offset));
    let mut order = Order { items: Vec::new(), places: HashMap::new(), disk_size };
    // Finished extents are skipped, however often a trace names them: each entry is the next unfinished extent.
    let mut next: Vec<usize> = (0..=by_layer.len()).collect();
    for record in records {
        let start = (record.layer, record.offset);
        let first = by_layer.partition_point(|e| (e.layer, e.offset.saturating_add(e.len)) <= start);
        let mut at = pending(&mut next, first);
        while let Some(extent) =
            by_layer.get(at).filter(|e| e.layer == record.layer && e.offset < record.end())
        {
            let from = record.offset.saturating_sub(extent.offset);
            let to = (record.end() - extent.offset).min(extent.len);
            order.add(extent.disk.saturating_add(from), extent.disk.saturating_add(to));
            if from == 0 && to == extent.len {
                next[at] = at + 1;
            }
            at = pending(&mut next, at + 1);
        }
    }
    order.items
}

/// The first unfinished extent from `at` on; shortens the way to it for later calls.
fn pending(next: &mut [usize], at: usize) -> usize {
    let mut end = at;
    while next[end] != end {
        end = next[end];
    }
    let mut step = at;
    while step != end {
        step = std::mem::replace(&mut next[step], end);
    }
    end
}

/// A plan in the making.
struct Order {
    items: Vec<PlanItem>,
    /// The place of each block among the items.
    places: HashMap<u64, usize>,
    disk_size: u64,
}

impl Order {
    /// Adds the slices that have a byte of `[from, to)` of the disk.
    fn add(&mut self, from: u64, to: u64) {
        const SLICES: u64 = BLOCK_SIZE / SLICE_SIZE;
        for slice in from / SLICE_SIZE..to.min(self.disk_size).div_ceil(SLICE_SIZE) {
            let block = slice / SLICES;
            let place = *self.places.entry(block).or_insert(self.items.len());
            if place == self.items.len() {
                self.items.push(PlanItem { block, mask: 0 });
            }
            self.items[place].mask |= 1 << (slice % SLICES);
        }
    }
}

#[cfg(test)]
mod tests;
