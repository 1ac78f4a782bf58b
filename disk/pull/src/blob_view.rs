//! The engine's questions about the disk: the blobs that hold its bytes, and the local parts of them.

use headstart_block::ByteRange;
use std::fmt;

/// A blob of the disk, by a number that the driver gives. A hash tree is a blob of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobId(pub u32);

/// A byte interval of a blob as stored, the unit of fetching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobRange {
    /// The blob.
    pub blob: BlobId,
    /// The bytes of it.
    pub range: ByteRange,
}

impl BlobRange {
    /// The bytes from `start` to `end` of `blob`; empty where `end < start`.
    #[must_use]
    pub fn between(blob: BlobId, start: u64, end: u64) -> Self {
        Self { blob, range: ByteRange::between(start, end) }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.range.len()
    }

    /// `true` if there is no byte in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.range.is_empty()
    }
}

impl fmt::Display for BlobRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blob {} {}", self.blob.0, self.range)
    }
}

/// The disk as the engine sees it: the merged index and the cache in the product, bitmaps in a simulator.
///
/// Answers must hold while one event is handled; between events they may change (another process fills the same cache).
pub trait BlobView {
    /// The size of the disk in bytes.
    fn disk_size(&self) -> u64;

    /// Calls `each` with the stored ranges that the bytes `part` of the disk are read from, in the order of the
    /// disk. Holes have none. Only data: no hash tree. Ranges of neighbours may overlap (a frame holds bytes of
    /// both).
    fn ranges(&self, part: ByteRange, each: &mut dyn FnMut(BlobRange));

    /// Calls `each` with the parts of `range` that are not local, as runs rounded out to the unit in which the
    /// cache verifies (but not past the blob's end), and the missing pages of the hash tree that verifying those
    /// runs needs, as ranges of the tree's own [`BlobId`]. For a range of a hash tree, only with the missing pages
    /// of that range.
    fn missing(&self, range: BlobRange, each: &mut dyn FnMut(BlobRange));
}
