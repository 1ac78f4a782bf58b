//! The searchable table of segments: which segments overlap a range of the disk?

mod merge;

use std::slice;

use headstart_block::{Error, Result};

use crate::Segment;

pub use merge::{MAX_LAYERS, merge, overlay};

/// A sealed, sorted table of segments that do not overlap, ready for range lookups.
#[derive(Clone, Debug, Default)]
pub struct Index {
    segments: Box<[Segment]>,
}

impl Index {
    /// Builds an index of `segments`, which must be sorted, not overlap and not be empty.
    ///
    /// # Errors
    /// [`Corrupt`](headstart_block::ErrorKind::Corrupt), naming the first bad record by its number from 0.
    pub fn new(segments: Vec<Segment>) -> Result<Self> {
        check(&segments)?;
        Ok(Self { segments: segments.into_boxed_slice() })
    }

    /// All segments, ascending.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether there is no segment: the whole disk is a hole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of memory that the table and its search structure take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.segments)
    }

    /// Number of the first segment that ends behind sector `start`; `len()` where there is none.
    #[must_use]
    #[inline]
    pub fn first_at(&self, start: u64) -> usize {
        self.segments.partition_point(|segment| segment.end() <= start)
    }

    /// The parts of segments within `[start, end)` (sectors), ascending. What lies between them is holes.
    #[inline]
    pub fn lookup(&self, start: u64, end: u64) -> Lookup<'_> {
        let rest = self.segments.get(self.first_at(start)..).unwrap_or_default();
        // An empty or reversed range overlaps nothing; no segment starts before sector 0.
        Lookup { rest: rest.iter(), start, end: if start < end { end } else { 0 } }
    }
}

/// The clipped segments of one [`Index::lookup`].
#[derive(Clone, Debug)]
pub struct Lookup<'a> {
    rest: slice::Iter<'a, Segment>,
    start: u64,
    end: u64,
}

impl Iterator for Lookup<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let segment = self.rest.as_slice().first()?;
        if segment.offset() >= self.end {
            return None;
        }
        self.rest.next();
        Some(segment.clip(self.start, self.end))
    }
}

/// Checks what every search relies on.
fn check(segments: &[Segment]) -> Result<()> {
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
