//! Hosts, blobs, chunks and requests as numbers, and how soon something is needed: the words that events and messages
//! share.

use headstart_block::ByteRange;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Another host, by a number that the driver gives and never uses again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// A host's name as a number that is the same on all hosts: a hash of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PeerKey(pub u64);

/// A blob, by a number that this host's driver gives and never uses again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlobId(pub u32);

/// A blob's digest as a number that is the same on all hosts: a hash of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlobKey(pub u64);

/// Who reads blobs on this host, a disk, by a number that the driver gives and uses once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderId(pub u64);

/// Something a disk of this host wants, by a number that the driver gives and uses once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WantId(pub u64);

/// Something the agent fetches from a store itself, by a number that the machine gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// A run of chunks of a blob. An empty one means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunks {
    /// Its first chunk.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Chunks {
    /// One chunk.
    #[must_use]
    pub fn one(chunk: u32) -> Self {
        Self { first: chunk, count: 1 }
    }

    /// Those that `range` of a blob touches.
    #[must_use]
    pub fn touched(range: ByteRange) -> Self {
        if range.is_empty() {
            return Self { first: 0, count: 0 };
        }
        let (first, end) = (range.offset() / crate::CHUNK_SIZE, range.end().div_ceil(crate::CHUNK_SIZE));
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Self { first: number(first), count: number(end - first) }
    }

    /// Their numbers. Never beyond the largest number, whatever `count` says.
    #[must_use]
    pub fn numbers(self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Their bytes in a blob of `len` bytes.
    #[must_use]
    pub fn bytes(self, len: u64) -> ByteRange {
        let at = |chunk: u32| (u64::from(chunk) * crate::CHUNK_SIZE).min(len);
        ByteRange::between(at(self.first), at(self.numbers().end))
    }
}

/// How soon something is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Urgency {
    /// Somebody waits for it.
    Demand,
    /// It may be wanted later.
    Background,
}
