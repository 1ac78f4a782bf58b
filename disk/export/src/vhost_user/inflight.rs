//! The record of requests in flight, in memory that outlives this process.
//!
//! The front end keeps the file; this process writes into it. When this process is killed and another takes its place,
//! the new one finds the requests that were taken from a ring and not answered, and takes them up again. Without the
//! record a front end can only go on from the end of the used ring, which loses requests that were overtaken.
//!
//! The layout is that of the vhost-user specification for split rings, one part a queue at multiples of
//! 64 bytes:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | features, 0 |
//! | 2 | version: 1; 0 if the part was never used |
//! | 2 | entries |
//! | 2 | head of the last batch answered |
//! | 2 | index of the used ring after it |
//! | 16 an entry | 1 in flight, 5 unused, 2 next of the batch, 8 counter: the order of submission |
//!
//! A batch is a single request here. The order of writes makes it work: an answer is named as the last batch before the
//! used ring has it, and stops being in flight after that; if a crash comes in between, the used ring's index shows
//! that it was answered.

use super::chain::Broken;
use super::memory::{check_file_len, guard};
use headstart_sigbus::{Guard, Lost};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::num::Wrapping;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost::vhost_user::Error as ProtocolError;
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{AtomicAccess, Bytes, FileOffset, MmapRegion, VolatileMemory};

const VERSION: u16 = 1;
const HEADER_LEN: usize = 16;
const ENTRY_LEN: usize = 16;
const PART_ALIGN: usize = 64;

const AT_VERSION: usize = 8;
const AT_ENTRIES: usize = 10;
const AT_LAST_HEAD: usize = 12;
const AT_USED: usize = 14;
const ENTRY_IN_FLIGHT: usize = 0;
const ENTRY_NEXT: usize = 6;
const ENTRY_COUNTER: usize = 8;

/// The bytes of one queue's part.
fn part_len(entries: u16) -> usize {
    (HEADER_LEN + usize::from(entries) * ENTRY_LEN).next_multiple_of(PART_ALIGN)
}

/// The record of all queues.
#[derive(Clone)]
pub(crate) struct Record {
    /// The guard of the mapping. Dropped before it.
    guard: Arc<Guard>,
    mapping: Arc<MmapRegion<()>>,
    queues: u16,
    entries: u16,
}

impl Record {
    /// Makes the file for a new record, which the front end keeps.
    pub(crate) fn create(queues: u16, entries: u16) -> Result<(VhostUserInflight, File), ProtocolError> {
        let len = (part_len(entries) * usize::from(queues)) as u64;
        let file = || {
            let file = memfd_create("in-flight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&file, len)?;
            fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
            Ok(File::from(file))
        };
        let file = file().map_err(|e: io::Error| ProtocolError::ReqHandlerError(e))?;
        Ok((VhostUserInflight::new(len, 0, queues, entries), file))
    }

    /// Maps a record that the front end kept.
    pub(crate) fn map(about: &VhostUserInflight, file: File) -> Result<Self, ProtocolError> {
        let (queues, entries) = (about.num_queues, about.queue_size);
        let len = usize::try_from(about.mmap_size).map_err(|_| ProtocolError::InvalidParam)?;
        if part_len(entries) * usize::from(queues) > len {
            return Err(ProtocolError::InvalidParam);
        }
        check_file_len(&file, about.mmap_offset, about.mmap_size)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, about.mmap_offset), len)
            .map_err(|e| ProtocolError::ReqHandlerError(io::Error::other(e)))?;
        let guard = guard(mapping.as_ptr(), mapping.size(), &Lost::default())?;
        Ok(Self { guard, mapping: Arc::new(mapping), queues, entries })
    }

    /// The part of one queue, if there is one.
    pub(crate) fn queue(&self, index: u16) -> Option<QueueRecord> {
        (index < self.queues).then(|| QueueRecord {
            guard: Arc::clone(&self.guard),
            mapping: Arc::clone(&self.mapping),
            start: part_len(self.entries) * usize::from(index),
            entries: self.entries,
            counter: 0,
        })
    }
}

/// The record of one queue.
pub(crate) struct QueueRecord {
    /// The guard of the mapping. Dropped before it.
    guard: Arc<Guard>,
    mapping: Arc<MmapRegion<()>>,
    start: usize,
    entries: u16,
    counter: u64,
}

impl QueueRecord {
    /// Takes the record up at a ring's start: returns the heads that were submitted and not answered, oldest first.
    /// `used` is the index of the used ring.
    pub(crate) fn take_up(&mut self, used: u16) -> Result<Vec<u16>, Broken> {
        if self.load::<u16>(AT_VERSION)? == 0 {
            self.store(AT_ENTRIES, self.entries)?;
            self.store(AT_USED, used)?;
            self.store(AT_VERSION, VERSION)?;
            return Ok(Vec::new());
        }
        if self.load::<u16>(AT_VERSION)? != VERSION || self.load::<u16>(AT_ENTRIES)? != self.entries {
            return Err(Broken("the record of requests in flight is of another version or size"));
        }
        self.finish_batch(used)?;
        let mut waiting = Vec::new();
        for head in 0..self.entries {
            if self.load::<u8>(self.entry(head, ENTRY_IN_FLIGHT)?)? != 0 {
                waiting.push((self.load::<u64>(self.entry(head, ENTRY_COUNTER)?)?, head));
            }
        }
        waiting.sort_unstable();
        self.counter = waiting.last().map_or(0, |(counter, _)| counter.saturating_add(1));
        Ok(waiting.into_iter().map(|(_, head)| head).collect())
    }

    /// Ends the requests that the used ring has: they are not in flight, whatever the record says.
    fn finish_batch(&mut self, used: u16) -> Result<(), Broken> {
        let answered = Wrapping(used) - Wrapping(self.load::<u16>(AT_USED)?);
        if answered.0 > self.entries {
            return Err(Broken("the record of requests in flight does not belong to this ring"));
        }
        let mut head: u16 = self.load(AT_LAST_HEAD)?;
        for _ in 0..answered.0 {
            self.store(self.entry(head, ENTRY_IN_FLIGHT)?, 0_u8)?;
            head = self.load(self.entry(head, ENTRY_NEXT)?)?;
        }
        self.store(AT_USED, used)
    }

    /// Notes that a request was taken from the ring.
    pub(crate) fn submit(&mut self, head: u16) -> Result<(), Broken> {
        self.store(self.entry(head, ENTRY_COUNTER)?, self.counter)?;
        self.counter = self.counter.wrapping_add(1);
        self.store(self.entry(head, ENTRY_IN_FLIGHT)?, 1_u8)
    }

    /// Notes that a request is about to be answered.
    pub(crate) fn answering(&mut self, head: u16) -> Result<(), Broken> {
        self.store(self.entry(head, ENTRY_NEXT)?, self.load::<u16>(AT_LAST_HEAD)?)?;
        self.store(AT_LAST_HEAD, head)
    }

    /// Notes that a request was answered: `used` is now the index of the used ring.
    pub(crate) fn answered(&mut self, head: u16, used: u16) -> Result<(), Broken> {
        self.store(self.entry(head, ENTRY_IN_FLIGHT)?, 0_u8)?;
        self.store(AT_USED, used)
    }

    fn entry(&self, head: u16, field: usize) -> Result<usize, Broken> {
        if head >= self.entries {
            return Err(Broken("the record of requests in flight names a request outside of the ring"));
        }
        Ok(HEADER_LEN + usize::from(head) * ENTRY_LEN + field)
    }

    fn load<T: AtomicAccess>(&self, at: usize) -> Result<T, Broken> {
        let slice = self.mapping.as_volatile_slice();
        let value = slice.load(self.start + at, Ordering::Acquire).map_err(|_| Self::outside())?;
        if self.guard.is_lost() {
            return Err(Broken("the front end has shortened the record of requests in flight"));
        }
        Ok(value)
    }

    fn store<T: AtomicAccess>(&self, at: usize, value: T) -> Result<(), Broken> {
        let slice = self.mapping.as_volatile_slice();
        slice.store(value, self.start + at, Ordering::Release).map_err(|_| Self::outside())
    }

    fn outside() -> Broken {
        Broken("the record of requests in flight is too short")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(entries: u16) -> Record {
        let (about, file) = Record::create(2, entries).unwrap();
        Record::map(&about, file).unwrap()
    }

    #[test]
    fn unanswered_requests_are_taken_up_in_order() {
        let record = record(8);
        let mut queue = record.queue(1).unwrap();
        assert_eq!(queue.take_up(65_535), Ok(vec![]));
        for head in [5, 2, 7, 0] {
            queue.submit(head).unwrap();
        }
        queue.answering(2).unwrap();
        queue.answered(2, 0).unwrap();
        drop(queue);
        let mut queue = record.queue(1).unwrap();
        assert_eq!(queue.take_up(0), Ok(vec![5, 7, 0]));
        queue.submit(2).unwrap();
        assert_eq!(record.queue(1).unwrap().take_up(0), Ok(vec![5, 7, 0, 2]));
        assert_eq!(record.queue(0).unwrap().take_up(9), Ok(vec![]));
        assert!(record.queue(2).is_none());
    }

    #[test]
    fn a_crash_between_the_answer_and_its_record_does_not_repeat_it() {
        let record = record(4);
        let mut queue = record.queue(0).unwrap();
        queue.take_up(10).unwrap();
        queue.submit(3).unwrap();
        queue.submit(1).unwrap();
        queue.answering(3).unwrap();
        // The used ring moved to 11, and then the process died.
        assert_eq!(record.queue(0).unwrap().take_up(11), Ok(vec![1]));
        // In the other case it did not move.
        let mut queue = record.queue(0).unwrap();
        queue.take_up(11).unwrap();
        queue.submit(2).unwrap();
        queue.answering(2).unwrap();
        assert_eq!(record.queue(0).unwrap().take_up(11), Ok(vec![1, 2]));
    }

    #[test]
    fn nonsense_is_refused() {
        let record = record(4);
        let mut queue = record.queue(0).unwrap();
        queue.take_up(0).unwrap();
        assert!(queue.submit(4).is_err());
        assert!(record.queue(0).unwrap().take_up(5).is_err(), "more answers than entries");
        queue.store(AT_LAST_HEAD, 99_u16).unwrap();
        assert!(record.queue(0).unwrap().take_up(1).is_err());
        queue.store(AT_VERSION, 2_u16).unwrap();
        assert!(record.queue(0).unwrap().take_up(0).is_err());
        let (mut about, file) = Record::create(2, 8).unwrap();
        about.mmap_size += 1;
        assert!(Record::map(&about, file.try_clone().unwrap()).is_err());
        about.mmap_size = 64;
        assert!(Record::map(&about, file).is_err());
    }
}
