//! The hosts that read the same chunks: sketches of the recent reads of a blob, and a ranking of hosts by them.
//!
//! A sketch is a minhash by one permutation (Li, Owen, Zhang 2012): a chunk's hash gives the one of [`PARTS`] parts to
//! which the chunk belongs, and each part keeps its least hash. The share of parts in which two sketches agree is the
//! share that the sets of chunks have in common (Jaccard), give or take a sixteenth. A read costs one hash; a sketch is
//! 256 bytes.
//!
//! A least hash cannot be taken back when a read grows old. Therefore reads are kept in two halves: the younger is
//! filled, and when it has its share, the older is thrown away and the younger takes its place.
//!
//! The ranking keeps one number for each host and blob instead of its sketch, for a bounded number of hosts, the best
//! ones.

use crate::event::{BlobId, PeerKey};
use headstart_block::exact;

#[cfg(test)]
mod tests;

/// The number of parts in a sketch.
pub const PARTS: usize = 64;

/// The value of a part to which no read belongs.
pub const EMPTY: u32 = u32::MAX;

/// The recent reads of this host in one blob.
#[derive(Clone, Debug)]
pub struct RecentReads {
    younger: [u32; PARTS],
    older: [u32; PARTS],
    /// The number of reads in the younger half, and the most that it takes.
    filled: u32,
    half: u32,
}

impl RecentReads {
    /// The last `window` reads, or down to half as many.
    #[must_use]
    pub fn new(window: u32) -> Self {
        Self { younger: [EMPTY; PARTS], older: [EMPTY; PARTS], filled: 0, half: (window / 2).max(1) }
    }

    /// Notes a chunk that was read for the first time in a while. Noting it again does no harm, but fills the window.
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

    /// `true` if nothing was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filled == 0 && self.older == [EMPTY; PARTS]
    }

    /// The sketch to send to other hosts.
    #[must_use]
    pub fn sketch(&self) -> Vec<u32> {
        self.younger.iter().zip(&self.older).map(|(younger, older)| *younger.min(older)).collect()
    }
}

/// The similarity of the reads behind two sketches, from 0 to 1: the share that both read of the chunks that either
/// read. 0 if one of them is not a sketch.
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

/// Hosts by the similarity of their reads.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// The most hosts that are kept.
    capacity: usize,
    hosts: std::collections::BTreeMap<PeerKey, Vec<(BlobId, f32)>>,
}

impl Ranking {
    /// A ranking of at most `capacity` hosts: the least alike is forgotten for a better one.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), hosts: std::collections::BTreeMap::new() }
    }

    /// Notes that a host's sketch of a blob came, and is [`alike`] this host's own to this degree.
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

    /// Removes a host that is gone.
    pub fn forget(&mut self, host: PeerKey) {
        self.hosts.remove(&host);
    }

    /// Removes a blob that is closed.
    pub fn forget_blob(&mut self, blob: BlobId) {
        self.hosts.values_mut().for_each(|scores| scores.retain(|(other, _)| *other != blob));
        self.hosts.retain(|_, scores| !scores.is_empty());
    }

    /// The similarity of a host's reads: the sum over the blobs; 0 for an unknown host.
    #[must_use]
    pub fn score(&self, host: PeerKey) -> f32 {
        self.hosts.get(&host).map_or(0.0, |scores| total(scores))
    }

    /// The `count` hosts whose reads are most alike, best first. One of the `present` hosts stays unless another is
    /// better by a fifth, so that neighbours change when reads do and not with every sketch. Hosts with nothing in
    /// common are left out.
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
