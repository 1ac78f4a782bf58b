//! Who of many that ask for one chunk is sent to whom.
//!
//! A host that everybody asks for the same chunk cannot send it to all: with 24 hosts at 50 MB/s, 256 KiB would take
//! it 120 ms, and the others' links would idle. It sends a few copies, and names to each later asker an
//! earlier one, which has the chunk or will have it before: a tree in the order of asking, of [`FAN`] children each. Every
//! host sends what it gets [`FAN`] times at most, and all have it after as many steps as the tree is deep.

use crate::Time;
use crate::event::PeerId;
use std::collections::VecDeque;
use std::time::Duration;

/// How many are sent to one host for one chunk.
pub(crate) const FAN: u8 = 2;

/// How long a chain is remembered after it was used last.
pub(crate) const KEPT: Duration = Duration::from_secs(10);

/// Those who have a chunk, or will have it, and to whom others can be sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    /// In order of asking: who, and how many were sent there.
    open: VecDeque<(PeerId, u8)>,
    /// When it was used last.
    pub(crate) used: Time,
}

impl Chain {
    /// One more has it or will have it.
    pub(crate) fn has(&mut self, peer: PeerId) {
        if !self.open.iter().rev().take(64).any(|(known, _)| *known == peer) {
            self.open.push_back((peer, 0));
        }
    }

    /// Where to send `asker`, if anywhere; `usable` says who can be named.
    pub(crate) fn next(&mut self, asker: PeerId, usable: impl Fn(PeerId) -> bool) -> Option<PeerId> {
        let mut at = 0;
        while let Some((peer, sent)) = self.open.get_mut(at) {
            if *peer == asker {
                at += 1;
                continue;
            }
            let peer = *peer;
            *sent += 1;
            let (full, usable) = (*sent >= FAN, usable(peer));
            if full || !usable {
                self.open.remove(at);
            }
            if usable {
                return Some(peer);
            }
        }
        None
    }

    /// A host is gone.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.open.retain(|(known, _)| *known != peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_in_the_order_of_asking() {
        let mut chain = Chain::default();
        assert_eq!(chain.next(PeerId(9), |_| true), None);
        chain.has(PeerId(0));
        let mut parents = Vec::new();
        for asker in 1..8 {
            parents.push(chain.next(PeerId(asker), |_| true).map(|peer| peer.0));
            chain.has(PeerId(asker));
        }
        assert_eq!(parents, [0, 0, 1, 1, 2, 2, 3].map(Some));
    }

    #[test]
    fn nobody_is_sent_to_himself_or_to_the_gone() {
        let mut chain = Chain::default();
        chain.has(PeerId(1));
        assert_eq!(chain.next(PeerId(1), |_| true), None);
        assert_eq!(chain.next(PeerId(2), |_| false), None);
        assert_eq!(chain.next(PeerId(2), |_| true), None, "who cannot be named is not tried again");
        chain.has(PeerId(3));
        chain.forget(PeerId(3));
        assert_eq!(chain.next(PeerId(2), |_| true), None);
    }
}
