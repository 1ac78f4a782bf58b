//! Writes of any bytes to a disk that is written by whole sectors.
//!
//! Only this server reads or writes the disk while it is exported writable here; another writer acts at its own risk,
//! because the lock of a read-modify-write is known to this module only.

use super::range_lock::{Held, Hold, RangeLock};
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Result, SECTOR_SIZE};
use std::sync::Arc;

const SECTOR_LEN: usize = 512;
const _: () = assert!(SECTOR_LEN as u64 == SECTOR_SIZE);

/// One disk's writer.
pub(super) struct ImageWriter {
    device: Arc<dyn BlockDevice>,
    lock: RangeLock,
}

/// The content of a write.
#[derive(Clone, Copy)]
enum Content<'a> {
    Bytes(&'a [u8]),
    Zeros,
}

impl ImageWriter {
    pub(super) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, lock: RangeLock::default() }
    }

    /// Writes whole sectors that no other request is changing; waits for nothing but the disk.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if this would have to wait: use [`write`](Self::write) on a thread that may wait.
    pub(super) fn write_at_once(&self, data: &[u8], offset: u64) -> Result<()> {
        let wait = || Error::new(ErrorKind::Absent, "this write has to wait");
        let range = checked(offset, data.len() as u64)?;
        if !range.is_aligned(SECTOR_SIZE) {
            return Err(wait());
        }
        let _held = self.lock.try_lock(range, Hold::Shared).ok_or_else(wait)?;
        self.device.write_at(data, offset)
    }

    /// Writes `data` at `offset`, whatever its alignment.
    pub(super) fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        self.put(checked(offset, data.len() as u64)?, Content::Bytes(data))
    }

    /// Makes `len` bytes from `offset` read as zeros.
    pub(super) fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.put(checked(offset, len)?, Content::Zeros)
    }

    /// Writes a part of the first sector, whole sectors, and a part of the last, each only if there is one.
    fn put(&self, range: ByteRange, content: Content<'_>) -> Result<()> {
        let whole_start = range.offset().next_multiple_of(SECTOR_SIZE).min(range.end());
        let whole_end = (range.end() / SECTOR_SIZE * SECTOR_SIZE).max(whole_start);
        let part = |piece: ByteRange| content.part(range, piece);
        let head = ByteRange::between(range.offset(), whole_start);
        let whole = ByteRange::between(whole_start, whole_end);
        let tail = ByteRange::between(whole_end, range.end());
        self.change(head, part(head))?;
        if !whole.is_empty() {
            let _held = self.lock.lock(whole, Hold::Shared);
            match part(whole) {
                Content::Bytes(data) => self.device.write_at(data, whole.offset())?,
                Content::Zeros => self.device.write_zeroes(whole)?,
            }
        }
        self.change(tail, part(tail))
    }

    /// Changes part of one sector.
    fn change(&self, range: ByteRange, content: Content<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let start = range.offset() / SECTOR_SIZE * SECTOR_SIZE;
        let sector = ByteRange::between(start, start.saturating_add(SECTOR_SIZE));
        let _held: Held<'_> = self.lock.lock(sector, Hold::Exclusive);
        let mut bytes = [0; SECTOR_LEN];
        self.device.read_at(&mut bytes, start)?;
        let (from, to) = (index(range.offset() - start), index(range.end() - start));
        match content {
            Content::Bytes(data) => bytes[from..to].copy_from_slice(data),
            Content::Zeros => bytes[from..to].fill(0),
        }
        self.device.write_at(&bytes, start)
    }
}

impl<'a> Content<'a> {
    /// The part of this content, which is that of `all`, for `piece`.
    fn part(self, all: ByteRange, piece: ByteRange) -> Self {
        match self {
            Content::Bytes(data) => {
                let from = index(piece.offset() - all.offset());
                Content::Bytes(&data[from..from + index(piece.len())])
            }
            Content::Zeros => Content::Zeros,
        }
    }
}

/// A place in memory, which is within an existing slice.
#[expect(clippy::cast_possible_truncation, reason = "no slice is longer than a usize says")]
fn index(offset: u64) -> usize {
    offset as usize
}

fn checked(offset: u64, len: u64) -> Result<ByteRange> {
    ByteRange::new(offset, len).ok_or_else(|| Error::invalid("this write ends past all disks"))
}
