//! Who of many that ask for one chunk is sent to whom.
//!
//! A host that everybody asks for the same chunk cannot send it to all: with 24 hosts at 50 MB/s, 256 KiB would take
//! it 120 ms, and the others' links would idle. It sends a few copies, and names to each later asker an earlier one,
//! which has the chunk or will have it before: a tree in the order of asking, of [`FAN`] children each. Every host
//! sends what it gets [`FAN`] times at most, and all have it after as many steps as the tree is deep.
//!
//! Roots are sent to roots and agents to agents: a large fleet's agents know those of their own root, not others'.

use crate::Time;
use crate::event::{PeerId, Role};
use crate::message::RequestId;
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

/// How many are sent to one host for one chunk.
pub(crate) const FAN: u8 = 2;

/// How long a chain is remembered after it was used last.
pub(crate) const KEPT: Duration = Duration::from_secs(10);

/// Those who have a chunk, or will have it, and to whom others can be sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    /// Agents and roots, each in order of asking: who, and how many were sent there.
    open: [VecDeque<(PeerId, u8)>; 2],
    /// All who were ever part of it, and of those who were sent to another, by what request. None of them is sent on
    /// again: others may wait for it by now, and they would wait in a circle.
    known: BTreeMap<PeerId, Option<RequestId>>,
    /// When it was used last.
    pub(crate) used: Time,
}

impl Chain {
    /// One more has it or will have it.
    pub(crate) fn has(&mut self, peer: PeerId, role: Role) {
        if let Entry::Vacant(entry) = self.known.entry(peer) {
            entry.insert(None);
            self.of(role).push_back((peer, 0));
        }
    }

    fn of(&mut self, role: Role) -> &mut VecDeque<(PeerId, u8)> {
        let [agents, roots] = &mut self.open;
        if role == Role::Root { roots } else { agents }
    }

    /// Whether a host is part of it, and if it was sent to another, by what request.
    pub(crate) fn knows(&self, peer: PeerId) -> Option<Option<RequestId>> {
        self.known.get(&peer).copied()
    }

    /// Where to send `asker`, who is new, if anywhere; then it is part of this. `usable` says who can be named.
    pub(crate) fn next(
        &mut self,
        (asker, role): (PeerId, Role),
        request: RequestId,
        usable: impl Fn(PeerId) -> bool,
    ) -> Option<PeerId> {
        if self.known.contains_key(&asker) {
            return None;
        }
        let open = self.of(role);
        while let Some((peer, sent)) = open.front_mut() {
            let peer = *peer;
            *sent += 1;
            let (full, usable) = (*sent >= FAN, usable(peer));
            if full || !usable {
                open.pop_front();
            }
            if usable {
                open.push_back((asker, 0));
                self.known.insert(asker, Some(request));
                return Some(peer);
            }
        }
        None
    }

    /// A host is gone.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.open.iter_mut().for_each(|open| open.retain(|(known, _)| *known != peer));
        self.known.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(number: u32) -> (PeerId, Role) {
        (PeerId(number), Role::Agent)
    }

    #[test]
    fn a_tree_in_the_order_of_asking() {
        let mut chain = Chain::default();
        assert_eq!(chain.next(agent(9), RequestId(1), |_| true), None);
        chain.has(PeerId(0), Role::Agent);
        let mut parents = Vec::new();
        for asker in 1..8 {
            parents.push(chain.next(agent(asker), RequestId(asker), |_| true).map(|peer| peer.0));
        }
        assert_eq!(parents, [0, 0, 1, 1, 2, 2, 3].map(Some));
        assert_eq!(chain.knows(PeerId(5)), Some(Some(RequestId(5))));
        assert_eq!(chain.knows(PeerId(0)), Some(None));
        assert_eq!(chain.knows(PeerId(9)), None);
    }

    #[test]
    fn nobody_is_sent_twice_or_to_the_gone() {
        let mut chain = Chain::default();
        chain.has(PeerId(1), Role::Agent);
        assert_eq!(chain.next(agent(1), RequestId(1), |_| true), None);
        assert_eq!(chain.next(agent(2), RequestId(2), |_| false), None);
        assert_eq!(
            chain.next(agent(2), RequestId(2), |_| true),
            None,
            "who cannot be named is not tried again"
        );
        chain.has(PeerId(3), Role::Agent);
        chain.forget(PeerId(3));
        assert_eq!(chain.next(agent(2), RequestId(2), |_| true), None);
    }

    #[test]
    fn roots_are_sent_to_roots_and_agents_to_agents() {
        let mut chain = Chain::default();
        chain.has(PeerId(1), Role::Agent);
        assert_eq!(chain.next((PeerId(2), Role::Root), RequestId(1), |_| true), None);
        chain.has(PeerId(2), Role::Root);
        assert_eq!(chain.next((PeerId(3), Role::Root), RequestId(1), |_| true), Some(PeerId(2)));
        assert_eq!(chain.next(agent(4), RequestId(1), |_| true), Some(PeerId(1)));
    }
}
