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
//! ..      changes, where it answers: blocks of 1 (packed by zstd) or 2 (as it is), a length (2) and as many bytes; 0
//! ```

use std::net::{IpAddr, SocketAddr};

const MAGIC: u16 = 45_139;

/// Most blocks of changes in a message. Those of the library have 16 KiB each; a packed one unpacks to 64 KiB at most.
const BLOCKS_MAX: usize = 64;

/// Most bytes of a packed block, unpacked.
const UNPACKED_MAX: usize = 65_535;

/// The identity of a host's run in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunId {
    pub(super) name: String,
    pub(super) generation: u64,
    pub(super) address: SocketAddr,
}

/// The state of a run, as a message says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) heartbeat: u64,
    pub(super) version: u64,
}

/// The findings about a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Inspection {
    /// The most bytes that it has, unpacked.
    pub(super) unpacked: usize,
    /// The state of this host's run that it tells; `None` if it tells none.
    pub(super) own: Option<Said>,
}

impl Inspection {
    /// Inspects a message for the host whose run is `own`; `None` if it is no message of the library, or unpacks to
    /// more than any host says.
    pub(super) fn of(message: &[u8], own: &RunId) -> Option<Self> {
        let mut inspection = Self { unpacked: message.len(), own: None };
        let mut rest = Rest(message);
        if rest.u16()? != MAGIC || rest.u8()? != 0 {
            return None;
        }
        let kind = rest.u8()?;
        if matches!(kind, 0 | 1) {
            for _ in 0..rest.u16()? {
                let (is_own, said) = rest.entry(own)?;
                if is_own {
                    inspection.own = Some(said);
                }
            }
        }
        if matches!(kind, 1 | 2) {
            inspection.unpacked += rest.changes()?;
        }
        Some(inspection)
    }
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

    /// An entry: `true` if it is that of `own`.
    fn entry(&mut self, own: &RunId) -> Option<(bool, Said)> {
        let len = self.u16()?;
        let name = self.take(len.into())?;
        let generation = self.u64()?;
        let ip = match self.u8()? {
            4 => IpAddr::from(self.array::<4>()?),
            6 => IpAddr::from(self.array::<16>()?),
            _ => return None,
        };
        let address = SocketAddr::new(ip, self.u16()?);
        let is_own = name == own.name.as_bytes() && generation == own.generation && address == own.address;
        let heartbeat = self.u64()?;
        let _collected = self.u64()?;
        Some((is_own, Said { heartbeat, version: self.u64()? }))
    }

    /// The most bytes of all changes, unpacked.
    fn changes(&mut self) -> Option<usize> {
        let mut unpacked = 0;
        for _ in 0..=BLOCKS_MAX {
            let kind = self.u8()?;
            if kind == 0 {
                return Some(unpacked);
            }
            let len = usize::from(self.u16()?);
            self.take(len)?;
            unpacked += match kind {
                1 => UNPACKED_MAX,
                2 => len,
                _ => return None,
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::gossip::naming;
    use proptest::prelude::*;

    fn host(number: u32) -> RunId {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        RunId { name: format!("h{number}"), generation: 1, address }
    }

    #[test]
    fn an_inspection_finds_the_entry_of_this_run_and_of_no_other() {
        let message = naming(0..500);
        let of = |own: &RunId| Inspection::of(&message, own).unwrap();
        assert_eq!(of(&host(499)).own, Some(Said { heartbeat: 1, version: 1 }));
        assert_eq!(of(&host(500)), Inspection { unpacked: message.len(), own: None });
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
        assert_eq!(of(BLOCKS_MAX), Some(answer(BLOCKS_MAX).len() + BLOCKS_MAX * UNPACKED_MAX));
        assert_eq!(of(BLOCKS_MAX + 1), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_inspected(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..4) {
            let mut message = MAGIC.to_le_bytes().to_vec();
            message.extend([0, kind]);
            message.extend(bytes);
            let found = Inspection::of(&message, &host(0));
            prop_assert!(found.is_none_or(|found| found.unpacked <= message.len() + BLOCKS_MAX * UNPACKED_MAX));
        }
    }
}
