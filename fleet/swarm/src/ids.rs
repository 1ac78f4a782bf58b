//! Hosts, blobs, chunks and requests as numbers, and the urgency of a need: the vocabulary that events and messages
//! share.

pub use headstart_block::exchange::Urgency;
use headstart_block::{ByteRange, saturating};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Another host, by a number that the driver assigns and never uses again for another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// A host's name as a number that is the same on all hosts: a hash of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PeerKey(pub u64);

/// A blob, by a number that this host's driver assigns and never uses again for another blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlobId(pub u32);

/// A blob's digest as a number that is the same on all hosts: a hash of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlobKey(pub u64);

/// A reader of blobs on this host, which is a disk, by a number that the driver assigns and uses once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderId(pub u64);

/// A want of a disk of this host, by a number that the driver assigns and uses once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WantId(pub u64);

/// A fetch of the agent from a store, by a number that the machine assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// A run of consecutive chunks of a blob. An empty run means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunks {
    /// The first chunk.
    pub first: u32,
    /// The number of chunks.
    pub count: u32,
}

impl Chunks {
    /// One chunk.
    #[must_use]
    pub fn one(chunk: u32) -> Self {
        Self { first: chunk, count: 1 }
    }

    /// The chunks that `range` of a blob touches.
    #[must_use]
    pub fn touched(range: ByteRange) -> Self {
        if range.is_empty() {
            return Self { first: 0, count: 0 };
        }
        let (first, end) = (range.offset() / crate::CHUNK_SIZE, range.end().div_ceil(crate::CHUNK_SIZE));
        // The last number is no chunk's.
        Self { first: saturating(first), count: saturating(end - first) }
    }

    /// The numbers of the chunks. None is beyond `u32::MAX`, whatever `count` says.
    #[must_use]
    pub fn numbers(self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// The bytes of the chunks in a blob of `len` bytes.
    #[must_use]
    pub fn bytes(self, len: u64) -> ByteRange {
        let at = |chunk: u32| (u64::from(chunk) * crate::CHUNK_SIZE).min(len);
        ByteRange::between(at(self.first), at(self.numbers().end))
    }
}
