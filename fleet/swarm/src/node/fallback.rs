//! The fallback: a store that does not answer, while other hosts may have the chunks.
//!
//! No host knows the chunks of all others: hosts tell only their neighbours. If the store answers, it does not matter,
//! because the designated fetcher fetches chunks that no peer is known to have. If it fails, or takes far longer than
//! it did, hosts that share the blob are asked one after the other, roots first, with no hops: only for chunks that
//! they have. It costs a few small messages for each chunk, and no host fetches anything for it.

use super::Node;
use super::membership::Membership;
use super::pending::Source;
use super::sharing::Sharing;
use crate::event::{Action, BlobId, PeerId, Role, Urgency};
use std::time::Duration;

/// The time for which other hosts are asked before a store that failed.
const FAILED: Duration = Duration::from_secs(10);

/// The factor by which the store may be slower than usual, and the time that it may take in any case.
const SLOWER: u32 = 4;
const LEAST: Duration = Duration::from_secs(2);

impl Node {
    /// The time that a disk may take for chunks that were left to it, before other hosts are asked for them.
    pub(super) fn fallback_after(&self) -> Duration {
        self.retransmit.for_store(Duration::ZERO).saturating_mul(SLOWER).max(LEAST)
    }

    /// The longest time that this host has waited for the store, at least with this urgency.
    pub(super) fn waits_for_store(&self, urgency: Urgency) -> Option<Duration> {
        self.fetches.waits(urgency, self.retransmit.store_max(), self.now)
    }

    /// `true` if other hosts had better be asked before the store.
    pub(super) fn store_is_suspect(&self) -> bool {
        self.fetches.has_failed_within(FAILED, self.now)
            || self.waits_for_store(Urgency::Demand).is_some_and(|waited| waited > self.fallback_after())
    }

    /// Asks other hosts for chunks that were left to disks and that these do not get.
    pub(super) fn fall_back(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        for chunk in chunks {
            if let Some(pending) = blob.table.pending_mut(*chunk) {
                pending.source = Source::Undecided;
                pending.search.restart_fallback();
            }
        }
        self.obtain(id, chunks, actions);
    }
}

/// The next host to ask for a chunk that any host may have: the one asked before, if it was not asked for this chunk,
/// then roots, then the others from some place on.
pub(super) fn next(
    sharing: &Sharing,
    membership: &Membership,
    last: Option<PeerId>,
    place: u32,
    usable: impl Fn(PeerId) -> bool,
) -> Option<PeerId> {
    if let Some(last) = last.filter(|last| usable(*last)) {
        return Some(last);
    }
    let is_root = |peer: &PeerId| membership.get(*peer).is_some_and(|record| record.role == Role::Root);
    let all = || {
        let sharers = sharing.sharers();
        let skipped = place as usize % sharers.len().max(1);
        let (first, rest) = sharers.split_at(skipped);
        rest.iter().chain(first).map(|(_, peer)| *peer).filter(|peer| usable(*peer))
    };
    all().find(is_root).or_else(|| all().next())
}
