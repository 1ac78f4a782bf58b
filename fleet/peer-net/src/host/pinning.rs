//! Pinned blobs: blobs that a list of hosts keeps together. A blob is divided into stripes (groups of consecutive
//! chunks), which the hosts keep in turn ([`Holding`]). The swarm's state machine is told which hosts keep each blob
//! that this host exchanges.
//!
//! The same hosts keep the outboard of the blob's hash tree, which is a blob of its own.

use crate::blob::Identity;
use crate::host::Host;
use crate::peer_key::key_of;
use crate::{SharedBlob, Swarm};
use headstart_block::{ByteRange, saturating};
use headstart_swarm::{Chunks, PeerKey, placement};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The hosts that together keep a pinned blob. A stripe is a group of consecutive chunks; stripe `n` is kept
/// by `copies` consecutive hosts of the list, from place `n` (modulo the number of hosts) on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub(super) hosts: Vec<PeerKey>,
    pub(super) copies: u32,
}

impl Holding {
    /// A list of hosts, by name, that keep `copies` copies of each byte. If `copies` is 0, they keep one copy; if it is
    /// above the number of hosts, each host keeps all of the blob.
    pub fn new(hosts: &[String], copies: u32) -> Self {
        Self { hosts: hosts.iter().map(|host| key_of(host)).collect(), copies }
    }

    /// The part that `key` keeps of a blob of `len` bytes: ascending runs with gaps between them. It replaces hosts
    /// before it that are `gone`.
    fn ranges(&self, key: PeerKey, gone: &HashSet<PeerKey>, stripe: u32, len: u64) -> Vec<ByteRange> {
        let all = Chunks::touched(ByteRange::between(0, len)).count;
        let mut ranges: Vec<ByteRange> = Vec::new();
        for number in 0..all.div_ceil(stripe.max(1)) {
            if !self.keeps(key, gone, number) {
                continue;
            }
            let range = placement::chunks_of(number, stripe, all).bytes(len);
            match ranges.last_mut() {
                Some(last) if last.end() == range.offset() => {
                    *last = ByteRange::between(last.offset(), range.end());
                }
                _ => ranges.push(range),
            }
        }
        ranges
    }

    /// `true` if `key` is one of the first hosts of a stripe's order, or of those that are left of it.
    fn keeps(&self, key: PeerKey, gone: &HashSet<PeerKey>, number: u32) -> bool {
        let all = saturating(self.hosts.len());
        let order = || placement::holders(&self.hosts, all, number);
        let copies = self.copies.max(1) as usize;
        let is_first = order().take(copies).any(|host| host == key);
        is_first
            || !gone.is_empty() && order().filter(|host| !gone.contains(host)).take(copies).any(|h| h == key)
    }

    /// Returns `true` if `key` is one of the hosts in the list.
    pub fn has(&self, key: PeerKey) -> bool {
        self.hosts.contains(&key)
    }
}

/// The holdings by blobs and outboards.
pub(crate) type Holdings = HashMap<Identity, Arc<Holding>>;

impl Host {
    /// Sets the holdings from now on.
    fn set_holdings(self: &Arc<Self>, holdings: Holdings) {
        let mut core = self.core();
        let before = std::mem::replace(&mut core.holdings, holdings);
        let open: Vec<_> = core.blobs.iter().map(|(id, entry)| (*id, entry.blob.identity)).collect();
        for (id, identity) in open {
            let holding = core.holdings.get(&identity).cloned();
            if holding.as_deref() != before.get(&identity).map(|holding| &**holding) {
                core.report_holding(self, id, holding.as_deref());
            }
        }
    }
}

impl Swarm {
    /// Replaces the lists of hosts that keep blobs. The list of a blob is also that of the blob's hash tree. Blobs
    /// without a hash tree are ignored, and blobs that are not in `kept` have no such list any more.
    pub fn set_holdings<'a>(
        &self,
        kept: impl Iterator<Item = (&'a headstart_cache::BlobSpec, &'a Arc<Holding>)>,
    ) {
        let mut holdings = Holdings::new();
        for (spec, holding) in kept {
            let Some(tree) = &spec.tree else { continue };
            let root = *tree.root.as_bytes();
            for (digest, len) in [(spec.digest, spec.len), (tree.digest, tree.size)] {
                holdings.insert(Identity { digest, len, root }, Arc::clone(holding));
            }
        }
        self.host.set_holdings(holdings);
    }

    /// The hash of this host's name, by which all hosts identify this one.
    pub fn key(&self) -> PeerKey {
        self.key
    }
}

impl SharedBlob {
    /// The ranges of the blob, ascending, that this host has to keep by the list `holding`. The ranges that it has to
    /// keep in place of the hosts in `gone`, which cannot be reached, are included. Empty if this host is not in the
    /// list, or if the blob has no hash tree and so is never exchanged.
    pub fn kept(&self, holding: &Holding, gone: &HashSet<PeerKey>) -> Vec<ByteRange> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let swarm = &shared.swarm;
        holding.ranges(swarm.key, gone, swarm.stripe, self.cached.spec().len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_swarm::CHUNK_SIZE;

    const LEN: u64 = CHUNK_SIZE * 30 + 17;

    fn holding(copies: u32) -> (Holding, Vec<PeerKey>) {
        let hosts: Vec<_> = [7, 1, 9, 4].map(PeerKey).into();
        (Holding { hosts: hosts.clone(), copies }, hosts)
    }

    #[test]
    fn all_of_a_blob_is_kept_as_often_as_was_said() {
        for copies in 1..=5 {
            let (holding, hosts) = holding(copies);
            let kept = |key: &PeerKey| {
                let ranges = holding.ranges(*key, &HashSet::new(), 4, LEN);
                assert!(ranges.windows(2).all(|pair| pair[0].end() < pair[1].offset()));
                ranges.iter().map(|range| range.len()).sum::<u64>()
            };
            assert_eq!(hosts.iter().map(kept).sum::<u64>(), LEN * u64::from(copies.min(4)));
            assert_eq!(kept(&PeerKey(2)), 0);
        }
    }

    #[test]
    fn remaining_hosts_keep_the_chunks_of_those_that_are_gone() {
        let (holding, hosts) = holding(2);
        for gone in &hosts {
            let gone = HashSet::from([*gone]);
            let left = hosts.iter().filter(|host| !gone.contains(host));
            let kept: Vec<_> = left.map(|host| holding.ranges(*host, &gone, 4, LEN)).collect();
            for chunk in 0..=30 {
                let at = chunk * CHUNK_SIZE;
                let has = |ranges: &&Vec<ByteRange>| ranges.iter().any(|r| r.offset() <= at && at < r.end());
                assert_eq!(kept.iter().filter(has).count(), 2, "{chunk}");
            }
        }
        let (a, b) = (hosts[0], HashSet::from([hosts[1], hosts[2], hosts[3]]));
        assert_eq!(holding.ranges(a, &b, 4, LEN), [ByteRange::between(0, LEN)]);
    }
}
