//! The words of exchange, from the engine of a disk to the wire between hosts: chunks, urgencies, images, first reads.

use serde::{Deserialize, Serialize};

/// Bytes of a chunk, the unit of presence and of exchange; the last chunk of a blob may be short.
pub const CHUNK_SIZE: u64 = 64 << 10;

/// The urgency of a need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Urgency {
    /// A read waits for it now: it never waits behind [`Urgency::Background`].
    Demand,
    /// A read may need it later: preloading, filling, copying.
    Background,
}

/// An image, by a hash of its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ImageKey(pub u64);

/// The first read of a slice by a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Access {
    /// The slice's number in the disk.
    pub slice: u32,
    /// The time since the disk's creation, in milliseconds.
    pub at_ms: u32,
}
