//! The records that were not flushed, for a process that opens the disk after this one was killed.
//!
//! A disk with a volatile cache may lose writes that were not flushed when its host loses power, together with all
//! programs that made them. When only the process of the disk dies and another one takes its place, these programs go
//! on, and their next flush covers the writes that were answered before. The bytes of such writes are in the page cache
//! of the host, because they were written to the data file; only their records were in the memory of the process. So
//! each write or discard of a client puts its record into this file, too, before it is answered. The file is written
//! like any other and never synced: it serves as long as the host runs, and costs a write about a microsecond.
//!
//! ```text
//! 0       magic number (8), boot id of the host and number of the file system, mixed by XOR (16), id of the disk (16),
//!         CRC-32C of these (4)
//! 64      a note of the first entry that counts, and of the ends of the logs (`log_ends.rs`)
//! 4096    another one
//! 8192    slots of 48 bytes, for an entry each:
//!           position (8)      the number of the write; all from the first that counts are in the file
//!           record (16)       as in the log (`segment.rs`)
//!           pair (4)          the number of the pair
//!           aside (4)         0, or one more than the sector of the last part that has a copy of the data
//!           checksum (4)      CRC-32C of the data; 0 for zeros
//!           note (8)          the number of the last note before the write
//!           CRC-32C (4)       of the entry before this field
//! ...     data that waits in memory for a hole of the data file (`data_file.rs`), in sectors
//! ```
//!
//! Numbers are little-endian. An entry goes to the next slot, in turn, and to the first one whenever all are empty. A
//! flush moves the position of the first entry past those that it made durable, and only then gives their slots and
//! their dead data free. Replaying entries that are in the log already is harmless: they are the last writes in their
//! order, and a map that all of them are laid over again is the same. What the collector moves needs no entry: the
//! old places have the same content, and are there until a flush.
//!
//! # Opening
//!
//! Entries are replayed over the log and brought into it at once (`left.rs`). They count
//!
//! * if the boot id is that of the running host, so that no loss of power was in between, and the number that of the
//!   file system, which a snapshot beside its origin has not;
//! * if the log of their pair ends where the last note says. Storage that loses its last writes while the host runs, or
//!   is set back to a snapshot, gives back a log and a file that do not belong together; and none of the entries is
//!   from after that note;
//! * if the data of all entries of a pair has their checksums.
//!
//! Entries of a pair that fail this are left out, and a warning says so: the disk then has what was flushed, and is no
//! worse than without this file. A missing entry is that of a write that was not answered.
//!
//! A file of the first form has no note of logs, only the position of the first entry, and its slots have 40 bytes. It
//! is read as well: a program that takes the place of an earlier version while guests run needs their writes.
//!
//! The name of the file is that of an index whose number no pair has. So versions that do not know the file remove it
//! when they open the disk, as any file of a pair that `state.json` does not name, and do not leave it for later with
//! records that are no longer the last ones.
//!
//! A sync that fails makes the file invalid: the page cache cannot be trusted from then on. The file is not used either
//! where the boot id cannot be read, as without `/proc`.

use super::files::{Directory, LogFile};
use super::log::LogEnd;
use super::log_ends::LogEnds;
use crate::Segment;
use crate::format::{FIRST_DATA_SECTOR, PAGE_SIZE};
use crc_fast::{CrcAlgorithm, checksum as crc};
use headstart_block::{Result, SECTOR_SIZE, exact, to_usize};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

/// The name of the file.
pub(super) const PENDING: &str = "index.4294967295";

pub(super) const MAGIC: [u8; 8] = *b"HSPEND\0\x02";
pub(super) const HEADER_LEN: usize = 44;
/// The places of notes, used in turn.
pub(super) const NOTES_AT: [u64; 2] = [64, 4096];
pub(super) const SLOTS_AT: u64 = 8192;
pub(super) const SLOT_LEN: usize = 48;
pub(super) const SLOTS: u64 = 1 << 16;
/// Slots whose space is taken at once, so that a write which finds no room fails before it is done.
const SLOTS_AT_ONCE: u64 = 1 << 9;
/// Slots that are free when a write begins; more than there are threads that write at the same time.
const SLOTS_LEFT: u64 = 1 << 7;
pub(super) const ASIDE_AT: u64 = SLOTS_AT + SLOTS * SLOT_LEN as u64;
/// Bytes of data that is set aside at the same time.
const ASIDE_MAX: u64 = 4 << 20;

/// The file of a disk that is open. It is made by the first write.
pub(super) struct Pending {
    directory: Arc<dyn Directory>,
    header: Option<[u8; HEADER_LEN]>,
    /// `true` once the file counts for nothing any more.
    is_void: AtomicBool,
    file: OnceLock<Box<dyn LogFile>>,
    sizes: OnceLock<Sizes>,
    /// Slots whose space is taken.
    taken: AtomicU64,
    /// One past the highest slot that was used.
    used: AtomicU64,
    /// Held to take space.
    growing: Mutex<()>,
    /// The last note, and the one that counts if the file is made.
    noted: Mutex<LogEnds>,
    /// Its number.
    note: AtomicU64,
    ring: Mutex<Ring>,
    /// Told when an entry is in the file.
    entered: Condvar,
    aside: Mutex<Aside>,
}

/// The most that the file has.
#[derive(Clone, Copy)]
struct Sizes {
    slots: u64,
    /// Bytes of data that is set aside.
    aside: u64,
}

impl Sizes {
    /// The sizes of a file that may take `bytes` bytes, or little more if that is very little.
    fn within(bytes: u64) -> Self {
        let slots = (bytes / 2 / SLOT_LEN as u64).clamp(SLOTS_AT_ONCE, SLOTS);
        Self { slots: slots - slots % SLOTS_AT_ONCE, aside: ASIDE_MAX.min(bytes / 2) }
    }
}

/// The positions of the entries.
#[derive(Default)]
struct Ring {
    first: u64,
    next: u64,
    /// The position whose entry has the first slot.
    base: u64,
    /// Entries on their way to the file.
    under_way: Vec<u64>,
}

/// The part for data that waits for a hole.
#[derive(Default)]
struct Aside {
    used: u64,
    parts: usize,
    /// Bytes from the start on that take space.
    taken: u64,
}

/// A place in the file for the entry of a write that every reader sees by now.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    position: u64,
    slot: u64,
    note: u64,
}

/// The content of a write that has a place.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    /// The first sector in the data file.
    pub(super) moffset: u64,
    /// The copy of the data in this file, if it is not in the data file yet.
    pub(super) aside: Option<u32>,
    /// The checksum of the data.
    pub(super) checksum: u32,
}

/// The answer to the question for a place.
pub(super) enum Place {
    Ticket(Ticket),
    /// No entry is needed.
    Off,
    /// There is none before a flush.
    Full,
}

/// An entry of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) position: u64,
    pub(super) record: Segment,
    pub(super) pair: u32,
    /// One more than the sector of the copy; 0 for none.
    pub(super) aside: u32,
    pub(super) checksum: u32,
    /// The number of the last note before it.
    pub(super) note: u64,
}

/// The checksum of data.
pub(super) fn checksum(data: &[u8]) -> u32 {
    exact(crc(CrcAlgorithm::Crc32Iscsi, data), "it has 32 bits")
}

impl Entry {
    fn bytes(&self) -> [u8; SLOT_LEN] {
        let mut bytes = [0; SLOT_LEN];
        bytes[..8].copy_from_slice(&self.position.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.record.to_record());
        bytes[24..28].copy_from_slice(&self.pair.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.aside.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.note.to_le_bytes());
        let sum = checksum(&bytes[..44]);
        bytes[44..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The entry in a slot, of this form or of the first one, which has no number of a note.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mut record = [0; Segment::RECORD_SIZE];
        record.copy_from_slice(&bytes[8..24]);
        let entry = Self {
            position: long(0),
            record: Segment::from_record(record),
            pair: number(24),
            aside: number(28),
            checksum: number(32),
            note: if bytes.len() == SLOT_LEN { long(36) } else { 0 },
        };
        let sum_at = bytes.len() - 4;
        (number(sum_at) == checksum(&bytes[..sum_at])).then_some(entry)
    }
}

impl Pending {
    /// The file of the disk `uuid`, which is not made yet. The logs of its pairs end at `ends`.
    pub(super) fn new(directory: Arc<dyn Directory>, uuid: Uuid, ends: Vec<(u32, LogEnd)>) -> Self {
        let header = directory.boot_id().map(|boot| header(MAGIC, boot, uuid));
        Self {
            directory,
            is_void: AtomicBool::new(header.is_none()),
            header,
            file: OnceLock::new(),
            sizes: OnceLock::new(),
            taken: AtomicU64::new(0),
            used: AtomicU64::new(0),
            growing: Mutex::default(),
            noted: Mutex::new(LogEnds::new(ends)),
            note: AtomicU64::new(0),
            ring: Mutex::default(),
            entered: Condvar::new(),
            aside: Mutex::default(),
        }
    }

    /// `true` if writes survive this process.
    pub(super) fn is_on(&self) -> bool {
        !self.is_void.load(Ordering::Relaxed)
    }

    fn slots(&self) -> u64 {
        self.sizes.get().map_or(SLOTS, |sizes| sizes.slots)
    }

    /// `true` if records must be flushed before many more writes.
    pub(super) fn is_nearly_full(&self) -> bool {
        let ring = self.ring.lock();
        ring.next - ring.first + SLOTS_LEFT > self.slots()
    }

    /// Makes sure that there is space for the entry of a write. A file that is made takes as many bytes as `most` says.
    ///
    /// # Errors
    /// Errors of the files.
    pub(super) fn make_room(&self, most: impl FnOnce() -> u64) -> Result<()> {
        let is_enough = || {
            let taken = self.taken.load(Ordering::Acquire);
            taken == self.slots() || self.used.load(Ordering::Relaxed) + SLOTS_LEFT <= taken
        };
        if is_enough() || !self.is_on() {
            return Ok(());
        }
        let _alone = self.growing.lock();
        if is_enough() {
            return Ok(());
        }
        let taken = self.taken.load(Ordering::Relaxed);
        let zeros = vec![0; to_usize(SLOTS_AT_ONCE) * SLOT_LEN];
        let place = SLOTS_AT + taken * SLOT_LEN as u64;
        if let Some(file) = self.file.get() {
            file.write_at(&zeros, place)?;
        } else if let Some(header) = &self.header {
            let file = self.directory.create(PENDING)?;
            self.sizes.get_or_init(|| Sizes::within(most()));
            file.write_at(&zeros, place)?;
            let noted = self.noted.lock();
            file.write_at(&noted.bytes(), NOTES_AT[place_of(&noted)])?;
            file.write_at(header, 0)?;
            // Only one thread is here. The next note goes to the file.
            let _ = self.file.set(file);
        }
        self.taken.store(taken + SLOTS_AT_ONCE, Ordering::Release);
        Ok(())
    }

    /// The place for the entry of a write. The caller holds the lock of the view, and enters the write there if it gets
    /// a place, so that the entries have the order of the writes.
    pub(super) fn place(&self) -> Place {
        if !self.is_on() {
            return Place::Off;
        }
        let mut ring = self.ring.lock();
        let slots = self.slots();
        if ring.next - ring.first == slots {
            return Place::Full;
        }
        let position = ring.next;
        let slot = (position - ring.base) % slots;
        ring.next += 1;
        ring.under_way.push(position);
        self.used.fetch_max(slot + 1, Ordering::Relaxed);
        let note = self.note.load(Ordering::Acquire);
        Place::Ticket(Ticket { position, slot, note })
    }

    /// Writes the entry of a data write or a discard of the sectors `[start, end)`.
    ///
    /// # Errors
    /// Errors of the file: the write has failed then, though readers see it.
    pub(super) fn enter(
        &self,
        Ticket { position, slot, note }: Ticket,
        pair: u64,
        (start, end): (u64, u64),
        stored: Option<Stored>,
    ) -> Result<()> {
        let record = match stored {
            Some(Stored { moffset, .. }) => Segment::data(start, end - start, moffset),
            None => Segment::zeroed(start, end - start, FIRST_DATA_SECTOR),
        };
        let entry = Entry {
            position,
            record,
            pair: exact(pair, "numbers of pairs have 32 bits"),
            aside: stored.and_then(|stored| stored.aside).map_or(0, |sector| sector + 1),
            checksum: stored.map_or(0, |stored| stored.checksum),
            note,
        };
        let written = match self.file.get() {
            Some(file) => file.write_at(&entry.bytes(), SLOTS_AT + slot * SLOT_LEN as u64),
            None => Ok(()),
        };
        self.ring.lock().under_way.retain(|under_way| *under_way != position);
        self.entered.notify_all();
        written
    }

    /// The position that the next entry gets. What has an earlier one is in the view.
    pub(super) fn position(&self) -> u64 {
        self.ring.lock().next
    }

    /// Notes that the log of `pair`, which ends at `now`, may end at `next`, too, and then has all entries before
    /// `reached`; `None` if it may still lack some. To be called before it does.
    ///
    /// # Errors
    /// Errors of the file.
    pub(super) fn expect_end(
        &self,
        pair: u64,
        now: LogEnd,
        next: LogEnd,
        reached: Option<u64>,
    ) -> Result<()> {
        let mut noted = self.noted.lock();
        let new = noted.with(exact(pair, "numbers of pairs have 32 bits"), now, next, reached);
        self.replace_note(&mut noted, new)
    }

    fn replace_note(&self, noted: &mut LogEnds, new: LogEnds) -> Result<()> {
        if let Some(file) = self.file.get().filter(|_| self.is_on()) {
            file.write_at(&new.bytes(), NOTES_AT[place_of(&new)])?;
        }
        self.note.store(new.number, Ordering::Release);
        *noted = new;
        Ok(())
    }

    /// Forgets the entries before `position`, whose records are durable. The logs end at `ends` now. One flush at a
    /// time.
    ///
    /// # Errors
    /// Errors of the file; nothing is forgotten then.
    pub(super) fn forget(&self, position: u64, ends: Vec<(u32, LogEnd)>) -> Result<()> {
        let mut noted = self.noted.lock();
        let mut ring = self.ring.lock();
        if ring.first == position && noted.are(&ends) {
            return Ok(());
        }
        // One that comes late would go to the slot of another.
        while ring.under_way.iter().any(|under_way| *under_way < position) {
            self.entered.wait(&mut ring);
        }
        drop(ring);
        let new = noted.settled(position, ends);
        self.replace_note(&mut noted, new)?;
        drop(noted);
        let mut ring = self.ring.lock();
        ring.first = position;
        if ring.next == position {
            ring.base = position;
        }
        Ok(())
    }

    /// Makes the file count for nothing. Best effort: a file that cannot be written to is on a disk that fails.
    pub(super) fn make_void(&self) {
        self.is_void.store(true, Ordering::Relaxed);
        if let Some(file) = self.file.get() {
            let _ = file.write_at(&[0; HEADER_LEN], 0);
        }
    }

    /// Removes the file if no entry in it counts, so that a disk that is closed in good order leaves none. Best effort:
    /// the next opening removes it.
    pub(super) fn close(&self) {
        let is_empty = {
            let ring = self.ring.lock();
            ring.first == ring.next
        };
        if is_empty && self.file.get().is_some() {
            let _ = self.directory.remove(PENDING);
        }
    }

    /// Removes the file that an earlier process has left, if there is one.
    ///
    /// # Errors
    /// Errors of the directory.
    pub(super) fn remove(directory: &dyn Directory) -> Result<()> {
        if directory.list()?.iter().any(|name| name == PENDING) {
            directory.remove(PENDING)?;
            directory.sync()?;
        }
        Ok(())
    }

    /// Gives the space of data that was set aside back to the file system, if all of it is in its place. Best effort.
    pub(super) fn give_back(&self) {
        let mut aside = self.aside.lock();
        if aside.parts > 0 || aside.taken == 0 {
            return;
        }
        if let Some(file) = self.file.get() {
            let _ = file.punch(ASIDE_AT, aside.taken.next_multiple_of(PAGE_SIZE as u64));
        }
        aside.taken = 0;
    }

    /// Writes data that waits for a hole in the data file here; returns its sector. `None` if there is no room, or no
    /// file. No lock is held while the file is written.
    pub(super) fn set_aside(self: &Arc<Self>, data: &[u8]) -> Option<SetAside> {
        let file = self.file.get().filter(|_| self.is_on())?;
        let (start, copy) = {
            let mut aside = self.aside.lock();
            let start = aside.used;
            if start + data.len() as u64 > self.sizes.get().map_or(0, |sizes| sizes.aside) {
                return None;
            }
            aside.used += data.len() as u64;
            aside.parts += 1;
            let sector = exact(start / SECTOR_SIZE, "it is within a few mebibytes");
            // As long as this is there, its place is given to no other data.
            (start, SetAside { pending: Arc::clone(self), sector })
        };
        file.write_at(data, ASIDE_AT + start).ok()?;
        let mut aside = self.aside.lock();
        aside.taken = aside.taken.max(start + data.len() as u64);
        Some(copy)
    }
}

/// A copy of data that waits for a hole in the data file. Its place is given free when it is dropped.
pub(super) struct SetAside {
    pending: Arc<Pending>,
    /// Its place in the part of such data.
    pub(super) sector: u32,
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let mut aside = self.pending.aside.lock();
        aside.parts -= 1;
        if aside.parts == 0 {
            aside.used = 0;
        }
    }
}

/// The place of a note, among [`NOTES_AT`].
fn place_of(note: &LogEnds) -> usize {
    usize::from(!note.number.is_multiple_of(2))
}

/// The header of a file of the disk `uuid`, in the form that `magic` names.
pub(super) fn header(magic: [u8; 8], boot: u128, uuid: Uuid) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..8].copy_from_slice(&magic);
    bytes[8..24].copy_from_slice(&boot.to_le_bytes());
    bytes[24..40].copy_from_slice(uuid.as_bytes());
    let sum = checksum(&bytes[..40]);
    bytes[40..].copy_from_slice(&sum.to_le_bytes());
    bytes
}
