//! The merged view: layers on top of each other, read as one disk.
//!
//! The layers' tables are merged once, when the stack is made (DADI paper, ATC 2020, section 3.2, algorithm 2). A read
//! is then one range lookup in the merged index, and a read of each segment that is found, from the layer that the
//! segment names; sectors that no segment covers are zeros (algorithm 3). Up to eight segments that are side by side in
//! a layer's file are read with one call. The stack itself takes no lock for a read and allocates nothing.
//!
//! A layer with a target ([`crate::layer`]) has two sources, and its two tables are merged like those of two layers. So
//! segments name sources, which are the layers themselves where no layer has a target.

use crate::Segment;
use crate::index::{Index, MAX_LAYERS, merge};
use crate::layer::Layer;
use headstart_block::{BlockDevice, ByteRange, Error, Extent, ReadAt, Result, SECTOR_SIZE};
use std::io::IoSliceMut;
use std::sync::Arc;

/// Immutable layers on top of each other, read as one read-only disk.
pub struct Stack {
    index: Index,
    sources: Box<[Arc<dyn ReadAt>]>,
    /// The nature of each source.
    places: Box<[StackSource]>,
    size: u64,
    /// The largest of its layers.
    decode_unit: u64,
}

/// The nature of a source of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSource {
    /// The number of the layer that it is of, 0 for the lowest.
    pub layer: usize,
    /// `true` if it is the layer's target, `false` if it is the layer's own file.
    pub is_target: bool,
}

impl Stack {
    /// Merges `layers`, lowest first. The disk has the size that the topmost layer with a size gives it; if
    /// no layer has one, the disk ends with the last segment.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there are more than [`MAX_LAYERS`], of which one with a target counts
    /// twice.
    pub fn new(layers: Vec<Layer>) -> Result<Self> {
        let places = layers.iter().enumerate().flat_map(|(layer, opened)| {
            let target = opened.target().map(|_| StackSource { layer, is_target: true });
            std::iter::once(StackSource { layer, is_target: false }).chain(target)
        });
        let places: Box<[_]> = places.collect();
        if places.len() > MAX_LAYERS {
            return Err(Error::invalid(format!(
                "{} layers are more than a stack can have ({MAX_LAYERS}, with a target half as many)",
                layers.len()
            ))
            .remedy("flatten the image first"));
        }
        let sized = layers.iter().rev().map(|layer| layer.info().virtual_size).find(|size| *size != 0);
        let (tables, sources): (Vec<_>, Vec<_>) = layers
            .iter()
            .flat_map(|layer| {
                let target = layer.target().map(|target| (target.segments(), Arc::clone(target.source())));
                std::iter::once((layer.segments(), Arc::clone(layer.source()))).chain(target)
            })
            .unzip();
        let merged = merge(&tables);
        let sources = sources.into_boxed_slice();
        let decode_unit = sources.iter().map(ReadAt::decode_unit).max().unwrap_or(0);
        // The layers' own tables are not needed any more.
        drop(layers);
        let size = sized.unwrap_or_else(|| merged.last().map_or(0, |last| last.end() * SECTOR_SIZE));
        let index = Index::new(merged)?;
        Ok(Self { index, sources, places, size, decode_unit })
    }

    /// Returns the same stack as a disk of `size` bytes. A smaller size cuts the disk off. With a larger size, segments
    /// past the old size become visible, and new bytes that no segment covers read as zeros.
    #[must_use]
    pub fn with_size(mut self, size: u64) -> Self {
        self.size = size;
        self
    }

    /// The offset on the disk, in bytes, at which the last segment of all layers ends; 0 if there is no segment. The
    /// offset may exceed the disk's size, if the topmost layer made the disk smaller.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.index.segments().last().map_or(0, |last| last.end() * SECTOR_SIZE)
    }

    /// The merged index of all layers.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Number of layers in the stack.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.places.last().map_or(0, |last| last.layer + 1)
    }

    /// The sources that the stack reads, by the numbers that [`Segment::layer`] gives: one for each layer, lowest
    /// first, and after that of a layer with a target the target.
    #[must_use]
    pub fn sources(&self) -> &[StackSource] {
        &self.places
    }

    /// Calls `each` for every range of a layer's blob that a read of `range` touches, in the order of the disk. The
    /// arguments are the number of the [source](Stack::sources), which is the layer's number if no layer has a target,
    /// and the range of bytes in its blob as stored (of a compressed blob, the compressed bytes). Holes, zeroed
    /// segments and bytes past the end of the disk are left out, and so are bytes that are in memory for good and need
    /// no blob, and a range that is the one before once more: segments may share what is decompressed for them.
    pub fn stored_ranges(&self, range: ByteRange, each: &mut dyn FnMut(usize, ByteRange)) {
        let (start, end) = (range.offset(), range.end().min(self.size));
        let mut last = None;
        for segment in self.index.lookup(start / SECTOR_SIZE, end.div_ceil(SECTOR_SIZE)) {
            if !segment.is_zeroed() {
                let layer = usize::from(segment.layer());
                let from = segment.moffset() * SECTOR_SIZE;
                let inside = ByteRange::between(from, from + segment.len() * SECTOR_SIZE);
                let stored = self.sources[layer].stored_range(inside);
                if !stored.is_empty() && last.replace((layer, stored)) != Some((layer, stored)) {
                    each(layer, stored);
                }
            }
        }
    }

    /// Fills `buf` from byte `offset` on; the range is inside the disk.
    fn read_inside(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset + buf.len() as u64;
        let mut found = self.index.lookup(offset / SECTOR_SIZE, end.div_ceil(SECTOR_SIZE));
        let Some(first) = found.next() else {
            buf.fill(0);
            return Ok(());
        };
        // Most small reads are in one segment, and need none of the code that gathers several.
        let whole = first.offset() * SECTOR_SIZE <= offset && end <= first.end() * SECTOR_SIZE;
        if whole && !first.is_zeroed() {
            let skipped = offset - first.offset() * SECTOR_SIZE;
            let source = &self.sources[usize::from(first.layer())];
            return source.read_at(buf, first.moffset() * SECTOR_SIZE + skipped);
        }
        self.read_segments(std::iter::once(first).chain(found), buf, offset)
    }

    /// Fills `buf` from byte `offset` on out of `segments`, all segments of that range.
    fn read_segments(
        &self,
        segments: impl Iterator<Item = Segment>,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<()> {
        let end = offset + buf.len() as u64;
        let (mut rest, mut at) = (buf, offset);
        let mut run = Run::new(&self.sources);
        for segment in segments {
            // Only the first and the last sector can be cut.
            let start = (segment.offset() * SECTOR_SIZE).max(offset);
            let stop = (segment.end() * SECTOR_SIZE).min(end);
            let hole = split_front(&mut rest, start - at);
            hole.fill(0);
            let part = split_front(&mut rest, stop - start);
            if segment.is_zeroed() {
                part.fill(0);
            } else {
                let skipped = start - segment.offset() * SECTOR_SIZE;
                run.add(segment.layer(), segment.moffset() * SECTOR_SIZE + skipped, part)?;
            }
            at = stop;
        }
        rest.fill(0);
        run.read()
    }
}

/// Parts of a read that are side by side in one layer's file, though not on the disk. A committed layer is written
/// without gaps, so data that follows a hole on the disk follows at once in the file. One call reads all parts.
struct Run<'a> {
    sources: &'a [Arc<dyn ReadAt>],
    parts: [IoSliceMut<'a>; MAX_PARTS],
    /// Parts that wait to be read.
    waiting: usize,
    layer: u8,
    /// The start and the end of the parts in the layer's file, in bytes.
    start: u64,
    end: u64,
}

/// Most segments that an extent is joined of beside its first.
const MAX_JOINED: usize = 16;

/// Most parts that are read by one call.
const MAX_PARTS: usize = 8;

impl<'a> Run<'a> {
    fn new(sources: &'a [Arc<dyn ReadAt>]) -> Self {
        let parts = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        Self { sources, parts, waiting: 0, layer: 0, start: 0, end: 0 }
    }

    /// Adds a part that is stored at byte `from` of the file of `layer`; reads those that it does not continue.
    fn add(&mut self, layer: u8, from: u64, part: &'a mut [u8]) -> Result<()> {
        if self.waiting == MAX_PARTS || (layer, from) != (self.layer, self.end) {
            self.read()?;
            (self.layer, self.start, self.end) = (layer, from, from);
        }
        self.end += part.len() as u64;
        self.parts[self.waiting] = IoSliceMut::new(part);
        self.waiting += 1;
        Ok(())
    }

    /// Reads all parts that wait.
    fn read(&mut self) -> Result<()> {
        let source = || &self.sources[usize::from(self.layer)];
        match &mut self.parts[..std::mem::take(&mut self.waiting)] {
            [] => Ok(()),
            [part] => source().read_at(part, self.start),
            parts => source().read_vectored_at(parts, self.start),
        }
    }
}

/// Takes the first `len` bytes off `rest`.
fn split_front<'a>(rest: &mut &'a mut [u8], len: u64) -> &'a mut [u8] {
    #[expect(clippy::cast_possible_truncation, reason = "a length within a buffer")]
    let (front, back) = std::mem::take(rest).split_at_mut(len as usize);
    *rest = back;
    front
}

impl BlockDevice for Stack {
    fn size(&self) -> u64 {
        self.size
    }

    fn decode_unit(&self) -> u64 {
        self.decode_unit
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_bounds(offset, buf.len() as u64, self.size)?;
        self.read_inside(buf, offset)
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        check_bounds(offset, 1, self.size)?;
        let sector = offset / SECTOR_SIZE;
        let mut found = self.index.lookup(sector, self.size.div_ceil(SECTOR_SIZE));
        let Some(first) = found.next() else {
            return Ok(Extent { range: ByteRange::between(offset, self.size), zero: true });
        };
        let (mut end, zero) =
            if first.offset() > sector { (first.offset(), true) } else { (first.end(), first.is_zeroed()) };
        if first.offset() <= sector {
            // Bounded, so that a walk from extent to extent never sees a segment more than `MAX_JOINED` times.
            for next in found.take(MAX_JOINED) {
                if next.offset() != end || next.is_zeroed() != zero {
                    break;
                }
                end = next.end();
            }
        }
        Ok(Extent { range: ByteRange::between(offset, (end * SECTOR_SIZE).min(self.size)), zero })
    }
}

/// Refuses a range that is not inside a disk of `size` bytes.
pub(crate) fn check_bounds(offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::invalid(format!(
            "{len} bytes at offset {offset} lie past the end of the disk ({size} bytes)"
        ))),
    }
}
