//! The effect of requests on a disk: the part that blocks.
//!
//! # Requests that are not made of whole sectors
//!
//! The protocol lets clients ask for any bytes, the disk takes whole sectors. Reads need no extra work; zeroing and
//! writing the sectors at the edges means reading them, changing them and writing them back. In between, no other
//! request may write to that sector, because its bytes would be overwritten with the old ones. So each write holds
//! [`ExportState::sectors`] shared, and the change of an edge holds it alone. The lock must not be held while remote
//! bytes are fetched, because that would stop the writes of every connection: the sector is fetched first, and is read
//! once more under the lock, where it must be local.

use super::proto::{BASE_ALLOCATION_ID, STATE_HOLE_ZERO};
use crate::Export;
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Result, SECTOR_SIZE, exact, to_usize};
use parking_lot::RwLock;

/// The bytes of a sector, as a length in memory.
#[expect(clippy::cast_possible_truncation, reason = "512")]
const SECTOR: usize = SECTOR_SIZE as usize;
/// The most times that a sector may vanish from this host between being fetched and being changed.
const FETCHES_MAX: usize = 16;
/// The most extents in one answer, which take 8 KiB.
const EXTENTS_MAX: usize = 1024;
/// The most extents that the disk is asked for in one answer, so that a fragmented disk cannot keep a thread for long.
const EXTENT_STEPS_MAX: usize = 16 << 10;

/// An export as the server keeps it: shared by its connections.
pub(crate) struct ExportState {
    pub(crate) export: Export,
    /// The lock of writes. See the [module](self).
    sectors: RwLock<()>,
}

impl ExportState {
    pub(crate) fn new(export: Export) -> Self {
        Self { export, sectors: RwLock::new(()) }
    }

    pub(crate) fn device(&self) -> &dyn BlockDevice {
        &*self.export.device
    }

    /// Writes whole sectors: never waits for remote bytes.
    pub(crate) fn write_sectors(&self, data: &[u8], offset: u64) -> Result<()> {
        let shared = self.sectors.read();
        let written = self.device().write_at(data, offset);
        drop(shared);
        written
    }

    /// Writes `data`, whatever its alignment.
    pub(crate) fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        let range = ByteRange::between(offset, offset.saturating_add(data.len() as u64));
        if range.is_aligned(SECTOR_SIZE) {
            return self.write_sectors(data, offset);
        }
        let part = |part: ByteRange| {
            let from = to_usize(part.offset() - offset);
            data.get(from..)
                .and_then(|data| data.get(..usize::try_from(part.len()).ok()?))
                .unwrap_or_default()
        };
        let (edges, inside) = split(range);
        for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
            self.change_sector(edge, &mut |bytes| bytes.copy_from_slice(part(edge)))?;
        }
        if inside.is_empty() { Ok(()) } else { self.write_sectors(part(inside), inside.offset()) }
    }

    /// Zeroes `range`, whatever its alignment.
    pub(crate) fn zero(&self, range: ByteRange) -> Result<()> {
        let (edges, _) = split(range);
        for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
            self.change_sector(edge, &mut |bytes| bytes.fill(0))?;
        }
        self.zero_sectors(range)
    }

    /// Zeroes only the whole sectors of `range`.
    pub(crate) fn zero_sectors(&self, range: ByteRange) -> Result<()> {
        let (_, inside) = split(range);
        if inside.is_empty() {
            return Ok(());
        }
        let shared = self.sectors.read();
        let zeroed = self.device().write_zeroes(inside);
        drop(shared);
        zeroed
    }

    /// `true` if `range` can be zeroed without a sector being read or written.
    pub(crate) fn zeroes_fast(range: ByteRange) -> bool {
        let (edges, _) = split(range);
        edges.iter().all(|edge| edge.is_empty())
    }

    /// Changes the bytes `edge` of the one sector that they are in.
    fn change_sector(&self, edge: ByteRange, change: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let start = edge.offset() - edge.offset() % SECTOR_SIZE;
        let mut sector = [0; SECTOR];
        let at = |offset: u64| to_usize(offset - start);
        for _ in 0..FETCHES_MAX {
            self.device().read_at(&mut sector, start)?;
            let alone = self.sectors.write();
            match self.device().read_local_at(&mut sector, start) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Absent => continue,
                Err(error) => return Err(error),
            }
            change(&mut sector[at(edge.offset())..at(edge.end())]);
            let written = self.device().write_at(&sector, start);
            drop(alone);
            return written;
        }
        Err(Error::new(ErrorKind::Unavailable, "a sector was fetched and lost again and again"))
    }

    /// The payload of a block status chunk for `range`: the context, then lengths and states of extents.
    pub(crate) fn status(&self, range: ByteRange, one: bool) -> Result<Vec<u8>> {
        let mut extents: Vec<(u32, u32)> = Vec::new();
        let mut at = range.offset();
        for _ in 0..EXTENT_STEPS_MAX {
            if at >= range.end() {
                break;
            }
            let extent = match self.device().extent_at(at) {
                Ok(extent) => extent,
                // The extents found so far are an answer: the client asks on from there, and gets the error then.
                Err(_) if !extents.is_empty() => break,
                Err(error) => return Err(error),
            };
            let end = extent.range.end().min(range.end());
            let state = if extent.zero { STATE_HOLE_ZERO } else { 0 };
            let len: u32 = exact(end.saturating_sub(at), "the length of a request has 32 bits");
            let full = one || extents.len() >= EXTENTS_MAX;
            match extents.last_mut() {
                Some(last) if last.1 == state => last.0 = last.0.saturating_add(len),
                Some(_) if full => break,
                _ => extents.push((len, state)),
            }
            if len == 0 {
                return Err(Error::corrupt("an extent of the disk is empty"));
            }
            at = end;
        }
        let mut payload = Vec::with_capacity(4 + extents.len() * 8);
        payload.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
        for (len, state) in extents {
            payload.extend_from_slice(&len.to_be_bytes());
            payload.extend_from_slice(&state.to_be_bytes());
        }
        Ok(payload)
    }
}

/// The edges of `range` that are not whole sectors (each is in one sector, and may be empty), and the sectors between.
fn split(range: ByteRange) -> ([ByteRange; 2], ByteRange) {
    let first = range.offset().checked_next_multiple_of(SECTOR_SIZE).unwrap_or(u64::MAX);
    let last = range.end() - range.end() % SECTOR_SIZE;
    if first > last {
        // The range is in one sector, and touches neither of its ends.
        return ([range, ByteRange::between(range.end(), range.end())], ByteRange::between(first, first));
    }
    let edges = [ByteRange::between(range.offset(), first), ByteRange::between(last, range.end())];
    (edges, ByteRange::between(first, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_split_covers_the_range_once(offset in 0u64..3000, len in 0u64..3000) {
            let range = ByteRange::between(offset, offset + len);
            let ([head, tail], inside) = split(range);
            prop_assert_eq!(head.len() + inside.len() + tail.len(), len);
            prop_assert!(inside.is_aligned(SECTOR_SIZE));
            for edge in [head, tail] {
                prop_assert!(edge.len() < SECTOR_SIZE);
                let same = edge.is_empty() || edge.offset() / SECTOR_SIZE == (edge.end() - 1) / SECTOR_SIZE;
                prop_assert!(same, "{edge} lies in two sectors");
            }
        }
    }
}
