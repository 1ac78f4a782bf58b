//! A chunk that is on its way: what waits for it, its present source, and the search for a source.
//!
//! ```text
//!     Undecided ──► Peer(request) ──┐       it does not come by it
//!      ▲  │  │                      ├──────────────────────────────► Undecided
//!      │  │  └────► Fetch(fetch) ───┘
//!      │  └───────► Disk { since } ── the disk is too slow, and other hosts may have it
//!      └────────────────────┘
//! ```
//!
//! `Undecided` is a state within one event: at its end every chunk has a source, or is not on its way any more.
//!
//! The search tries each peer once, in one of three modes:
//!
//! | mode | the peers that are asked | the end |
//! |---|---|---|
//! | `Usual` | those that were named, that advertised the chunk, the upstream | the store |
//! | `Fallback` | after these, any that may have it: the store is not relied on | the store after all |
//! | `Probe` | the same, because a promise is doubted | the peer that has promised |

use crate::Time;
use crate::event::{PeerId, StoreFetchId, Urgency, WantId};
use crate::message::RequestId;

/// The number of peers that are asked for a chunk, one after the other, before the store is.
const TRIES: u8 = 6;

/// The number of hosts that are asked for one chunk in vain before it is left to the store after all.
const TRIES_FALLBACK: u8 = 16;

/// The source of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Undecided: only within one event.
    Undecided,
    /// Requested from a peer.
    Peer(RequestId),
    /// Fetched from the store by the agent.
    Fetch(StoreFetchId),
    /// Left to a disk of this host at this time, which fetches it from the store, or does not.
    Disk { since: Time },
}

/// Another host that waits for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) peer: PeerId,
    pub(super) request: RequestId,
    pub(super) urgency: Urgency,
    /// `true` if another host sent it here.
    pub(super) redirected: bool,
}

/// The way of looking for a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchMode {
    /// The usual sources, and then the store.
    Usual,
    /// The store may fail to deliver the chunk: any host that may have it is asked.
    Fallback,
    /// The same, because this peer has promised the chunk and it does not come: that peer is asked again at last.
    Probe { promised_by: PeerId, promised_at: Time },
}

/// The end of a chunk's search by its coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// A usual source had it.
    Usual,
    /// A host had it while the store was not relied on.
    Fallback,
    /// A host had it that this peer has promised since this time: the promise is broken.
    BrokenPromise(PeerId, Time),
}

/// The search for a chunk's source.
#[derive(Clone, Debug)]
pub(super) struct Search {
    mode: SearchMode,
    /// Peers that did not send it.
    tried: Vec<PeerId>,
    /// Peers that are said to have it, to be asked next.
    named: Vec<PeerId>,
    /// The number of requests in this mode.
    tries: u8,
    /// The number of times that a promise of it was doubted.
    probe_count: u8,
    /// `true` if a peer named others: the next peer that is asked with hops is to name no more.
    no_redirect: bool,
}

impl Search {
    fn new() -> Self {
        Self {
            mode: SearchMode::Usual,
            tried: Vec::new(),
            named: Vec::new(),
            tries: 0,
            probe_count: 0,
            no_redirect: false,
        }
    }

    /// Asks any host from now on, because the store may fail.
    pub(super) fn fall_back(&mut self) {
        if self.mode == SearchMode::Usual {
            self.mode = SearchMode::Fallback;
        }
    }

    /// Begins to ask any host, those that were tried as well.
    pub(super) fn restart_fallback(&mut self) {
        self.fall_back();
        self.tries = 0;
        self.tried.clear();
    }

    /// Begins to ask any host, because `promised_by` has promised the chunk and it does not come.
    pub(super) fn probe(&mut self, promised_by: PeerId, promised_at: Time) {
        self.mode = SearchMode::Probe { promised_by, promised_at };
        self.tries = 0;
        self.probe_count += 1;
        self.tried = vec![promised_by];
    }

    /// Ends a probe in vain: the search begins again with the peer that has promised the chunk, which is returned.
    pub(super) fn end_probe(&mut self) -> Option<PeerId> {
        let SearchMode::Probe { promised_by, .. } = self.mode else { return None };
        self.mode = SearchMode::Usual;
        self.tries = 0;
        self.tried.clear();
        Some(promised_by)
    }

    /// `true` if any host is asked.
    pub(super) fn asks_any(&self) -> bool {
        self.mode != SearchMode::Usual
    }

    /// `true` if enough peers were asked.
    pub(super) fn is_over(&self) -> bool {
        self.tries >= if self.asks_any() { TRIES_FALLBACK } else { TRIES }
    }

    /// `true` if a promise is doubted.
    pub(super) fn is_probe(&self) -> bool {
        matches!(self.mode, SearchMode::Probe { .. })
    }

    /// `true` if a peer was tried.
    pub(super) fn has_tried(&self, peer: PeerId) -> bool {
        self.tried.contains(&peer)
    }

    /// Takes the next of the named peers that is `usable` and was not tried.
    pub(super) fn next_named(&mut self, usable: impl Fn(PeerId) -> bool) -> Option<PeerId> {
        while !self.named.is_empty() {
            let peer = self.named.remove(0);
            if usable(peer) && !self.has_tried(peer) {
                return Some(peer);
            }
        }
        None
    }

    /// Notes that a peer is asked.
    pub(super) fn on_requested(&mut self) {
        self.tries += 1;
    }

    /// Notes that a peer does not send the chunk.
    pub(super) fn on_failed(&mut self, peer: PeerId) {
        self.tried.push(peer);
    }

    /// Notes that `peer` has named others in its place. If it has named only strangers for the second time, it is not
    /// asked again.
    pub(super) fn on_redirected(&mut self, peer: PeerId, named: &[PeerId]) {
        if named.is_empty() && self.no_redirect {
            self.tried.push(peer);
        }
        self.named = named.to_vec();
        self.no_redirect = true;
    }

    /// `true` if the next peer that is asked is to name no others.
    pub(super) fn no_redirect(&self) -> bool {
        self.no_redirect
    }

    /// The number of times that a promise of the chunk was doubted.
    pub(super) fn probe_count(&self) -> u8 {
        self.probe_count
    }

    /// The end of the search, if a peer has sent the chunk.
    pub(super) fn finding(&self) -> Finding {
        match self.mode {
            SearchMode::Usual => Finding::Usual,
            SearchMode::Fallback => Finding::Fallback,
            SearchMode::Probe { promised_by, promised_at } => {
                Finding::BrokenPromise(promised_by, promised_at)
            }
        }
    }
}

/// A chunk that is on its way here.
#[derive(Clone, Debug)]
pub(super) struct PendingChunk {
    pub(super) source: Source,
    /// The greatest urgency among the waiting wants and hosts.
    pub(super) urgency: Urgency,
    pub(super) wants: Vec<WantId>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) search: Search,
    /// The number of hosts that a request for it may pass through.
    pub(super) hops: u8,
}

impl PendingChunk {
    /// A chunk that nothing waits for, and whose source is undecided.
    pub(super) fn new(urgency: Urgency, hops: u8) -> Self {
        Self {
            source: Source::Undecided,
            urgency,
            wants: Vec::new(),
            waiters: Vec::new(),
            search: Search::new(),
            hops,
        }
    }

    /// `true` if nothing waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.wants.is_empty() && self.waiters.is_empty()
    }

    /// `true` if it was requested from a peer by this request.
    pub(super) fn is_of(&self, request: RequestId) -> bool {
        self.source == Source::Peer(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(1);

    #[test]
    fn the_usual_search_ends_after_a_few_peers_and_the_fallback_after_more() {
        let mut search = Search::new();
        (0..TRIES).for_each(|_| search.on_requested());
        assert!(search.is_over());
        search.on_failed(PEER);
        search.fall_back();
        assert!(!search.is_over() && search.has_tried(PEER), "it goes on");
        search.restart_fallback();
        assert!(!search.has_tried(PEER), "it begins again");
        (0..TRIES_FALLBACK).for_each(|_| search.on_requested());
        assert!(search.is_over());
        assert_eq!(search.finding(), Finding::Fallback);
    }

    #[test]
    fn a_probe_ends_with_the_peer_that_has_promised() {
        let mut search = Search::new();
        assert_eq!(search.end_probe(), None);
        search.probe(PEER, Time(5));
        assert!(search.has_tried(PEER) && search.asks_any() && search.is_probe());
        assert_eq!(search.finding(), Finding::BrokenPromise(PEER, Time(5)));
        search.restart_fallback();
        assert!(search.is_probe(), "the promise is still doubted");
        assert_eq!(search.end_probe(), Some(PEER));
        assert!(!search.asks_any() && !search.has_tried(PEER));
        assert_eq!((search.probe_count(), search.finding()), (1, Finding::Usual));
    }

    #[test]
    fn named_peers_are_asked_once_and_strangers_named_twice_end_it() {
        let mut search = Search::new();
        search.on_redirected(PEER, &[]);
        assert!(search.no_redirect() && !search.has_tried(PEER), "it is asked again, to name none");
        search.on_redirected(PEER, &[]);
        assert!(search.has_tried(PEER));
        search.on_redirected(PEER, &[PeerId(2), PEER, PeerId(3), PeerId(4)]);
        assert_eq!(search.next_named(|peer| peer != PeerId(2)), Some(PeerId(3)));
        assert_eq!(search.next_named(|_| true), Some(PeerId(4)));
        assert_eq!(search.next_named(|_| true), None);
    }
}
