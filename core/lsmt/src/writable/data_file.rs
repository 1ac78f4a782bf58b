//! The data file of a pair, with writers that do not wait for its holes.
//!
//! A file system keeps writers out of a file while it makes a hole in it. On ext4 a hole may wait for a commit of the
//! journal, and while clients flush all the time there always is one: milliseconds for each hole. So data that is
//! written while a hole is made is *kept*: it stays in memory, where reads find it, and goes to its place in the
//! file once the hole is there. A flush writes the kept data before it syncs the file, so that the flush waits
//! instead of the writers.
//!
//! A kept write of a client is answered when a copy is in the file of pending records (`pending.rs`), so that the death
//! of this process does not lose it. Where there is no room for a copy, it waits for the file system.
//!
//! A kept write that the file system has no room for stays in memory, and flushes fail until there is room. Nothing is
//! lost by that: a write was never durable before its flush.
//!
//! No kept data is written over a hole that was made in its place meanwhile. Data that clients overwrite dies for
//! good with a flush, which first writes the kept data. Only a write that finds its pair frozen dies without a
//! flush, and the file of such a pair goes as a whole.

use super::files::LogFile;
use super::pending::{Pending, SetAside};
use headstart_block::Result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most bytes that are kept at the same time. Writes beyond that wait for the file system.
const KEPT_MAX: usize = 4 << 20;

/// Most bytes of kept data that are written at once.
const WRITE_MAX: usize = 256 << 10;

/// A data file.
pub(super) struct DataFile {
    file: Box<dyn LogFile>,
    /// `true` while a hole is being made or something is kept; changed under the lock of `kept`.
    is_involved: AtomicBool,
    kept: Mutex<Kept>,
}

/// Data that is not in the file yet.
#[derive(Default)]
struct Kept {
    /// Number of holes that are being made.
    holes: usize,
    /// Data by its place in the file, in bytes. No two parts overlap.
    parts: BTreeMap<u64, Part>,
    bytes: usize,
}

struct Part {
    data: Arc<[u8]>,
    /// The copy for the next process, which is there as long as the data is not in the file.
    _copy: Option<SetAside>,
}

impl Kept {
    /// `true` if `len` bytes are to be kept: a hole is being made, and there is room.
    fn takes(&self, len: usize) -> bool {
        self.holes > 0 && self.bytes + len <= KEPT_MAX
    }

    fn insert(&mut self, offset: u64, data: &[u8], copy: Option<SetAside>) {
        self.bytes += data.len();
        self.parts.insert(offset, Part { data: data.into(), _copy: copy });
    }

    /// Removes a part, unless another one is at its place.
    fn remove(&mut self, offset: u64, data: &Arc<[u8]>) {
        if self.parts.get(&offset).is_some_and(|found| Arc::ptr_eq(&found.data, data)) {
            self.parts.remove(&offset);
            self.bytes -= data.len();
        }
    }

    /// The parts that overlap `range`, in order.
    fn within(&self, range: &Range<u64>) -> Vec<(u64, Arc<[u8]>)> {
        let before = self.parts.range(..range.start).next_back();
        let reaches = |(at, part): &(&u64, &Part)| **at + part.data.len() as u64 > range.start;
        let parts = before.into_iter().filter(reaches).chain(self.parts.range(range.clone()));
        parts.map(|(at, part)| (*at, Arc::clone(&part.data))).collect()
    }
}

/// The place in a buffer of byte `at` of the file, where the buffer starts at byte `start`.
#[expect(clippy::cast_possible_truncation, reason = "places in a buffer")]
fn place(start: u64, at: u64) -> usize {
    (at - start) as usize
}

impl DataFile {
    pub(super) fn new(file: Box<dyn LogFile>) -> Self {
        Self { file, is_involved: AtomicBool::new(false), kept: Mutex::default() }
    }

    /// The file itself, for data that is never kept.
    pub(super) fn file(&self) -> &dyn LogFile {
        &*self.file
    }

    /// Writes `data` at byte `offset`, where nothing is yet: to the file, or to memory while a hole is made. With
    /// `pending`, memory comes with a copy in that file, whose sector is returned.
    pub(super) fn write_at(
        &self,
        data: &[u8],
        offset: u64,
        pending: Option<&Arc<Pending>>,
    ) -> Result<Option<u32>> {
        if self.is_involved.load(Ordering::Acquire) && self.kept.lock().takes(data.len()) {
            // The lock is not held meanwhile: readers would wait for the file.
            let copy = pending.map(|pending| pending.set_aside(data));
            if !matches!(copy, Some(None)) {
                let copy = copy.flatten();
                let sector = copy.as_ref().map(|copy| copy.sector);
                let mut kept = self.kept.lock();
                // All holes may be there by now.
                if kept.takes(data.len()) {
                    kept.insert(offset, data, copy);
                    return Ok(sector);
                }
            }
        }
        self.file.write_at(data, offset).map(|()| None)
    }

    /// Fills `buf` from byte `offset` on.
    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset + buf.len() as u64;
        let mut parts = Vec::new();
        if self.is_involved.load(Ordering::Acquire) {
            parts = self.kept.lock().within(&(offset..end));
        }
        let mut reached = offset;
        for (start, data) in parts {
            let (from, to) = (start.max(offset), end.min(start + data.len() as u64));
            if reached < from {
                self.file.read_at(&mut buf[place(offset, reached)..place(offset, from)], reached)?;
            }
            let part = &data[place(start, from)..place(start, to)];
            buf[place(offset, from)..place(offset, to)].copy_from_slice(part);
            reached = to;
        }
        if reached < end { self.file.read_at(&mut buf[place(offset, reached)..], reached) } else { Ok(()) }
    }

    /// Makes a hole of `len` bytes at `offset`, as [`LogFile::punch`] does; no reader reads these any more.
    pub(super) fn punch(&self, offset: u64, len: u64) -> Result<bool> {
        {
            let mut kept = self.kept.lock();
            kept.holes += 1;
            self.is_involved.store(true, Ordering::Release);
        }
        let punched = self.file.punch(offset, len);
        self.kept.lock().holes -= 1;
        // Data that cannot be written stays, and flushes report it.
        let _ = self.write_kept();
        punched
    }

    /// Writes the data that was kept before the call to the file.
    pub(super) fn write_kept(&self) -> Result<()> {
        if !self.is_involved.load(Ordering::Acquire) {
            return Ok(());
        }
        let parts: Vec<_> = self.kept.lock().within(&(0..u64::MAX));
        let mut rest = &*parts;
        let mut bytes = Vec::new();
        while let Some((start, _)) = rest.first() {
            bytes.clear();
            let joined = |(at, data): &&(u64, Arc<[u8]>)| {
                let fits = *at == start + bytes.len() as u64 && bytes.len() < WRITE_MAX;
                if fits {
                    bytes.extend_from_slice(data);
                }
                fits
            };
            let (some, others) = rest.split_at(rest.iter().take_while(joined).count());
            self.file.write_at(&bytes, *start)?;
            let mut kept = self.kept.lock();
            some.iter().for_each(|(at, data)| kept.remove(*at, data));
            rest = others;
        }
        let kept = self.kept.lock();
        self.is_involved.store(kept.holes > 0 || !kept.parts.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        let kept = self.kept.lock();
        assert_eq!(kept.bytes, kept.parts.values().map(|part| part.data.len()).sum::<usize>());
        kept.bytes
    }

    /// Makes the content of the file durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync()
    }
}
