//! Uncompressed parts that were read lately, and inflaters that were stopped, shared by many views.
//!
//! A cache holds a fixed number of bytes, whatever is read through it. It is divided into shards with a lock each, held
//! for a look-up or an insertion only, never while bytes are read or inflated. Parts leave a shard in the order in
//! which they came, but one that was read meanwhile gets a second round.
//!
//! An inflater that has come to the end of a part is kept, too: a reader that goes on from there, as most do, then
//! needs not inflate from the restart point again. There are at most [`PAUSED_MAX`] of them, of some 50 KiB each.

use crate::inflater::RawInflater;
use headstart_block::to_usize;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: u64 = 8;

/// Most inflaters that a cache keeps beside its bytes.
pub const PAUSED_MAX: usize = 16;

/// The place of a part: the view, the piece of its blob, the part of the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartKey {
    pub(crate) view: u64,
    pub(crate) piece: usize,
    pub(crate) part: u64,
}

/// Uncompressed parts of gzip blobs, at most so many bytes of them as it was made for. Any number of
/// [views](crate::InflatedView) may share one. Parts of views that are gone stay until others need their space.
pub struct InflatedCache {
    shards: Box<[Mutex<Shard>]>,
    shard_bytes: usize,
    paused: Mutex<VecDeque<(PartKey, RawInflater)>>,
    views: AtomicU64,
    /// The number of times that it was cleared.
    cleared: AtomicU64,
}

#[derive(Default)]
struct Shard {
    parts: BTreeMap<PartKey, CachedPart>,
    /// The parts in the order in which they came.
    order: VecDeque<PartKey>,
    bytes: usize,
}

struct CachedPart {
    bytes: Arc<[u8]>,
    was_read: bool,
}

impl InflatedCache {
    /// The number of bytes that suits the disk of one image: 64 MiB.
    pub const DEFAULT_BYTES: usize = 64 << 20;

    /// Makes an empty cache of at most `bytes` bytes. With less than 512 KiB, it keeps nothing.
    #[must_use]
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_bytes: bytes / to_usize(SHARDS),
            paused: Mutex::default(),
            views: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        })
    }

    /// Returns the number of bytes that are in the cache.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    /// Drops everything, because the bytes of a blob were found wrong. Parts that are being inflated meanwhile do not
    /// enter the cache.
    pub fn clear(&self) {
        // Before the parts go: a thread that inserts one looks at the number while it has the shard's lock.
        self.cleared.fetch_add(1, Ordering::SeqCst);
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
        self.paused.lock().clear();
    }

    /// The number of times that the cache was cleared, to be given to [`InflatedCache::insert`] and
    /// [`InflatedCache::pause`] by a reader that found it out before its first byte.
    pub(crate) fn times_cleared(&self) -> u64 {
        self.cleared.load(Ordering::SeqCst)
    }

    /// Drops the parts of the piece of `key`.
    pub(crate) fn forget_piece(&self, key: PartKey) {
        let (first, last) = (PartKey { part: 0, ..key }, PartKey { part: u64::MAX, ..key });
        for shard in &self.shards {
            let mut shard = shard.lock();
            let keys: Vec<_> = shard.parts.range(first..=last).map(|(key, _)| *key).collect();
            for key in keys {
                let dropped = shard.parts.remove(&key).map_or(0, |part| part.bytes.len());
                shard.bytes -= dropped;
                shard.order.retain(|other| *other != key);
            }
        }
        self.paused.lock().retain(|(at, _)| (at.view, at.piece) != (key.view, key.piece));
    }

    /// The number of a new view.
    pub(crate) fn new_view(&self) -> u64 {
        self.views.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn get(&self, key: PartKey) -> Option<Arc<[u8]>> {
        let mut shard = self.shard(key).lock();
        let part = shard.parts.get_mut(&key)?;
        part.was_read = true;
        Some(Arc::clone(&part.bytes))
    }

    /// Keeps a part, unless the cache was cleared since it had been `cleared` times.
    pub(crate) fn insert(&self, key: PartKey, bytes: Arc<[u8]>, cleared: u64) {
        if bytes.len() > self.shard_bytes {
            return;
        }
        let mut shard = self.shard(key).lock();
        if shard.parts.contains_key(&key) || self.times_cleared() != cleared {
            return;
        }
        shard.make_room(self.shard_bytes - bytes.len());
        shard.bytes += bytes.len();
        shard.order.push_back(key);
        shard.parts.insert(key, CachedPart { bytes, was_read: false });
    }

    /// Keeps an inflater that has come to the start of the part `key`, unless the cache was cleared since it had been
    /// `cleared` times.
    pub(crate) fn pause(&self, key: PartKey, inflater: RawInflater, cleared: u64) {
        let mut paused = self.paused.lock();
        if self.times_cleared() != cleared {
            return;
        }
        if paused.len() == PAUSED_MAX {
            paused.pop_front();
        }
        paused.push_back((key, inflater));
    }

    /// Takes out the inflater that has come farthest in the piece of `key`, but not past the start of its part.
    pub(crate) fn resume(&self, key: PartKey) -> Option<(u64, RawInflater)> {
        let mut paused = self.paused.lock();
        let fits = |at: &PartKey| (at.view, at.piece) == (key.view, key.piece) && at.part <= key.part;
        let found = paused.iter().enumerate().filter(|(_, (at, _))| fits(at));
        let (place, _) = found.max_by_key(|(_, (at, _))| at.part)?;
        let (at, inflater) = paused.remove(place)?;
        Some((at.part, inflater))
    }

    fn shard(&self, key: PartKey) -> &Mutex<Shard> {
        let mixed = (key.view.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_add(key.piece as u64)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .wrapping_add(key.part)
            .wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        &self.shards[to_usize((mixed >> 32) % SHARDS)]
    }
}

impl Shard {
    /// Drops parts until at most `left` bytes are left.
    fn make_room(&mut self, left: usize) {
        while self.bytes > left {
            let Some(key) = self.order.pop_front() else { return };
            let Some(part) = self.parts.get_mut(&key) else { continue };
            if std::mem::take(&mut part.was_read) {
                self.order.push_back(key);
                continue;
            }
            self.bytes -= part.bytes.len();
            self.parts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(part: u64) -> PartKey {
        PartKey { view: 1, piece: 2, part }
    }

    #[test]
    fn a_cache_never_holds_more_than_it_may() {
        let cache = InflatedCache::new(1 << 20);
        for part in 0..1000 {
            cache.insert(key(part), vec![7; 50_000].into(), 0);
            assert!(cache.bytes() <= 1 << 20);
        }
        assert!(cache.bytes() > 512 << 10);
        cache.insert(key(5000), vec![7; 1 << 20].into(), 0);
        assert!(cache.get(key(5000)).is_none());
    }

    #[test]
    fn a_part_that_is_read_stays_longer() {
        let cache = InflatedCache::new(1 << 20);
        cache.insert(key(0), vec![7; 30_000].into(), 0);
        for part in 1..200 {
            assert!(cache.get(key(0)).is_some(), "{part}");
            cache.insert(key(part), vec![7; 30_000].into(), 0);
        }
        assert!(cache.get(key(1)).is_none());
    }

    #[test]
    fn a_part_that_was_begun_before_the_cache_was_cleared_is_not_kept() {
        let cache = InflatedCache::new(1 << 20);
        let before = cache.times_cleared();
        cache.insert(key(0), vec![7; 30_000].into(), before);
        cache.clear();
        assert!(cache.get(key(0)).is_none() && cache.bytes() == 0);
        cache.insert(key(1), vec![7; 30_000].into(), before);
        assert!(cache.get(key(1)).is_none());
        cache.insert(key(1), vec![7; 30_000].into(), cache.times_cleared());
        assert!(cache.get(key(1)).is_some());
    }
}
