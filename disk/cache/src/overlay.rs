//! Bytes that the disk did not take: verified units in memory, so that the reads that wait for them complete.
//!
//! A cache disk that is full or fails must not stop a disk. Units that are inserted then go here, within a bound, the
//! oldest out first; reads look here only for units that are not local. A unit that was dropped is fetched again when
//! it is read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A unit of a blob: the blob's number in this process, the unit's in the blob.
type Key = (u64, u64);

struct Kept {
    bytes: Box<[u8]>,
    /// The number of units of its blob in the overlay.
    units: Arc<AtomicUsize>,
}

/// Units in memory.
#[derive(Default)]
pub(crate) struct Overlay {
    kept: BTreeMap<Key, Kept>,
    /// Keys in the order in which their units came; also some whose units are gone.
    order: VecDeque<Key>,
    bytes: u64,
}

impl Overlay {
    /// Takes a unit; the oldest units go until the rest fits into `limit` bytes.
    pub(crate) fn put(&mut self, key: Key, bytes: &[u8], units: &Arc<AtomicUsize>, limit: u64) {
        self.remove(key);
        self.bytes += bytes.len() as u64;
        units.fetch_add(1, Ordering::Release);
        self.kept.insert(key, Kept { bytes: bytes.into(), units: Arc::clone(units) });
        self.order.push_back(key);
        while self.bytes > limit {
            let Some(oldest) = self.order.pop_front() else { break };
            self.drop_kept(oldest);
        }
    }

    /// The bytes of a unit.
    pub(crate) fn get(&self, key: Key) -> Option<&[u8]> {
        self.kept.get(&key).map(|kept| &*kept.bytes)
    }

    /// Drops a unit.
    pub(crate) fn remove(&mut self, key: Key) {
        if self.drop_kept(key) {
            self.order.retain(|other| *other != key);
        }
    }

    /// Drops all units of a blob.
    pub(crate) fn remove_blob(&mut self, blob: u64) {
        let keys: Vec<_> = self.kept.range((blob, 0)..=(blob, u64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            self.drop_kept(key);
        }
        self.order.retain(|key| key.0 != blob);
    }

    fn drop_kept(&mut self, key: Key) -> bool {
        let Some(kept) = self.kept.remove(&key) else { return false };
        self.bytes -= kept.bytes.len() as u64;
        kept.units.fetch_sub(1, Ordering::Release);
        true
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_counts_stay_right() {
        let mut overlay = Overlay::default();
        let units = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        for at in 0..5 {
            overlay.put((at % 2, at), &[u8::try_from(at).unwrap(); 10], &units[at as usize % 2], 35);
        }
        let there: Vec<_> = (0..5).filter(|&at| overlay.get((at % 2, at)).is_some()).collect();
        assert_eq!(there, [2, 3, 4]);
        assert_eq!(units.each_ref().map(|count| count.load(Ordering::Relaxed)), [2, 1]);
        overlay.put((0, 2), &[9; 10], &units[0], 35);
        assert_eq!(overlay.get((0, 2)), Some(&[9; 10][..]));
        overlay.remove_blob(0);
        assert_eq!(units.each_ref().map(|count| count.load(Ordering::Relaxed)), [0, 1]);
        assert_eq!((overlay.bytes, overlay.order.len()), (10, 1));
    }
}
