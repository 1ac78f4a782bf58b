//! The redirects of a host that many peers ask for one chunk: which asker is sent to which earlier one.
//!
//! A host that all others ask for the same chunk cannot send it to each: with 24 hosts at 50 MB/s, 256 KiB would take
//! it 120 ms, and the others' links would idle. The host sends a few copies, and names to each later asker an earlier
//! one, which has the chunk or will have it before: a tree in the order of asking, of [`FAN_OUT`] children each. Every
//! host sends a chunk [`FAN_OUT`] times at most, and all have it after as many steps as the tree is deep.
//!
//! Roots are sent to roots and agents to agents: a large fleet's agents know those of their own root only.

use crate::Time;
use crate::event::{PeerId, Role};
use crate::message::RequestId;
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

/// The number of askers that are sent to one host for one chunk.
pub(crate) const FAN_OUT: u8 = 2;

/// The time for which a tree is remembered after its last use.
pub(crate) const KEPT: Duration = Duration::from_secs(10);

/// The hosts that have a chunk, or will have it, and to which others can be sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct RedirectTree {
    /// Agents and roots, each in order of asking: the host, and the number of askers that were sent there.
    open: [VecDeque<(PeerId, u8)>; 2],
    /// All hosts that were ever part of it, with the request of those that were sent to another. None of them is sent
    /// on again: others may wait for it by now, and they would wait in a circle.
    members: BTreeMap<PeerId, Option<RequestId>>,
    /// The time of the last use.
    pub(crate) last_used_at: Time,
}

impl RedirectTree {
    /// Adds a host that has the chunk or will have it.
    pub(crate) fn add(&mut self, peer: PeerId, role: Role) {
        if let Entry::Vacant(entry) = self.members.entry(peer) {
            entry.insert(None);
            self.of(role).push_back((peer, 0));
        }
    }

    fn of(&mut self, role: Role) -> &mut VecDeque<(PeerId, u8)> {
        let [agents, roots] = &mut self.open;
        if role == Role::Root { roots } else { agents }
    }

    /// The entry of a host, if it is part of this tree: the request by which it was sent to another, if it was.
    pub(crate) fn entry(&self, peer: PeerId) -> Option<Option<RequestId>> {
        self.members.get(&peer).copied()
    }

    /// The host to which `asker`, which is new, is sent, if there is one; the asker then is part of this tree.
    /// `usable` is `true` of the hosts that can be named.
    pub(crate) fn next(
        &mut self,
        (asker, role): (PeerId, Role),
        request: RequestId,
        usable: impl Fn(PeerId) -> bool,
    ) -> Option<PeerId> {
        if self.members.contains_key(&asker) {
            return None;
        }
        let open = self.of(role);
        while let Some((peer, sent)) = open.front_mut() {
            let peer = *peer;
            *sent += 1;
            let (full, usable) = (*sent >= FAN_OUT, usable(peer));
            if full || !usable {
                open.pop_front();
            }
            if usable {
                open.push_back((asker, 0));
                self.members.insert(asker, Some(request));
                return Some(peer);
            }
        }
        None
    }

    /// Removes a host that is gone.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.open.iter_mut().for_each(|open| open.retain(|(other, _)| *other != peer));
        self.members.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(number: u32) -> (PeerId, Role) {
        (PeerId(number), Role::Agent)
    }

    #[test]
    fn a_tree_grows_in_the_order_of_asking() {
        let mut tree = RedirectTree::default();
        assert_eq!(tree.next(agent(9), RequestId(1), |_| true), None);
        tree.add(PeerId(0), Role::Agent);
        let mut parents = Vec::new();
        for asker in 1..8 {
            parents.push(tree.next(agent(asker), RequestId(asker), |_| true).map(|peer| peer.0));
        }
        assert_eq!(parents, [0, 0, 1, 1, 2, 2, 3].map(Some));
        assert_eq!(tree.entry(PeerId(5)), Some(Some(RequestId(5))));
        assert_eq!(tree.entry(PeerId(0)), Some(None));
        assert_eq!(tree.entry(PeerId(9)), None);
    }

    #[test]
    fn nobody_is_sent_twice_or_to_the_gone() {
        let mut tree = RedirectTree::default();
        tree.add(PeerId(1), Role::Agent);
        assert_eq!(tree.next(agent(1), RequestId(1), |_| true), None);
        assert_eq!(tree.next(agent(2), RequestId(2), |_| false), None);
        assert_eq!(
            tree.next(agent(2), RequestId(2), |_| true),
            None,
            "who cannot be named is not tried again"
        );
        tree.add(PeerId(3), Role::Agent);
        tree.forget(PeerId(3));
        assert_eq!(tree.next(agent(2), RequestId(2), |_| true), None);
    }

    #[test]
    fn roots_are_sent_to_roots_and_agents_to_agents() {
        let mut tree = RedirectTree::default();
        tree.add(PeerId(1), Role::Agent);
        assert_eq!(tree.next((PeerId(2), Role::Root), RequestId(1), |_| true), None);
        tree.add(PeerId(2), Role::Root);
        assert_eq!(tree.next((PeerId(3), Role::Root), RequestId(1), |_| true), Some(PeerId(2)));
        assert_eq!(tree.next(agent(4), RequestId(1), |_| true), Some(PeerId(1)));
    }
}
