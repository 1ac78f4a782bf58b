//! Half-open intervals of bytes.

use std::fmt;

/// A range of bytes of a disk or a blob, from `offset` to before `offset + len`. The end is at most
/// `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    offset: u64,
    len: u64,
}

impl ByteRange {
    /// Makes a range of `len` bytes from byte `offset` on; `None` if its end would exceed `u64::MAX`.
    #[must_use]
    pub fn new(offset: u64, len: u64) -> Option<Self> {
        offset.checked_add(len).map(|_| Self { offset, len })
    }

    /// Makes the range from byte `start` to before byte `end`; the empty range at `start` if `end` is not after
    /// `start`.
    #[must_use]
    pub fn between(start: u64, end: u64) -> Self {
        Self { offset: start, len: end.saturating_sub(start) }
    }

    /// Offset of the first byte.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.len
    }

    /// Offset of the byte after the last one.
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset + self.len
    }

    /// `true` if the length is 0.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `true` if offset and length are multiples of `unit` bytes.
    #[must_use]
    pub fn is_aligned(self, unit: u64) -> bool {
        self.offset.is_multiple_of(unit) && self.len.is_multiple_of(unit)
    }

    /// Cuts the range at all multiples of `unit` bytes, and returns the parts in ascending order. An empty range
    /// has no parts. `unit` must not be 0: the iterator would panic.
    ///
    /// ```
    /// # use headstart_block::ByteRange;
    /// let parts: Vec<_> = ByteRange::between(3, 9).parts(4).map(|part| (part.offset(), part.len())).collect();
    /// assert_eq!(parts, [(3, 1), (4, 4), (8, 1)]);
    /// ```
    pub fn parts(self, unit: u64) -> impl Iterator<Item = Self> + Send {
        let mut offset = self.offset;
        std::iter::from_fn(move || {
            let end = (offset - offset % unit).saturating_add(unit).min(self.end());
            let part = Self::between(offset, end);
            offset = end;
            (!part.is_empty()).then_some(part)
        })
    }

    /// Returns the bytes that are in both ranges; an empty range if there are none.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        Self::between(self.offset.max(other.offset), self.end().min(other.end()))
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, {:#x})", self.offset, self.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_an_end_past_u64() {
        assert!(ByteRange::new(u64::MAX, 1).is_none());
        assert_eq!(ByteRange::new(u64::MAX - 1, 1).map(ByteRange::end), Some(u64::MAX));
    }

    #[test]
    fn intersection_of_disjoint_ranges_is_empty() {
        let (a, b) = (ByteRange::between(0, 10), ByteRange::between(20, 30));
        assert!(a.intersect(b).is_empty());
        assert_eq!(ByteRange::between(5, 25).intersect(b), ByteRange::between(20, 25));
    }
}
