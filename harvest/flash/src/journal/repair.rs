//! Finds the damage of a journal, and puts right all that can be put right for certain. A journal of version 2 is only
//! examined.
//!
//! An end that was being written at a crash, and was never durable, is cut off.
//! A damaged group is restored from the copy in a mark. Without a copy, a single wrong bit is corrected by the
//! checksum: the stored checksum and the computed one differ in another way for each bit, so the difference tells which
//! bit it is. The probability that a wrong bit is found by chance is one in 2^64 for each bit of the group. Nothing
//! else is guessed: a group with more damage is not used, nor is any group after it.

use super::group::{self, Chain, FRONT, Front, Group, HEAD, Marks, sum};
use super::{JournalRecord, each_record, old};
use crate::Result;
use crate::wrong_bit::named_bit;

/// A fault that was found in a journal. All except [`JournalFault::Damaged`] can be repaired without loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalFault {
    /// The first bytes of the file are damaged. They are restored from their copy.
    Front,
    /// A group of records is damaged or missing. It is restored from its copy in a mark.
    Copied {
        /// The offset of the group in the file, in bytes.
        at: u64,
    },
    /// One bit is wrong. The checksum tells which one, and the bit is corrected.
    Bit {
        /// The offset in the file of the byte with the wrong bit.
        at: u64,
        /// The position of the bit in the byte: 0 is the lowest.
        bit: u32,
    },
    /// The end of the file was being written when the host crashed. It is cut off; nothing durable is lost.
    Torn {
        /// The offset of the incomplete end, in bytes.
        at: u64,
        /// The length of the incomplete end, in bytes.
        bytes: u64,
    },
    /// Durable bytes are damaged beyond repair. All records from there on are lost.
    Damaged {
        /// The offset of the damage, in bytes.
        at: u64,
    },
}

/// The result of [`examine`].
#[derive(Debug)]
pub struct Examined {
    /// The version of the journal's format.
    pub version: u32,
    /// The faults that were found, in the order of the file.
    pub faults: Vec<JournalFault>,
    /// The records up to the first damage that cannot be repaired; all records if there is none.
    pub records: Vec<JournalRecord>,
    /// The bytes of the journal after all possible repairs. Damage that cannot be repaired is still in them. A journal
    /// of version 2 is not changed at all.
    pub mended: Vec<u8>,
}

impl Examined {
    /// Returns `true` if no durable record is lost: there are no faults, or all can be repaired.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.faults.iter().any(|fault| matches!(fault, JournalFault::Damaged { .. }))
    }
}

/// Finds the faults of a journal in its bytes, and repairs what can be repaired in a copy.
///
/// # Errors
/// The bytes are no journal, or are of an unknown version; a record is of a kind that this version does not know; both
/// copies of the header are damaged.
pub fn examine(bytes: &[u8]) -> Result<Examined> {
    if old::is_old(bytes) {
        return examine_old(bytes);
    }
    let mut mended = bytes.to_vec();
    let (front, mut faults, mut records) = (front_of(&mut mended)?, Vec::new(), Vec::new());
    if front.restored {
        faults.push(JournalFault::Front);
        mended[..group::IDENTITY].copy_from_slice(&group::front(front.generation)[..group::IDENTITY]);
    }
    let marks = Marks::parse(&mended, front.generation);
    let (mut chain, mut at) = (Chain::begin(front.generation), FRONT);
    loop {
        let rest = &mended[at..];
        let place = at as u64;
        if let Some(group) = Group::parse(rest).filter(|group| chain.takes(group)) {
            let (len, group_records) = (HEAD + group.records.len(), group.records);
            chain.follow(&group);
            each_record(group_records, place + len as u64, &mut |record| {
                records.push(record);
                Ok(())
            })?;
            at += len;
        } else if let Some(copy) = marks.copy_of(&chain, place) {
            mended.resize(mended.len().max(at + copy.len()), 0);
            mended[at..at + copy.len()].copy_from_slice(copy);
            faults.push(JournalFault::Copied { at: place });
        } else if marks.newest() >= chain.next {
            let Some((byte, bit)) = wrong_bit(rest, &chain) else {
                faults.push(JournalFault::Damaged { at: place });
                break;
            };
            mended[at + byte] ^= 1 << bit;
            faults.push(JournalFault::Bit { at: place + byte as u64, bit });
        } else {
            if !rest.is_empty() {
                faults.push(JournalFault::Torn { at: place, bytes: rest.len() as u64 });
                mended.truncate(at);
            }
            break;
        }
    }
    Ok(Examined { version: super::VERSION, faults, records, mended })
}

/// The front of a journal; one that is too short for it, and was a journal, is filled up.
fn front_of(bytes: &mut Vec<u8>) -> Result<Front> {
    if bytes.len() < FRONT {
        // Its groups are gone: that is damage if there were any, and is noticed because they are missing.
        bytes.resize(FRONT, 0);
    }
    Front::parse(bytes)
}

fn examine_old(bytes: &[u8]) -> Result<Examined> {
    let mut records = Vec::new();
    let read = old::replay(bytes, |record| {
        records.push(record);
        Ok(())
    });
    let faults = match read {
        Ok(end) => {
            end.torn.map(|torn| JournalFault::Torn { at: torn.at, bytes: torn.bytes }).into_iter().collect()
        }
        Err(error) if error.kind() == crate::ErrorKind::Corrupt => {
            vec![JournalFault::Damaged { at: old::readable(bytes) }]
        }
        Err(error) => return Err(error),
    };
    Ok(Examined { version: old::VERSION, faults, records, mended: bytes.to_vec() })
}

/// The byte and bit by which a group differs from one that follows `chain`, if that is the only difference.
fn wrong_bit(bytes: &[u8], chain: &Chain) -> Option<(usize, u32)> {
    let is_right = |byte: usize, bit: u32| {
        // Long groups are copied once or twice, and only when there is damage.
        let len = Group::len(bytes).unwrap_or(0);
        let mut copy = bytes[..bytes.len().min(HEAD + len.max(1))].to_vec();
        copy.get_mut(byte).map(|byte| *byte ^= 1 << bit)?;
        let right = Group::parse(&copy).is_some_and(|group| chain.takes(&group));
        right.then_some((byte, bit))
    };
    if let Some(group) = Group::parse(bytes) {
        let there = sum(&[&bytes[..24], group.records]) ^ group.sum;
        if there.count_ones() == 1 {
            let bit = there.trailing_zeros();
            return is_right(24 + bit as usize / 8, bit % 8);
        }
        let covered = 24 + group.records.len();
        if let Some((byte, bit)) = named_bit(there, covered) {
            // Its checksum is between the bytes before it and the records.
            return is_right(if byte < 24 { byte } else { byte + 8 }, bit);
        }
    }
    // Its length may be wrong.
    (0..32_u32).find_map(|bit| {
        let mut head = bytes.get(..HEAD)?.to_vec();
        head[bit as usize / 8] ^= 1 << (bit % 8);
        let whole = bytes.get(..HEAD + Group::len(&head)?)?;
        let copy = [&head[..], &whole[HEAD..]].concat();
        let right = Group::parse(&copy).is_some_and(|group| chain.takes(&group));
        right.then_some((bit as usize / 8, bit % 8))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{encode, front, replay};
    use super::*;
    use crate::VssdId;

    /// A journal of groups of one record each, all but the last marked as durable, and the marks.
    fn journal(groups: u8) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut chain, mut begins) = (front(3), Chain::begin(3), Vec::new());
        for number in 0..groups {
            let mut records = Vec::new();
            let change = vec![number; 40 + usize::from(number)];
            encode(&JournalRecord::Map { vssd: VssdId(1), change }, &mut records).unwrap();
            begins.push(bytes.len());
            chain.append(&records, &mut bytes);
            let at = *begins.last().unwrap();
            let copy = bytes[at..].to_vec();
            let mark = group::mark(3, &chain, at as u64, &copy, false);
            let slot = usize::try_from(group::slot_at(number.into())).unwrap();
            bytes[slot..slot + mark.len()].copy_from_slice(&mark);
        }
        (bytes, begins)
    }

    fn records(bytes: &[u8]) -> Result<Vec<JournalRecord>> {
        let mut records = Vec::new();
        replay(bytes, |record| {
            records.push(record);
            Ok(())
        })?;
        Ok(records)
    }

    #[test]
    fn any_bit_that_is_wrong_is_seen_or_makes_no_difference_and_is_put_right() {
        let (bytes, begins) = journal(5);
        let whole = records(&bytes).unwrap();
        let fronts = (0..64).chain(2040..2100).chain(4090..4300).chain(36_860..37_100);
        for at in fronts.chain(begins[0]..bytes.len()) {
            for bit in [0, 3, 7] {
                let mut broken = bytes.clone();
                broken[at] ^= 1 << bit;
                let is_of_earlier = (begins[0]..begins[3]).contains(&at);
                match records(&broken) {
                    Ok(records) => assert!(records == whole && !is_of_earlier, "byte {at} bit {bit}"),
                    Err(error) => {
                        assert!(is_of_earlier, "byte {at} bit {bit}: {error}");
                        assert_eq!(error.kind(), crate::ErrorKind::Corrupt);
                    }
                }
                let examined = examine(&broken).unwrap();
                assert!(examined.is_whole() && examined.records == whole, "byte {at} bit {bit}");
                assert_eq!(records(&examined.mended).unwrap(), whole);
                if is_of_earlier {
                    assert_eq!(examined.faults, [JournalFault::Bit { at: at as u64, bit }]);
                    assert!(examined.mended == bytes);
                }
            }
        }
    }

    #[test]
    fn damage_of_more_than_a_bit_is_not_repaired() {
        let (bytes, begins) = journal(5);
        let whole = records(&bytes).unwrap();
        for at in begins[1]..begins[2] - 1 {
            let mut broken = bytes.clone();
            broken[at] ^= 0x41;
            broken[at + 1] ^= 1;
            let examined = examine(&broken).unwrap();
            assert_eq!(examined.faults, [JournalFault::Damaged { at: begins[1] as u64 }]);
            assert_eq!(examined.records, whole[..1]);
            assert!(records(&broken).is_err());
        }
        // A whole page is gone, wherever it was.
        for at in (0..bytes.len()).step_by(512) {
            let mut broken = bytes.clone();
            let end = bytes.len().min(at + 512);
            broken[at..end].fill(0);
            if let Ok(records) = records(&broken) {
                assert_eq!(records, whole, "{at}");
            }
        }
        // It is cut off anywhere.
        for cut in 0..bytes.len() {
            if let Ok(records) = records(&bytes[..cut]) {
                assert_eq!(records, whole, "{cut}");
            }
        }
    }
}
