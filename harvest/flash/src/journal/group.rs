//! The front of a journal, its groups and its marks, as bytes: see [the module above](super).

use super::{MAGIC, RECORD_MOST, VERSION, number};
use crate::{Error, Result};
use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of the beginning of a journal that are checked together.
pub(super) const IDENTITY: usize = 32;
/// The offset of their copy.
const COPY: usize = 2048;
/// The offset of the first slot.
const SLOTS: usize = 4096;
/// Bytes of a slot.
pub(super) const SLOT: usize = 32 << 10;
/// Bytes of a mark before its copy of a group.
const MARK: usize = 40;
/// The number of bytes in a journal's file before its first group: the header and two slots for marks.
pub const FRONT: usize = SLOTS + 2 * SLOT;
/// Bytes of a group before its records.
pub(super) const HEAD: usize = 32;
/// Bytes of a group that is not one long record alone.
const GATHERED: usize = 1 << 20;
/// Bytes of a group's records at most.
const GROUP_MOST: usize = RECORD_MOST + GATHERED + super::FRAME;

/// A length as it is written. No group is longer than [`GROUP_MOST`], so none is cut: a longer one is a fault of this
/// program, which must not reach the file.
pub(super) fn length(len: usize) -> u32 {
    const _: () = assert!(GROUP_MOST <= u32::MAX as usize, "a length has four bytes");
    assert!(len <= GROUP_MOST, "a group of {len} bytes");
    #[expect(clippy::cast_possible_truncation, reason = "at most GROUP_MOST")]
    let len = len as u32;
    len
}

/// The CRC-64/NVME of all parts together.
pub(super) fn sum(parts: &[&[u8]]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}

pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Returns the first [`FRONT`] bytes of a new journal's file: the header, and no marks. `generation` is 1 for a new
/// journal, and one more with each rewriting.
#[must_use]
pub fn front(generation: u64) -> Vec<u8> {
    let mut identity = MAGIC.to_vec();
    identity.extend(VERSION.to_le_bytes());
    identity.extend(crc32(&identity).to_le_bytes());
    identity.extend(generation.to_le_bytes());
    identity.extend(sum(&[&identity]).to_le_bytes());
    let mut front = vec![0; FRONT];
    for at in [0, COPY] {
        front[at..at + IDENTITY].copy_from_slice(&identity);
    }
    front
}

/// The checksum by which programs of earlier versions check the version.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "a CRC-32 has 32 bits")]
    let sum = digest.finalize() as u32;
    sum
}

/// The front of a journal, read.
pub(super) struct Front {
    pub(super) generation: u64,
    /// `true` if its first bytes are damaged, and their copy is not.
    pub(super) restored: bool,
}

impl Front {
    /// Reads the first bytes of a journal.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let identity = |at: usize| {
            let found = bytes.get(at..at + IDENTITY)?;
            let right = found[..8] == MAGIC && long(found, 24) == sum(&[&found[..24]]);
            (right && number(found, 8) == VERSION).then(|| long(found, 16))
        };
        if bytes.len() >= FRONT {
            if let Some(generation) = identity(0) {
                return Ok(Self { generation, restored: false });
            }
            if let Some(generation) = identity(COPY) {
                return Ok(Self { generation, restored: true });
            }
        }
        match bytes.get(..16) {
            None => Err(Error::corrupt("it is too short for a journal")),
            Some(found) if found[..8] != MAGIC => Err(Error::invalid("it is not a journal")),
            Some(found) if number(found, 12) != crc32(&found[..12]) => {
                Err(Error::corrupt("its header is damaged"))
            }
            Some(found) if number(found, 8) != VERSION => Err(Error::unsupported(format!(
                "its version is {}, and this program knows 2 and {VERSION}",
                number(found, 8)
            ))),
            Some(_) if bytes.len() < FRONT => Err(Error::corrupt("it is too short for a journal")),
            Some(_) => Err(Error::corrupt("its header is damaged")),
        }
    }
}

/// The position in a journal's sequence of groups that the next group must continue: its sequence number, and
/// the checksum of the group before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The number of the next group.
    pub(super) next: u64,
    /// The checksum of the group before.
    pub(super) sum: u64,
}

impl Chain {
    /// Returns the position before the first group of a journal of this generation (1 for a new journal, one more with
    /// each rewriting).
    #[must_use]
    pub fn begin(generation: u64) -> Self {
        Self { next: 1, sum: sum(&[&generation.to_le_bytes()]) }
    }

    /// Encodes `records`, which [`encode`](super::encode) wrote, as one or more groups and appends these to
    /// `out`. Returns the offset in `out` of the last group; without records nothing is appended, and the result is
    /// the length of `out`.
    pub fn append(&mut self, mut records: &[u8], out: &mut Vec<u8>) -> usize {
        let mut last = out.len();
        while !records.is_empty() {
            let mut end = 0;
            while end < records.len() && end < GATHERED {
                end = (end + super::FRAME + number(records, end) as usize).min(records.len());
            }
            let (group, rest) = records.split_at(end);
            last = out.len();
            out.extend(length(group.len()).to_le_bytes());
            out.extend([0; 4]);
            out.extend(self.next.to_le_bytes());
            out.extend(self.sum.to_le_bytes());
            self.sum = sum(&[&out[last..], group]);
            self.next += 1;
            out.extend(self.sum.to_le_bytes());
            out.extend_from_slice(group);
            records = rest;
        }
        last
    }

    /// `true` if a group follows.
    pub(super) fn takes(&self, group: &Group<'_>) -> bool {
        group.is_right && (group.number, group.before) == (self.next, self.sum)
    }

    /// Moves on behind a group.
    pub(super) fn follow(&mut self, group: &Group<'_>) {
        (self.next, self.sum) = (group.number + 1, group.sum);
    }
}

/// A group, read.
pub(super) struct Group<'a> {
    pub(super) number: u64,
    pub(super) before: u64,
    pub(super) sum: u64,
    pub(super) is_right: bool,
    pub(super) records: &'a [u8],
}

impl<'a> Group<'a> {
    /// The length of the records of the group that begins here, if the bytes can be a group.
    pub(super) fn len(bytes: &[u8]) -> Option<usize> {
        let len = number(bytes.get(..HEAD)?, 0) as usize;
        (1..=GROUP_MOST).contains(&len).then_some(len)
    }

    /// The group that begins here, if all of it is there.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let len = Self::len(bytes)?;
        let records = bytes.get(HEAD..HEAD + len)?;
        let sum_there = long(bytes, 24);
        Some(Self {
            number: long(bytes, 8),
            before: long(bytes, 16),
            sum: sum_there,
            is_right: sum(&[&bytes[..24], records]) == sum_there,
            records,
        })
    }
}

/// One mark.
#[derive(Clone, Debug)]
struct Mark {
    number: u64,
    at: u64,
    closed: bool,
    copy: Vec<u8>,
}

/// The marks of a journal.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks([Option<Mark>; 2]);

impl Marks {
    /// The marks that are right.
    pub(super) fn parse(front: &[u8], generation: u64) -> Self {
        Self([0, 1].map(|slot| {
            let bytes = front.get(SLOTS + slot * SLOT..SLOTS + (slot + 1) * SLOT)?;
            let len = number(bytes, 24) as usize;
            let copy = bytes.get(MARK..MARK.checked_add(len)?)?;
            let right = long(bytes, 32) == sum(&[&generation.to_le_bytes(), &bytes[..32], copy]);
            let (number, at) = (long(bytes, 0), long(bytes, 8));
            let closed = bytes[28] == 1;
            right.then(|| Mark { number, at, closed, copy: copy.to_vec() })
        }))
    }

    /// The number of the last group that must be there; 0 if none must.
    pub(super) fn newest(&self) -> u64 {
        self.0.iter().flatten().map(|mark| mark.number).max().unwrap_or(0)
    }

    /// `true` for each slot whose mark says that the journal was closed in good order, and nothing was written since.
    pub(super) fn closed(&self) -> [bool; 2] {
        let newest = self.newest();
        let says = |mark: &Option<Mark>| mark.as_ref().is_some_and(|it| it.number == newest && it.closed);
        [says(&self.0[0]), says(&self.0[1])]
    }

    /// The slot that the next mark goes to: the one with nothing, or the older.
    pub(super) fn free(&self) -> usize {
        let age = |slot: usize| self.0[slot].as_ref().map(|mark| (mark.number, !mark.closed));
        usize::from(age(1) < age(0))
    }

    /// A copy of the group that comes next, at this offset.
    pub(super) fn copy_of(&self, chain: &Chain, at: u64) -> Option<&[u8]> {
        let of_it = |mark: &&Mark| {
            let group = Group::parse(&mark.copy);
            mark.number == chain.next && mark.at == at && group.is_some_and(|group| chain.takes(&group))
        };
        self.0.iter().flatten().find(of_it).map(|mark| mark.copy.as_slice())
    }
}

/// The offset of a slot.
pub(super) fn slot_at(slot: usize) -> u64 {
    (SLOTS + slot % 2 * SLOT) as u64
}

/// The bytes of a mark: the journal's last group begins at offset `at`, and `chain` is the state after it.
pub(super) fn mark(generation: u64, chain: &Chain, at: u64, copy: &[u8], closed: bool) -> Vec<u8> {
    let mut mark = Vec::with_capacity(MARK + copy.len());
    mark.extend((chain.next - 1).to_le_bytes());
    mark.extend(at.to_le_bytes());
    mark.extend(chain.sum.to_le_bytes());
    mark.extend(length(copy.len()).to_le_bytes());
    mark.extend(u32::from(closed).to_le_bytes());
    mark.extend(sum(&[&generation.to_le_bytes(), &mark, copy]).to_le_bytes());
    mark.extend_from_slice(copy);
    mark
}

/// `true` if a mark can have a copy of a group of `len` bytes.
pub(super) fn fits_mark(len: usize) -> bool {
    MARK + len <= SLOT
}
