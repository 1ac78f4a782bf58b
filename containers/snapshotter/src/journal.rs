//! The journal of snapshots: the table survives a crash, and is there after a restart without any registry.
//!
//! # The file
//!
//! All numbers are little-endian. The file has a front of [`FRONT`] bytes, then records without gaps. The front:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `HSsnapsh` |
//! | 8..12 | the version, 2; 1 is of versions without disks for active snapshots |
//! | 12..16 | zero |
//! | 16..24 | the generation: 1 for a new journal, one more with each rewriting |
//! | 24..32 | CRC-64/NVME of the bytes before |
//! | 2048..2080 | the same 32 bytes again |
//! | 4096.. | two slots of 32 KiB, each with a mark, or with bytes that are no valid mark |
//!
//! A record:
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | length of its content in bytes |
//! | 4..8 | zero |
//! | 8..16 | its number; the first is 1 |
//! | 16..24 | the checksum of the record before; in the first record, the checksum of the front |
//! | 24..32 | CRC-64/NVME of the bytes before and of the content |
//! | 32.. | the content: a [`SnapshotChange`] in postcard |
//!
//! A mark says how far the journal goes:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | the number of the last record |
//! | 8..16 | the offset at which that record begins |
//! | 16..24 | its checksum |
//! | 24..28 | length of the copy |
//! | 28..32 | zero |
//! | 32..40 | CRC-64/NVME of the checksum of the front, the bytes before and the copy |
//! | 40.. | a copy of the whole record, or nothing if it does not fit |
//!
//! # Torn tails and damage
//!
//! A record and a mark with its copy, in the slot whose mark is older, are written and made durable by one sync; a
//! record that fits no slot is made durable first, and then its mark. So of every durable record there are two traces.
//!
//! * A record that is broken, and that no mark knows, is the torn tail of a crash. It is cut off: nothing that follows
//!   from it was done, and its caller was not told of success.
//! * A record that is broken, but has a copy in a mark, is written again from there. A crash may leave that too: the
//!   change then counts, which is as good as a crash just after it.
//! * A record that is broken in any other place was durable: that is damage. Opening the journal fails. It names the
//!   place, and nothing is changed or removed.
//!
//! # Rewriting
//!
//! A journal that has grown is replaced by one that leads to the same table: it is written beside the first, under the
//! name with `.new` at its end, made durable, and renamed. A file of that name that a crash has left is worth nothing.

mod file;

pub use file::{JournalReport, SnapshotJournal};

use crate::table::SnapshotChange;
use crc_fast::{CrcAlgorithm, Digest};
use headstart_block::{Error, Result, exact};

const MAGIC: [u8; 8] = *b"HSsnapsh";
/// The version of the journal's format.
pub const VERSION: u32 = 2;
/// The earliest version that is read. Its changes are a part of those of the present version.
const EARLIEST: u32 = 1;
/// Bytes of the front that are checked together.
const IDENTITY: usize = 32;
/// The offset of their copy.
const COPY: usize = 2048;
/// The offset of the first slot.
const SLOTS: usize = 4096;
/// Bytes of a slot.
const SLOT: usize = 32 << 10;
/// Bytes of a mark before its copy of a record.
const MARK: usize = 40;
/// Bytes of a journal before its first record.
pub const FRONT: usize = SLOTS + 2 * SLOT;
/// Bytes of a record before its content.
const HEAD: usize = 32;
/// Bytes of a record's content at most in a journal that is read.
pub const RECORD_MOST: usize = 16 << 20;
/// Bytes of a record's content at most in one that is written: what containerd lists has to fit its messages.
const WRITTEN_MOST: usize = 1 << 20;

/// The end of a journal, and what the next record needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalEnd {
    /// The offset behind the last valid record.
    pub(crate) end: u64,
    /// Bytes of the torn tail behind it, which are to be cut off.
    pub(crate) torn: u64,
    /// Records that were broken and have been restored from copies: their offsets and bytes.
    pub(crate) restored: Vec<(u64, Vec<u8>)>,
    /// `true` if the first bytes of the file are damaged and their copy was used.
    pub(crate) is_front_restored: bool,
    pub(crate) generation: u64,
    pub(crate) version: u32,
    /// The checksum of the front.
    front: u64,
    /// The number of the next record.
    next: u64,
    /// The checksum that the next record repeats.
    before: u64,
    /// The slot, 0 or 1, of the next mark.
    slot: usize,
}

/// The CRC-64/NVME of all parts together.
fn sum(parts: &[&[u8]]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}

/// The number of eight bytes at a place, or 0 past the end.
fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The length that four bytes at a place give, or `None` past the end.
fn length(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(four)).ok()
}

/// The first [`FRONT`] bytes of a journal: the front, and no marks.
fn front(version: u32, generation: u64) -> Vec<u8> {
    let mut identity = MAGIC.to_vec();
    identity.extend(version.to_le_bytes());
    identity.extend([0; 4]);
    identity.extend(generation.to_le_bytes());
    identity.extend(sum(&[&identity]).to_le_bytes());
    let mut front = vec![0; FRONT];
    for at in [0, COPY] {
        front[at..at + IDENTITY].copy_from_slice(&identity);
    }
    front
}

impl JournalEnd {
    /// The end of a journal without records.
    fn new(version: u32, generation: u64) -> Self {
        let front = long(&front(version, generation), 24);
        Self {
            end: FRONT as u64,
            torn: 0,
            restored: Vec::new(),
            is_front_restored: false,
            generation,
            version,
            front,
            next: 1,
            before: front,
            slot: 0,
        }
    }

    /// The bytes of the next record.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if it is too long.
    fn record(&self, change: &SnapshotChange) -> Result<Vec<u8>> {
        let content = postcard::to_allocvec(change).map_err(|error| {
            Error::invalid("cannot be encoded").caused_by(error).about("a change of snapshots")
        })?;
        if content.len() > WRITTEN_MOST {
            let text = format!("has {} bytes, and at most {WRITTEN_MOST} can be recorded", content.len());
            return Err(Error::invalid(text).about("a change of snapshots"));
        }
        let mut record = exact::<u32>(content.len(), "at most WRITTEN_MOST").to_le_bytes().to_vec();
        record.extend([0; 4]);
        record.extend(self.next.to_le_bytes());
        record.extend(self.before.to_le_bytes());
        record.extend(sum(&[&record, &content]).to_le_bytes());
        record.extend(content);
        Ok(record)
    }

    /// The bytes of the next record, if `bytes` begin with it.
    fn find<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let len = length(bytes, 0).filter(|&len| len <= RECORD_MOST)?;
        let record = bytes.get(..HEAD + len)?;
        let is_next = long(record, 8) == self.next && long(record, 16) == self.before;
        (is_next && sum(&[&record[..24], &record[HEAD..]]) == long(record, 24)).then_some(record)
    }

    /// Goes on behind `record`, which is the next.
    fn follow(&mut self, record: &[u8]) {
        self.before = long(record, 24);
        self.next += 1;
        self.end += record.len() as u64;
    }

    /// The mark of `record`, which is the next, with a copy of it if that fits.
    fn mark(&self, record: &[u8]) -> Vec<u8> {
        let copy = if record.len() <= SLOT - MARK { record } else { &[] };
        let mut mark = self.next.to_le_bytes().to_vec();
        mark.extend(self.end.to_le_bytes());
        mark.extend(long(record, 24).to_le_bytes());
        mark.extend(exact::<u32>(copy.len(), "at most SLOT").to_le_bytes());
        mark.extend([0; 4]);
        mark.extend(sum(&[&self.front.to_le_bytes(), &mark, copy]).to_le_bytes());
        mark.extend(copy);
        mark
    }
}

/// The offset of a slot.
fn slot_at(slot: usize) -> usize {
    SLOTS + slot * SLOT
}

/// A valid mark.
struct Mark<'a> {
    number: u64,
    at: u64,
    copy: &'a [u8],
}

/// The mark in a slot, if there is a valid one.
fn mark_in(bytes: &[u8], slot: usize, front: u64) -> Option<Mark<'_>> {
    let mark = bytes.get(slot_at(slot)..slot_at(slot) + SLOT)?;
    let len = length(mark, 24)?;
    let copy = mark.get(MARK..MARK.checked_add(len)?)?;
    let is_valid = sum(&[&front.to_le_bytes(), &mark[..32], copy]) == long(mark, 32);
    is_valid.then(|| Mark { number: long(mark, 0), at: long(mark, 8), copy })
}

/// The version and the generation in a journal's front, and `true` if it is the copy that gave them.
fn generation(bytes: &[u8]) -> Result<(u32, u64, bool)> {
    for at in [0, COPY] {
        let Some(identity) = bytes.get(at..at + IDENTITY).filter(|identity| identity.starts_with(&MAGIC))
        else {
            continue;
        };
        if sum(&[&identity[..24]]) != long(identity, 24) {
            continue;
        }
        let version = length(identity, 8).and_then(|version| u32::try_from(version).ok()).unwrap_or_default();
        if !(EARLIEST..=VERSION).contains(&version) {
            let known = format!("{EARLIEST} to {VERSION}");
            let error = Error::unsupported(format!("has version {version}, and this program knows {known}"));
            return Err(error.remedy("use the version of headstart that wrote it"));
        }
        return Ok((version, long(identity, 16), at == COPY));
    }
    Err(damaged(0, "its first bytes are not those of a journal of snapshots"))
}

/// The error of a journal that is not as it was written.
fn damaged(at: u64, cause: &str) -> Error {
    let error = Error::corrupt(format!("is damaged at byte {at}: {cause}"));
    error.remedy(
        "move the whole directory of snapshots away, on the same file system, and pull the images again: containers \
         that run go on; a copy of the file helps only if no snapshot was made after it",
    )
}

/// Reads a journal, given as the bytes of its file, and calls `each` with its changes in their order. Never panics,
/// whatever the bytes are.
///
/// # Errors
/// The bytes are no journal, are of another version, or are damaged in a part that was durable; errors of `each`.
pub(crate) fn replay(bytes: &[u8], mut each: impl FnMut(SnapshotChange) -> Result<()>) -> Result<JournalEnd> {
    let (version, generation, is_front_restored) = generation(bytes)?;
    if bytes.len() < FRONT {
        return Err(damaged(bytes.len() as u64, "it ends there"));
    }
    let mut end = JournalEnd { is_front_restored, ..JournalEnd::new(version, generation) };
    let marks = [0, 1].map(|slot| mark_in(bytes, slot, end.front));
    let number = |slot: usize| marks[slot].as_ref().map_or(0, |mark| mark.number);
    let newest = number(0).max(number(1));
    end.slot = usize::from(number(0) > number(1));
    loop {
        let at = end.end;
        let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let copy = marks.iter().flatten().find(|mark| mark.number == end.next && mark.at == at);
        let record = match (end.find(rest), copy.and_then(|mark| end.find(mark.copy))) {
            (Some(record), _) => record,
            (None, Some(copy)) => {
                end.restored.push((at, copy.to_vec()));
                copy
            }
            (None, None) if newest >= end.next => {
                return Err(damaged(at, "the record there was durable, and is broken or gone"));
            }
            (None, None) => {
                end.torn = rest.len() as u64;
                return Ok(end);
            }
        };
        let change = postcard::from_bytes(&record[HEAD..]).map_err(|error| {
            let error = Error::unsupported(format!("has an unknown record at byte {at}")).caused_by(error);
            error.remedy("use the version of headstart that wrote it")
        })?;
        each(change)
            .map_err(|error| damaged(at, "the record there does not fit those before").caused_by(error))?;
        end.follow(record);
    }
}

#[cfg(test)]
mod tests;
