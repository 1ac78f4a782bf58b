//! The redirect trees of a blob's chunks: the hosts to which a host that many ask sends the later ones.

use crate::Time;
use crate::event::{PeerId, Role};
use crate::message::RequestId;
use crate::redirect_tree::{KEPT, RedirectTree};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of a blob's chunks with trees, from which on old trees are looked for and forgotten.
const TREES: usize = 1024;

/// The interval at which they are looked for: it takes a walk over all.
const SWEPT_EVERY: Duration = Duration::from_secs(1);

/// The number of hosts that a tree begins with, of those that are known to have the chunk.
const SEEDS: usize = 8;

/// The host to which an asker is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// No host can be named.
    None,
    /// This host is named.
    To(PeerId),
    /// The asker was sent to a host by the answer to this request already, and will hear it.
    Repeated,
    /// The asker is part of the tree, and is not sent on: others may wait for it by now.
    Member,
}

/// The trees of a blob.
#[derive(Debug)]
pub(super) struct Redirects {
    trees: BTreeMap<u32, RedirectTree>,
    swept_at: Time,
}

impl Redirects {
    /// No tree.
    pub(super) fn new() -> Self {
        Self { trees: BTreeMap::new(), swept_at: Time(0) }
    }

    /// Notes that a peer will have a chunk: others can be sent there.
    pub(super) fn add(&mut self, chunk: u32, peer: PeerId, role: Role, now: Time) {
        if self.trees.len() >= TREES && now.since(self.swept_at) >= SWEPT_EVERY {
            self.swept_at = now;
            self.trees.retain(|_, tree| now.since(tree.last_used_at) < KEPT);
        }
        if self.trees.len() < 4 * TREES || self.trees.contains_key(&chunk) {
            let tree = self.trees.entry(chunk).or_default();
            tree.last_used_at = now;
            tree.add(peer, role);
        }
    }

    /// Continues a tree, or begins it, with hosts that have the chunk and are of the asker's role, except the asker.
    /// `true` if there are any.
    pub(super) fn seed(
        &mut self,
        chunk: u32,
        (asker, role): (PeerId, Role),
        having: impl Iterator<Item = PeerId>,
    ) -> bool {
        let tree = self.trees.get(&chunk);
        let is_new = |peer: &PeerId| *peer != asker && tree.is_none_or(|tree| tree.entry(*peer).is_none());
        let mut having: Vec<PeerId> = having.filter(is_new).collect();
        if having.is_empty() {
            return false;
        }
        // The seeds differ from chunk to chunk.
        let first = chunk as usize % having.len();
        having.rotate_left(first);
        let tree = self.trees.entry(chunk).or_default();
        having.into_iter().take(SEEDS).for_each(|peer| tree.add(peer, role));
        true
    }

    /// Chooses the host to which an asker of a chunk is sent, of those that are `usable`.
    pub(super) fn next(
        &mut self,
        chunk: u32,
        asker: (PeerId, Role),
        request: RequestId,
        now: Time,
        usable: impl Fn(PeerId) -> bool,
    ) -> Redirection {
        let Some(tree) = self.trees.get_mut(&chunk) else { return Redirection::None };
        tree.last_used_at = now;
        match tree.entry(asker.0) {
            // The request was repeated before the asker heard where to go.
            Some(sent) if sent == Some(request) => Redirection::Repeated,
            Some(_) => Redirection::Member,
            None => tree.next(asker, request, usable).map_or(Redirection::None, Redirection::To),
        }
    }

    /// Removes a host that is gone from all trees.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.trees.values_mut().for_each(|tree| tree.forget(peer));
    }

    /// Removes a host from a chunk's tree: the chunk may come from a host that waits for it.
    pub(super) fn forget_of(&mut self, chunk: u32, peer: PeerId) {
        if let Some(tree) = self.trees.get_mut(&chunk) {
            tree.forget(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(redirects: &mut Redirects, asker: u32, request: u32) -> Redirection {
        redirects.next(7, (PeerId(asker), Role::Agent), RequestId(request), Time(0), |_| true)
    }

    #[test]
    fn an_asker_is_sent_on_once_and_hears_it_again_for_the_same_request() {
        let mut redirects = Redirects::new();
        assert_eq!(next(&mut redirects, 2, 1), Redirection::None);
        redirects.add(7, PeerId(1), Role::Agent, Time(0));
        assert_eq!(next(&mut redirects, 2, 1), Redirection::To(PeerId(1)));
        assert_eq!(next(&mut redirects, 2, 1), Redirection::Repeated);
        assert_eq!(next(&mut redirects, 2, 9), Redirection::Member);
        assert_eq!(next(&mut redirects, 1, 9), Redirection::Member);
        redirects.forget_of(8, PeerId(2));
        redirects.forget_of(7, PeerId(1));
        assert_eq!(next(&mut redirects, 3, 1), Redirection::To(PeerId(2)));
        redirects.forget(PeerId(2));
        assert_eq!(next(&mut redirects, 4, 1), Redirection::To(PeerId(3)));
    }

    #[test]
    fn hosts_that_have_the_chunk_are_seeds_but_the_asker_is_not() {
        let mut redirects = Redirects::new();
        let asker = (PeerId(1), Role::Agent);
        assert!(!redirects.seed(7, asker, [PeerId(1)].into_iter()));
        assert!(redirects.seed(7, asker, [1, 2, 3].map(PeerId).into_iter()));
        assert_eq!(
            next(&mut redirects, 1, 1),
            Redirection::To(PeerId(3)),
            "the seventh chunk begins with it"
        );
        assert!(!redirects.seed(7, (PeerId(4), Role::Agent), [2, 3].map(PeerId).into_iter()), "no news");
    }

    #[test]
    fn old_trees_are_forgotten_when_there_are_many() {
        let mut redirects = Redirects::new();
        (0..5000).for_each(|chunk| redirects.add(chunk, PeerId(1), Role::Agent, Time(0)));
        assert_eq!(redirects.trees.len(), 4 * TREES);
        redirects.add(9999, PeerId(1), Role::Agent, Time(0) + KEPT + SWEPT_EVERY);
        assert_eq!(redirects.trees.len(), 1);
    }
}
