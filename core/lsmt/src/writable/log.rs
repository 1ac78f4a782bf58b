//! The log of a writable pair: its index file, written in groups that are each closed by a seal.
//!
//! The file is what the reference writes too: a header page, then records of 16 bytes in the order of the
//! writes, later ones winning. Ours differs in one thing that other readers do not see: a flush writes its
//! records as a *group* that ends in a *seal*, a record whose offset is that of padding, so that readers
//! drop it. Its other fields say what the group was:
//!
//! ```text
//! word 0   bits  0..50  2^50-1    padding, to all other readers
//!          bits 50..64  1         form of the seal
//! word 1   bits  0..32  checksum  CRC-32C over the checksum of the seal before (u32), the number of
//!                                 records (u32), and the records; the first group continues the
//!                                 CRC-32C of the pair's uuid (16 bytes)
//!          bits 32..55  records   number of records in the group
//!          bits 55..64  0
//! ```
//!
//! A group is synced before the next one is written, so a crash can damage the last group only. At recovery
//! everything from the first group on that lacks its right seal is the *tail*: either what a crash left of one
//! group, to be cut off, or damage to records that were synced, which is an error, never to be dropped in
//! silence. Nothing is cut off before the tail was judged. It is damage where
//!
//! * it is longer than the largest group with its seal, or
//! * some later record in it has the form of a seal and says that its group starts behind the start of
//!   the tail: a crash leaves no second group. A crash may, however, tear the seal of the first one inside
//!   its count, so that it is too small. A count that may have come about in this way has to be confirmed by its
//!   checksum: over the record in the place of the seal before, of which only the form may be damaged, or over
//!   the records before that, which may be whole where their seal is not.
//!
//! So a flipped bit anywhere in front of the last group is noticed. In the last group it looks like a torn tail, and
//! a log without its last groups looks like a whole one. Both are noticed up to the place that `state.json` notes
//! (`noted.rs`): a log that does not get there is damaged. The chain of checksums keeps a group from counting at any
//! other place or in any other pair.

use super::files::LogFile;
use crate::Segment;
use crate::format::{FIRST_DATA_SECTOR, PAGE_SIZE};
use crc_fast::{CrcAlgorithm, Digest};
use headstart_block::{Error, Result, to_usize};
use uuid::Uuid;

/// Most records in a group; a larger flush writes several. Bounds what recovery holds in memory.
pub(super) const GROUP_MAX: usize = 1 << 16;

const SEAL_FORM: u64 = 1;
const RECORD: usize = Segment::RECORD_SIZE;
/// Bytes of the largest group with its seal: the most that an interrupted flush leaves.
const GROUP_BYTES: usize = (GROUP_MAX + 1) * RECORD;
/// Bytes read at once at recovery.
const CHUNK: usize = 256 << 10;

/// The end of a log that is being written.
pub(super) struct Log {
    /// The place of the next group, in bytes.
    position: u64,
    /// The checksum of the last seal.
    chain: u32,
}

/// The end of a log at some time: its bytes, and the checksum of the last seal in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogEnd {
    pub(super) bytes: u64,
    pub(super) checksum: u32,
}

/// A group that is to be written, or is in the file but not yet synced.
pub(super) struct Group {
    bytes: Vec<u8>,
    /// The end of the log with it.
    pub(super) end: LogEnd,
    /// The number of records that it takes.
    pub(super) records: usize,
}

impl Log {
    /// The log of a new pair, whose file has its header only.
    pub(super) fn new(uuid: Uuid) -> Self {
        Self { position: PAGE_SIZE as u64, chain: chain_start(uuid) }
    }

    /// Bytes of the file up to the end of the log.
    pub(super) fn len(&self) -> u64 {
        self.position
    }

    /// The place of its end, and the checksum there.
    pub(super) fn end(&self) -> LogEnd {
        LogEnd { bytes: self.position, checksum: self.chain }
    }

    /// The group of the first records, to be written next.
    pub(super) fn group(&self, records: &[Segment]) -> Group {
        let records = &records[..records.len().min(GROUP_MAX)];
        let mut bytes = Vec::with_capacity((records.len() + 1) * RECORD);
        bytes.extend(records.iter().flat_map(|record| record.to_record()));
        let chain = chain_next(self.chain, &bytes);
        bytes.extend(seal(records.len(), chain).to_record());
        let end = LogEnd { bytes: self.position + bytes.len() as u64, checksum: chain };
        Group { bytes, end, records: records.len() }
    }

    /// Writes a group. Until [`Log::accept`] takes it, the next group goes to the same place.
    pub(super) fn write_group(&self, file: &dyn LogFile, group: &Group) -> Result<()> {
        file.write_at(&group.bytes, self.position)
    }

    /// Counts a group in, now that the file was synced.
    pub(super) fn accept(&mut self, group: &Group) {
        self.position = group.end.bytes;
        self.chain = group.end.checksum;
    }

    /// Replays the whole groups of a log. The bytes behind them are the tail that an interrupted flush left, for the
    /// caller to cut off. Records must be within `data_end` sectors of the data file, which was synced before them.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](headstart_block::ErrorKind::Corrupt) where it is damaged, or does not reach the end
    /// that was `noted`.
    pub(super) fn recover(
        file: &dyn LogFile,
        uuid: Uuid,
        data_end: u64,
        noted: Option<LogEnd>,
        replay: &mut impl FnMut(Segment),
    ) -> Result<Self> {
        let len = file.len()?;
        let mut log = Self::new(uuid);
        let mut reader = Reader::new(PAGE_SIZE as u64, len);
        let mut group = Vec::new();
        let mut reaches = noted.is_none_or(|noted| noted == log.end());
        while log.next(file, &mut reader, &mut group)? {
            for segment in records_of(&group) {
                if !is_sound(segment, data_end) {
                    return Err(Error::corrupt(format!(
                        "a record of {} sectors at sector {} of the disk points outside the data file",
                        segment.len(),
                        segment.offset()
                    )));
                }
                replay(segment);
            }
            log.pass(&reader, &group);
            reaches |= noted == Some(log.end());
        }
        if let Some(noted) = noted.filter(|_| !reaches) {
            return Err(log.falls_short(len, noted));
        }
        if log.position < len {
            log.judge_tail(file, len)?;
        }
        Ok(log)
    }

    /// The whole groups of a log up to the first that is damaged, whatever is behind it; `true` if they reach the
    /// end that was `noted`.
    pub(super) fn salvage(
        file: &dyn LogFile,
        uuid: Uuid,
        data_end: u64,
        noted: Option<LogEnd>,
    ) -> Result<(Self, bool)> {
        let mut log = Self::new(uuid);
        let mut reader = Reader::new(PAGE_SIZE as u64, file.len()?);
        let mut group = Vec::new();
        let mut reaches = noted.is_none_or(|noted| noted == log.end());
        while log.next(file, &mut reader, &mut group)?
            && records_of(&group).all(|segment| is_sound(segment, data_end))
        {
            log.pass(&reader, &group);
            reaches |= noted == Some(log.end());
        }
        Ok((log, reaches))
    }

    /// Reads the next group; `true` if it is whole.
    fn next(&self, file: &dyn LogFile, reader: &mut Reader, group: &mut Vec<u8>) -> Result<bool> {
        Ok(reader.read_group(file, group)? == Found::Group && is_sealed(group, self.chain))
    }

    /// Counts in the group that was read.
    fn pass(&mut self, reader: &Reader, group: &[u8]) {
        self.chain = seal_fields(group).1;
        self.position = reader.consumed;
    }

    /// The error of a log whose whole groups do not lead to the place that was noted.
    fn falls_short(&self, len: u64, noted: LogEnd) -> Error {
        let (position, durable) = (self.position, noted.bytes);
        Error::corrupt(if len < durable {
            let missing = durable - len;
            format!(
                "it has {len} bytes, but {durable} were durable: {missing} are missing, and what was flushed by them"
            )
        } else if position < durable {
            let lost = durable - position;
            format!(
                "the records at byte {position} fail their checksum: of {durable} bytes that were durable, {lost} are \
                 damaged, and what was flushed by them"
            )
        } else {
            format!("its first {durable} bytes are not those that were durable when state.json was written")
        })
    }

    /// Refuses a tail that an interrupted flush cannot have left.
    fn judge_tail(&self, file: &dyn LogFile, len: u64) -> Result<()> {
        let tail = len.saturating_sub(self.position);
        let refused = || {
            Error::corrupt(format!(
                "the records at byte {} fail their checksum, and what follows them shows that no crash left them so",
                self.position
            ))
        };
        let Some(tail) = usize::try_from(tail).ok().filter(|tail| *tail <= GROUP_BYTES) else {
            return Err(refused());
        };
        let mut bytes = vec![0; tail];
        file.read_at(&mut bytes, self.position)?;
        if has_later_group(&bytes, self.chain) { Err(refused()) } else { Ok(()) }
    }
}

/// The records of a group without its seal.
fn records_of(group: &[u8]) -> impl Iterator<Item = Segment> {
    let records = &group[..group.len() - RECORD];
    records.as_chunks::<RECORD>().0.iter().map(|record| Segment::from_record(*record))
}

/// `true` if a group starts in `tail` behind its first record; `chain` is the checksum of the seal before it.
fn has_later_group(tail: &[u8], chain: u32) -> bool {
    let records = tail.as_chunks::<RECORD>().0;
    let bytes_of = |from: usize, to: usize| &tail[from * RECORD..to * RECORD];
    let (mut first_seal, mut last_seal) = (None, None);
    for (at, record) in records.iter().enumerate() {
        if !is_seal(Segment::from_record(*record)) {
            continue;
        }
        // A group has no seal but its own, so no record is summed up twice below.
        let since = last_seal.map_or(0, |seal| seal + 1);
        let count = to_usize(seal_fields(record).0);
        let start = at.checked_sub(count).filter(|start| *start > 0 && *start >= since && count > 0);
        if let Some(start) = start {
            let group = bytes_of(start, at + 1);
            let before = start - 1;
            let torn = count == at & 0xff || count == at & 0xffff;
            if !torn || is_sealed(group, seal_fields(&records[before]).1) {
                return true;
            }
            let no_seal_between = first_seal.is_none_or(|seal| seal >= before);
            if no_seal_between && is_sealed(group, chain_next(chain, bytes_of(0, before))) {
                return true;
            }
        }
        first_seal = first_seal.or(Some(at));
        last_seal = Some(at);
    }
    false
}

/// Replays a log without seals, as the reference leaves it: to its end, or to the first record that makes
/// no sense. Padding and records of length 0 have no effect.
pub(super) fn replay_plain(
    file: &dyn LogFile,
    data_end: u64,
    replay: &mut impl FnMut(Segment),
) -> Result<()> {
    let mut reader = Reader::new(PAGE_SIZE as u64, file.len()?);
    while let Some(record) = reader.read_record(file)? {
        let segment = Segment::from_record(record).with_layer(0);
        if segment.is_padding() || segment.len() == 0 {
            continue;
        }
        if !is_sound(segment, data_end) {
            break;
        }
        replay(segment);
    }
    Ok(())
}

/// Reads a log in order; memory is bounded by a chunk and a group.
struct Reader {
    chunk: Vec<u8>,
    /// Position in the chunk of the next record.
    at: usize,
    /// Byte of the file behind the last record that was given out.
    consumed: u64,
    end: u64,
}

impl Reader {
    /// Reads whole records of `[start, end)`.
    fn new(start: u64, end: u64) -> Self {
        let len = end.saturating_sub(start);
        Self { chunk: Vec::new(), at: 0, consumed: start, end: start + (len - len % RECORD as u64) }
    }

    fn read_record(&mut self, file: &dyn LogFile) -> Result<Option<[u8; RECORD]>> {
        if self.at == self.chunk.len() {
            #[expect(clippy::cast_possible_truncation, reason = "at most CHUNK")]
            let len = (self.end - self.consumed).min(CHUNK as u64) as usize;
            self.chunk.resize(len, 0);
            self.at = 0;
            file.read_at(&mut self.chunk, self.consumed)?;
        }
        let record = self.chunk[self.at..].first_chunk().copied();
        if record.is_some() {
            self.at += RECORD;
            self.consumed += RECORD as u64;
        }
        Ok(record)
    }

    /// Fills `group` with the records up to the next seal, and with the seal.
    fn read_group(&mut self, file: &dyn LogFile, group: &mut Vec<u8>) -> Result<Found> {
        group.clear();
        while group.len() < GROUP_BYTES {
            let Some(record) = self.read_record(file)? else { return Ok(Found::End) };
            group.extend(record);
            if is_seal(Segment::from_record(record)) {
                return Ok(Found::Group);
            }
        }
        Ok(Found::TooLong)
    }
}

/// The next part of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Records and a seal, right or wrong.
    Group,
    /// More records than a group can have.
    TooLong,
    /// Records, or none, and then the end of the file.
    End,
}

fn is_sound(segment: Segment, data_end: u64) -> bool {
    segment.len() > 0
        && segment.end() <= Segment::PADDING_OFFSET
        && segment.moffset() >= FIRST_DATA_SECTOR
        && segment.mend() <= data_end
}

fn seal(records: usize, checksum: u32) -> Segment {
    let lo = Segment::PADDING_OFFSET | SEAL_FORM << 50;
    let hi = u64::from(checksum) | (records as u64) << 32;
    Segment::from_record((u128::from(lo) | u128::from(hi) << 64).to_le_bytes())
}

fn is_seal(segment: Segment) -> bool {
    segment.is_padding() && segment.len() == SEAL_FORM
}

/// The number of records and the checksum in the last record of `group`, which is a seal.
fn seal_fields(group: &[u8]) -> (u64, u32) {
    let hi = group.last_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    #[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
    let checksum = hi as u32;
    (hi >> 32, checksum)
}

fn is_sealed(group: &[u8], chain: u32) -> bool {
    let records = &group[..group.len() - RECORD];
    seal_fields(group) == ((records.len() / RECORD) as u64, chain_next(chain, records))
}

fn chain_start(uuid: Uuid) -> u32 {
    checksum(&[uuid.as_bytes()])
}

fn chain_next(chain: u32, records: &[u8]) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "at most GROUP_MAX")]
    let count = (records.len() / RECORD) as u32;
    checksum(&[&chain.to_le_bytes(), &count.to_le_bytes(), records])
}

/// The checksum of bytes that are in several parts.
pub(super) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    #[expect(clippy::cast_possible_truncation, reason = "a CRC of 32 bits")]
    let sum = digest.finalize() as u32;
    sum
}
