//! Block devices, as a hypervisor sees them.

use crate::{ByteRange, Error, ErrorKind, Result};
use std::sync::Arc;

/// A range of a disk, all of which reads as zeros or all of which may hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The bytes of the disk that the extent covers.
    pub range: ByteRange,
    /// `true` if the range is known to read as zeros (a hole, or zeroed by the guest); `false` if it may hold
    /// data.
    pub zero: bool,
}

/// A disk: bytes that can be read from any offset on. On a writable disk, whole sectors ([`crate::SECTOR_SIZE`]) can be
/// written, too.
///
/// All methods take `&self` and may be called from any thread. A write is visible to every read that
/// starts after it returned; it is durable once a later [`flush`](BlockDevice::flush) has returned.
pub trait BlockDevice: Send + Sync {
    /// Virtual size in bytes.
    fn size(&self) -> u64;

    /// Fills `buf` with the disk's bytes from `offset` on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] past the end of the disk; errors of the storage below.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Fills `buf` as [`read_at`](BlockDevice::read_at) does, but never waits for bytes that have to be
    /// fetched from another host or a store. Servers try this first and leave the waiting to another thread.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] where bytes of the range are not on this host; `buf` may be partly filled then.
    /// Otherwise as [`read_at`](BlockDevice::read_at).
    fn read_local_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buf, offset)
    }

    /// Reads several parts of the disk as [`read_local_at`](BlockDevice::read_local_at) does. Each part is a buffer and
    /// the offset on the disk, in bytes, from which to fill it. Returns one result for each part, in the order of
    /// `parts`.
    fn read_local_parts(&self, parts: &mut [(&mut [u8], u64)]) -> Vec<Result<()>> {
        parts.iter_mut().map(|(buf, offset)| self.read_local_at(buf, *offset)).collect()
    }

    /// The number of small reads that are worth passing to one call of
    /// [`read_local_parts`](BlockDevice::read_local_parts); 1 if passing several together gains nothing.
    fn reads_together(&self) -> usize {
        1
    }

    /// The least number of bytes that a read has to decode (decompress), however short it is; 0 if reads only
    /// copy bytes. Servers spread reads that take much work over several threads.
    fn decode_unit(&self) -> u64 {
        0
    }

    /// Tells the device that a client asked for `range` and was told that the range is a hole, so that the device saw
    /// no read. Devices that count or record reads implement this; others ignore the call.
    fn hole_was_read(&self, range: ByteRange) {
        let _ = range;
    }

    /// Tells the device that a client connected to the disk. Devices that record which client a read belongs to
    /// implement this; others ignore the call. See [`ClientGuard`].
    fn client_came(&self) {}

    /// Tells the device that a client, reported by [`client_came`](BlockDevice::client_came), has disconnected.
    fn client_left(&self) {}

    /// A hint: starts bringing the bytes of `range` to this host, and returns without waiting for them. Devices whose
    /// bytes are all on this host ignore the call.
    fn prefetch(&self, range: ByteRange) {
        let _ = range;
    }

    /// `true` if writes are refused.
    fn is_read_only(&self) -> bool {
        true
    }

    /// Makes the disk larger, to `size` bytes; the new bytes read as zeros. The change is durable when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] on a read-only disk; [`ErrorKind::Invalid`] if the disk would become smaller, or `size`
    /// is no multiple of a sector; errors of the storage below.
    fn resize(&self, size: u64) -> Result<()> {
        let _ = size;
        Err(read_only())
    }

    /// Returns the extent that starts at byte `offset`. It may be shorter than the run of zeros, or of data,
    /// that it is part of.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] at or past the end of the disk; errors of the storage below.
    fn extent_at(&self, offset: u64) -> Result<Extent>;

    /// Writes `data` from byte `offset` on. The offset and the length must be multiples of a sector.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] on a read-only disk; [`ErrorKind::Invalid`] if the range exceeds the disk or is
    /// unaligned; errors of the storage below.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let _ = (data, offset);
        Err(read_only())
    }

    /// Makes `range`, whole sectors, read as zeros, and lets the storage below free the space of the
    /// range.
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
    /// Errors of the storage below. After an error, no write since the last successful flush may be relied on.
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// A connected client of a disk, such as a virtual machine. Construction calls
/// [`client_came`](BlockDevice::client_came), and dropping calls [`client_left`](BlockDevice::client_left).
pub struct ClientGuard(Arc<dyn BlockDevice>);

impl ClientGuard {
    /// Tells `device` that a client has connected, and returns the guard that reports the end of the
    /// connection.
    #[must_use]
    pub fn of(device: &Arc<dyn BlockDevice>) -> Self {
        device.client_came();
        Self(Arc::clone(device))
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.0.client_left();
    }
}

fn read_only() -> Error {
    Error::new(ErrorKind::ReadOnly, "this disk is read-only").remedy("put a writable layer on top of it")
}
