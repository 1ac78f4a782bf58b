//! The hosts that share a blob, and the *upstream* of a chunk: the host that fetches what no peer is known to have.
//!
//! | topology | upstream of a chunk |
//! |---|---|
//! | ring, random, similar | the *designated fetcher* of its stripe among all sharers |
//! | roots | of an agent: its root, or the designated fetcher among the roots; if it sees none, among the agents |
//! | tree | the parent, or the parent's parent, and so on |
//! | any, if the blob is pinned | the hosts that keep the stripe (`pinned`) |
//!
//! The choice never goes in a circle: designated fetchers ascend in weight, parents in order, and agents ask roots; a
//! host that keeps a pinned blob fetches it for no other.

use super::membership::Membership;
use super::pinned::Pinned;
use crate::event::{BlobKey, PeerId, PeerKey, Role};
use crate::placement::{self, BlobFetchers, DesignatedFetchers};
use crate::settings::{NodeSettings, Topology};

/// The number of hosts that are tried as designated fetcher of a stripe.
const FETCHERS: usize = 4;

/// The hosts that share a blob.
#[derive(Debug)]
pub(super) struct Sharing {
    key: BlobKey,
    /// Peers that take part in it too, by key, ascending.
    sharers: Vec<(PeerKey, PeerId)>,
    /// Hosts that can be a designated fetcher of it, this host included.
    fetchers: DesignatedFetchers,
    /// The designated fetchers that were found so far.
    fetcher_of: BlobFetchers,
    /// In a tree, the hosts to ask: the parent, its parent, and so on; `None` if they are to be found again.
    ancestors: Option<Vec<PeerKey>>,
    /// The hosts that keep the blob, if it is pinned.
    pub(super) pinned: Option<Pinned>,
}

impl Sharing {
    /// A blob that no other host shares. `me` is this host, if it can be a designated fetcher.
    pub(super) fn new(key: BlobKey, me: Option<PeerKey>) -> Self {
        let mut fetchers = DesignatedFetchers::new();
        if let Some(me) = me {
            fetchers.insert(me);
        }
        let fetcher_of = BlobFetchers::new(key);
        Self { key, sharers: Vec::new(), fetchers, fetcher_of, ancestors: None, pinned: None }
    }

    /// The peers that share the blob, by key, ascending.
    pub(super) fn sharers(&self) -> &[(PeerKey, PeerId)] {
        &self.sharers
    }

    /// `true` if a host may read the blob.
    pub(super) fn is_with(&self, key: PeerKey) -> bool {
        self.sharers.binary_search_by_key(&key, |(other, _)| *other).is_ok()
    }

    /// The number of a host that shares the blob.
    pub(super) fn sharer(&self, key: PeerKey) -> Option<PeerId> {
        let at = self.sharers.binary_search_by_key(&key, |(other, _)| *other).ok()?;
        Some(self.sharers[at].1)
    }

    /// Adds a host, or another connection of one.
    pub(super) fn add(&mut self, key: PeerKey, peer: PeerId, can_fetch: bool) {
        match self.sharers.binary_search_by_key(&key, |(other, _)| *other) {
            Ok(at) => self.sharers[at].1 = peer,
            Err(at) => self.sharers.insert(at, (key, peer)),
        }
        if can_fetch {
            self.fetchers.insert(key);
        }
        self.ancestors = None;
    }

    /// Removes a host; `true` if it was there, by this connection.
    pub(super) fn remove(&mut self, key: PeerKey, peer: PeerId) -> bool {
        let Ok(at) = self.sharers.binary_search_by_key(&key, |(other, _)| *other) else { return false };
        if self.sharers[at].1 != peer {
            return false;
        }
        self.sharers.remove(at);
        self.fetchers.remove(key);
        self.ancestors = None;
        true
    }

    /// Chooses the hosts that can be designated fetchers again: this host, and those of the others that `can_fetch`.
    pub(super) fn choose_fetchers(&mut self, me: Option<PeerKey>, can_fetch: impl Fn(PeerId) -> bool) {
        self.fetchers = DesignatedFetchers::new();
        self.fetcher_of = BlobFetchers::new(self.key);
        let others = self.sharers.iter().filter(|(_, peer)| can_fetch(*peer)).map(|(key, _)| *key);
        for key in me.into_iter().chain(others) {
            self.fetchers.insert(key);
        }
    }

    /// The roots and the agents that share the blob, this host included, each ascending.
    pub(super) fn tree(&self, membership: &Membership) -> (Vec<PeerKey>, Vec<PeerKey>) {
        let of = |wanted: Role| {
            let is_so = |peer: PeerId| membership.get(peer).is_some_and(|record| record.role == wanted);
            let mut all: Vec<PeerKey> =
                self.sharers.iter().filter(|(_, peer)| is_so(*peer)).map(|(key, _)| *key).collect();
            all.extend((membership.role() == wanted).then_some(membership.me()));
            all.sort_unstable();
            all
        };
        (of(Role::Root), of(Role::Agent))
    }

    /// The upstream of a chunk, of the hosts that are `usable`; `None` if that is this host.
    pub(super) fn upstream(
        &mut self,
        chunk: u32,
        settings: &NodeSettings,
        membership: &Membership,
        usable: impl Fn(PeerId) -> bool,
    ) -> Option<PeerId> {
        let (me, stripe) = (membership.me(), placement::stripe_of(chunk, settings.stripe));
        if let Some(pinned) = &self.pinned {
            let load = |key| {
                let peer = self.sharer(key).filter(|peer| usable(*peer))?;
                Some((membership.get(peer)?.load(), peer))
            };
            return pinned.source(stripe, load, |key| self.is_with(key));
        }
        match settings.topology {
            Topology::Roots if membership.has_roots_in_sight() => {
                let shares = |root: PeerId| membership.key_of(root).is_some_and(|key| self.is_with(key));
                let root = membership.root().filter(|root| usable(*root) && shares(*root));
                // An agent without a root, or with one that fails it, asks the designated fetcher that other agents'
                // roots would ask.
                root.or_else(|| {
                    settings
                        .designated_fetchers
                        .then(|| self.designated_fetcher(me, stripe, usable))
                        .flatten()
                })
            }
            Topology::Tree(arity) => {
                if self.ancestors.is_none() {
                    self.ancestors = Some(self.find_ancestors(membership, arity));
                }
                let mut sharers = self.ancestors.iter().flatten().filter_map(|key| self.sharer(*key));
                sharers.find(|peer| usable(*peer))
            }
            _ if !settings.designated_fetchers => None,
            _ => self.designated_fetcher(me, stripe, usable),
        }
    }

    /// The designated fetcher of a stripe, or the host that would be it without those that cannot be asked; `None` if
    /// that is this host.
    fn designated_fetcher(
        &mut self,
        me: PeerKey,
        stripe: u32,
        usable: impl Fn(PeerId) -> bool,
    ) -> Option<PeerId> {
        let fetcher = self.fetcher_of.fetcher(&self.fetchers, stripe)?;
        if fetcher == me {
            return None;
        }
        if let Some(peer) = self.sharer(fetcher).filter(|peer| usable(*peer)) {
            return Some(peer);
        }
        let heavier = self.fetchers.successors(self.key, stripe, FETCHERS).into_iter();
        let mut heavier = heavier.take_while(|key| *key != me).filter_map(|key| self.sharer(key));
        heavier.find(|peer| usable(*peer))
    }

    /// Finds this host's ancestors in the tree of the hosts that share the blob.
    fn find_ancestors(&self, membership: &Membership, arity: u32) -> Vec<PeerKey> {
        let (roots, agents) = self.tree(membership);
        let parent = |key: &PeerKey| placement::parent(*key, &roots, &agents, arity);
        std::iter::successors(parent(&membership.me()), parent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: PeerKey = PeerKey(50);

    /// A host among six others, of which the first is a root, and that all share the blob.
    fn sharing(topology: Topology, role: Role) -> (Sharing, NodeSettings, Membership) {
        sharing_with(1, topology, role)
    }

    /// The same with this number of roots.
    fn sharing_with(roots: u32, topology: Topology, role: Role) -> (Sharing, NodeSettings, Membership) {
        let settings = NodeSettings { topology, stripe: 1, ..NodeSettings::default() };
        let mut membership = Membership::new(ME, role, &settings);
        for peer in 0..6 {
            let role = if peer < roots { Role::Root } else { Role::Agent };
            membership.add(PeerId(peer), PeerKey(u64::from(peer) * 20), role);
        }
        let can_fetch = |role| membership.can_fetch_for_others(role);
        let mut sharing = Sharing::new(BlobKey(9), can_fetch(role).then_some(ME));
        for (peer, record) in membership.peers() {
            sharing.add(record.key, *peer, can_fetch(record.role));
        }
        (sharing, settings, membership)
    }

    #[test]
    fn designated_fetchers_ascend_and_end_at_this_host() {
        let (mut sharing, settings, membership) = sharing(Topology::Random(2), Role::Agent);
        let mut mine = 0;
        for chunk in 0..64 {
            let first = sharing.upstream(chunk, &settings, &membership, |_| true);
            let Some(first) = first else {
                mine += 1;
                continue;
            };
            assert_eq!(sharing.upstream(chunk, &settings, &membership, |_| true), Some(first));
            let second = sharing.upstream(chunk, &settings, &membership, |peer| peer != first);
            assert_ne!(second, Some(first));
            assert_eq!(sharing.upstream(chunk, &settings, &membership, |_| false), None);
        }
        assert!((1..32).contains(&mine), "{mine} of 64 chunks are fetched by this host");
    }

    #[test]
    fn without_designated_fetchers_the_store_is_asked() {
        let (mut sharing, mut settings, membership) = sharing(Topology::Ring, Role::Agent);
        settings.designated_fetchers = false;
        assert_eq!(sharing.upstream(1, &settings, &membership, |_| true), None);
    }

    #[test]
    fn an_agent_asks_its_root_and_otherwise_a_root_that_fetches() {
        let (mut sharing, settings, mut membership) = sharing(Topology::Roots, Role::Agent);
        assert_eq!(sharing.upstream(3, &settings, &membership, |_| true), Some(PeerId(0)));
        membership.seek();
        assert!(membership.on_accepted(PeerId(0)));
        assert_eq!(sharing.upstream(3, &settings, &membership, |_| true), Some(PeerId(0)));
        assert!(sharing.remove(PeerKey(0), PeerId(0)), "the root does not share it any more");
        assert_eq!(sharing.upstream(3, &settings, &membership, |_| true), None);
        sharing.choose_fetchers(Some(ME), |_| true);
        assert!((0..64).any(|chunk| sharing.upstream(chunk, &settings, &membership, |_| true).is_some()));
    }

    #[test]
    fn an_agent_asks_its_root_for_all_chunks_whichever_root_fetches_them() {
        let (mut sharing, mut settings, mut membership) = sharing_with(3, Topology::Roots, Role::Agent);
        assert!(membership.on_accepted(PeerId(1)));
        for designated_fetchers in [true, false] {
            settings.designated_fetchers = designated_fetchers;
            let mut upstream = |chunk| sharing.upstream(chunk, &settings, &membership, |_| true);
            assert!((0..64).all(|chunk| upstream(chunk) == Some(PeerId(1))), "{designated_fetchers}");
        }
    }

    #[test]
    fn in_a_tree_the_parents_parent_is_asked_if_the_parent_cannot_be() {
        let (mut sharing, settings, membership) = sharing(Topology::Tree(1), Role::Agent);
        let asked = |sharing: &mut Sharing, not: &[u32]| {
            sharing.upstream(0, &settings, &membership, |peer| !not.contains(&peer.0)).map(|peer| peer.0)
        };
        assert_eq!(asked(&mut sharing, &[]), Some(2), "40 is before 50");
        assert_eq!(asked(&mut sharing, &[2]), Some(1));
        assert!(sharing.remove(PeerKey(40), PeerId(2)));
        assert_eq!(asked(&mut sharing, &[]), Some(1), "the tree is another");
        assert_eq!(asked(&mut sharing, &[0, 1]), None);
    }

    #[test]
    fn a_host_that_is_back_has_its_new_connection() {
        let (mut sharing, ..) = sharing(Topology::Ring, Role::Agent);
        sharing.add(PeerKey(40), PeerId(9), true);
        assert!(!sharing.remove(PeerKey(40), PeerId(2)), "it is another connection");
        assert_eq!(sharing.sharer(PeerKey(40)), Some(PeerId(9)));
        assert!(sharing.is_with(PeerKey(40)) && !sharing.is_with(PeerKey(41)));
    }
}
