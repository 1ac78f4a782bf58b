//! The hosts that read the same chunks: sketches of the recent reads of a blob, and a ranking of hosts by them.
//!
//! A sketch is a minhash by one permutation (Li, Owen, Zhang 2012): a chunk's hash decides to which of [`PARTS`]
//! classes the chunk belongs, and for each class the sketch has the least hash of the chunks that were read. The share
//! of classes in which two sketches agree is an estimate of the Jaccard index of the two sets of chunks, with an error
//! of about a sixteenth. A read costs one hash; a sketch is 256 bytes.
//!
//! A least hash cannot be taken back when a read grows old. Therefore reads are kept in two halves. When the younger
//! half has half of the window's reads, the older half is discarded, and an empty half becomes the younger one.
//!
//! The ranking keeps one number for each host and blob instead of the sketch, and only for a bounded number of hosts:
//! those with the highest scores.

use crate::event::{BlobId, PeerKey};
use headstart_block::exact;

#[cfg(test)]
mod tests;

/// The number of values in a sketch, and of classes into which chunks are divided by hash.
pub const PARTS: usize = 64;

/// The value in a sketch for a class of chunks of which none was read.
pub const EMPTY: u32 = u32::MAX;

/// A summary of the chunks of one blob that this host has recently read.
#[derive(Clone, Debug)]
pub struct RecentReads {
    younger: [u32; PARTS],
    older: [u32; PARTS],
    /// The number of reads in the younger half, and the most that it takes.
    filled: u32,
    half: u32,
}

impl RecentReads {
    /// Creates an empty summary. After at least `window` reads, it covers the last reads: at least `window / 2` and at
    /// most `window` of them.
    #[must_use]
    pub fn new(window: u32) -> Self {
        Self { younger: [EMPTY; PARTS], older: [EMPTY; PARTS], filled: 0, half: (window / 2).max(1) }
    }

    /// Records a read of `chunk`. A chunk that was read before counts as one more read of the window.
    pub fn read(&mut self, chunk: u32) {
        let hash = headstart_block::random::mix(u64::from(chunk).wrapping_add(headstart_block::random::STEP));
        let part = &mut self.younger[(hash >> 58) as usize];
        *part = (*part).min(exact(hash & u64::from(u32::MAX), "it was cut to 32 bits"));
        self.filled += 1;
        if self.filled >= self.half {
            self.older = std::mem::replace(&mut self.younger, [EMPTY; PARTS]);
            self.filled = 0;
        }
    }

    /// Returns `true` if no read is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filled == 0 && self.older == [EMPTY; PARTS]
    }

    /// The sketch of the recorded reads, to be sent to other hosts: [`PARTS`] values, one for each class of chunks. A
    /// value is the least hash of the chunks of its class that were read, or [`EMPTY`] if none was.
    #[must_use]
    pub fn sketch(&self) -> Vec<u32> {
        self.younger.iter().zip(&self.older).map(|(younger, older)| *younger.min(older)).collect()
    }
}

/// Estimates how similar the reads behind two sketches are, from 0 to 1: the number of chunks in both sets of reads,
/// divided by the number in either (Jaccard index). 0 if a slice does not have [`PARTS`] values, or if no chunk was
/// read on either side.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "at most 64")]
pub fn alike(one: &[u32], other: &[u32]) -> f32 {
    if one.len() != PARTS || other.len() != PARTS {
        return 0.0;
    }
    let filled = one.iter().zip(other).filter(|(a, b)| **a != EMPTY || **b != EMPTY).count();
    let equal = one.iter().zip(other).filter(|(a, b)| a == b && **a != EMPTY).count();
    if filled == 0 { 0.0 } else { equal as f32 / filled as f32 }
}

/// Scores of other hosts: how similar their reads are to this host's.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// The most hosts that are kept.
    capacity: usize,
    hosts: std::collections::BTreeMap<PeerKey, Vec<(BlobId, f32)>>,
}

impl Ranking {
    /// Creates an empty ranking. It keeps at most `capacity` hosts; beyond that the host with the lowest
    /// score is removed.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), hosts: std::collections::BTreeMap::new() }
    }

    /// Records the similarity `alike` (the result of [`alike`], 0 to 1) of a host's reads of `blob` to this
    /// host's. It replaces the last value for that host and blob.
    pub fn on_sketch(&mut self, host: PeerKey, blob: BlobId, alike: f32) {
        let alike = if alike.is_finite() { alike.clamp(0.0, 1.0) } else { 0.0 };
        let scores = self.hosts.entry(host).or_default();
        match scores.iter_mut().find(|(other, _)| *other == blob) {
            Some((_, old)) => *old = alike,
            None => scores.push((blob, alike)),
        }
        if self.hosts.len() > self.capacity {
            let worst = |(a, x): &(&PeerKey, &Vec<_>), (b, y): &(&PeerKey, &Vec<_>)| {
                total(x).total_cmp(&total(y)).then(b.cmp(a))
            };
            let least = self.hosts.iter().min_by(worst).map(|(key, _)| *key);
            least.map(|key| self.hosts.remove(&key));
        }
    }

    /// Removes all scores of a host that has left the swarm.
    pub fn forget(&mut self, host: PeerKey) {
        self.hosts.remove(&host);
    }

    /// Removes the scores for a blob that this host has closed.
    pub fn forget_blob(&mut self, blob: BlobId) {
        self.hosts.values_mut().for_each(|scores| scores.retain(|(other, _)| *other != blob));
        self.hosts.retain(|_, scores| !scores.is_empty());
    }

    /// The score of a host: the sum of its similarities over all blobs, so it can exceed 1. 0 for an unknown
    /// host.
    #[must_use]
    pub fn score(&self, host: PeerKey) -> f32 {
        self.hosts.get(&host).map_or(0.0, |scores| total(scores))
    }

    /// The `count` hosts with the highest scores above 0, best first; fewer if there are not so many. The score of a
    /// host in `present` (the present neighbours) counts a fifth more here, so that small changes do not replace that
    /// host.
    #[must_use]
    pub fn best(&self, present: &[PeerKey], count: usize) -> Vec<PeerKey> {
        let bonus = |host: &PeerKey| if present.contains(host) { 1.2 } else { 1.0 };
        let mut scored: Vec<(f32, PeerKey)> =
            self.hosts.iter().map(|(host, scores)| (total(scores) * bonus(host), *host)).collect();
        scored.retain(|(score, _)| *score > 0.0);
        scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored.into_iter().take(count).map(|(_, host)| host).collect()
    }
}

fn total(scores: &[(BlobId, f32)]) -> f32 {
    scores.iter().map(|(_, alike)| alike).sum()
}
