//! The parts of a message that are checked before the library gets it: the library believes its numbers, and unpacks
//! all of it.
//!
//! The numbers are little-endian, `name` has its length before it (2 bytes):
//!
//! ```text
//! 0   2   45139
//! 2   1   0, the version
//! 3   1   0 asks, 1 answers, 2 answers that, 3 is of another cluster
//! 4   2   entries, where it asks or answers; each is: name, generation (8), 4 or 6 and an IP address (4 or 16),
//!         port (2), heartbeat (8), the version up to which keys were collected (8), version (8)
//! ..      the cluster's name, where it asks; changes, where it answers: a stream of blocks (`blocks`)
//! ```

use super::blocks::{self, Block};
use crate::credentials::NAME_MAX;
use std::net::{IpAddr, SocketAddr};

pub(super) const MAGIC: u16 = 45_139;

/// The version of messages between hosts. In the library's other version, 1, entries are a stream of blocks.
pub(super) const VERSION: u8 = 0;

/// The kind of a message, in the words of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks, with entries and the cluster's name.
    Syn,
    /// Answers, with entries and changes.
    SynAck,
    /// Answers an answer, with changes.
    Ack,
    /// Refuses a host of another cluster.
    BadCluster,
}

impl Kind {
    fn of(code: u8) -> Option<Self> {
        [Self::Syn, Self::SynAck, Self::Ack, Self::BadCluster].into_iter().find(|kind| kind.code() == code)
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Syn => 0,
            Self::SynAck => 1,
            Self::Ack => 2,
            Self::BadCluster => 3,
        }
    }

    pub(super) fn has_changes(self) -> bool {
        matches!(self, Self::SynAck | Self::Ack)
    }
}

/// The identity of a host's run in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunId {
    pub(super) name: String,
    pub(super) generation: u64,
    pub(super) address: SocketAddr,
}

/// The state of a run, as a message says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportedRun {
    pub(super) heartbeat: u64,
    pub(super) version: u64,
}

/// The findings about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inspection<'a> {
    pub(super) kind: Kind,
    /// The entries, one after the other, where the message asks or answers: the library can read them.
    pub(super) entries: Option<&'a [u8]>,
    /// The bytes after the entries: the cluster's name, or changes.
    pub(super) rest: &'a [u8],
    /// The most bytes that the message has, unpacked.
    pub(super) unpacked: usize,
    /// The state of this host's run that the message tells; `None` if it tells none.
    pub(super) own: Option<ReportedRun>,
}

impl<'a> Inspection<'a> {
    /// Inspects a message for the host whose run is `own`; `None` if it is no message of the library, or unpacks to
    /// more than any host says.
    pub(super) fn of(message: &'a [u8], own: &RunId) -> Option<Self> {
        let mut rest = Rest(message);
        if rest.u16()? != MAGIC || rest.u8()? != VERSION {
            return None;
        }
        let kind = Kind::of(rest.u8()?)?;
        let (mut entries, mut of_own) = (None, None);
        if matches!(kind, Kind::Syn | Kind::SynAck) {
            let count = rest.u16()?;
            let before = rest.0;
            for _ in 0..count {
                let (is_own, reported) = rest.entry(own)?;
                if is_own {
                    of_own = Some(reported);
                }
            }
            entries = before.get(..before.len() - rest.0.len());
        }
        let mut unpacked = message.len();
        if kind.has_changes() {
            unpacked += blocks::split(rest.0)?.into_iter().map(Block::most).sum::<usize>();
        }
        Some(Self { kind, entries, rest: rest.0, unpacked, own: of_own })
    }
}

/// The number of entries, which follow one another; `None` if one is malformed, or they are too many for a message.
pub(super) fn count(entries: &[u8]) -> Option<u16> {
    let (mut rest, mut count) = (Rest(entries), 0_u16);
    while !rest.0.is_empty() {
        rest.id()?;
        rest.reported()?;
        count = count.checked_add(1)?;
    }
    Some(count)
}

/// The rest of a message.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The name, the number of the run, and the address of an entry.
    fn id(&mut self) -> Option<(&'a str, u64, SocketAddr)> {
        // The library panics when it writes a name of 65 KB. No host has a longer name than this.
        let len = usize::from(self.u16()?);
        let name = std::str::from_utf8(self.take(len)?).ok().filter(|_| len <= NAME_MAX)?;
        let generation = self.u64()?;
        let ip = match self.u8()? {
            4 => IpAddr::from(self.array::<4>()?),
            6 => IpAddr::from(self.array::<16>()?),
            _ => return None,
        };
        Some((name, generation, SocketAddr::new(ip, self.u16()?)))
    }

    /// The state of an entry's run, which follows its address.
    fn reported(&mut self) -> Option<ReportedRun> {
        let heartbeat = self.u64()?;
        let _collected = self.u64()?;
        Some(ReportedRun { heartbeat, version: self.u64()? })
    }

    /// An entry: `true` if it is that of `own`.
    fn entry(&mut self, own: &RunId) -> Option<(bool, ReportedRun)> {
        let is_own = self.id()? == (own.name.as_str(), own.generation, own.address);
        Some((is_own, self.reported()?))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::blocks::{BLOCK_MAX, BLOCKS_MAX};
    use super::*;
    use crate::tests::gossip::naming;
    use proptest::prelude::*;

    /// A run that messages of `naming` name.
    pub(in super::super) fn host(number: u32) -> RunId {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        RunId { name: format!("h{number}"), generation: 1, address }
    }

    #[test]
    fn an_inspection_finds_the_entry_of_this_run_and_of_no_other() {
        let message = naming(0..500);
        let of = |own: &RunId| Inspection::of(&message, own).unwrap();
        assert_eq!(of(&host(499)).own, Some(ReportedRun { heartbeat: 1, version: 1 }));
        assert_eq!((of(&host(500)).unpacked, of(&host(500)).own), (message.len(), None));
        assert_eq!(of(&RunId { generation: 2, ..host(3) }).own, None);
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], 10));
        assert_eq!(of(&RunId { address: elsewhere, ..host(3) }).own, None);
    }

    #[test]
    fn a_message_that_unpacks_to_more_than_any_host_says_is_none() {
        let answer = |blocks: usize| {
            let mut message = MAGIC.to_le_bytes().to_vec();
            message.extend([0, 2]);
            message.extend([1, 1, 0, 7].repeat(blocks));
            message.push(0);
            message
        };
        let of = |blocks| Inspection::of(&answer(blocks), &host(0)).map(|found| found.unpacked);
        assert_eq!(of(BLOCKS_MAX), Some(answer(BLOCKS_MAX).len() + BLOCKS_MAX * BLOCK_MAX));
        assert_eq!(of(BLOCKS_MAX + 1), None);
    }

    #[test]
    fn entries_are_found_and_counted_and_those_that_the_library_cannot_read_are_not() {
        let message = naming(0..500);
        let found = Inspection::of(&message, &host(0)).unwrap();
        let entries = found.entries.unwrap();
        assert_eq!([&message[..6], entries, found.rest].concat(), message);
        assert_eq!((found.kind, count(entries)), (Kind::Syn, Some(500)));
        assert_eq!(
            (count(&[]), count(&entries[1..]), count(&entries[..entries.len() - 1])),
            (Some(0), None, None)
        );
        let mut wrong = naming(0..1);
        wrong[8] = 0xff;
        assert_eq!(Inspection::of(&wrong, &host(0)), None, "the name is no text");
        let named = |len: usize| {
            let rest = &entries[4..];
            [&u16::try_from(len).unwrap().to_le_bytes()[..], &vec![b'h'; len], rest].concat()
        };
        assert_eq!((count(&named(NAME_MAX)), count(&named(NAME_MAX + 1))), (Some(500), None));
        let many = entries.repeat(132);
        assert_eq!(count(&many), None, "{} entries", 500 * 132);
    }

    proptest! {
        #[test]
        fn any_bytes_are_inspected(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..4) {
            let mut message = MAGIC.to_le_bytes().to_vec();
            message.extend([0, kind]);
            message.extend(bytes);
            let found = Inspection::of(&message, &host(0));
            prop_assert!(found.is_none_or(|found| found.unpacked <= message.len() + BLOCKS_MAX * BLOCK_MAX));
        }
    }
}
