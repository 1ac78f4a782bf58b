//! The segment: 16 bytes that give the place of one run of a disk's sectors in a layer.
//!
//! The same two words are the record on disk and the entry in memory (section 3.1 and figure 4 of the DADI paper, ATC
//! 2020, with the field widths that OverlayBD, the reference implementation, really uses):
//!
//! ```text
//! word 0   bits  0..50  offset    first sector on the disk
//!          bits 50..64  length    sectors, at most 16383
//! word 1   bits  0..55  moffset   first sector in the layer's file ("mapped offset")
//!          bit  55      zeroed    the run reads as zeros; moffset takes no data
//!          bits 56..64  tag       position of the layer in its stack, 0 = lowest (in memory)
//! ```
//!
//! Offset and length share a word so that a search touches one cache line for both ends. In a file, the tag is whatever
//! its writer left there, so readers overwrite it, except in the metadata of TurboOCI layers, where it says which file
//! has the bytes ([`crate::layer`]).

use std::fmt;

pub(crate) const OFFSET_BITS: u32 = 50;
const MOFFSET_BITS: u32 = 55;
const ZEROED_BIT: u64 = 1 << MOFFSET_BITS;
const TAG_SHIFT: u32 = 56;

/// A run of consecutive sectors of a disk, and their location in a layer's file. All numbers count sectors of
/// 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Segment {
    lo: u64,
    hi: u64,
}

impl Segment {
    /// Length of the longest run that one segment can describe, in sectors: 16383.
    pub const MAX_LEN: u64 = (1 << (64 - OFFSET_BITS)) - 1;
    /// The offset on the disk, in sectors, that marks a padding record; no other segment has it.
    pub const PADDING_OFFSET: u64 = (1 << OFFSET_BITS) - 1;
    /// The largest offset in a layer's file that a segment can name, in sectors.
    pub const MAX_MOFFSET: u64 = (1 << MOFFSET_BITS) - 1;
    /// Length of a segment's record in a file, in bytes.
    pub const RECORD_SIZE: usize = 16;
    /// The record that fills up a table or a group of records. Readers ignore it, wherever it is.
    pub const PADDING: Self = Self { lo: Self::PADDING_OFFSET, hi: 0 };

    /// A run of `len` sectors from sector `offset` of the disk on, whose bytes are stored from sector
    /// `moffset` of the layer's file on. The layer number is 0.
    ///
    /// # Panics
    /// In debug builds, if a number does not fit its field. In release builds, the segment is then wrong.
    #[must_use]
    pub const fn data(offset: u64, len: u64, moffset: u64) -> Self {
        debug_assert!(offset < Self::PADDING_OFFSET && len <= Self::MAX_LEN && moffset <= Self::MAX_MOFFSET);
        Self { lo: offset | len << OFFSET_BITS, hi: moffset }
    }

    /// A run of `len` sectors from sector `offset` of the disk on that reads as zeros. By a rule of the
    /// format, `moffset` is the sector of the layer's file that the next data will take. The layer number is 0.
    ///
    /// # Panics
    /// In debug builds, if a number does not fit its field. In release builds, the segment is then wrong.
    #[must_use]
    pub const fn zeroed(offset: u64, len: u64, moffset: u64) -> Self {
        let Self { lo, hi } = Self::data(offset, len, moffset);
        Self { lo, hi: hi | ZEROED_BIT }
    }

    /// First sector of the run on the disk.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.lo & Self::PADDING_OFFSET
    }

    /// Length of the run in sectors.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a segment of length 0 is never made, only read and dropped"
    )]
    pub const fn len(self) -> u64 {
        self.lo >> OFFSET_BITS
    }

    /// The sector of the disk after the last one of the run.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset() + self.len()
    }

    /// First sector of the run's bytes in the layer's file (the "mapped offset").
    #[must_use]
    pub const fn moffset(self) -> u64 {
        self.hi & Self::MAX_MOFFSET
    }

    /// The sector of the layer's file after the last one of the run's bytes. A zeroed run has no bytes, so
    /// its result equals [`Segment::moffset`].
    #[must_use]
    pub const fn mend(self) -> u64 {
        self.moffset() + if self.is_zeroed() { 0 } else { self.len() }
    }

    /// `true` if the run reads as zeros and has no bytes in the layer's file.
    #[must_use]
    pub const fn is_zeroed(self) -> bool {
        self.hi & ZEROED_BIT != 0
    }

    /// `true` if this is a padding record, which describes no sectors.
    #[must_use]
    pub const fn is_padding(self) -> bool {
        self.offset() == Self::PADDING_OFFSET
    }

    /// Number of the source that has the run: of the layer, where each layer of a stack has one source. Sources are
    /// numbered from that of the lowest layer, which has number 0; a layer with a target has two, its own first.
    /// Meaningless in records read from a file.
    #[must_use]
    pub const fn layer(self) -> u8 {
        (self.hi >> TAG_SHIFT) as u8
    }

    /// Returns the same run with `layer` as its layer number.
    #[must_use]
    pub const fn with_layer(self, layer: u8) -> Self {
        Self { hi: self.hi & !(0xff << TAG_SHIFT) | (layer as u64) << TAG_SHIFT, ..self }
    }

    /// Returns the part of the run within the sectors `[start, end)` of the disk. The run must overlap that
    /// range: otherwise, debug builds panic, and release builds return a wrong segment.
    ///
    /// ```
    /// # use headstart_lsmt::Segment;
    /// let part = Segment::data(100, 50, 8).clip(110, 120);
    /// assert_eq!((part.offset(), part.len(), part.moffset()), (110, 10, 18));
    /// ```
    #[must_use]
    pub const fn clip(self, start: u64, end: u64) -> Self {
        // Written with max and min, not branches: the end that is cut is unpredictable in a lookup.
        let from = if start > self.offset() { start } else { self.offset() };
        let to = if end < self.end() { end } else { self.end() };
        debug_assert!(from < to);
        let skipped = if self.is_zeroed() { 0 } else { from - self.offset() };
        Self { lo: from | (to - from) << OFFSET_BITS, hi: self.hi + skipped }
    }

    /// The same run, `sectors` longer at its end; both together fit in [`Self::MAX_LEN`].
    #[must_use]
    pub(crate) const fn lengthened(self, sectors: u64) -> Self {
        debug_assert!(self.len() + sectors <= Self::MAX_LEN);
        Self { lo: self.lo + (sectors << OFFSET_BITS), ..self }
    }

    /// `true` if `next` begins where this run ends, both on the disk and in the file, and both have the same
    /// layer number and are both data or both zeroed.
    #[must_use]
    pub const fn is_continued_by(self, next: Self) -> bool {
        // Zeroed and tag are compared together: the bits above the mapped offset.
        self.end() == next.offset()
            && self.mend() == next.moffset()
            && self.hi >> MOFFSET_BITS == next.hi >> MOFFSET_BITS
    }

    /// Encodes the segment as a record of a file: two little-endian 64-bit words.
    #[must_use]
    pub const fn to_record(self) -> [u8; Self::RECORD_SIZE] {
        (self.lo as u128 | (self.hi as u128) << 64).to_le_bytes()
    }

    /// Decodes a record of a file. Every bit pattern is accepted, so the caller must check the values.
    #[must_use]
    pub const fn from_record(record: [u8; Self::RECORD_SIZE]) -> Self {
        let bits = u128::from_le_bytes(record);
        #[expect(clippy::cast_possible_truncation, reason = "takes the low word")]
        Self { lo: bits as u64, hi: (bits >> 64) as u64 }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_zeroed() { "zeroed" } else { "data" };
        write!(f, "{}+{} {kind} @{} in {}", self.offset(), self.len(), self.moffset(), self.layer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn padding_is_what_the_reference_writes() {
        assert!(Segment::PADDING.is_padding());
        assert_eq!(Segment::PADDING.to_record()[..8], ((1u64 << 50) - 1).to_le_bytes());
    }

    proptest! {
        #[test]
        fn every_field_survives_a_record(
            offset in 0..Segment::PADDING_OFFSET, len in 0..=Segment::MAX_LEN,
            moffset in 0..=Segment::MAX_MOFFSET, zeroed: bool, layer: u8,
        ) {
            let make = if zeroed { Segment::zeroed } else { Segment::data };
            let segment = Segment::from_record(make(offset, len, moffset).with_layer(layer).to_record());
            prop_assert_eq!(
                (segment.offset(), segment.len(), segment.moffset(), segment.is_zeroed(), segment.layer()),
                (offset, len, moffset, zeroed, layer)
            );
        }

        #[test]
        fn clipping_keeps_each_sector_where_it_was(
            offset in 0u64..1000, len in 1u64..100, zeroed: bool, a in 0u64..100, b in 0u64..100,
        ) {
            let segment = if zeroed { Segment::zeroed(offset, len, 500) } else { Segment::data(offset, len, 500) };
            let (start, end) = (offset + a.min(len - 1), offset + a.min(len - 1) + 1 + b);
            let part = segment.clip(start, end);
            prop_assert_eq!((part.offset(), part.end()), (start.max(offset), end.min(offset + len)));
            let expected = if zeroed { 500 } else { 500 + part.offset() - offset };
            prop_assert_eq!(part.moffset(), expected);
        }
    }
}
