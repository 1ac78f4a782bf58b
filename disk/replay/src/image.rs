//! A real image as the disk of a simulation: the places of the disk's bytes in the image's blobs, and the pages of the
//! blobs' hash trees that verify these bytes. Both are found by the product's own index.
//!
//! The pull engine gets the same answers as in the product (`disk/disk/src/blobs.rs`), with the same numbers of blobs:
//! first the layers' blobs, each once, then the hash trees of those blobs that have one. The bytes of the disk are
//! never read.

use headstart_block::{BlockDevice, ByteRange, Digest};
use headstart_hash_tree::{GROUP_SIZE, TREE_PAGE, outboard_len, pages};
use headstart_image::open_image::{OpenImage, OpenLayer};
use headstart_lsmt::Stack;
use headstart_pull::{BLOCK_SIZE, BlobRange, DiskBlobId};
use std::fmt;

/// An outboard up to this length, in bytes, is fetched as a whole, as the product's cache does.
const SMALL_TREE: u64 = 64 << 10;

/// Bytes of a blob's start that opening it reads.
const HEAD: u64 = 32 << 10;

/// The location of each byte of an image's disk in the image's blobs, without the bytes. It is immutable, so
/// many simulations can share it.
pub struct ImageMap {
    stack: Stack,
    blobs: Vec<BlobShape>,
    /// The blob of each source of the stack.
    of_source: Vec<DiskBlobId>,
    /// The blocks of the disk that the stored ranges of the layers' blobs belong to, by blob and offset.
    blocks: Vec<(BlobRange, u64)>,
}

/// The facts about a blob that need none of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlobShape {
    pub(crate) len: u64,
    /// Bytes that become local together.
    pub(crate) unit: u64,
    /// Its hash tree.
    tree: Option<DiskBlobId>,
    /// The end of the part, from its start on, that is read when it is opened.
    opened_to: u64,
    /// The start of the part, up to its end, that is read when it is opened.
    opened_from: u64,
}

impl BlobShape {
    /// The blob of a layer. The number of its hash tree is known when all blobs are counted.
    fn of(layer: &OpenLayer) -> Self {
        let len = layer.blob.blob.size;
        // All of the package of a TurboOCI layer is read.
        let all = layer.target.map(|_| 0);
        let opened_from = all.or(layer.blob.index_offset()).unwrap_or(len).min(len);
        let tree = layer.blob.tree.map(|_| DiskBlobId(0));
        Self { len, unit: GROUP_SIZE, tree, opened_to: HEAD.min(len), opened_from }
    }

    /// The blob that has the data of a TurboOCI layer.
    fn of_target(len: u64) -> Self {
        Self { len, unit: GROUP_SIZE, tree: None, opened_to: 0, opened_from: len }
    }
}

impl ImageMap {
    /// Returns the map of an open image. Its blobs may be in a store or on this host; no data are read.
    #[must_use]
    pub fn of(image: OpenImage) -> Self {
        let (mut blobs, mut digests) = (Vec::new(), Vec::new());
        let mut place_of = |digest: Digest, shape: BlobShape| {
            let known = digests.iter().position(|known| *known == digest);
            id(known.unwrap_or_else(|| {
                digests.push(digest);
                blobs.push(shape);
                blobs.len() - 1
            }))
        };
        // Targets come behind all layers, as in the product.
        let of_layer: Vec<_> =
            image.layers.iter().map(|layer| place_of(layer.blob.blob.digest, BlobShape::of(layer))).collect();
        let sources = image.disk().sources().iter().map(|source| {
            let target = image.layers[source.layer].target.filter(|_| source.is_target);
            match target {
                Some(target) => place_of(target.digest, BlobShape::of_target(target.len)),
                None => of_layer[source.layer],
            }
        });
        let of_source = sources.collect();
        for n in 0..digests.len() {
            if blobs[n].tree.is_some() {
                let len = outboard_len(blobs[n].len);
                blobs[n].tree = Some(id(blobs.len()));
                blobs.push(BlobShape { len, unit: TREE_PAGE, tree: None, opened_to: 0, opened_from: len });
            }
        }
        let mut map = Self { stack: image.into_disk(), blobs, of_source, blocks: Vec::new() };
        map.blocks = map.find_blocks();
        map
    }

    /// The block of the disk by stored range; adjacent ranges of a block are merged.
    fn find_blocks(&self) -> Vec<(BlobRange, u64)> {
        let mut blocks: Vec<(BlobRange, u64)> = Vec::new();
        let segments = self.stack.index().segments().iter().filter(|segment| !segment.is_zeroed());
        let mut next = 0;
        for segment in segments {
            let end = segment.end() * headstart_block::SECTOR_SIZE;
            let first = (segment.offset() * headstart_block::SECTOR_SIZE / BLOCK_SIZE).max(next);
            for block in first..end.div_ceil(BLOCK_SIZE) {
                let part = ByteRange::between(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE);
                self.ranges(part, &mut |found| match blocks.last_mut() {
                    Some((last, of)) if *of == block && touches(*last, found) => {
                        let start = last.range.offset().min(found.range.offset());
                        *last =
                            BlobRange::between(found.blob, start, last.range.end().max(found.range.end()));
                    }
                    _ => blocks.push((found, block)),
                });
                next = block + 1;
            }
        }
        blocks.sort_unstable();
        blocks
    }

    /// The size of the disk in bytes.
    #[must_use]
    pub fn disk_size(&self) -> u64 {
        self.stack.size()
    }

    pub(crate) fn blobs(&self) -> &[BlobShape] {
        &self.blobs
    }

    /// The stored ranges that `part` of the disk is read from; nothing past the end of the disk.
    pub(crate) fn ranges(&self, part: ByteRange, each: &mut dyn FnMut(BlobRange)) {
        if part.offset() < self.stack.size() {
            self.stack.stored_ranges(part, &mut |source, range| {
                each(BlobRange { blob: self.of_source[source], range });
            });
        }
    }

    /// The blocks of the disk that bytes of `range` belong to; some of them perhaps several times.
    pub(crate) fn blocks_of(&self, range: BlobRange, each: &mut dyn FnMut(u64)) {
        let end = BlobRange::between(range.blob, range.range.end(), u64::MAX);
        let before = self.blocks.partition_point(|(stored, _)| *stored < end);
        // Stored ranges overlap by a frame at most, except if a block's ranges are in several layers.
        for (stored, block) in self.blocks[..before].iter().rev() {
            if !touches(*stored, range) {
                return;
            }
            each(*block);
        }
    }

    /// The pages of the hash tree that checking `run` of a blob needs, as ranges of the tree.
    pub(crate) fn tree_pages(&self, run: BlobRange, each: &mut dyn FnMut(BlobRange)) {
        let Some(shape) = self.blobs.get(run.blob.0 as usize) else { return };
        let Some(tree) = shape.tree else { return };
        let len = outboard_len(shape.len);
        if len <= SMALL_TREE {
            each(BlobRange::between(tree, 0, len));
        } else {
            pages(shape.len, run.range, &mut |pages| each(BlobRange { blob: tree, range: pages }));
        }
    }

    /// The ranges that are local when the disk is open, because opening it read them.
    pub(crate) fn opened(&self, each: &mut dyn FnMut(BlobRange)) {
        for (n, shape) in self.blobs.iter().enumerate().filter(|(_, shape)| shape.unit == GROUP_SIZE) {
            for (start, end) in [(0, shape.opened_to), (shape.opened_from, shape.len)] {
                let range = BlobRange::between(id(n), start, end);
                if !range.is_empty() {
                    each(range);
                    self.tree_pages(range, each);
                }
            }
        }
    }
}

/// `true` if they overlap, or are adjacent.
fn touches(a: BlobRange, b: BlobRange) -> bool {
    a.blob == b.blob && a.range.offset() <= b.range.end() && b.range.offset() <= a.range.end()
}

/// The number of a blob. There are at most 255 sources.
#[expect(clippy::cast_possible_truncation, reason = "a number of sources")]
fn id(n: usize) -> DiskBlobId {
    DiskBlobId(n as u32)
}

impl fmt::Debug for ImageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, layers) = (self.disk_size(), self.stack.layers());
        f.debug_struct("ImageMap").field("disk_size", &size).field("layers", &layers).finish_non_exhaustive()
    }
}
