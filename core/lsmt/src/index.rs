//! The searchable table of segments, which finds the segments that overlap a range of the disk.
//!
//! Every read of a disk does a lookup, so the index is built once, and then searched without locks or allocation. The
//! DADI paper (ATC 2020; section 3.1, algorithm 1) searches the sorted table by bisection and names a B-tree as future
//! work. This index combines two structures: a table of buckets, which gives a guess, and a B+tree, which refines the
//! guess if the guess is too coarse.
//!
//! # The structure
//!
//! The segments stay one sorted array, 16 bytes each. The answer to a lookup is the number `i` of the first
//! segment that ends behind the range's start, because all others of the range follow it. Above the segments there
//! are, 1 to 5 bytes a segment in all:
//!
//! ```text
//! buckets   entry b = answer for sector b << shift; at most one entry (u32) a segment.
//!           A start in bucket b has its answer in entries[b] ..= entries[b + 1].
//! levels    level 0 = the end of every 8th segment, level 1 = of every 128th, every 2048th, ...:
//!           a B+tree of fan-out 16 without pointers. Each level is one plain sorted array, so a descent
//!           can begin at any place of any level, and goes from number k to the 16 keys from 16 k on.
//! segments  one step at the end counts, among 8 segments side by side, those that end too early.
//! ```
//!
//! A lookup loads two neighbouring entries of the bucket table. Mostly they are at most 8 apart, and then one count
//! gives the answer: two dependent loads for any number of segments. Otherwise the difference of the two entries tells
//! at which level one node covers it, and the descent begins there. No step has an unpredictable branch, and none needs
//! bisection: the 16 keys of a node, or the 8 segments, are all compared at once, and the comparisons that hold are
//! counted (the S-tree of Algorithmica; Khuong and Morin, "Array layouts for comparison-based searching", 2017, show
//! that layouts and branches decide the speed, not comparisons).
//!
//! # Why not only one of them
//!
//! Buckets are quickest for segments that are spread over the disk, but of no use if all segments are in one bucket. A
//! tree does not depend on the spread, but each level costs a load, a comparison and a count, one after the other (some
//! 18 cycles). *Clipping*, that is, cutting the found segments to the range, may mispredict a branch, which happens in
//! every second lookup of a half-covered disk. The CPU then does not begin the next lookup early, so the whole time of
//! the descent counts. Measured on a Zen 5 for 1,000 segments with holes between them: bisection takes 26 ns, the tree
//! alone 19, buckets 11. Clipping alone, with an answer that is known beforehand, takes 5.4 ns.
//!
//! Real disks are full in front and sparse behind. So the width of a bucket is chosen so that the fewest segments are
//! in crowded buckets, and the last bucket takes everything past the end of the table.
//!
//! Hence the bounds: O(n) to build; a lookup costs one bucket and at most ⌈log16(n / 8)⌉ nodes, however the author of
//! an image chose the segments. Keys are whole sector numbers, so the size of the disk makes no difference (OverlayBD,
//! the reference implementation, cuts them to 32 bits, which is wrong beyond 2 TiB).
//!
//! # Instructions
//!
//! The counts of keys and of segments are each written three times: in AVX-512, in AVX2, and in plain Rust, which the
//! compiler makes into SSE2 or NEON. The variant is chosen when the index is built ([`Simd`]), and costs one
//! predictable branch in a lookup. All three give the same answers and are tested on the same lookups.

mod merge;
mod search;
mod simd;
#[cfg(test)]
mod tests;

use std::iter::FusedIterator;

use headstart_block::{Error, Result};

use crate::Segment;
use search::Search;

pub use merge::{MAX_LAYERS, merge, overlay};
pub use simd::Simd;

/// Segments that one step of a search compares; the same number of padding records follows the last one.
const WINDOW: usize = 8;

/// An immutable, sorted table of segments that do not overlap, built for lookups of ranges.
#[derive(Clone, Debug)]
pub struct Index {
    /// The segments, then [`WINDOW`] records of padding, so that the last step never looks past the end.
    padded: Box<[Segment]>,
    search: Search,
    simd: Simd,
}

impl Index {
    /// Builds an index of `segments`. They must be sorted by their offset on the disk, must not overlap and
    /// must each have at least one sector.
    ///
    /// # Errors
    /// [`Corrupt`](headstart_block::ErrorKind::Corrupt) if the segments are not like that, or exceed the largest disk
    /// or file that a segment can name; the message has the number, from 0, of the first bad segment.
    /// [`Unsupported`](headstart_block::ErrorKind::Unsupported) for 2^32 segments or more.
    pub fn new(segments: Vec<Segment>) -> Result<Self> {
        check(&segments)?;
        Ok(Self::build(segments))
    }

    fn build(mut segments: Vec<Segment>) -> Self {
        let search = Search::new(&segments);
        segments.reserve_exact(WINDOW);
        segments.extend([Segment::PADDING; WINDOW]);
        Self { padded: segments.into_boxed_slice(), search, simd: Simd::best() }
    }

    /// Makes lookups use the instructions `simd` instead of the fastest that the CPU has, for tests and measurements.
    /// Nothing changes if the CPU lacks them.
    #[must_use]
    pub fn with_simd(self, simd: Simd) -> Self {
        Self { simd: if simd.is_available() { simd } else { self.simd }, ..self }
    }

    /// The SIMD instructions that lookups use.
    #[must_use]
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// All segments, ascending by their offset on the disk.
    #[must_use]
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        &self.padded[..self.len()]
    }

    /// Number of segments in the index.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.padded.len() - WINDOW
    }

    /// `true` if there is no segment: the whole disk is a hole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the segments and the search structure above them take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.padded) + self.search.memory_bytes()
    }

    /// Returns the segments that overlap the sectors `[start, end)`, ascending and clipped to that range.
    /// Sectors that no segment covers are holes. An empty or reversed range gives no segments.
    #[inline]
    #[must_use]
    pub fn lookup(&self, start: u64, end: u64) -> Lookup<'_> {
        let first = self.simd.find(&self.search, &self.padded, start);
        // For a start behind everything the padding may have been counted too.
        Lookup::new(self.segments().get(first..).unwrap_or_default(), start, end)
    }
}

impl Default for Index {
    /// The index of a disk that is one hole.
    fn default() -> Self {
        Self::build(Vec::new())
    }
}

/// An iterator over the clipped segments that [`Index::lookup`] found.
#[derive(Clone, Debug)]
pub struct Lookup<'a> {
    rest: &'a [Segment],
    start: u64,
    end: u64,
}

impl<'a> Lookup<'a> {
    /// Iterates over the parts of `segments` within the sectors `[start, end)`. The segments must be sorted,
    /// must not overlap and must all end after `start`.
    #[inline]
    #[must_use]
    pub fn new(segments: &'a [Segment], start: u64, end: u64) -> Self {
        // An empty or reversed range overlaps nothing: no segment starts before sector 0.
        Self { rest: segments, start, end: if start < end { end } else { 0 } }
    }
}

impl Iterator for Lookup<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let (&segment, rest) = self.rest.split_first()?;
        if segment.offset() >= self.end {
            return None;
        }
        self.rest = rest;
        Some(segment.clip(self.start, self.end))
    }
}

impl FusedIterator for Lookup<'_> {}

/// Checks the conditions that every search and every clip relies on.
fn check(segments: &[Segment]) -> Result<()> {
    if u32::try_from(segments.len()).is_err() {
        return Err(Error::unsupported(format!("an index of {} segments: more than 2^32", segments.len())));
    }
    let mut end = 0;
    for (number, segment) in segments.iter().enumerate() {
        let fault = if segment.len() == 0 {
            "is empty"
        } else if segment.offset() < end {
            "starts before its predecessor ends"
        } else if segment.end() > Segment::PADDING_OFFSET {
            "reaches past the largest disk that a segment can name"
        } else if segment.mend() > Segment::MAX_MOFFSET + 1 {
            "is mapped past the largest file that a segment can name"
        } else {
            end = segment.end();
            continue;
        };
        return Err(Error::corrupt(format!("segment record {number} ({segment:?}) {fault}")));
    }
    Ok(())
}
