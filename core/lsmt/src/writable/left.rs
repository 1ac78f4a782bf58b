//! The entries of writes that a killed process did not flush (`pending.rs`), read by the next one.

use super::files::{Directory, LogFile};
use super::log::LogEnd;
use super::log_ends::LogEnds;
use super::pending::{
    ASIDE_AT, Entry, MAGIC, NOTES_AT, PENDING, SLOT_LEN, SLOTS, SLOTS_AT, checksum, header,
};
use super::state::State;
use crate::Segment;
use crate::format::FIRST_DATA_SECTOR;
use headstart_block::{Result, SECTOR_SIZE, exact, to_usize};

/// Sectors by which data that was set aside may lie behind the end of its data file: those of writes that were waiting
/// for a hole, at the most.
const BEYOND_MAX: u64 = 1 << 21;

/// The form of a file.
struct Form {
    slots_at: u64,
    slot_len: usize,
    aside_at: u64,
}

/// The first form: the position of the first entry is at byte 64, and nothing is noted of logs.
const FIRST_FORM: Form = Form { slots_at: 4096, slot_len: 40, aside_at: 4096 + SLOTS * 40 };
const FIRST_MAGIC: [u8; 8] = *b"HSPEND\0\x01";

/// The form that is written.
const SECOND_FORM: Form = Form { slots_at: SLOTS_AT, slot_len: SLOT_LEN, aside_at: ASIDE_AT };

/// The entries that a killed process has left.
pub(super) struct Left {
    file: Option<Box<dyn LogFile>>,
    /// In the order of the writes.
    entries: Vec<Entry>,
    /// The ends of the logs that they continue; `None` for a file that does not tell.
    ends: Option<LogEnds>,
    /// The place of data that was set aside.
    aside_at: u64,
    /// Sectors of the disk.
    size: u64,
}

impl Left {
    /// The entries in a directory that count. None if they cannot be read: the disk has what was flushed without them.
    pub(super) fn read(directory: &dyn Directory, state: &State) -> Self {
        Self::try_read(directory, state).unwrap_or_else(|error| {
            tracing::warn!(%error, "the writes that a killed process did not flush cannot be read: they are lost");
            Self::none(state)
        })
    }

    fn none(state: &State) -> Self {
        let size = state.virtual_size / SECTOR_SIZE;
        Self { file: None, entries: Vec::new(), ends: None, aside_at: 0, size }
    }

    fn try_read(directory: &dyn Directory, state: &State) -> Result<Self> {
        let none = Self::none(state);
        let Some(boot) = directory.boot_id() else { return Ok(none) };
        if !directory.list()?.iter().any(|name| name == PENDING) {
            return Ok(none);
        }
        let file = directory.open(PENDING)?;
        let mut bytes = vec![0; to_usize(file.len()?.min(ASIDE_AT))];
        file.read_at(&mut bytes, 0)?;
        let is_of = |magic| bytes.starts_with(&header(magic, boot, state.uuid));
        let (form, first, ends) = if is_of(MAGIC) {
            let notes =
                NOTES_AT.iter().filter_map(|at| bytes.get(to_usize(*at)..)).filter_map(LogEnds::parse);
            let Some(last) = notes.max_by_key(|note| note.number) else { return Ok(none) };
            (SECOND_FORM, last.first, Some(last))
        } else if is_of(FIRST_MAGIC) {
            let first =
                bytes.get(64..).and_then(<[u8]>::first_chunk).map_or(0, |first| u64::from_le_bytes(*first));
            (FIRST_FORM, first, None)
        } else {
            return Ok(none);
        };
        let slots = bytes.get(to_usize(form.slots_at)..).unwrap_or_default();
        let slots = &slots[..slots.len().min(to_usize(SLOTS) * form.slot_len)];
        let entries = slots.chunks_exact(form.slot_len).filter_map(Entry::parse);
        let mut entries: Vec<_> = entries.filter(|entry| entry.position >= first).collect();
        if ends.as_ref().is_some_and(|ends| entries.iter().any(|entry| entry.note > ends.number)) {
            tracing::warn!(
                writes = entries.len(),
                "the file of writes that were not flushed is a mixture of several moments: it is not used"
            );
            return Ok(none);
        }
        entries.sort_unstable_by_key(|entry| entry.position);
        Ok(Self { file: Some(file), entries, ends, aside_at: form.aside_at, ..none })
    }

    /// The positions of the entries.
    #[cfg(test)]
    pub(super) fn positions(&self) -> Vec<u64> {
        self.entries.iter().map(|entry| entry.position).collect()
    }

    /// The records of a pair that its log, which ends at `end`, may lack, in the order of the writes. Data that was set
    /// aside is brought to its place in the file `data`. None if they do not continue that log, or if any of the data
    /// is not what was written.
    ///
    /// # Errors
    /// Errors of the files.
    pub(super) fn records(&self, number: u64, data: &dyn LogFile, end: LogEnd) -> Result<Vec<Segment>> {
        let mut entries: Vec<_> =
            self.entries.iter().filter(|entry| u64::from(entry.pair) == number).collect();
        let pair = exact(number, "numbers of pairs have 32 bits");
        let first = self.ends.as_ref().map_or(Some(0), |ends| ends.lacks_from(pair, end));
        if first.is_none() && !entries.is_empty() {
            tracing::warn!(
                pair = number,
                writes = entries.len(),
                log_bytes = end.bytes,
                "writes that were answered and not flushed do not continue the log, which is of another moment: \
                 they are left out"
            );
            return Ok(Vec::new());
        }
        entries.retain(|entry| first.is_some_and(|first| entry.position >= first));
        for entry in &entries {
            if !self.is_there(entry, data)? {
                tracing::warn!(
                    pair = number,
                    writes = entries.len(),
                    "the data of writes that were answered and not flushed is not there any more: they are lost"
                );
                return Ok(Vec::new());
            }
        }
        if !entries.is_empty() {
            tracing::info!(
                pair = number,
                writes = entries.len(),
                "the process before was killed: its writes that were not flushed are brought into the log"
            );
        }
        Ok(entries.into_iter().map(|entry| entry.record).collect())
    }

    /// `true` if an entry can be replayed.
    fn is_there(&self, entry: &Entry, data: &dyn LogFile) -> Result<bool> {
        let record = entry.record;
        let data_end = data.len()? / SECTOR_SIZE;
        let is_sound = record.len() > 0
            && record.end() <= self.size.min(Segment::PADDING_OFFSET)
            && record.moffset() >= FIRST_DATA_SECTOR
            && record.mend() <= data_end + BEYOND_MAX;
        if !is_sound || record.is_zeroed() {
            return Ok(is_sound);
        }
        let mut bytes = vec![0; to_usize(record.len() * SECTOR_SIZE)];
        if record.mend() <= data_end {
            data.read_at(&mut bytes, record.moffset() * SECTOR_SIZE)?;
            if checksum(&bytes) == entry.checksum {
                return Ok(true);
            }
        }
        let (Some(file), Some(sector)) = (&self.file, entry.aside.checked_sub(1)) else { return Ok(false) };
        let place = self.aside_at + u64::from(sector) * SECTOR_SIZE;
        if place + bytes.len() as u64 > file.len()? {
            return Ok(false);
        }
        file.read_at(&mut bytes, place)?;
        let is_there = checksum(&bytes) == entry.checksum;
        if is_there {
            data.write_at(&bytes, record.moffset() * SECTOR_SIZE)?;
        }
        Ok(is_there)
    }
}
