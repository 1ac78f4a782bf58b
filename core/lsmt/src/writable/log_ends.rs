//! The ends of the logs that the file of pending records continues.
//!
//! The file (`pending.rs`) and the logs are separate files, and storage may give back an earlier state of either while
//! the host runs. Entries that were flushed long ago, laid over a log that has later records, would bring old data
//! back; entries over a log that lost its last groups would be the content of no moment. So the file notes where each
//! log may end, and its entries count only for a log that ends there.
//!
//! A flush notes the next end of a log before it writes the group, and the ends that were reached when all is durable.
//! Whatever moment the process dies at, the log ends at a place that is noted. There are two places for notes, used in
//! turn, so that one that is only half written harms nothing.
//!
//! ```text
//! 0     number of the note; the one with the higher number counts (8)
//! 8     position of the first entry that counts (8)
//! 16    number of ends (4)
//! 20    ends: number of the pair (4), checksum of its last seal (4), bytes of the log (8), position of the first
//!       entry that a log with this end may lack (8)
//! ...   CRC-32C of all before (4)
//! ```

use super::log::{self, LogEnd};
use super::state::PAIRS_MAX;
use headstart_block::exact;

/// Bytes that a note takes at most.
const NOTE_MAX: usize = FIXED + ENDS_MAX * END_LEN + 4;

/// Ends in a note: of each pair that of now and the next one, also of a pair that is being made.
const ENDS_MAX: usize = 2 * (PAIRS_MAX + 1);

const FIXED: usize = 20;
const END_LEN: usize = 24;

/// An end that the log of a pair may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NotedEnd {
    pair: u32,
    end: LogEnd,
    /// The position of the first entry that the log may lack. Storage may have lost some of those before, and without
    /// them the others would bring old data back.
    first: u64,
}

/// A note of the ends of logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogEnds {
    /// The number of the note.
    pub(super) number: u64,
    /// The position of the first entry that counts.
    pub(super) first: u64,
    ends: Vec<NotedEnd>,
}

impl LogEnds {
    /// The first note: of logs that end at `ends`.
    pub(super) fn new(ends: Vec<(u32, LogEnd)>) -> Self {
        Self::default().settled(0, ends).numbered(0)
    }

    /// The note that the log of a pair, which ends at `now`, may end at `next`, too, and then has all entries before
    /// `reached`; `None` if it may still lack some.
    pub(super) fn with(&self, pair: u32, now: LogEnd, next: LogEnd, reached: Option<u64>) -> Self {
        let others = self.ends.iter().filter(|noted| noted.pair != pair).copied();
        let first = self.lacks_from(pair, now).unwrap_or(self.first);
        let next = NotedEnd { pair, end: next, first: reached.unwrap_or(first) };
        let now = NotedEnd { pair, end: now, first };
        Self { number: self.number + 1, first: self.first, ends: others.chain([now, next]).collect() }
    }

    /// The note that entries before `first` count no more, and that logs end at `ends`.
    pub(super) fn settled(&self, first: u64, ends: Vec<(u32, LogEnd)>) -> Self {
        let ends = ends.into_iter().map(|(pair, end)| NotedEnd { pair, end, first }).collect();
        Self { number: self.number + 1, first, ends }
    }

    fn numbered(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// The position of the first entry that the log of a pair may lack which ends there; `None` if it may not end
    /// there.
    pub(super) fn lacks_from(&self, pair: u32, end: LogEnd) -> Option<u64> {
        self.ends.iter().find(|noted| noted.pair == pair && noted.end == end).map(|noted| noted.first)
    }

    /// `true` if exactly these ends are noted.
    pub(super) fn are(&self, ends: &[(u32, LogEnd)]) -> bool {
        self.ends.iter().map(|noted| (noted.pair, noted.end)).eq(ends.iter().copied())
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(NOTE_MAX);
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.first.to_le_bytes());
        let count: u32 = exact(self.ends.len(), "there are few");
        bytes.extend(count.to_le_bytes());
        for NotedEnd { pair, end: LogEnd { bytes: len, checksum }, first } in &self.ends {
            bytes.extend(pair.to_le_bytes());
            bytes.extend(checksum.to_le_bytes());
            bytes.extend(len.to_le_bytes());
            bytes.extend(first.to_le_bytes());
        }
        let sum = log::checksum(&[&bytes]);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// The note at the beginning of `bytes`; `None` if none is whole there.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let count = usize::try_from(word(16)?).ok().filter(|count| *count <= ENDS_MAX)?;
        let len = FIXED + count * END_LEN;
        if word(len)? != log::checksum(&[bytes.get(..len)?]) {
            return None;
        }
        let end = |n: usize| {
            let at = FIXED + n * END_LEN;
            let end = LogEnd { checksum: word(at + 4)?, bytes: long(at + 8)? };
            Some(NotedEnd { pair: word(at)?, end, first: long(at + 16)? })
        };
        Some(Self { number: long(0)?, first: long(8)?, ends: (0..count).map(end).collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn end(bytes: u64) -> LogEnd {
        LogEnd { bytes, checksum: 7 }
    }

    proptest! {
        #[test]
        fn a_note_is_read_as_it_was_written(
            number: u64, first: u64, ends in vec((any::<u32>(), any::<u64>(), any::<u32>()), 0..ENDS_MAX),
            cut in 1..NOTE_MAX,
        ) {
            let end = |(pair, bytes, checksum)| NotedEnd { pair, end: LogEnd { bytes, checksum }, first };
            let ends = ends.into_iter().map(end);
            let note = LogEnds { number, first, ends: ends.collect() };
            let bytes = note.bytes();
            prop_assert!(bytes.len() <= NOTE_MAX);
            prop_assert_eq!(LogEnds::parse(&bytes), Some(note));
            prop_assert_eq!(LogEnds::parse(&bytes[..bytes.len().saturating_sub(cut)]), None);
        }

        #[test]
        fn any_bytes_are_a_note_or_none(bytes in vec(any::<u8>(), 0..100)) {
            let _ = LogEnds::parse(&bytes);
        }
    }

    /// Flushes that fail for ever leave a note of the same size.
    #[test]
    fn a_note_does_not_grow_without_bound() {
        let mut note = LogEnds::new(vec![(1, end(4096)), (2, end(4096))]);
        for bytes in 1..1000 {
            note = note.with(2, end(4096), end(bytes), Some(bytes));
            let lacks = |pair, at| note.lacks_from(pair, end(at));
            assert_eq!((lacks(1, 4096), lacks(2, 4096), lacks(2, bytes)), (Some(0), Some(0), Some(bytes)));
            assert_eq!((lacks(1, bytes), lacks(2, bytes - 1), note.number), (None, None, bytes));
        }
        let settled = note.settled(9, vec![(2, end(7))]);
        assert!(settled.are(&[(2, end(7))]) && settled.number == 1000 && settled.first == 9);
        assert_eq!((settled.lacks_from(1, end(4096)), settled.lacks_from(2, end(7))), (None, Some(9)));
    }
}
