//! The simulated disk as the pull engine sees it: its blobs, with a bit for each unit of a blob that says whether the
//! unit is local. The blobs are made by a rule (`Layout`), or are those of a real image ([`ImageMap`]).

use crate::image::ImageMap;
use headstart_block::{ByteRange, exact, to_usize};
use headstart_pull::{BLOCK_SIZE, BlobRange, BlobView, DiskBlobId};
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOB: DiskBlobId = DiskBlobId(0);

/// Bytes of the disk that are compressed together, if there are several images.
const FRAME: u64 = 32 << 10;

/// The number of bytes that become local together in the realistic model: 16 KiB, a group of the hash tree.
pub const UNIT: u64 = 16 << 10;

/// The image, or images, from which the simulated disks are read.
#[derive(Clone, Debug)]
pub enum Shape {
    /// One image of this size in bytes, stored uncompressed in one blob.
    Plain(u64),
    /// Several images of one size, each compressed in a blob of its own. They are placed one behind the other
    /// in one address space, and each disk reads only the range of its image.
    Several {
        /// The number of images.
        images: u32,
        /// The size of each image in bytes, a multiple of a block (2 MiB).
        size: u64,
        /// The length of each 32 KiB of an image as stored in its blob, in bytes.
        stored: u64,
    },
    /// A real image, by the map of its blobs.
    Image(Arc<ImageMap>),
}

/// The layout of the disk's bytes in the blob: each `frame` bytes of the disk in `stored` bytes, in the disk's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) disk_size: u64,
    pub(crate) frame: u64,
    /// The stored length of a frame; `frame` itself if nothing is compressed.
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

    /// The blocks of the disk that bytes of `range` of the blob belong to.
    fn blocks_of(&self, range: ByteRange) -> std::ops::Range<u64> {
        let block = if self.is_plain() {
            BLOCK_SIZE
        } else {
            (BLOCK_SIZE / self.frame).saturating_mul(self.stored).max(1)
        };
        range.offset() / block..range.end().div_ceil(block)
    }
}

/// The bytes of a simulated disk, or of a host's disks, that are local: fetched from the store or written by
/// the guest.
#[derive(Debug)]
pub struct Local {
    place: Place,
    blobs: Vec<Presence>,
    /// A bit for each unit of the blobs, one blob behind the other.
    units: Vec<u64>,
    written: Written,
}

/// The places of the disk's bytes.
#[derive(Debug)]
enum Place {
    /// In one blob, by a rule.
    Layout(Layout),
    /// In this number of blobs, one behind the other, each by the same rule.
    Several(u32, Layout),
    /// In an image's blobs.
    Image(Arc<ImageMap>),
}

/// A blob's units.
#[derive(Clone, Copy, Debug)]
struct Presence {
    /// Its first unit among those of all blobs.
    first: u64,
    len: u64,
    unit: u64,
    /// The binary logarithm of the unit, if that is a power of two.
    shift: Option<u32>,
}

impl Presence {
    /// The units that `range` touches among those of all blobs, from the first to before the last.
    fn units_of(&self, range: ByteRange) -> (u64, u64) {
        if range.is_empty() {
            return (0, 0);
        }
        let last = range.end().min(self.len).saturating_sub(1);
        let (first, last) = match self.shift {
            Some(shift) => (range.offset() >> shift, last >> shift),
            None => (range.offset() / self.unit, last / self.unit),
        };
        (self.first + first, self.first + last + 1)
    }
}

impl Local {
    /// No byte is local. Uses the memory of `before`.
    pub(crate) fn none(layout: Layout, before: Vec<u64>) -> Self {
        Self::of(Place::Layout(layout), [(layout.blob_len(), layout.unit)].into_iter(), before)
    }

    /// Only the bytes that opening an image's disk read are local. Uses the memory of `before`.
    pub(crate) fn opened(image: &Arc<ImageMap>, before: Vec<u64>) -> Self {
        let shapes = image.blobs().iter().map(|blob| (blob.len, blob.unit));
        let mut local = Self::of(Place::Image(Arc::clone(image)), shapes, before);
        image.opened(&mut |range| local.insert(range));
        local
    }

    /// Creates the local bytes of a host, which its disks share. `unit` bytes of a blob become local together; `None`:
    /// the units of the product's cache. At first, everything is local if `all` is `true`. Otherwise only the bytes
    /// that are read to open a real image ([`Shape::Image`]) are local; with another shape no byte is.
    #[must_use]
    pub fn of_host(shape: &Shape, unit: Option<u64>, all: bool) -> Self {
        let mut local = match shape {
            Shape::Plain(size) => {
                let layout = Layout { disk_size: *size, frame: 1, stored: 1, unit: unit.unwrap_or(UNIT) };
                Self::none(layout, Vec::new())
            }
            Shape::Several { images, size, stored } => {
                let (disk_size, unit) = ((*size).max(FRAME), unit.unwrap_or(UNIT));
                let layout = Layout { disk_size, frame: FRAME, stored: (*stored).clamp(1, FRAME), unit };
                let shapes = (0..*images).map(|_| (layout.blob_len(), unit));
                Self::of(Place::Several(*images, layout), shapes, Vec::new())
            }
            Shape::Image(image) => {
                let shapes = image.blobs().iter().map(|blob| (blob.len, unit.unwrap_or(blob.unit)));
                let mut local = Self::of(Place::Image(Arc::clone(image)), shapes, Vec::new());
                image.opened(&mut |range| local.insert(range));
                local
            }
        };
        if all {
            local.units.fill(u64::MAX);
        }
        local
    }

    /// The length of each blob, and the length of one of its units, both in bytes, in the order of the blobs' numbers.
    pub fn blobs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.blobs.iter().map(|blob| (blob.len, blob.unit))
    }

    /// Returns the numbers of the units that `range` touches; the first unit of the range's blob has the number 0.
    #[must_use]
    pub fn touched(&self, range: BlobRange) -> std::ops::Range<u64> {
        let first = self.blobs.get(range.blob.0 as usize).map_or(0, |blob| blob.first);
        let (from, end) = self.units_of(range);
        from.saturating_sub(first)..end.saturating_sub(first)
    }

    /// Returns `true` if unit number `unit` of the blob is local or past the blob's end, or there is no such blob.
    #[must_use]
    pub fn has_unit(&self, blob: DiskBlobId, unit: u64) -> bool {
        let Some(blob) = self.blobs.get(blob.0 as usize) else { return true };
        unit >= blob.len.div_ceil(blob.unit) || self.has(blob.first + unit)
    }

    /// Returns the bytes of unit number `unit` of the blob, cut at the blob's end.
    #[must_use]
    pub fn unit_range(&self, blob: DiskBlobId, unit: u64) -> BlobRange {
        let (len, size) = self.blobs.get(blob.0 as usize).map_or((0, 1), |blob| (blob.len, blob.unit));
        BlobRange::between(blob, unit.saturating_mul(size).min(len), (unit + 1).saturating_mul(size).min(len))
    }

    fn of(place: Place, shapes: impl Iterator<Item = (u64, u64)>, mut before: Vec<u64>) -> Self {
        let mut next = 0;
        let presence = |(len, unit): (u64, u64)| {
            let first = next;
            next += len.div_ceil(unit);
            let shift = unit.is_power_of_two().then(|| unit.trailing_zeros());
            Presence { first, len, unit, shift }
        };
        let blobs = shapes.map(presence).collect();
        before.clear();
        before.resize(to_usize(next.div_ceil(64)), 0);
        Self { place, blobs, units: before, written: Written::default() }
    }

    /// The memory, to be used again.
    pub(crate) fn into_memory(self) -> Vec<u64> {
        self.units
    }

    /// Returns `true` if all bytes of `part` of the disk are local, so that a read of it is a hit.
    #[must_use]
    pub fn is_local(&self, part: ByteRange) -> bool {
        if self.written.is_empty() {
            return self.is_fetched(part);
        }
        let mut local = true;
        self.unwritten(part, |rest| local &= self.is_fetched(rest));
        local
    }

    fn is_fetched(&self, part: ByteRange) -> bool {
        let mut local = true;
        self.ranges(part, &mut |range| {
            let (first, end) = self.units_of(range);
            local &= (first..end).all(|unit| self.has(unit));
        });
        local
    }

    /// Marks a fetched range of a blob as local: all units that `range` touches.
    pub fn insert(&mut self, range: BlobRange) {
        let (first, end) = self.units_of(range);
        for unit in first..end {
            if let Some(word) = word(unit).and_then(|word| self.units.get_mut(word)) {
                *word |= 1 << (unit % 64);
            }
        }
    }

    /// Marks `part` of the disk as written by the guest; it is local from now on.
    pub fn write(&mut self, part: ByteRange) {
        self.written.write(part);
    }

    /// Calls `each` with the parts of `part` of the disk that the guest has not written.
    pub fn unwritten(&self, part: ByteRange, each: impl FnMut(ByteRange)) {
        self.written.unwritten(part, each);
    }

    /// Calls `each` with the number of each block (2 MiB) of the disk that has bytes in `range` of a blob. A block may
    /// be reported several times.
    pub fn blocks_of(&self, range: BlobRange, each: &mut dyn FnMut(u64)) {
        match &self.place {
            Place::Layout(layout) => layout.blocks_of(range.range).for_each(each),
            Place::Several(_, layout) => {
                let first = (layout.disk_size / BLOCK_SIZE).saturating_mul(range.blob.0.into());
                layout.blocks_of(range.range).for_each(|block| each(first + block));
            }
            Place::Image(image) => image.blocks_of(range, each),
        }
    }

    fn has(&self, unit: u64) -> bool {
        word(unit).and_then(|word| self.units.get(word)).is_none_or(|word| word >> (unit % 64) & 1 == 1)
    }

    fn units_of(&self, range: BlobRange) -> (u64, u64) {
        self.blobs.get(range.blob.0 as usize).map_or((0, 0), |blob| blob.units_of(range.range))
    }

    /// The runs of units of `range` that are not local.
    fn missing_runs(&self, range: BlobRange, each: &mut dyn FnMut(BlobRange)) {
        let Some(blob) = self.blobs.get(range.blob.0 as usize) else { return };
        let (mut at, end) = blob.units_of(range.range);
        while at < end {
            let start = at;
            while at < end && !self.has(at) {
                at += 1;
            }
            if at > start {
                let (start, end) = ((start - blob.first) * blob.unit, (at - blob.first) * blob.unit);
                each(BlobRange::between(range.blob, start, end.min(blob.len)));
            }
            at += 1;
        }
    }
}

fn word(unit: u64) -> Option<usize> {
    usize::try_from(unit / 64).ok()
}

impl BlobView for Local {
    fn disk_size(&self) -> u64 {
        match &self.place {
            Place::Layout(layout) => layout.disk_size,
            Place::Several(images, layout) => layout.disk_size.saturating_mul((*images).into()),
            Place::Image(image) => image.disk_size(),
        }
    }

    fn ranges(&self, part: ByteRange, each: &mut dyn FnMut(BlobRange)) {
        match &self.place {
            Place::Layout(layout) => each(BlobRange { blob: BLOB, range: layout.stored_range(part) }),
            Place::Several(_, layout) => {
                let size = layout.disk_size;
                for n in part.offset() / size..part.end().div_ceil(size) {
                    let inside = part.intersect(ByteRange::between(n * size, (n + 1) * size));
                    let own = ByteRange::between(inside.offset() - n * size, inside.end() - n * size);
                    let blob =
                        DiskBlobId(exact(n, "it is one of the disk's images, whose number has 32 bits"));
                    each(BlobRange { blob, range: layout.stored_range(own) });
                }
            }
            Place::Image(image) => image.ranges(part, each),
        }
    }

    fn missing(&self, range: BlobRange, each: &mut dyn FnMut(BlobRange)) {
        match &self.place {
            Place::Layout(_) | Place::Several(..) => self.missing_runs(range, each),
            Place::Image(image) => self.missing_runs(range, &mut |run| {
                each(run);
                image.tree_pages(run, &mut |pages| self.missing_runs(pages, each));
            }),
        }
    }
}

/// The ranges of a disk that its guest has written. They are read from the writable layer and never from the
/// image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Disjoint, `start -> end`.
    ranges: BTreeMap<u64, u64>,
}

impl Written {
    /// Returns `true` if the guest has written nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds `part` of the disk to the written ranges.
    pub fn write(&mut self, part: ByteRange) {
        let (mut start, mut end) = (part.offset(), part.end());
        while let Some((first, last)) = self.ranges.range(..=end).next_back().map(|(a, b)| (*a, *b))
            && last >= start
        {
            (start, end) = (start.min(first), end.max(last));
            self.ranges.remove(&first);
        }
        self.ranges.insert(start, end);
    }

    /// Calls `each` with the parts of `part` of the disk that the guest has not written.
    pub fn unwritten(&self, part: ByteRange, mut each: impl FnMut(ByteRange)) {
        let mut from = part.offset();
        let before = self.ranges.range(..from).next_back();
        let first = before.filter(|(_, end)| **end > from).map_or(from, |(start, _)| *start);
        for (start, end) in self.ranges.range(first..part.end()) {
            if *start > from {
                each(ByteRange::between(from, *start));
            }
            from = from.max(*end);
        }
        if from < part.end() {
            each(ByteRange::between(from, part.end()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a set of bytes: exactly the bytes that were not inserted are missing, rounded out to units.
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
                local.insert(BlobRange { blob: BLOB, range });
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
        /// Compares with a set of bytes.
        #[test]
        fn written_ranges_are_local(
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
        for block in 0..10 {
            let part = ByteRange::between(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
            assert_eq!(layout.blocks_of(layout.stored_range(part)), block..block + 1);
        }
    }
}
