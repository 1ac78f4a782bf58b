//! Blobs that some hosts keep, stripe by stripe in turn, with or without a store behind them.
//!
//! For each stripe the hosts have an order, from the one with which it begins. The first `copies` of them keep it. A
//! host that lacks a chunk asks those that keep it, and no host fetches anything for another: a holder that lacks the
//! chunk says so. A holder asks those before it first, so that of all holders that lack the chunk only the first goes
//! to the store; and then those after it, which may have it when the store has gone. If some are away, those that come
//! next may have taken their place.
//!
//! If a thousand hosts read the same chunks at once, each chunk is requested from its few holders five hundred times.
//! The holders name hosts that have it from them to those that ask later, as designated fetchers do (`redirect_tree`):
//! otherwise they would have to refuse most, which would ask the store, which may be away.
//!
//! A holder's having the chunks that it keeps is no news, and says nothing about reads: the holder is a source, and no
//! reason to prefetch.
//!
//! No host waits in a circle: a host that has a chunk on its way from another lets only those wait that come later in
//! the stripe's order, or are not in it; or that were sent to it, as in any chain.

use crate::event::{PeerId, PeerKey};

/// The holders of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pinned {
    /// The hosts, in order.
    hosts: Vec<PeerKey>,
    /// The number of hosts that keep each stripe: at least one, at most all.
    copies: usize,
    /// This host's place among them.
    place: Option<usize>,
}

impl Pinned {
    /// The holders as seen by `me`; `None` if there are none.
    pub(super) fn new(me: PeerKey, hosts: &[PeerKey], copies: u32) -> Option<Self> {
        let copies = (copies.max(1) as usize).min(hosts.len());
        let pinned = Self { hosts: hosts.to_vec(), copies, place: None };
        (!hosts.is_empty()).then(|| Self { place: pinned.place_of(me), ..pinned })
    }

    /// The place of this host in a stripe's order; beyond all others if it is not in it.
    pub(super) fn rank(&self, stripe: u32) -> usize {
        self.rank_at(self.place, stripe)
    }

    /// The same of another host.
    pub(super) fn rank_of(&self, host: PeerKey, stripe: u32) -> usize {
        self.rank_at(self.place_of(host), stripe)
    }

    /// The place of a host among them.
    pub(super) fn place_of(&self, host: PeerKey) -> Option<usize> {
        self.hosts.iter().position(|other| *other == host)
    }

    /// `true` if the host at a place keeps a stripe, as long as no host is away.
    pub(super) fn keeps(&self, place: Option<usize>, stripe: u32) -> bool {
        self.rank_at(place, stripe) < self.copies
    }

    fn rank_at(&self, place: Option<usize>, stripe: u32) -> usize {
        let (all, first) = (self.hosts.len(), stripe as usize % self.hosts.len());
        place.map_or(all, |place| (place + all - first) % all)
    }

    fn at(&self, stripe: u32, rank: usize) -> PeerKey {
        self.hosts[(stripe as usize % self.hosts.len() + rank) % self.hosts.len()]
    }

    /// The host to ask for a stripe: of those to be preferred, the one with the least load. `load` is a host's load,
    /// `None` if it cannot be asked; `is_there` is `true` if it is connected at all.
    pub(super) fn source<L: Ord>(
        &self,
        stripe: u32,
        load: impl Fn(PeerKey) -> Option<(L, PeerId)>,
        is_there: impl Fn(PeerKey) -> bool,
    ) -> Option<PeerId> {
        let mine = self.rank(stripe);
        let best = |ranks: &mut dyn Iterator<Item = usize>| {
            let least = ranks.filter_map(|rank| load(self.at(stripe, rank))).min_by(|a, b| a.0.cmp(&b.0));
            least.map(|(_, peer)| peer)
        };
        best(&mut (0..self.copies.min(mine)))
            .or_else(|| best(&mut (mine.saturating_add(1)..self.copies)))
            .or_else(|| {
                let keeps = |rank: &usize| is_there(self.at(stripe, *rank)) || *rank == mine;
                let away = self.copies - (0..self.copies).filter(keeps).count();
                if away == 0 {
                    return None;
                }
                // Of those that come next, a few: it is not known which took whose place.
                let next = (self.copies..self.hosts.len()).filter(keeps).take(away);
                best(&mut next.filter(|rank| *rank != mine))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [PeerKey; 5] = [PeerKey(40), PeerKey(10), PeerKey(30), PeerKey(20), PeerKey(50)];

    /// The host that is asked for stripe 3 of three copies, if the load of a host is its key: the order is 20, 50, 40.
    fn asked(me: u64, there: &[u64], tried: &[u64]) -> Option<u32> {
        let pinned = Pinned::new(PeerKey(me), &HOSTS, 3).unwrap();
        let is_there = |key: PeerKey| there.contains(&key.0);
        let load = |key: PeerKey| {
            let usable = is_there(key) && !tried.contains(&key.0) && key.0 != me;
            usable.then(|| (key.0, PeerId(u32::try_from(key.0).unwrap())))
        };
        pinned.source(3, load, is_there).map(|peer| peer.0)
    }

    #[test]
    fn a_holder_of_the_stripe_is_asked_and_holders_ask_an_earlier_one() {
        let all = [10, 20, 30, 40, 50];
        assert_eq!(asked(7, &all, &[]), Some(20));
        assert_eq!(asked(7, &all, &[20]), Some(40), "less to do than the second");
        assert_eq!(asked(7, &all, &[20, 40, 50]), None, "nobody is away");
        assert_eq!(asked(40, &all, &[]), Some(20));
        assert_eq!(asked(40, &all, &[20]), Some(50));
        assert_eq!(asked(50, &all, &[20]), Some(40), "behind it");
        assert_eq!(asked(20, &all, &[]), Some(40), "none is before it");
        assert_eq!(asked(10, &all, &[]), Some(20), "it keeps others");
    }

    #[test]
    fn an_absent_holder_is_replaced_by_one_host() {
        assert_eq!(asked(7, &[10, 30], &[]), Some(10));
        assert_eq!(asked(7, &[10, 20, 30, 40], &[20, 40]), Some(10));
        assert_eq!(asked(7, &[10, 20, 30, 40], &[10, 20, 40]), None, "one took the place of one");
        assert_eq!(asked(10, &[20, 30, 40], &[20, 40]), None, "it is the one");
        assert_eq!(Pinned::new(PeerKey(1), &[], 2), None);
    }

    #[test]
    fn ranks_begin_with_the_stripe() {
        let pinned = Pinned::new(PeerKey(30), &HOSTS, 9).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 7].map(|stripe| pinned.rank(stripe)), [2, 1, 0, 4, 3, 0]);
        assert_eq!((pinned.rank_of(PeerKey(40), 3), pinned.rank_of(PeerKey(7), 3)), (2, 5));
        let pinned = Pinned::new(PeerKey(7), &HOSTS, 2).unwrap();
        let keeps = |host, stripe| pinned.keeps(pinned.place_of(PeerKey(host)), stripe);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|stripe| keeps(30, stripe)),
            [false, true, true, false, false, false]
        );
        assert!(!keeps(7, 0), "it is none of them");
    }
}
