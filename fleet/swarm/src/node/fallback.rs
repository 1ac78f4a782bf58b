//! The last resort: a store that does not answer, while other hosts may have the chunks.
//!
//! No host knows the chunks of all others: hosts tell only their neighbours. If the store answers, it does not matter,
//! because the home fetches chunks that no peer is known to have. If it fails, or takes far longer than it did, hosts
//! that share the blob are asked one after the other, roots first, with no hops: only for chunks that they have. It
//! costs a few small messages for each chunk, and no host fetches anything for it.

use super::blob::{Blob, How};
use super::peers::Peer;
use super::{DISK, Node};
use crate::Time;
use crate::event::{Action, BlobId, PeerId, Role, Urgency};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of hosts that are asked for one chunk before it is left to the store after all.
pub(super) const ASKED: u8 = 16;

/// The time for which other hosts are asked before a store that failed.
const FAILED: Duration = Duration::from_secs(10);

/// The factor by which the store may be slower than usual, and the time that it may take in any case.
const SLOWER: u32 = 4;
const LEAST: Duration = Duration::from_secs(2);

impl Node {
    /// The time that a disk may take for chunks that were left to it, before other hosts are asked for them.
    pub(super) fn resort_after(&self) -> Duration {
        self.patience.of_store(Duration::ZERO).saturating_mul(SLOWER).max(LEAST)
    }

    /// The longest time that this host has waited for the store, at least with this urgency.
    pub(super) fn waits_for_store(&self, urgency: Urgency) -> Option<Duration> {
        let fetches = self.fetches.values().filter(|fetch| fetch.urgency <= urgency).map(|fetch| fetch.since);
        let hardest = self.patience.hardest();
        let probe = self.probe.map(|(_, _, since)| since).filter(|since| self.now.since(*since) < hardest);
        fetches.chain(probe).min().map(|since| self.now.since(since))
    }

    /// `true` if other hosts had better be asked before the store.
    pub(super) fn store_is_suspect(&self) -> bool {
        self.store_failed.is_some_and(|at| self.now.since(at) < FAILED)
            || self.waits_for_store(Urgency::Demand).is_some_and(|waited| waited > self.resort_after())
    }

    /// Asks other hosts for chunks that were left to disks and that these do not get.
    pub(super) fn resort(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        for chunk in chunks {
            if let Some(coming) = blob.coming.get_mut(chunk) {
                (coming.how, coming.resort, coming.tries) = (How::New, true, 0);
                coming.tried.clear();
            }
        }
        self.obtain(id, chunks, actions);
    }
}

/// The time since which a disk has had chunks that were left to it until `until`.
pub(super) fn left_at(until: Time) -> Time {
    Time(until.0.saturating_sub(u64::try_from(DISK.as_micros()).unwrap_or(u64::MAX)))
}

/// The next host to ask for a chunk that any host may have: the one asked before, if it was not asked for this chunk,
/// then roots, then the others from some place on.
pub(super) fn next(
    blob: &Blob,
    peers: &BTreeMap<PeerId, Peer>,
    last: Option<PeerId>,
    place: u32,
    usable: impl Fn(PeerId) -> bool,
) -> Option<PeerId> {
    if let Some(last) = last.filter(|last| usable(*last)) {
        return Some(last);
    }
    let is_root = |peer: &PeerId| peers.get(peer).is_some_and(|known| known.role == Role::Root);
    let all = || {
        let skipped = place as usize % blob.sharers.len().max(1);
        let (first, rest) = blob.sharers.split_at(skipped);
        rest.iter().chain(first).map(|(_, peer)| *peer).filter(|peer| usable(*peer))
    };
    all().find(is_root).or_else(|| all().next())
}
