//! A disk in memory whose bytes can be made remote.

use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Extent, Result, SECTOR_SIZE};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

/// The disk. Sectors that were never written, or were zeroed, are holes.
pub(crate) struct SparseDisk {
    size: AtomicU64,
    sectors: Mutex<BTreeMap<u64, [u8; SECTOR_SIZE as usize]>>,
    read_only: bool,
    /// The remote bytes, until `arrive`.
    absent: Mutex<ByteRange>,
    arrived: Condvar,
    pub(crate) flushes: AtomicU64,
    pub(crate) fail_writes: AtomicBool,
}

impl SparseDisk {
    pub(crate) fn new(size: u64, read_only: bool) -> Self {
        Self {
            size: AtomicU64::new(size),
            sectors: Mutex::default(),
            read_only,
            absent: Mutex::new(ByteRange::between(0, 0)),
            arrived: Condvar::new(),
            flushes: AtomicU64::new(0),
            fail_writes: AtomicBool::new(false),
        }
    }

    /// A disk with `bytes` as its content; whole sectors of zeros are holes.
    pub(crate) fn of(bytes: &[u8], read_only: bool) -> Self {
        let disk = Self::new(bytes.len() as u64, read_only);
        {
            let mut sectors = disk.sectors.lock().unwrap();
            for (number, part) in bytes.chunks(SECTOR_SIZE as usize).enumerate() {
                if part.iter().any(|byte| *byte != 0) {
                    let mut sector = [0; SECTOR_SIZE as usize];
                    sector[..part.len()].copy_from_slice(part);
                    sectors.insert(number as u64, sector);
                }
            }
        }
        disk
    }

    pub(crate) fn leave(&self, range: ByteRange) {
        *self.absent.lock().unwrap() = range;
    }

    pub(crate) fn arrive(&self) {
        *self.absent.lock().unwrap() = ByteRange::between(0, 0);
        self.arrived.notify_all();
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.size()).unwrap()];
        self.copy(&mut bytes, 0).unwrap();
        bytes
    }

    fn copy(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset + buf.len() as u64 > self.size() {
            return Err(Error::invalid("past the end of the disk"));
        }
        let sectors = self.sectors.lock().unwrap();
        buf.fill(0);
        let end = offset + buf.len() as u64;
        for (number, sector) in sectors.range(offset / SECTOR_SIZE..end.div_ceil(SECTOR_SIZE)) {
            let start = number * SECTOR_SIZE;
            let (from, to) = (start.max(offset), (start + SECTOR_SIZE).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&sector[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        if self.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "read-only"));
        }
        if self.fail_writes.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::NoSpace, "full, as the test wants it"));
        }
        let aligned = offset.is_multiple_of(SECTOR_SIZE) && len.is_multiple_of(SECTOR_SIZE);
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size());
        if aligned && inside { Ok(()) } else { Err(Error::invalid("unaligned, or past the end")) }
    }
}

impl BlockDevice for SparseDisk {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, buf.len() as u64).unwrap();
        let absent = self.absent.lock().unwrap();
        drop(self.arrived.wait_while(absent, |absent| !absent.intersect(range).is_empty()).unwrap());
        self.copy(buf, offset)
    }

    fn read_local_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, buf.len() as u64).unwrap();
        if !self.absent.lock().unwrap().intersect(range).is_empty() {
            return Err(Error::new(ErrorKind::Absent, "elsewhere"));
        }
        self.copy(buf, offset)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.check(size, 0).or_else(|error| if size > self.size() { Ok(()) } else { Err(error) })?;
        self.size.store(size, Ordering::Release);
        Ok(())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let number = offset / SECTOR_SIZE;
        let zero = !self.sectors.lock().unwrap().contains_key(&number);
        let range = ByteRange::between(offset, ((number + 1) * SECTOR_SIZE).min(self.size()));
        Ok(Extent { range, zero })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check(offset, data.len() as u64)?;
        let mut sectors = self.sectors.lock().unwrap();
        for (number, part) in (offset / SECTOR_SIZE..).zip(data.chunks_exact(SECTOR_SIZE as usize)) {
            sectors.insert(number, part.try_into().unwrap());
        }
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        self.check(range.offset(), range.len())?;
        let mut sectors = self.sectors.lock().unwrap();
        for number in range.offset() / SECTOR_SIZE..range.end() / SECTOR_SIZE {
            sectors.remove(&number);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
