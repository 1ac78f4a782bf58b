//! A disk in memory that can be slow, incomplete, or broken on request.

use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Extent, Result, SECTOR_SIZE};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, RwLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

const SECTOR: usize = SECTOR_SIZE as usize;

pub(crate) struct TestDisk {
    bytes: RwLock<Vec<u8>>,
    read_only: bool,
    /// Bytes that are remote until `arrive`.
    absent: Mutex<ByteRange>,
    arrived: Condvar,
    /// Local bytes; reading them lets the absent ones arrive, and takes a while.
    pub(crate) bringing: Mutex<ByteRange>,
    pub(crate) flushes: AtomicU64,
    pub(crate) prefetched: Mutex<Vec<ByteRange>>,
    /// The number of reads that wait just now.
    pub(crate) waiting: AtomicU64,
    pub(crate) fail: Mutex<Option<ErrorKind>>,
    pub(crate) panics: AtomicBool,
    /// The unit of decoding that the disk reports.
    pub(crate) decode_unit: u64,
    /// The holes of which the disk was told that clients read them.
    pub(crate) holes_read: Mutex<Vec<ByteRange>>,
    /// The threads that read local bytes.
    pub(crate) readers: Mutex<HashSet<ThreadId>>,
}

impl TestDisk {
    pub(crate) fn new(bytes: Vec<u8>, read_only: bool) -> Self {
        Self {
            bytes: RwLock::new(bytes),
            read_only,
            absent: Mutex::new(ByteRange::between(0, 0)),
            arrived: Condvar::new(),
            bringing: Mutex::new(ByteRange::between(0, 0)),
            flushes: AtomicU64::new(0),
            prefetched: Mutex::default(),
            waiting: AtomicU64::new(0),
            fail: Mutex::new(None),
            panics: AtomicBool::new(false),
            decode_unit: 0,
            holes_read: Mutex::default(),
            readers: Mutex::default(),
        }
    }

    /// Bytes that differ everywhere, with a hole in the middle third.
    pub(crate) fn patterned(len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..len).map(|at| u8::try_from((at / 7 + at / 4096) % 255 + 1).unwrap()).collect();
        bytes[len / 3 / 4096 * 4096..len / 3 * 2 / 4096 * 4096].fill(0);
        bytes
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.read().unwrap().clone()
    }

    /// Makes `range` remote from now on.
    pub(crate) fn lose(&self, range: ByteRange) {
        *self.absent.lock().unwrap() = range;
    }

    pub(crate) fn arrive(&self) {
        self.lose(ByteRange::between(0, 0));
        self.arrived.notify_all();
    }

    fn checked(&self, len: usize, offset: u64) -> Result<std::ops::Range<usize>> {
        assert!(!self.panics.load(Ordering::Relaxed), "the disk was told to panic");
        if let Some(kind) = *self.fail.lock().unwrap() {
            return Err(Error::new(kind, "the disk was told to fail").about("test disk"));
        }
        let start = usize::try_from(offset).unwrap();
        if start + len > self.bytes.read().unwrap().len() {
            return Err(Error::invalid("past the end"));
        }
        Ok(start..start + len)
    }
}

impl BlockDevice for TestDisk {
    fn size(&self) -> u64 {
        self.bytes.read().unwrap().len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::between(offset, offset + buf.len() as u64);
        let absent = self.absent.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waited = self.arrived.wait_timeout_while(absent, Duration::from_secs(60), |absent| {
            !absent.intersect(range).is_empty()
        });
        drop(waited);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let range = self.checked(buf.len(), offset)?;
        buf.copy_from_slice(&self.bytes.read().unwrap()[range]);
        Ok(())
    }

    fn read_local_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::between(offset, offset + buf.len() as u64);
        if !self.absent.lock().unwrap().intersect(range).is_empty() {
            buf.fill(0xee);
            return Err(Error::new(ErrorKind::Absent, "elsewhere"));
        }
        if !self.bringing.lock().unwrap().intersect(range).is_empty() {
            self.arrive();
            thread::sleep(Duration::from_millis(200));
        }
        self.readers.lock().unwrap().insert(thread::current().id());
        self.read_at(buf, offset)
    }

    fn hole_was_read(&self, range: ByteRange) {
        self.holes_read.lock().unwrap().push(range);
    }

    fn decode_unit(&self) -> u64 {
        self.decode_unit
    }

    fn prefetch(&self, range: ByteRange) {
        self.prefetched.lock().unwrap().push(range);
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn resize(&self, size: u64) -> Result<()> {
        if !size.is_multiple_of(SECTOR_SIZE) || size < self.size() {
            return Err(Error::invalid("not a size to grow to"));
        }
        self.bytes.write().unwrap().resize(usize::try_from(size).unwrap(), 0);
        Ok(())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let at = self.checked(0, offset)?.start;
        let bytes = self.bytes.read().unwrap();
        if at >= bytes.len() {
            return Err(Error::invalid("past the end"));
        }
        let is_zero = |sector: &[u8]| sector.iter().all(|byte| *byte == 0);
        let start = at / SECTOR * SECTOR;
        let mut sectors = bytes[start..].chunks(SECTOR);
        let zero = sectors.next().is_some_and(is_zero);
        let run = 1 + sectors.take_while(|sector| is_zero(sector) == zero).count();
        Ok(Extent { range: ByteRange::between(offset, (start + run * SECTOR) as u64), zero })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        assert!(offset.is_multiple_of(SECTOR_SIZE) && data.len().is_multiple_of(SECTOR), "unaligned");
        assert!(!self.read_only && !data.is_empty());
        let range = self.checked(data.len(), offset)?;
        self.bytes.write().unwrap()[range].copy_from_slice(data);
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        assert!(range.is_aligned(SECTOR_SIZE) && !self.read_only, "unaligned, or read-only");
        let range = self.checked(usize::try_from(range.len()).unwrap(), range.offset())?;
        self.bytes.write().unwrap()[range].fill(0);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.checked(0, 0)?;
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}
