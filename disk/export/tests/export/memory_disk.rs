//! A disk in memory whose faults are set by the test.

use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Extent, Result};
use std::sync::{Condvar, Mutex};

/// The operations on the disk, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Write(ByteRange),
    Zero(ByteRange),
    FlushBegins,
    Flushed,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// The range that is not on this host until [`MemoryDisk::bring`].
    absent: Option<ByteRange>,
    /// The range of which every request fails that touches it.
    bad: Option<ByteRange>,
    /// `true` if flushes wait.
    flush_held: bool,
    /// The number of reads that wait for absent bytes.
    waiting: usize,
    deeds: Vec<Deed>,
}

pub(crate) struct MemoryDisk {
    state: Mutex<State>,
    changed: Condvar,
    read_only: bool,
}

impl MemoryDisk {
    /// A disk of this content.
    pub(crate) fn new(bytes: Vec<u8>, read_only: bool) -> Self {
        let state = State { bytes, ..State::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), read_only }
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
        result
    }

    pub(crate) fn hold_back(&self, range: ByteRange) {
        self.change(|state| state.absent = Some(range));
    }

    pub(crate) fn bring(&self) {
        self.change(|state| state.absent = None);
    }

    pub(crate) fn spoil(&self, range: ByteRange) {
        self.change(|state| state.bad = Some(range));
    }

    pub(crate) fn hold_flush(&self, held: bool) {
        self.change(|state| state.flush_held = held);
    }

    pub(crate) fn deeds(&self) -> Vec<Deed> {
        self.state.lock().unwrap().deeds.clone()
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        self.state.lock().unwrap().bytes.clone()
    }

    /// Returns when `readers` reads wait for absent bytes.
    pub(crate) fn until_waiting(&self, readers: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting < readers).unwrap());
    }
}

impl State {
    fn check(&self, range: ByteRange) -> Result<std::ops::Range<usize>> {
        if range.end() > self.bytes.len() as u64 {
            return Err(Error::invalid("past the end"));
        }
        if self.bad.is_some_and(|bad| !bad.intersect(range).is_empty()) {
            return Err(Error::new(ErrorKind::Io, "a bad spot"));
        }
        Ok(usize::try_from(range.offset()).unwrap()..usize::try_from(range.end()).unwrap())
    }

    fn is_absent(&self, range: ByteRange) -> bool {
        self.absent.is_some_and(|absent| !absent.intersect(range).is_empty())
    }
}

impl BlockDevice for MemoryDisk {
    fn size(&self) -> u64 {
        self.state.lock().unwrap().bytes.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, buf.len() as u64).unwrap();
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.is_absent(range)).unwrap();
        state.waiting -= 1;
        buf.copy_from_slice(&state.bytes[state.check(range)?]);
        Ok(())
    }

    fn read_local_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, buf.len() as u64).unwrap();
        let state = self.state.lock().unwrap();
        if state.is_absent(range) {
            return Err(Error::new(ErrorKind::Absent, "elsewhere"));
        }
        buf.copy_from_slice(&state.bytes[state.check(range)?]);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.change(|state| state.bytes.resize(usize::try_from(size).unwrap(), 0));
        Ok(())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { range: ByteRange::between(offset, self.size()), zero: false })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, data.len() as u64).unwrap();
        self.change(|state| {
            let at = state.check(range)?;
            state.bytes[at].copy_from_slice(data);
            state.deeds.push(Deed::Write(range));
            Ok(())
        })
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        self.change(|state| {
            let at = state.check(range)?;
            state.bytes[at].fill(0);
            state.deeds.push(Deed::Zero(range));
            Ok(())
        })
    }

    fn flush(&self) -> Result<()> {
        self.change(|state| state.deeds.push(Deed::FlushBegins));
        let state = self.state.lock().unwrap();
        let mut state = self.changed.wait_while(state, |state| state.flush_held).unwrap();
        state.deeds.push(Deed::Flushed);
        Ok(())
    }
}
