//! The search: buckets that guess, levels that narrow, one count that decides. The module above gives the reasons.

use super::WINDOW;
use crate::Segment;

/// Keys in a node: two AVX-512 registers, two cache lines.
pub(super) const NODE: usize = 16;

/// The key that fills up a level: larger than every sector, also as a signed number.
const NO_KEY: u64 = i64::MAX as u64;

/// A start behind every segment and its padding; larger ones are cut to it, so that all numbers that are
/// compared are small enough for signed comparisons, and for their differences to tell them apart.
const BEHIND_ALL: u64 = Segment::PADDING_OFFSET + 1;

/// The number of times that a bucket may be halved to thin out crowds. After 20 the table covers a millionth of the
/// disk, and the tree serves the rest.
const MAX_HALVINGS: u32 = 20;

/// The search structure of a sorted table of segments, which is kept elsewhere.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// A bucket is `1 << shift` sectors wide.
    shift: u32,
    /// The last bucket, which also takes every start behind it.
    last: usize,
    /// For each bucket the number of the first segment that ends behind the bucket's first sector, and the
    /// number of segments behind all.
    entries: Box<[u32]>,
    /// Level `j`: the ends of segments number `(k + 1) * WINDOW * NODE^j - 1`, then a node of [`NO_KEY`].
    levels: Box<[Box<[u64]>]>,
}

impl Search {
    /// The structure for `segments`, which are sorted, do not overlap and number less than 2^32.
    pub(super) fn new(segments: &[Segment]) -> Self {
        let levels = levels(segments);
        let most = segments.len().max(1);
        let end = segments.last().map_or(0, |segment| segment.end());
        let shift = choose_shift(&levels[0][..segments.len() / WINDOW], most, end);
        let last = bucket(end, shift, most - 1);
        Self { shift, last, entries: entries(segments, shift, last), levels }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.entries)
            + size_of_val(&*self.levels)
            + self.levels.iter().map(|level| size_of_val(&**level)).sum::<usize>()
    }

    /// Number of the first of the `padded` segments that ends behind `start`. Padding counts as a segment
    /// with the largest end that there is, so the answer is at most the length of `padded`.
    ///
    /// The two functions count how many of a node's keys, and how many ends of a window's segments, are at
    /// most the given sector. This is inlined where they are known, so that they are inlined too.
    #[inline(always)]
    pub(super) fn find(
        &self,
        padded: &[Segment],
        start: u64,
        count_keys: impl Fn(&[u64; NODE], u64) -> usize,
        count_ends: impl Fn(&[Segment; WINDOW], u64) -> usize,
    ) -> usize {
        let bucket = bucket(start, self.shift, self.last);
        let (mut low, high) = (self.entries[bucket] as usize, self.entries[bucket + 1] as usize);
        let start = start.min(BEHIND_ALL);
        if high - low > WINDOW {
            low = self.descend(low, high, |node| count_keys(node, start));
        }
        // The answer is within low ..= low + WINDOW.
        low + count_ends(chunk(padded, low), start)
    }

    /// The largest multiple of [`WINDOW`] that is at most the answer, which is within `low ..= high`.
    #[inline(always)]
    fn descend(&self, low: usize, high: usize, count: impl Fn(&[u64; NODE]) -> usize) -> usize {
        // The lowest level where one node has all the keys that tell these answers apart.
        let (mut key, mut last) = (low / WINDOW, high / WINDOW);
        let mut level = 0;
        while last - key > NODE {
            (key, last, level) = (key / NODE, last / NODE, level + 1);
        }
        loop {
            // The number of keys of this level that are at most `start` is the number of whole groups of segments
            // that are.
            key += count(chunk(&self.levels[level], key));
            if level == 0 {
                return key * WINDOW;
            }
            level -= 1;
            key *= NODE;
        }
    }
}

/// The `N` items from number `from` on.
#[inline(always)]
#[expect(clippy::expect_used, reason = "every array has padding of N items, so this never fails")]
fn chunk<T, const N: usize>(items: &[T], from: usize) -> &[T; N] {
    items[from..].first_chunk().expect("a whole chunk of padding")
}

/// The bucket of a sector; `last` for all from there on.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most `last`, which is a usize")]
fn bucket(sector: u64, shift: u32, last: usize) -> usize {
    (sector >> shift).min(last as u64) as usize
}

/// The B+tree's levels, lowest first; at least one. The highest fits one node.
fn levels(segments: &[Segment]) -> Box<[Box<[u64]>]> {
    let mut levels = Vec::new();
    let mut keys: Vec<u64> = segments.chunks_exact(WINDOW).map(|group| group[WINDOW - 1].end()).collect();
    loop {
        let above: Vec<u64> = keys.chunks_exact(NODE).map(|node| node[NODE - 1]).collect();
        let is_top = keys.len() <= NODE;
        keys.reserve_exact(NODE);
        keys.extend([NO_KEY; NODE]);
        levels.push(keys.into_boxed_slice());
        if is_top {
            return levels.into_boxed_slice();
        }
        keys = above;
    }
}

/// The width of bucket that leaves the fewest segments crowded, for at most `most` buckets and segments up
/// to sector `end`; the widest of several. A group of [`WINDOW`] segments (`keys` are the ends of the groups)
/// is crowded where it and the group before it end in the same bucket.
fn choose_shift(keys: &[u64], most: usize, end: u64) -> u32 {
    let crowded = |shift: u32| {
        let same = |pair: &&[u64]| bucket(pair[0], shift, most - 1) == bucket(pair[1], shift, most - 1);
        keys.windows(2).filter(same).count()
    };
    // The narrowest buckets that still cover all segments: half of them to all are used.
    let widest = (0..u64::BITS - 1).find(|shift| end >> shift < most as u64).unwrap_or(0);
    (widest.saturating_sub(MAX_HALVINGS)..=widest).rev().min_by_key(|&shift| crowded(shift)).unwrap_or(widest)
}

/// The bucket table: entries of buckets `0..=last`, then the number of segments.
fn entries(segments: &[Segment], shift: u32, last: usize) -> Box<[u32]> {
    let mut first = 0;
    let mut entries: Vec<u32> = (0..=last as u64)
        .map(|bucket| {
            let skipped = segments[first..].iter().take_while(|segment| segment.end() <= bucket << shift);
            first += skipped.count();
            number(first)
        })
        .collect();
    entries.push(number(segments.len()));
    entries.into_boxed_slice()
}

#[expect(clippy::cast_possible_truncation, reason = "an index has less than 2^32 segments")]
fn number(segment: usize) -> u32 {
    segment as u32
}
