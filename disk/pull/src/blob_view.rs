//! The engine's view of the disk: the blobs that hold the disk's bytes, and the parts of these blobs that are local.

use headstart_block::ByteRange;
use std::fmt;

/// The number of a blob of the disk, given by the driver (the code that runs the engine). A hash tree is a
/// blob of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskBlobId(pub u32);

/// A range of bytes of a blob as it is stored (compressed, say). The engine fetches such ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobRange {
    /// The blob that the bytes belong to.
    pub blob: DiskBlobId,
    /// The range within the blob, in bytes.
    pub range: ByteRange,
}

impl BlobRange {
    /// Returns the bytes of `blob` from `start` to before `end`; empty if `end < start`.
    #[must_use]
    pub fn between(blob: DiskBlobId, start: u64, end: u64) -> Self {
        Self { blob, range: ByteRange::between(start, end) }
    }

    /// Length of the range, in bytes.
    #[must_use]
    pub fn len(self) -> u64 {
        self.range.len()
    }

    /// Returns `true` if the range has no bytes.
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

/// The engine's view of the disk: the blobs that store its bytes, and the bytes that are local (on this
/// host). The product implements it by the image's merged index and the cache, a simulator by bitmaps.
///
/// The answers must not change while the engine handles one event. Between events they may change, because other
/// processes fill the same cache.
pub trait BlobView {
    /// The size of the disk in bytes.
    fn disk_size(&self) -> u64;

    /// Calls `each` with the ranges of blobs from which the disk's bytes in `part` are read, in the order of the disk.
    /// Holes have none, and hash trees are not included. Adjacent ranges may overlap, because a compressed frame holds
    /// bytes of both.
    fn ranges(&self, part: ByteRange, each: &mut dyn FnMut(BlobRange));

    /// Calls `each` with the parts of `range` that are not local, rounded out to the unit in which the cache
    /// verifies but not past the blob's end. Also calls it with the pages of the hash tree that verifying
    /// those parts needs and that are not local, as ranges of the tree's own [`DiskBlobId`]. If `range` belongs
    /// to a hash tree, calls it only with the pages of `range` that are not local.
    fn missing(&self, range: BlobRange, each: &mut dyn FnMut(BlobRange));
}
