//! The host's journal: what survives a crash. Each step is in it before it is acted on.
//!
//! # The file
//!
//! All numbers little-endian. A header of 16 bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `HSharvst` |
//! | 8..12 | the version, 2 |
//! | 12..16 | CRC-32C of the bytes before |
//!
//! Then frames, without gaps:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | length of the record in bytes, 1 to 64 Mi |
//! | 4..8 | CRC-32C of all bytes of the frame after this |
//! | 8..16 | how long the file was when it was last synced before this frame was written |
//! | 16.. | a [`Record`], in postcard |
//!
//! # Torn tails
//!
//! A crash leaves a prefix of what was synced, whole, and of what was written since anything. So the first frame that
//! is not right ends the journal, and what follows is cut off, with a word ([`Torn`]): nothing was done yet that
//! follows from it. Unless a later frame is right and says that more was synced: then what broke was durable once,
//! somebody damaged it, and leases may be missing. That is an error, not a tail; a journal is not repaired by guessing.
//!
//! # Snapshots
//!
//! A vSSD's whole map may be long: it lies in as many records as it takes, [`PART`] bytes each, numbered from 0, and
//! the last says so ([`parts`]). Other records may lie between them. It counts when the last is there, and not at all
//! before ([`Snapshots`]); a part that does not follow the one before is damage.
//!
//! # A full disk
//!
//! The file system has given room for more than is in the file, which ends where its last frame does (`room`). What is
//! refused for want of room is not torn: it stays in memory, and is written again from where it began.
//!
//! # Rewriting
//!
//! [`Journal::rewriting`] begins a second file with records that lead to the present state (snapshots), while the
//! first is used as before; what is appended meanwhile follows them, and a rename puts it in the place of the first.
//! So at any time one of the two is whole, and nobody waits for longer than a few syncs. A snapshot may be newer than
//! the beginning of the rewriting: who reads changes that it has already passes over them.
//!
//! # Memory
//!
//! A journal is read record by record ([`replay`]): what it takes is its longest record, and the parts of snapshots
//! that are not complete. Only where something is damaged is all that follows read at once.

mod file;
pub(crate) mod room;

pub use file::{Journal, Lsn, Rewriting};

use crate::broker::Step;
use crate::{Error, ErrorKind, Result, VssdId};
use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;

const MAGIC: [u8; 8] = *b"HSharvst";
const VERSION: u32 = 2;
/// Bytes of the file's header.
const HEADER: usize = 16;
/// Bytes of a frame before its record.
const FRAME: usize = 16;
/// Bytes of a record at most: the blocks of a slot of many TB.
const RECORD_MOST: usize = 64 << 20;
/// Bytes of a snapshot in one record.
pub const PART: usize = 1 << 20;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A step of the broker.
    Broker(Step),
    /// A change of a vSSD's map, in the FTL's own form.
    Map {
        /// The vSSD.
        vssd: VssdId,
        /// The change.
        change: Vec<u8>,
    },
    /// A part of the whole of a vSSD's map, in the FTL's own form. Once the last part is read, it replaces all earlier
    /// records of that map.
    Snapshot {
        /// The vSSD.
        vssd: VssdId,
        /// The part's number, from 0 on.
        part: u32,
        /// It is the last.
        last: bool,
        /// Its bytes.
        map: Vec<u8>,
    },
    /// Says nothing but that what is before it was durable: written last where a journal is made or rewritten, so that
    /// damage to it is told from a torn tail. Not given out by [`decode`].
    Whole,
    /// What the host itself has to remember, in its own form.
    Host {
        /// It.
        meta: Vec<u8>,
    },
}

/// What a journal's bytes say.
#[derive(Debug)]
pub struct Decoded {
    /// The records, in order.
    pub records: Vec<Record>,
    /// How many bytes are right.
    pub end: u64,
    /// What was cut off, if anything was.
    pub torn: Option<Torn>,
}

/// Where a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// How many bytes are right.
    pub end: u64,
    /// What follows them and is to be cut off, if anything does.
    pub torn: Option<Torn>,
}

/// The end of a journal that is not right: what was being written when the host crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Where it begins.
    pub at: u64,
    /// How long it is.
    pub bytes: u64,
}

/// The header of a journal.
#[must_use]
pub fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc(&header[..12]);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Adds a record's frame to `out`; `synced` is how long the file was when it was last synced.
///
/// # Errors
/// The record is longer than 64 MiB.
pub fn encode(record: &Record, synced: u64, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&synced.to_le_bytes());
    let writer = Appended(out);
    let failed =
        |error| Error::new(ErrorKind::Invalid, "cannot be encoded").caused_by(error).about("journal record");
    postcard::serialize_with_flavor(record, writer).map_err(failed)?;
    let len = out.len() - start - FRAME;
    if len > RECORD_MOST {
        out.truncate(start);
        return Err(Error::invalid(format!("{len} bytes are too many")).about("journal record"));
    }
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let crc = crc(&out[start + 8..]);
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// A vSSD's map as records.
pub fn parts(vssd: VssdId, map: &[u8]) -> impl Iterator<Item = Record> {
    let count = map.len().div_ceil(PART).max(1);
    (0..).take(count).map(move |part: u32| {
        let at = part as usize * PART;
        let end = map.len().min(at + PART);
        Record::Snapshot { vssd, part, last: end == map.len(), map: map[at..end].to_vec() }
    })
}

/// Snapshots whose last part was not read yet.
#[derive(Debug, Default)]
pub struct Snapshots(BTreeMap<VssdId, (u32, Vec<u8>)>);

impl Snapshots {
    /// Adds a part; the whole map with the last. What was there of an earlier one that was not completed is forgotten
    /// with the first part of another.
    ///
    /// # Errors
    /// Corrupt where it does not follow the part before.
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

/// What these bytes, a whole journal, say. Never panics, and takes no more memory than a few times their length.
///
/// # Errors
/// As [`replay`].
pub fn decode(bytes: &[u8]) -> Result<Decoded> {
    let mut records = Vec::new();
    let End { end, torn } = replay(bytes, |record| {
        records.push(record);
        Ok(())
    })?;
    Ok(Decoded { records, end, torn })
}

/// Reads a journal from its beginning, record by record. Never panics, and allocates no more than is there.
///
/// # Errors
/// This is no journal, of a version that is not known, or damaged where it was durable; it cannot be read; what `each`
/// says.
pub fn replay(mut from: impl Read, mut each: impl FnMut(Record) -> Result<()>) -> Result<End> {
    let mut bytes = Vec::new();
    fill(&mut from, &mut bytes, HEADER)?;
    check_header(&bytes)?;
    let mut end = HEADER as u64;
    loop {
        bytes.clear();
        fill(&mut from, &mut bytes, FRAME)?;
        if bytes.is_empty() {
            return Ok(End { end, torn: None });
        }
        let len = number(&bytes, 0) as usize;
        if (1..=RECORD_MOST).contains(&len) {
            fill(&mut from, &mut bytes, len)?;
        }
        let Some(frame) = frame(&bytes, 0, end).filter(Frame::is_right) else {
            from.read_to_end(&mut bytes).map_err(|error| Error::io("cannot read it", error))?;
            if was_durable(&bytes, end) {
                let error = Error::corrupt(format!("it is damaged at byte {end}, which was durable once"));
                return Err(error
                    .remedy("restore it from a backup, or begin anew: all harvested storage is lost then"));
            }
            return Ok(End { end, torn: Some(Torn { at: end, bytes: bytes.len() as u64 }) });
        };
        let record = postcard::from_bytes(frame.record).map_err(|error| {
            let cause = format!("the record at byte {end} is not one that this version knows");
            Error::unsupported(cause).caused_by(error).remedy("use the version that wrote it")
        })?;
        if record != Record::Whole {
            each(record)?;
        }
        end += bytes.len() as u64;
    }
}

/// Reads so many bytes more, or what there is.
fn fill(from: &mut impl Read, bytes: &mut Vec<u8>, more: usize) -> Result<()> {
    let read = from.by_ref().take(more as u64).read_to_end(bytes);
    read.map(drop).map_err(|error| Error::io("cannot read it", error))
}

fn check_header(bytes: &[u8]) -> Result<()> {
    let Some(found) = bytes.get(..HEADER) else {
        return Err(Error::corrupt("it is too short for a journal"));
    };
    if found[..8] != MAGIC {
        return Err(Error::invalid("it is not a journal"));
    }
    if number(found, 12) != crc(&found[..12]) {
        return Err(Error::corrupt("its header is damaged"));
    }
    match number(found, 8) {
        VERSION => Ok(()),
        version => {
            Err(Error::unsupported(format!("its version is {version}, and this program knows {VERSION}")))
        }
    }
}

struct Frame<'a> {
    crc: u32,
    synced: u64,
    /// What the checksum is of.
    checked: &'a [u8],
    record: &'a [u8],
}

impl Frame<'_> {
    fn is_right(&self) -> bool {
        crc(self.checked) == self.crc
    }
}

/// The frame at a place, if what is there can be one; `position` is where that is in the file.
fn frame(bytes: &[u8], at: usize, position: u64) -> Option<Frame<'_>> {
    let rest = bytes.get(at..)?;
    let head = rest.get(..FRAME)?;
    let len = number(head, 0) as usize;
    let record = rest.get(FRAME..FRAME.checked_add(len)?)?;
    let synced = u64::from(number(head, 8)) | u64::from(number(head, 12)) << 32;
    let plausible = (1..=RECORD_MOST).contains(&len) && synced <= position;
    plausible.then(|| Frame { crc: number(head, 4), synced, checked: &rest[8..FRAME + len], record })
}

/// Whether a frame in `rest`, which begins at `position`, says that more was synced than up to there. It stops looking
/// when it has summed up four times as many bytes as there are, so that hostile bytes do not take for ever.
fn was_durable(rest: &[u8], position: u64) -> bool {
    let mut budget = 4 * rest.len();
    for place in 1..rest.len().saturating_sub(FRAME) {
        let found = frame(rest, place, position + place as u64);
        let Some(frame) = found.filter(|frame| frame.synced > position) else { continue };
        if frame.is_right() {
            return true;
        }
        budget = budget.saturating_sub(frame.checked.len());
        if budget == 0 {
            break;
        }
    }
    false
}

/// Says of frames that were encoded already how long the file was when it was last synced before each.
fn reframe(frames: &mut [u8], synced: impl Fn(usize) -> u64) {
    let mut at = 0;
    while at + FRAME <= frames.len() {
        let end = (at + FRAME + number(frames, at) as usize).min(frames.len());
        frames[at + 8..at + FRAME].copy_from_slice(&synced(at).to_le_bytes());
        let crc = crc(&frames[at + 8..end]);
        frames[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

/// The little-endian number at a place where there is one.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn crc(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    u32::try_from(digest.finalize()).unwrap_or(0)
}

/// Lets postcard write to the end of a vector that has something in it.
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
