//! Content that is decoded before it is read.
//!
//! The first container of an image reads from a disk of which the kernel has nothing in memory. All bytes are on this
//! host, and what the start waits for is decoding them, one frame after the other. Earlier starts show what will be
//! read. While the runtime still prepares the container, another processor decodes it, and the reads only copy.
//!
//! Decoded bytes are given out once: from then on the kernel has them. So nothing stays here that is read, and the rest
//! goes when the caller ends it.

use crate::base::Health;
use headstart_block::{ByteRange, Result, to_usize};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes that wait for reads.
const WAITING_MAX: usize = 16 << 20;
/// The most reads that are remembered: what later ones read may be decoded in vain.
const READS_MAX: usize = 1 << 16;
/// The bytes that are decoded at once: a read of them does not wait long for the lock.
const PART: u64 = 128 << 10;

/// Decoded parts of a disk that is only read.
#[derive(Default)]
pub(crate) struct Ahead {
    /// `false` as long as reads need not look here.
    is_on: AtomicBool,
    state: Mutex<State>,
    /// The trust in the indices: bytes that wrong ones decoded are no content of the disk.
    health: Arc<Health>,
}

#[derive(Default)]
struct State {
    /// Parts that do not overlap, by their offsets.
    parts: BTreeMap<u64, Part>,
    /// Their bytes.
    waiting: usize,
    /// The reads that came, by their offsets, with their ends: what they read is not decoded any more.
    reads: BTreeMap<u64, u64>,
}

struct Part {
    bytes: Box<[u8]>,
    unread: usize,
}

/// The answer to whether a part is to be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// The part is to be decoded.
    There,
    /// So much waits for reads that this part has no room now.
    None,
    /// The part is decoded, or a read was faster.
    NotNeeded,
}

impl Ahead {
    /// Nothing yet, on a disk with this trust in its indices.
    pub(crate) fn new(health: Arc<Health>) -> Self {
        Self { health, ..Self::default() }
    }

    /// Lets reads look here from now on.
    pub(crate) fn begin(&self) {
        self.is_on.store(true, Ordering::Release);
    }

    /// Drops all that was not read.
    pub(crate) fn end(&self) {
        self.is_on.store(false, Ordering::Release);
        *self.state.lock() = State::default();
    }

    /// Decodes a range by `read`, as far as that is not done. Returns the number of its bytes for which there is no
    /// room at the moment, which are at its end; 0 once all is done.
    pub(crate) fn decode(&self, range: ByteRange, read: &dyn Fn(&mut [u8], u64) -> Result<()>) -> u64 {
        let mut at = range.offset();
        while at < range.end() {
            let end = range.end().min((at + 1).next_multiple_of(PART));
            let room = self.state.lock().room_for(at, end);
            match room {
                Room::None => return range.end() - at,
                Room::NotNeeded => {}
                Room::There => {
                    let mut bytes = vec![0; to_usize(end - at)].into_boxed_slice();
                    // What cannot be read is the reader's to find out.
                    if read(&mut bytes, at).is_ok() && self.is_on.load(Ordering::Acquire) {
                        self.state.lock().keep(at, bytes);
                    }
                }
            }
            at = end;
        }
        0
    }

    /// Reads what is decoded, and all else by `read`.
    #[inline]
    pub(crate) fn read(
        &self,
        buf: &mut [u8],
        offset: u64,
        read: &dyn Fn(&mut [u8], u64) -> Result<()>,
    ) -> Result<()> {
        if !self.is_on.load(Ordering::Acquire) {
            return read(buf, offset);
        }
        self.read_decoded(buf, offset, read)
    }

    #[cold]
    fn read_decoded(
        &self,
        buf: &mut [u8],
        offset: u64,
        read: &dyn Fn(&mut [u8], u64) -> Result<()>,
    ) -> Result<()> {
        self.health.check()?;
        let absent = self.state.lock().take(buf, offset);
        absent.iter().try_for_each(|part| {
            let at = to_usize(part.offset() - offset);
            read(&mut buf[at..at + to_usize(part.len())], part.offset())
        })
    }
}

impl State {
    fn room_for(&self, start: u64, end: u64) -> Room {
        let last = self.reads.range(..=start).next_back();
        let before = self.parts.range(..end).next_back();
        if last.is_some_and(|(_, read)| *read > start)
            || before.is_some_and(|(at, part)| at + part.bytes.len() as u64 > start)
        {
            return Room::NotNeeded;
        }
        if self.waiting + to_usize(end - start) > WAITING_MAX { Room::None } else { Room::There }
    }

    fn keep(&mut self, at: u64, bytes: Box<[u8]>) {
        // A read may have come while it was decoded.
        if self.room_for(at, at + bytes.len() as u64) == Room::There {
            self.waiting += bytes.len();
            let unread = bytes.len();
            self.parts.insert(at, Part { bytes, unread });
        }
    }

    /// Fills `buf` with what is decoded, and returns the ranges that are not.
    fn take(&mut self, buf: &mut [u8], offset: u64) -> Vec<ByteRange> {
        let end = offset.saturating_add(buf.len() as u64);
        if self.reads.len() < READS_MAX {
            let ended = self.reads.entry(offset).or_default();
            *ended = end.max(*ended);
        }
        let first = self.parts.range(..=offset).next_back().map_or(offset, |(at, _)| *at);
        let (mut absent, mut read, mut at) = (Vec::new(), Vec::new(), offset);
        for (start, part) in self.parts.range_mut(first..end) {
            let part_end = start + part.bytes.len() as u64;
            if part_end <= at {
                continue;
            }
            if *start > at {
                absent.push(ByteRange::between(at, *start));
                at = *start;
            }
            let until = end.min(part_end);
            let (to, from) = (to_usize(at - offset), to_usize(at - start));
            let len = to_usize(until - at);
            buf[to..to + len].copy_from_slice(&part.bytes[from..from + len]);
            part.unread = part.unread.saturating_sub(len);
            if part.unread == 0 {
                read.push(*start);
            }
            at = until;
        }
        if at < end {
            absent.push(ByteRange::between(at, end));
        }
        for start in read {
            self.waiting -= self.parts.remove(&start).map_or(0, |part| part.bytes.len());
        }
        absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::Error;
    use std::cell::RefCell;

    /// A disk whose bytes are made of their places, and the reads of it.
    struct Below(RefCell<Vec<(u64, usize)>>);

    impl Below {
        fn read(&self, buf: &mut [u8], offset: u64) {
            self.0.borrow_mut().push((offset, buf.len()));
            for (byte, at) in buf.iter_mut().zip(offset..) {
                *byte = byte_at(at);
            }
        }

        fn reads(&self) -> Vec<(u64, usize)> {
            self.0.take()
        }
    }

    fn byte_at(at: u64) -> u8 {
        (at / 512 % 251).to_le_bytes()[0]
    }

    #[test]
    fn reads_get_what_was_decoded_once_and_the_rest_from_below() {
        let (ahead, below) = (Ahead::default(), Below(RefCell::default()));
        let read = |buf: &mut [u8], at| {
            below.read(buf, at);
            Ok(())
        };
        let get = |offset: u64, len: usize| {
            let mut buf = vec![0xee; len];
            ahead.read(&mut buf, offset, &read).unwrap();
            let right: Vec<_> = (offset..).take(len).map(byte_at).collect();
            assert!(buf == right, "{len} bytes from {offset}");
        };
        ahead.begin();
        assert_eq!(ahead.decode(ByteRange::between(8192, 16384), &read), 0);
        assert_eq!(ahead.decode(ByteRange::between(PART - 4096, PART + 4096), &read), 0);
        assert_eq!(below.reads(), [(8192, 8192), (PART - 4096, 4096), (PART, 4096)]);
        get(4096, 8192);
        assert_eq!(below.reads(), [(4096, 4096)]);
        get(12288, 8192);
        assert_eq!(below.reads(), [(16384, 4096)]);
        get(8192, 8192);
        assert_eq!(below.reads(), [(8192, 8192)], "the kernel had all of it");
        get(PART - 8192, 16384);
        assert_eq!(below.reads(), [(PART - 8192, 4096), (PART + 4096, 4096)]);
        assert_eq!(ahead.state.lock().waiting, 0);
        // A read was faster.
        assert_eq!(ahead.decode(ByteRange::between(16384, 20480), &read), 0);
        assert_eq!(below.reads(), []);
        assert_eq!(ahead.decode(ByteRange::between(40960, 45056), &read), 0);
        ahead.end();
        get(40960, 4096);
        assert_eq!(below.reads(), [(40960, 4096), (40960, 4096)]);
    }

    #[test]
    fn what_waits_is_bounded_and_errors_leave_nothing() {
        let (ahead, below) = (Ahead::default(), Below(RefCell::default()));
        let read = |buf: &mut [u8], at| {
            below.read(buf, at);
            Ok(())
        };
        ahead.begin();
        let max = WAITING_MAX as u64;
        let left = ahead.decode(ByteRange::between(0, max + (1 << 20)), &read);
        assert_eq!(left, 1 << 20);
        let mut buf = vec![0; 1 << 20];
        ahead.read(&mut buf, 0, &read).unwrap();
        assert_eq!(ahead.decode(ByteRange::between(max, max + (1 << 20)), &read), 0);
        let fails = |_: &mut [u8], _| Err(Error::corrupt("is damaged"));
        let beyond = ByteRange::between(2 * max, 2 * max + 4096);
        ahead.end();
        ahead.begin();
        assert_eq!(ahead.decode(beyond, &fails), 0);
        assert!(ahead.state.lock().parts.is_empty());
    }
}
