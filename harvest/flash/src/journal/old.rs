//! Journals of version 2, which are read and not written any more.
//!
//! A header of 16 bytes (the same as of later versions), then frames, without gaps:
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | length of the record in bytes, 1 to 64 Mi |
//! | 4..8 | CRC-32C of all bytes of the frame after this |
//! | 8..16 | the file's length when it was last synced before this frame was written |
//! | 16.. | a [`JournalRecord`], in postcard |
//!
//! The first frame that is not right ends the journal and is a torn tail, unless a later frame is right and says that
//! more was synced: then it is damage.

use super::group::crc32;
use super::{Chain, End, JournalRecord, MAGIC, RECORD_MOST, Torn, fill, number, unreadable};
use crate::{Error, Result};
use std::io::Read;

pub(super) const VERSION: u32 = 2;
/// Bytes of the file's header.
const HEADER: usize = 16;
/// Bytes of a frame before its record.
const FRAME: usize = 16;

/// `true` if these are the first bytes of a journal of version 2.
pub(super) fn is_old(bytes: &[u8]) -> bool {
    bytes.get(..HEADER).is_some_and(|header| {
        header[..8] == MAGIC && number(header, 8) == VERSION && number(header, 12) == crc32(&header[..12])
    })
}

/// Reads a journal of version 2 from its beginning, record by record.
///
/// # Errors
/// The journal is damaged where it was durable; it cannot be read; errors of `each`.
pub(super) fn replay(mut from: impl Read, mut each: impl FnMut(JournalRecord) -> Result<()>) -> Result<End> {
    let mut bytes = Vec::new();
    fill(&mut from, &mut bytes, HEADER)?;
    let mut end = HEADER as u64;
    loop {
        bytes.clear();
        fill(&mut from, &mut bytes, FRAME)?;
        if bytes.is_empty() {
            return Ok(ended(end, None));
        }
        let len = number(&bytes, 0) as usize;
        if (1..=RECORD_MOST).contains(&len) {
            fill(&mut from, &mut bytes, len)?;
        }
        let Some(frame) = frame(&bytes, 0, end).filter(Frame::is_right) else {
            from.read_to_end(&mut bytes).map_err(unreadable)?;
            if was_durable(&bytes, end) {
                return Err(super::damaged(end));
            }
            return Ok(ended(end, Some(Torn { at: end, bytes: bytes.len() as u64 })));
        };
        let record = postcard::from_bytes(frame.record).map_err(|error| {
            let cause = format!("the record at byte {end} is not one that this version knows");
            Error::unsupported(cause).caused_by(error).remedy("use the version that wrote it")
        })?;
        if record != JournalRecord::Whole {
            each(record)?;
        }
        end += bytes.len() as u64;
    }
}

/// The number of bytes from the beginning that are right.
pub(super) fn readable(bytes: &[u8]) -> u64 {
    let mut end = HEADER;
    while let Some(frame) = frame(bytes, end, end as u64).filter(Frame::is_right) {
        end += FRAME + frame.record.len();
    }
    end as u64
}

fn ended(end: u64, torn: Option<Torn>) -> End {
    End {
        end,
        torn,
        restored: Vec::new(),
        front_restored: false,
        closed: false,
        closed_marks: [false; 2],
        version: VERSION,
        generation: 0,
        chain: Chain::begin(0),
        last: end,
        slot: 0,
    }
}

struct Frame<'a> {
    crc: u32,
    synced: u64,
    /// The bytes that the checksum covers.
    checked: &'a [u8],
    record: &'a [u8],
}

impl Frame<'_> {
    fn is_right(&self) -> bool {
        crc32(self.checked) == self.crc
    }
}

/// The frame at a place, if the bytes can be one; `position` is the place in the file.
fn frame(bytes: &[u8], at: usize, position: u64) -> Option<Frame<'_>> {
    let rest = bytes.get(at..)?;
    let head = rest.get(..FRAME)?;
    let len = number(head, 0) as usize;
    let record = rest.get(FRAME..FRAME.checked_add(len)?)?;
    let synced = u64::from(number(head, 8)) | u64::from(number(head, 12)) << 32;
    let plausible = (1..=RECORD_MOST).contains(&len) && synced <= position;
    plausible.then(|| Frame { crc: number(head, 4), synced, checked: &rest[8..FRAME + len], record })
}

/// `true` if a frame in `rest`, which begins at `position`, says that more was synced than up to there. The search ends
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

/// A journal of version 2 of these records, synced after `durable` of them, for tests.
#[cfg(test)]
pub(super) fn written(records: &[JournalRecord], durable: usize) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    bytes.extend(crc32(&bytes).to_le_bytes());
    let (mut begins, mut synced) = (Vec::new(), bytes.len() as u64);
    for (at, record) in records.iter().enumerate() {
        if at == durable {
            synced = bytes.len() as u64;
        }
        begins.push(bytes.len());
        let record = postcard::to_allocvec(record).unwrap();
        let checked = [&synced.to_le_bytes()[..], &record].concat();
        bytes.extend(u32::try_from(record.len()).unwrap().to_le_bytes());
        bytes.extend(crc32(&checked).to_le_bytes());
        bytes.extend(checked);
    }
    (bytes, begins)
}
