//! Block devices: what a hypervisor sees.

use crate::{ByteRange, Error, ErrorKind, Result};

/// A run of a disk whose bytes all come from one kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it lies on the disk, in bytes.
    pub range: ByteRange,
    /// Whether it is known to read as zeros (a hole, or zeroed by its owner).
    pub zero: bool,
}

/// A disk: random reads and, where it is writable, writes at [`crate::SECTOR_SIZE`] granularity.
///
/// All methods take `&self` and may be called from any thread. A write is visible to every read that
/// starts after it returned; it is durable once a later [`flush`](BlockDevice::flush) has returned.
pub trait BlockDevice: Send + Sync {
    /// Virtual size in bytes.
    fn size(&self) -> u64;

    /// Fills `buf` with the disk's bytes from `offset` on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] past the end of the disk; what the storage below reports.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// The extent that contains `offset`, from `offset` on; it may end before the run of its kind does.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] at or past the end of the disk.
    fn extent_at(&self, offset: u64) -> Result<Extent>;

    /// Writes `data` at `offset`, both multiples of a sector.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] on a read-only disk, [`ErrorKind::Invalid`] out of bounds or unaligned.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let _ = (data, offset);
        Err(read_only())
    }

    /// Makes `range` (multiples of a sector) read as zeros and gives its space back.
    ///
    /// # Errors
    /// As [`write_at`](BlockDevice::write_at).
    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        let _ = range;
        Err(read_only())
    }

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// What the storage below reports; then nothing since the last flush may be relied on.
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

fn read_only() -> Error {
    Error::new(ErrorKind::ReadOnly, "this disk is read-only").remedy("put a writable layer on top of it")
}
