//! The host's journal: the state that survives a crash. Each step is in the journal before it is carried out.
//!
//! # The file
//!
//! All numbers are little-endian. The file has a front of [`FRONT`] bytes, then groups of records without gaps. The
//! front:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `HSharvst` |
//! | 8..12 | the version, 3 |
//! | 12..16 | CRC-32C of the bytes before |
//! | 16..24 | the generation: 1 for a new journal, one more with each rewriting |
//! | 24..32 | CRC-64/NVME of the bytes before |
//! | 2048..2080 | the same 32 bytes again |
//! | 4096.. | two slots (places) of 32 KiB, each with a mark, or with bytes that are no valid mark |
//!
//! A group is a set of records that were written together:
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | length of its records in bytes |
//! | 4..8 | zero |
//! | 8..16 | its number; the first is 1 |
//! | 16..24 | the checksum of the group before; in the first group, a checksum of the generation |
//! | 24..32 | CRC-64/NVME of the bytes before and of the records |
//! | 32.. | records, each a length of four bytes and a [`JournalRecord`] in postcard |
//!
//! A mark gives the end of the journal:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | the number of the last group written |
//! | 8..16 | the offset at which that group begins |
//! | 16..24 | its checksum |
//! | 24..28 | length of the copy |
//! | 28..32 | 1 if the journal was closed in good order |
//! | 32..40 | CRC-64/NVME of the generation, the bytes before and the copy |
//! | 40.. | a copy of the group, or nothing |
//!
//! # Torn tails and damage
//!
//! Each group has the checksum of the group before, so a missing group, or one from an older state of the file, is
//! noticed. A crash while a group is written leaves it whole, in part or not at all. Such an incomplete end is a torn
//! tail ([`Torn`]). It is cut off, because nothing that follows from it was carried out yet. Any other difference from
//! the written bytes is damage.
//!
//! The marks tell torn tails from damage. With each group that fits a slot and is written alone, a mark with a copy of
//! the group is written to the slot whose mark is older, and one sync makes both durable. So after the sync two copies
//! exist, far from each other: if one is damaged, the other is used ([`End::restored`]). A crash that tears both leaves
//! the previous mark, which shows that everything up to its group was durable. Other groups are made durable first, and
//! then a mark without a copy; a caller is told of success only after both. A journal that is closed in good order gets
//! a mark in the other slot as well, which is replaced when the journal is opened.
//!
//! So everything up to the newest mark must be there. If it is not, opening fails, and `repair` finds the possible
//! repairs.
//!
//! # Snapshots
//!
//! The snapshot of a vSSD's whole map may be long. It is stored in as many records as it takes, of [`PART`] bytes each;
//! they are numbered from 0, and the last has a flag ([`parts`]). Other records may be between them. A snapshot counts
//! only when its last part is there ([`Snapshots`]); a part that does not follow the one before is damage.
//!
//! # A full disk
//!
//! Space on the file system is allocated ahead, beyond the last group, without making the file longer (`room`). Groups
//! that the file system refuses for lack of space are not torn: they stay in memory, and are written again from the
//! place at which they began.
//!
//! # Rewriting
//!
//! [`Journal::rewriting`] begins a second file with records that lead to the present state (snapshots), while the first
//! is used as before. Records that are appended meanwhile are added after these, and a rename puts the second file in
//! the place of the first. So at any time one of the two is complete, and no caller waits for longer than a few syncs.
//! A snapshot may be newer than the beginning of the rewriting: a reader skips changes that the snapshot contains.
//!
//! # Earlier versions
//!
//! A journal of version 2 (`old`) is read, and replaced by one of version 3 when it is opened. Programs that know only
//! version 2 refuse version 3 by its number.
//!
//! # Memory
//!
//! A journal is read group by group ([`replay`]): it takes the memory of its longest group, and of the parts of
//! snapshots that are not complete. Only `repair` reads a journal whole.

mod file;
mod group;
mod old;
pub mod repair;
mod rewriting;
pub mod room;
mod writer;

pub use file::{Journal, Lsn};
pub use group::{Chain, FRONT, front};
pub use rewriting::Rewriting;

use crate::step::BrokerStep;
use crate::{Error, ErrorKind, Result, VssdId};
use group::{Front, Group, Marks};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Cursor, Read};

const MAGIC: [u8; 8] = *b"HSharvst";
/// The version of the journal format that is written.
pub const VERSION: u32 = 3;
/// Bytes of a record at most: the blocks of a slot of many TB.
const RECORD_MOST: usize = 64 << 20;
/// Bytes of a record before its content.
const FRAME: usize = 4;
/// The size of the parts in which a snapshot is recorded, in bytes: one [`JournalRecord::Snapshot`] each.
pub const PART: usize = 1 << 20;

/// One record of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalRecord {
    /// A step of the broker, which decides on lending.
    Broker(BrokerStep),
    /// A change of a vSSD's map (the flash page of each page of its disk), as the FTL encodes it.
    Map {
        /// The vSSD.
        vssd: VssdId,
        /// The encoded change.
        change: Vec<u8>,
    },
    /// A part of a snapshot, which is the whole map of a vSSD as the FTL encodes it. When the last part has been read,
    /// the map replaces all earlier records of this vSSD's map.
    Snapshot {
        /// The vSSD.
        vssd: VssdId,
        /// The number of the part, from 0.
        part: u32,
        /// `true` for the last part.
        last: bool,
        /// The bytes of this part.
        map: Vec<u8>,
    },
    /// A record without content, which version 2 wrote at the end of a new or rewritten journal. [`decode`]
    /// leaves it out.
    Whole,
    /// State of the host, as the host encodes it.
    Host {
        /// The encoded state.
        meta: Vec<u8>,
    },
}

/// The decoded content of a whole journal.
#[derive(Debug)]
pub struct Decoded {
    /// All records, in the order in which they were written.
    pub records: Vec<JournalRecord>,
    /// The end of the journal, and its state there.
    pub end: End,
}

/// The end of a journal's valid content, and all that is needed to append to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The offset behind the last valid group of records, in bytes from the start of the file.
    pub end: u64,
    /// The incomplete bytes after `end`, which are to be cut off. `None` if there are none.
    pub torn: Option<Torn>,
    /// Groups of records that were damaged or missing and were restored from copies in the journal's marks. Each
    /// pair is the offset of a group in the file, and the bytes of its copy.
    pub restored: Vec<(u64, Vec<u8>)>,
    /// `true` if the first bytes of the file are damaged and their copy was used.
    pub front_restored: bool,
    /// `true` if the journal was closed properly, and not left by a crash.
    pub closed: bool,
    /// For each of the two mark slots, `true` if its mark says that the journal was closed.
    pub closed_marks: [bool; 2],
    /// The version of the journal's format.
    pub version: u32,
    /// The generation of the journal: 1 for a new journal, one more with each rewriting. 0 in version 2 of the format.
    pub generation: u64,
    /// The sequence number of the next group, and the checksum that it has to contain.
    pub chain: Chain,
    /// The offset of the last group, in bytes from the start of the file; [`FRONT`] if there is no group.
    pub last: u64,
    /// The slot (0 or 1) that the next mark is written to.
    pub slot: usize,
}

/// The incomplete bytes at the end of a journal: groups that were being written when the host crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The offset of the first incomplete byte, in bytes from the start of the file.
    pub at: u64,
    /// The number of bytes from there to the end of the file.
    pub bytes: u64,
}

/// Encodes a record and appends it to `out`. The bytes in `out` are then the records of a group, without its head.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the record is longer than 64 MiB; `out` is unchanged then.
pub fn encode(record: &JournalRecord, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME]);
    let failed =
        |error| Error::new(ErrorKind::Invalid, "cannot be encoded").caused_by(error).about("journal record");
    postcard::serialize_with_flavor(record, Appended(out)).map_err(failed)?;
    let len = out.len() - start - FRAME;
    if len > RECORD_MOST {
        out.truncate(start);
        return Err(Error::invalid(format!("{len} bytes are too many")).about("journal record"));
    }
    out[start..start + FRAME].copy_from_slice(&group::length(len).to_le_bytes());
    Ok(())
}

/// Splits `map`, the encoded map of a vSSD, into snapshot records of at most [`PART`] bytes each. An empty map gives
/// one empty part.
pub fn parts(vssd: VssdId, map: &[u8]) -> impl Iterator<Item = JournalRecord> {
    let count = map.len().div_ceil(PART).max(1);
    (0..).take(count).map(move |part: u32| {
        let at = part as usize * PART;
        let end = map.len().min(at + PART);
        JournalRecord::Snapshot { vssd, part, last: end == map.len(), map: map[at..end].to_vec() }
    })
}

/// Snapshots of vSSDs' maps that are being put together from their parts.
#[derive(Debug, Default)]
pub struct Snapshots(BTreeMap<VssdId, (u32, Vec<u8>)>);

impl Snapshots {
    /// Adds the part number `part` of a vSSD's snapshot. Returns the whole map if this is the last part, and `None`
    /// before. A part 0 begins a new snapshot: the parts of an unfinished one are discarded.
    ///
    /// # Errors
    /// Corrupt if this part does not follow the previous one, because parts are missing or come again.
    pub fn add(&mut self, vssd: VssdId, part: u32, last: bool, map: Vec<u8>) -> Result<Option<Vec<u8>>> {
        if part == 0 {
            self.0.remove(&vssd);
        }
        let (next, bytes) = self.0.entry(vssd).or_default();
        if *next != part {
            let error = Error::corrupt(format!("part {part} of a snapshot does not follow {next} others"));
            return Err(error.about(format_args!("vSSD {}", vssd.0)));
        }
        if bytes.is_empty() {
            *bytes = map;
        } else {
            bytes.extend_from_slice(&map);
        }
        *next = part.saturating_add(1);
        Ok(if last { self.0.remove(&vssd).map(|(_, bytes)| bytes) } else { None })
    }
}

/// Reads a whole journal, given as the bytes of its file. Never panics, whatever the bytes are, and takes at most a
/// few times their length of memory.
///
/// # Errors
/// As [`replay`].
pub fn decode(bytes: &[u8]) -> Result<Decoded> {
    let mut records = Vec::new();
    let end = replay(bytes, |record| {
        records.push(record);
        Ok(())
    })?;
    Ok(Decoded { records, end })
}

/// Reads a journal from its beginning, group by group, and calls `each` with every record. Never panics, whatever the
/// bytes are, and allocates no more memory than the journal's length.
///
/// # Errors
/// The bytes are no journal, are of an unknown version, have a record that this version does not know, are damaged in a
/// part that was durable, or cannot be read; errors of `each`.
pub fn replay(mut from: impl Read, mut each: impl FnMut(JournalRecord) -> Result<()>) -> Result<End> {
    let mut bytes = Vec::new();
    fill(&mut from, &mut bytes, FRONT)?;
    if old::is_old(&bytes) {
        return old::replay(Cursor::new(bytes).chain(from), each);
    }
    let front = Front::parse(&bytes)?;
    let marks = Marks::parse(&bytes, front.generation);
    let mut reader = Reader::new(from, &front, marks);
    while reader.next()? {
        each_record(&reader.bytes[group::HEAD..], reader.end.end, &mut each)?;
    }
    Ok(reader.end)
}

/// Hands over the records of a group, which ends at an offset.
fn each_record(
    mut records: &[u8],
    end: u64,
    each: &mut impl FnMut(JournalRecord) -> Result<()>,
) -> Result<()> {
    while let Some((len, rest)) = records.split_first_chunk::<FRAME>() {
        let len = u32::from_le_bytes(*len) as usize;
        let unknown = || {
            let cause = format!("a record before byte {end} is not one that this version knows");
            Error::unsupported(cause).remedy("use the version that wrote it")
        };
        let (record, rest) = rest.split_at_checked(len).ok_or_else(unknown)?;
        let record = postcard::from_bytes(record).map_err(|error| unknown().caused_by(error))?;
        if record != JournalRecord::Whole {
            each(record)?;
        }
        records = rest;
    }
    Ok(())
}

/// Reads groups and finds their end.
struct Reader<R> {
    from: R,
    /// Bytes that were read already and come before `from`.
    pushed: Cursor<Vec<u8>>,
    marks: Marks,
    end: End,
    bytes: Vec<u8>,
}

impl<R: Read> Reader<R> {
    fn new(from: R, front: &Front, marks: Marks) -> Self {
        let end = End {
            end: FRONT as u64,
            torn: None,
            restored: Vec::new(),
            front_restored: front.restored,
            closed: marks.closed() != [false; 2],
            closed_marks: marks.closed(),
            version: VERSION,
            generation: front.generation,
            chain: Chain::begin(front.generation),
            last: FRONT as u64,
            slot: marks.free(),
        };
        Self { from, pushed: Cursor::default(), marks, end, bytes: Vec::new() }
    }

    fn more(&mut self, len: usize) -> Result<()> {
        let before = self.bytes.len();
        fill(&mut self.pushed, &mut self.bytes, len)?;
        let missing = len.saturating_sub(self.bytes.len() - before);
        fill(&mut self.from, &mut self.bytes, missing)
    }

    /// Reads the next group to `bytes`; `false` at the end.
    fn next(&mut self) -> Result<bool> {
        self.bytes.clear();
        self.more(group::HEAD)?;
        if let Some(len) = Group::len(&self.bytes) {
            self.more(len)?;
        }
        if !self.follow() {
            let Some(copy) = self.marks.copy_of(&self.end.chain, self.end.end) else {
                return self.stop().map(|()| false);
            };
            self.end.restored.push((self.end.end, copy.to_vec()));
            let copy = copy.to_vec();
            // The bytes after it begin where it ends, whatever its length field says.
            self.more(usize::MAX)?;
            let rest = self.bytes.split_off(copy.len().min(self.bytes.len()));
            (self.pushed, self.bytes) = (Cursor::new(rest), copy);
            self.follow();
        }
        Ok(true)
    }

    /// Goes on after the group in `bytes`, if it is the next.
    fn follow(&mut self) -> bool {
        let Some(group) = Group::parse(&self.bytes).filter(|group| self.end.chain.takes(group)) else {
            return false;
        };
        self.end.chain.follow(&group);
        self.end.last = self.end.end;
        self.end.end += self.bytes.len() as u64;
        true
    }

    /// Handles the absence of a next group: that is the end, unless more must be there.
    fn stop(&mut self) -> Result<()> {
        if self.marks.newest() >= self.end.chain.next {
            return Err(damaged(self.end.end));
        }
        let rest = read_rest(&mut self.pushed)? + read_rest(&mut self.from)?;
        let bytes = self.bytes.len() as u64 + rest;
        if bytes > 0 {
            self.end.torn = Some(Torn { at: self.end.end, bytes });
        }
        Ok(())
    }
}

/// The error of a journal that is not as it was written.
fn damaged(at: u64) -> Error {
    Error::corrupt(format!("it is damaged at byte {at}, and the data there was durable"))
}

/// Reads `more` more bytes, or all that there are.
fn fill(from: &mut impl Read, bytes: &mut Vec<u8>, more: usize) -> Result<()> {
    let read = from.by_ref().take(more as u64).read_to_end(bytes);
    read.map(drop).map_err(unreadable)
}

/// Reads to the end, and returns the number of bytes.
fn read_rest(from: &mut impl Read) -> Result<u64> {
    std::io::copy(from, &mut std::io::sink()).map_err(unreadable)
}

fn unreadable(error: std::io::Error) -> Error {
    Error::io("cannot read it", error)
}

/// The little-endian number at a place, or 0 past the end.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// Lets postcard append to a vector.
struct Appended<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Appended<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
