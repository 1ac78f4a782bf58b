//! Writes that were answered and not flushed: what a disk's process may lose when it is killed.
//!
//! A disk with a volatile cache may lose such writes when its host loses power, together with all programs that made
//! them. When only the process of the disk dies, and its mount is kept, these programs go on: a later `fsync` promises
//! them the earlier writes, too. So a copy of each is in memory that the keeper has as well, from before it is answered
//! until a flush. The next process writes them again, in their order.
//!
//! The memory is a ring of entries. Its page at the start has the positions of the first entry, and behind the last,
//! which only grow:
//!
//! ```text
//! 0     first (8), end (8)
//! 4096  ring: { place on the disk (8), length (8), kind (8), the bytes unless they are zeros } ...
//! ```
//!
//! The end is moved when the entry is whole, so that an entry that was being written when the process died is not
//! there; the kernel sends its request again. A flush removes what was on the disk when it began.

use headstart_block::{Error, Result, to_usize};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// The bytes of the ring. A write that finds no room flushes first.
const RING: u64 = 32 << 20;

/// The place of the ring.
const START: u64 = 4096;

/// The bytes of an entry before its content.
const HEAD_LEN: usize = 24;
const HEAD: u64 = HEAD_LEN as u64;

/// The longest content of an entry: more than a request has.
const CONTENT_MAX: u64 = 16 << 20;

const ZEROS: u64 = 1;

/// The content of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logged<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// So many zeros.
    Zeros(u64),
}

/// The log of one disk.
pub(super) struct WriteLog {
    memory: OwnedFd,
    ends: Mutex<Ends>,
    /// Held by a flush: two would not know what the other one made durable.
    flushing: Mutex<()>,
}

/// The positions in the ring.
struct Ends {
    first: u64,
    end: u64,
    /// The entries whose writes have not reached the disk.
    under_way: BTreeSet<u64>,
}

fn failed(error: Errno) -> Error {
    Error::io("the log of writes fails", error.into())
}

impl WriteLog {
    /// An empty log.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn new() -> Result<Self> {
        let memory = memfd_create("headstart-writes", MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&memory, START + RING).map_err(failed)?;
        Self::open(memory)
    }

    /// The log that another process has left.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it is none; errors of the operating system.
    pub(super) fn open(memory: OwnedFd) -> Result<Self> {
        let mut ends = [0; 16];
        read_exact(&memory, &mut ends, 0)?;
        let (first, end) = (number(&ends[..8]), number(&ends[8..]));
        if end.checked_sub(first).is_none_or(|used| used > RING) {
            return Err(damaged());
        }
        let ends = Ends { first, end, under_way: BTreeSet::new() };
        Ok(Self { memory, ends: Mutex::new(ends), flushing: Mutex::new(()) })
    }

    /// The memory, for the keeper.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn memory(&self) -> Result<OwnedFd> {
        self.memory.try_clone().map_err(|error| Error::io("cannot duplicate a descriptor", error))
    }

    /// Notes a write, and has `apply` bring it to the disk. `None` if there is no room until a flush.
    pub(super) fn write<T>(
        &self,
        place: u64,
        content: Logged<'_>,
        apply: impl FnOnce() -> Result<T>,
    ) -> Option<Result<T>> {
        let position = match self.append(place, content).transpose()? {
            Ok(position) => position,
            Err(error) => return Some(Err(error)),
        };
        let applied = apply();
        self.ends.lock().under_way.remove(&position);
        Some(applied)
    }

    /// Adds an entry; returns its position. `None` if there is no room.
    fn append(&self, place: u64, content: Logged<'_>) -> Result<Option<u64>> {
        let (len, kind, bytes): (u64, u64, &[u8]) = match content {
            Logged::Bytes(bytes) => (bytes.len() as u64, 0, bytes),
            Logged::Zeros(len) => (len, ZEROS, &[]),
        };
        let mut ends = self.ends.lock();
        let position = ends.end;
        let end = position + HEAD + bytes.len() as u64;
        if end - ends.first > RING {
            return Ok(None);
        }
        let head: Vec<u8> = [place, len, kind].into_iter().flat_map(u64::to_le_bytes).collect();
        self.put(&head, position)?;
        self.put(bytes, position + HEAD)?;
        write_all(&self.memory, &end.to_le_bytes(), 8)?;
        ends.end = end;
        ends.under_way.insert(position);
        Ok(Some(position))
    }

    /// Flushes the disk by `flush`, and forgets the writes that this made durable.
    ///
    /// # Errors
    /// Those of `flush`; nothing is forgotten then.
    pub(super) fn flush(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let _alone = self.flushing.lock();
        let durable = {
            let ends = self.ends.lock();
            ends.under_way.first().copied().unwrap_or(ends.end)
        };
        flush()?;
        let mut ends = self.ends.lock();
        write_all(&self.memory, &durable.to_le_bytes(), 0)?;
        let used = durable - ends.first;
        ends.first = durable;
        // Memory that an idle disk does not need. Best effort: the entries there are not read any more.
        if ends.first == ends.end && used > 0 {
            let _ =
                fallocate(&self.memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, START, RING);
        }
        Ok(())
    }

    /// Calls `apply` for each entry, from the first on.
    ///
    /// # Errors
    /// The first error of `apply`; [`headstart_block::ErrorKind::Corrupt`] for entries that are none.
    pub(super) fn replay(&self, mut apply: impl FnMut(u64, Logged<'_>) -> Result<()>) -> Result<u64> {
        let (mut position, end) = {
            let ends = self.ends.lock();
            (ends.first, ends.end)
        };
        let mut entries = 0;
        while position < end {
            let mut head = [0; HEAD_LEN];
            self.get(&mut head, position)?;
            let (place, len, kind) = (number(&head[..8]), number(&head[8..16]), number(&head[16..]));
            position += HEAD;
            if kind == ZEROS {
                apply(place, Logged::Zeros(len))?;
            } else if kind == 0 && len <= CONTENT_MAX && len <= end.saturating_sub(position) {
                let mut bytes = vec![0; to_usize(len)];
                self.get(&mut bytes, position)?;
                apply(place, Logged::Bytes(&bytes))?;
                position += len;
            } else {
                return Err(damaged());
            }
            entries += 1;
        }
        Ok(entries)
    }

    /// Writes to the ring, which may go round in the middle.
    fn put(&self, bytes: &[u8], position: u64) -> Result<()> {
        let (before, behind) = bytes.split_at(bytes.len().min(until_the_turn(position)));
        write_all(&self.memory, before, START + position % RING)?;
        write_all(&self.memory, behind, START)
    }

    fn get(&self, bytes: &mut [u8], position: u64) -> Result<()> {
        let turn = bytes.len().min(until_the_turn(position));
        let (before, behind) = bytes.split_at_mut(turn);
        read_exact(&self.memory, before, START + position % RING)?;
        read_exact(&self.memory, behind, START)
    }
}

/// The bytes from a position to the end of the memory.
fn until_the_turn(position: u64) -> usize {
    to_usize(RING - position % RING)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn damaged() -> Error {
    Error::corrupt("the log of writes of the process before is damaged")
}

fn write_all(memory: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        match pwrite(memory, bytes, at) {
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

fn read_exact(memory: &OwnedFd, mut bytes: &mut [u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        match pread(memory, &mut *bytes, at) {
            Ok(0) => return Err(damaged()),
            Ok(read) => {
                bytes = &mut bytes[read..];
                at += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    /// The entries that the next process finds: places, lengths, and the first byte or `None` for zeros.
    fn left(log: &WriteLog) -> Vec<(u64, u64, Option<u8>)> {
        let (next, mut found) = (WriteLog::open(log.memory().unwrap()).unwrap(), Vec::new());
        let entries = next.replay(|place, content| {
            found.push(match content {
                Logged::Bytes(bytes) => {
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                    (place, bytes.len() as u64, Some(bytes[0]))
                }
                Logged::Zeros(len) => (place, len, None),
            });
            Ok(())
        });
        assert_eq!(entries.unwrap(), found.len() as u64);
        found
    }

    #[test]
    fn the_next_process_finds_what_was_not_flushed() {
        let log = WriteLog::new().unwrap();
        assert_eq!(left(&log), []);
        let write =
            |place, byte: u8| log.write(place, Logged::Bytes(&[byte; 512]), || Ok(())).unwrap().unwrap();
        write(0, 1);
        write(512, 2);
        log.write(4096, Logged::Zeros(1 << 40), || Ok(())).unwrap().unwrap();
        assert_eq!(left(&log), [(0, 512, Some(1)), (512, 512, Some(2)), (4096, 1 << 40, None)]);
        let refused = log.flush(|| Err(Error::new(ErrorKind::Io, "as the test wants it")));
        assert!(refused.is_err() && left(&log).len() == 3);
        // Written while a flush is under way: it may have come too late for that.
        log.flush(|| {
            write(1024, 3);
            Ok(())
        })
        .unwrap();
        assert_eq!(left(&log), [(1024, 512, Some(3))]);
        // A write that a flush overtakes on its way to the disk stays.
        let applied = log.write(2048, Logged::Bytes(&[4; 8]), || log.flush(|| Ok(()))).unwrap();
        assert!(applied.is_ok());
        assert_eq!(left(&log), [(2048, 8, Some(4))]);
        log.flush(|| Ok(())).unwrap();
        assert_eq!(left(&log), []);
    }

    #[test]
    fn the_ring_goes_round_and_says_when_it_is_full() {
        let log = WriteLog::new().unwrap();
        let chunk = vec![7; 1_000_003];
        let mut written = 0_u64;
        for round in 0..5 {
            let mut found = 0;
            while let Some(done) = log.write(written, Logged::Bytes(&chunk), || Ok(())) {
                done.unwrap();
                (written, found) = (written + 1, found + 1);
            }
            let places = left(&log);
            let expected: Vec<_> = (written - found..written).map(|at| (at, 1_000_003, Some(7))).collect();
            assert_eq!((found, &places), (RING / (1_000_003 + HEAD), &expected), "round {round}");
            log.flush(|| Ok(())).unwrap();
        }
    }

    #[test]
    fn a_damaged_log_is_refused() {
        let log = WriteLog::new().unwrap();
        log.write(0, Logged::Bytes(&[1; 512]), || Ok(())).unwrap().unwrap();
        let replayed = |log: &WriteLog| log.replay(|_, _| Ok(())).unwrap_err().kind();
        for (at, value) in [(16, 2_u64), (8, u64::MAX), (8, 1000)] {
            write_all(&log.memory, &value.to_le_bytes(), START + at).unwrap();
            assert_eq!(replayed(&log), ErrorKind::Corrupt, "{at}");
        }
        write_all(&log.memory, &(RING + 1).to_le_bytes(), 8).unwrap();
        assert!(WriteLog::open(log.memory().unwrap()).is_err());
        let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        assert!(WriteLog::open(short).is_err());
    }
}
