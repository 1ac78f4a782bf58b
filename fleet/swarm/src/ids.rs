//! Hosts, blobs, chunks and requests as numbers, and the urgency of a need: the vocabulary that events and messages
//! share.

pub use headstart_block::exchange::Urgency;
use headstart_block::{ByteRange, saturating};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A number for another host, valid on this host only. The driver assigns it and never reuses it for another
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// A 64-bit hash of a host's name, the same on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PeerKey(pub u64);

/// A number for a blob (a stored object, such as a layer of an image), valid on this host only. The driver
/// assigns it and never reuses it for another blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlobId(pub u32);

/// A 64-bit hash of a blob's digest, the same on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlobKey(pub u64);

/// A number for a disk of this host that reads blobs. The driver assigns it and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderId(pub u64);

/// A number for a want: a request of a disk of this host for a run of chunks. The driver assigns it and never
/// reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WantId(pub u64);

/// A number for a fetch: a request of this host's agent to a store. The state machine assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreFetchId(pub u64);

/// A run of consecutive chunks of a blob, each 64 KiB except perhaps the blob's last. A run with a `count` of
/// 0 is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunks {
    /// The number of the run's first chunk, counted from 0 at the start of the blob.
    pub first: u32,
    /// The number of chunks in the run.
    pub count: u32,
}

impl Chunks {
    /// A run that contains only `chunk`.
    #[must_use]
    pub fn one(chunk: u32) -> Self {
        Self { first: chunk, count: 1 }
    }

    /// The chunks that contain at least one byte of `range`, a byte range of the blob; a run without chunks if
    /// `range` is empty.
    #[must_use]
    pub fn touched(range: ByteRange) -> Self {
        if range.is_empty() {
            return Self { first: 0, count: 0 };
        }
        let (first, end) = (range.offset() / crate::CHUNK_SIZE, range.end().div_ceil(crate::CHUNK_SIZE));
        // The last number is no chunk's.
        Self { first: saturating(first), count: saturating(end - first) }
    }

    /// The numbers of the chunks in the run, ascending. A run that would reach beyond chunk `u32::MAX` ends
    /// there.
    #[must_use]
    pub fn numbers(self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// The range of bytes that the chunks cover in a blob of `len` bytes, cut at the end of the blob. Empty if the
    /// chunks are beyond that.
    #[must_use]
    pub fn bytes(self, len: u64) -> ByteRange {
        let at = |chunk: u32| (u64::from(chunk) * crate::CHUNK_SIZE).min(len);
        ByteRange::between(at(self.first), at(self.numbers().end))
    }
}
