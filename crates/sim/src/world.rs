//! The disk as the engine sees it here: one blob, and a bit for each of its units.

use headstart_block::ByteRange;
use headstart_pull::{BLOCK_SIZE, BlobId, BlobRange, World};
use std::collections::BTreeMap;

const BLOB: BlobId = BlobId(0);

/// How the disk's bytes lie in the blob: each `frame` bytes of the disk in `stored` bytes, in the disk's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) disk_size: u64,
    pub(crate) frame: u64,
    /// Of a frame in the blob; `frame` itself where nothing is compressed.
    pub(crate) stored: u64,
    /// Bytes of the blob that become local together.
    pub(crate) unit: u64,
}

impl Layout {
    fn is_plain(&self) -> bool {
        self.frame == self.stored
    }

    fn blob_len(&self) -> u64 {
        if self.is_plain() {
            self.disk_size
        } else {
            self.disk_size.div_ceil(self.frame).saturating_mul(self.stored)
        }
    }

    /// The bytes of the blob that `part` is read from.
    fn stored_range(&self, part: ByteRange) -> ByteRange {
        if self.is_plain() {
            return part;
        }
        let (first, end) = (part.offset() / self.frame, part.end().div_ceil(self.frame));
        ByteRange::between(first.saturating_mul(self.stored), end.saturating_mul(self.stored))
    }
}

/// Which bytes of a disk are local.
#[derive(Debug)]
pub(crate) struct Local {
    layout: Layout,
    /// Of a unit, where it is a power of two.
    shift: Option<u32>,
    len: u64,
    units: Vec<u64>,
    /// What the guest wrote: disjoint, `start -> end`. It is read from where it was written to.
    written: BTreeMap<u64, u64>,
}

impl Local {
    /// Nothing is. Uses the memory of `before`.
    pub(crate) fn none(layout: Layout, mut before: Vec<u64>) -> Self {
        let len = layout.blob_len();
        let words = usize::try_from(len.div_ceil(layout.unit).div_ceil(64)).unwrap_or(usize::MAX);
        before.clear();
        before.resize(words, 0);
        let shift = layout.unit.is_power_of_two().then(|| layout.unit.trailing_zeros());
        Self { layout, shift, len, units: before, written: BTreeMap::new() }
    }

    /// The memory, to be used again.
    pub(crate) fn into_memory(self) -> Vec<u64> {
        self.units
    }

    /// Whether a read of `part` finds all its bytes.
    pub(crate) fn is_local(&self, part: ByteRange) -> bool {
        if self.written.is_empty() {
            return self.is_fetched(part);
        }
        let mut local = true;
        self.unwritten(part, |rest| local &= self.is_fetched(rest));
        local
    }

    fn is_fetched(&self, part: ByteRange) -> bool {
        let (first, end) = self.units_of(self.layout.stored_range(part));
        (first..end).all(|unit| self.has(unit))
    }

    /// Makes a fetched range local.
    pub(crate) fn insert(&mut self, range: ByteRange) {
        let (first, end) = self.units_of(range);
        for unit in first..end {
            if let Some(word) = self.word(unit).and_then(|word| self.units.get_mut(word)) {
                *word |= 1 << (unit % 64);
            }
        }
    }

    /// The guest writes `part` of the disk.
    pub(crate) fn write(&mut self, part: ByteRange) {
        let (mut start, mut end) = (part.offset(), part.end());
        while let Some((first, last)) = self.written.range(..=end).next_back().map(|(a, b)| (*a, *b))
            && last >= start
        {
            (start, end) = (start.min(first), end.max(last));
            self.written.remove(&first);
        }
        self.written.insert(start, end);
    }

    /// What of `part` of the disk was not written.
    pub(crate) fn unwritten(&self, part: ByteRange, mut each: impl FnMut(ByteRange)) {
        let mut from = part.offset();
        let before = self.written.range(..from).next_back();
        let first = before.filter(|(_, end)| **end > from).map_or(from, |(start, _)| *start);
        for (start, end) in self.written.range(first..part.end()) {
            if *start > from {
                each(ByteRange::between(from, *start));
            }
            from = from.max(*end);
        }
        if from < part.end() {
            each(ByteRange::between(from, part.end()));
        }
    }

    /// The blocks of the disk that bytes of `range` belong to.
    pub(crate) fn blocks_of(&self, range: ByteRange) -> std::ops::Range<u64> {
        let block = if self.layout.is_plain() {
            BLOCK_SIZE
        } else {
            (BLOCK_SIZE / self.layout.frame).saturating_mul(self.layout.stored).max(1)
        };
        range.offset() / block..range.end().div_ceil(block)
    }

    fn has(&self, unit: u64) -> bool {
        self.word(unit).and_then(|word| self.units.get(word)).is_none_or(|word| word >> (unit % 64) & 1 == 1)
    }

    fn word(&self, unit: u64) -> Option<usize> {
        usize::try_from(unit / 64).ok()
    }

    /// The units that `range` touches, from the first to before the last.
    fn units_of(&self, range: ByteRange) -> (u64, u64) {
        if range.is_empty() {
            return (0, 0);
        }
        let last = range.end().min(self.len).saturating_sub(1);
        match self.shift {
            Some(shift) => (range.offset() >> shift, (last >> shift) + 1),
            None => (range.offset() / self.layout.unit, last / self.layout.unit + 1),
        }
    }
}

impl World for Local {
    fn disk_size(&self) -> u64 {
        self.layout.disk_size
    }

    fn ranges(&self, part: ByteRange, each: &mut dyn FnMut(BlobRange)) {
        each(BlobRange { blob: BLOB, range: self.layout.stored_range(part) });
    }

    fn missing(&self, range: BlobRange, each: &mut dyn FnMut(BlobRange)) {
        let (mut at, end) = self.units_of(range.range);
        let unit = self.layout.unit;
        while at < end {
            let start = at;
            while at < end && !self.has(at) {
                at += 1;
            }
            if at > start {
                each(BlobRange::between(BLOB, start * unit, (at * unit).min(self.len)));
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a set of bytes: what is missing is what was not inserted, rounded out to units.
        #[test]
        fn misses_what_was_not_inserted(
            size in 1_u64..4000, unit in prop_oneof![Just(64_u64), Just(100)],
            stored in prop_oneof![Just(32_u64), Just(13)],
            inserts in prop::collection::vec((0_u64..4000, 1_u64..300), 0..10), read in (0_u64..4000, 1_u64..300),
        ) {
            let layout = Layout { disk_size: size, frame: 32, stored, unit };
            let mut local = Local::none(layout, Vec::new());
            let len = layout.blob_len();
            let mut plain = vec![false; len as usize];
            for (start, bytes) in inserts {
                let (from, to) = (start / unit * unit, (start + bytes).div_ceil(unit) * unit);
                let range = ByteRange::between(from.min(len), to.min(len));
                plain[range.offset() as usize..range.end() as usize].fill(true);
                local.insert(range);
            }
            let part = ByteRange::between(read.0.min(size), (read.0 + read.1).min(size));
            let stored = layout.stored_range(part);
            let mut missing = vec![false; len as usize];
            local.missing(BlobRange { blob: BLOB, range: stored }, &mut |run| {
                missing[run.range.offset() as usize..run.range.end() as usize].fill(true);
            });
            let touched = stored.offset() as usize..(stored.end().min(len)) as usize;
            let absent = plain[touched.clone()].iter().any(|byte| !byte);
            prop_assert_eq!(local.is_local(part), !absent);
            for byte in touched {
                prop_assert_eq!(missing[byte], !plain[byte]);
            }
            for (byte, missing) in missing.iter().enumerate() {
                prop_assert!(!(*missing && plain[byte]));
            }
        }
    }

    proptest! {
        /// Against a set of bytes.
        #[test]
        fn what_was_written_is_local(
            writes in prop::collection::vec((0_u64..400, 1_u64..60), 0..12), read in (0_u64..400, 1_u64..99),
        ) {
            let mut local =
                Local::none(Layout { disk_size: 500, frame: 32, stored: 32, unit: 64 }, Vec::new());
            let mut plain = [false; 600];
            for (start, len) in writes {
                local.write(ByteRange::between(start, start + len));
                plain[start as usize..(start + len) as usize].fill(true);
            }
            let part = ByteRange::between(read.0, read.0 + read.1);
            let mut rest = [false; 600];
            local.unwritten(part, |range| rest[range.offset() as usize..range.end() as usize].fill(true));
            for byte in read.0..read.0 + read.1 {
                prop_assert_eq!(rest[byte as usize], !plain[byte as usize]);
            }
            let all = (read.0..read.0 + read.1).all(|byte| plain[byte as usize]);
            prop_assert_eq!(local.is_local(part), all);
        }
    }

    #[test]
    fn blocks_are_found_again_in_a_compressed_blob() {
        let layout = Layout { disk_size: 10 * BLOCK_SIZE, frame: 32 << 10, stored: 15_000, unit: 16 << 10 };
        let local = Local::none(layout, Vec::new());
        for block in 0..10 {
            let part = ByteRange::between(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
            assert_eq!(local.blocks_of(layout.stored_range(part)), block..block + 1);
        }
    }
}
