//! The holders of bytes: the ranges of all requests under way, so that none is fetched twice.
//!
//! Every byte has at most one holder. A request that asks separately for bytes of another one takes over their
//! holding; the other keeps its range, but a read that wants those bytes from then on joins the new one.
//!
//! `rangemap` splits and replaces ranges alike, and lacks the release: of a range, what one value has and no other.
//! Its maps have one dimension: each would have to be a map in a map of blobs, most of which hold nothing.

use crate::{BlobRange, DiskBlobId, FetchId};
use std::collections::BTreeMap;

#[derive(Debug)]
struct Held {
    end: u64,
    fetch: FetchId,
}

/// Disjoint intervals of blobs, each with its holder.
#[derive(Debug, Default)]
pub(crate) struct Active {
    held: BTreeMap<(DiskBlobId, u64), Held>,
}

impl Active {
    /// The held parts of `range`, in order, clipped to it.
    pub(crate) fn within(&self, range: BlobRange) -> impl Iterator<Item = (BlobRange, FetchId)> {
        let BlobRange { blob, range } = range;
        let (start, end) = (range.offset(), range.end());
        let first = self.held.range(..(blob, start)).next_back().filter(|((b, _), _)| *b == blob);
        let first = first.map_or(start, |((_, first), _)| *first);
        self.held.range((blob, first)..(blob, end.max(first))).filter_map(move |((_, from), held)| {
            let part = BlobRange::between(blob, start.max(*from), end.min(held.end));
            (!part.is_empty()).then_some((part, held.fetch))
        })
    }

    /// `true` if no request holds any byte of `range`.
    pub(crate) fn is_free(&self, range: BlobRange) -> bool {
        self.within(range).next().is_none()
    }

    /// Appends the parts of `range` that no other request than `fetch` holds.
    pub(crate) fn free(&self, range: BlobRange, fetch: Option<FetchId>, free: &mut Vec<BlobRange>) {
        let mut from = range.range.offset();
        for (part, _) in self.within(range).filter(|(_, holder)| Some(*holder) != fetch) {
            push(free, BlobRange::between(range.blob, from, part.range.offset()));
            from = part.range.end();
        }
        push(free, BlobRange::between(range.blob, from, range.range.end()));
    }

    /// Makes `fetch` the holder of all of `range`, whatever the earlier holders.
    pub(crate) fn hold(&mut self, range: BlobRange, fetch: FetchId) {
        if range.is_empty() {
            return;
        }
        self.cut(range.blob, range.range.offset());
        self.cut(range.blob, range.range.end());
        while let Some(inside) = self.first_key(range) {
            self.held.remove(&inside);
        }
        self.held.insert((range.blob, range.range.offset()), Held { end: range.range.end(), fetch });
    }

    /// Frees the parts of `range` that `fetch` holds.
    pub(crate) fn release(&mut self, range: BlobRange, fetch: FetchId) {
        let mut next = range;
        loop {
            let part = self.within(next).find(|(_, holder)| *holder == fetch).map(|(part, _)| part);
            let Some(part) = part else { return };
            self.cut(part.blob, part.range.offset());
            self.cut(part.blob, part.range.end());
            self.held.remove(&(part.blob, part.range.offset()));
            next = BlobRange::between(range.blob, part.range.end(), range.range.end());
        }
    }

    /// The key of the first interval that starts in `range`.
    fn first_key(&self, range: BlobRange) -> Option<(DiskBlobId, u64)> {
        let (start, end) = (range.range.offset(), range.range.end());
        self.held.range((range.blob, start)..(range.blob, end)).next().map(|(key, _)| *key)
    }

    /// Cuts the interval that contains `at` in two.
    fn cut(&mut self, blob: DiskBlobId, at: u64) {
        let before = self.held.range_mut((blob, 0)..(blob, at)).next_back();
        let Some((_, held)) = before.filter(|(_, held)| held.end > at) else { return };
        let tail = Held { end: held.end, fetch: held.fetch };
        held.end = at;
        self.held.insert((blob, at), tail);
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (BlobRange, FetchId)> {
        let range = |blob, start, held: &Held| BlobRange::between(blob, start, held.end);
        self.held.iter().map(move |((blob, start), held)| (range(*blob, *start, held), held.fetch))
    }
}

fn push(ranges: &mut Vec<BlobRange>, range: BlobRange) {
    if !range.is_empty() {
        ranges.push(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOB: DiskBlobId = DiskBlobId(1);

    fn range(start: u64, end: u64) -> BlobRange {
        BlobRange::between(BLOB, start, end)
    }

    #[test]
    fn a_later_holder_takes_over_the_middle() {
        let mut active = Active::default();
        active.hold(range(0, 100), FetchId(1));
        active.hold(range(40, 60), FetchId(2));
        let parts: Vec<_> = active.within(range(30, 70)).collect();
        assert_eq!(
            parts,
            [(range(30, 40), FetchId(1)), (range(40, 60), FetchId(2)), (range(60, 70), FetchId(1))]
        );
        active.release(range(0, 100), FetchId(1));
        let mut free = Vec::new();
        active.free(range(0, 100), None, &mut free);
        assert_eq!(free, [range(0, 40), range(60, 100)]);
        assert!(active.is_free(BlobRange::between(DiskBlobId(0), 0, 100)));
        active.release(range(40, 60), FetchId(2));
        assert_eq!(active.all().count(), 0);
    }

    proptest! {
        /// Compares it with an array that has a holder for each byte.
        #[test]
        fn holders_of_ranges_are_as_in_an_array(
            ops in prop::collection::vec((any::<bool>(), 0_u64..64, 0_u64..32, 0_u64..4), 1..60),
        ) {
            let mut active = Active::default();
            let mut plain = [None; 96];
            for (hold, start, len, fetch) in ops {
                let fetch = FetchId(fetch);
                let bytes = range(start, start + len);
                for byte in &mut plain[start as usize..(start + len) as usize] {
                    if hold {
                        *byte = Some(fetch);
                    } else if *byte == Some(fetch) {
                        *byte = None;
                    }
                }
                if hold { active.hold(bytes, fetch) } else { active.release(bytes, fetch) }
                let mut seen = [None; 96];
                for (part, holder) in active.within(range(0, 96)) {
                    for byte in &mut seen[part.range.offset() as usize..part.range.end() as usize] {
                        prop_assert!(byte.is_none());
                        *byte = Some(holder);
                    }
                }
                prop_assert_eq!(seen, plain);
                let mut free = Vec::new();
                active.free(range(0, 96), None, &mut free);
                let free: u64 = free.iter().map(|part| part.len()).sum();
                prop_assert_eq!(free, plain.iter().filter(|byte| byte.is_none()).count() as u64);
            }
        }
    }
}
