//! The words of exchange, from the engine of a disk to the wire between hosts: chunks, urgencies, images, first reads.

use serde::{Deserialize, Serialize};

/// Length of a chunk in bytes: 64 KiB. A host stores, requests and sends the bytes of a blob by whole chunks;
/// only the last chunk of a blob may be shorter.
pub const CHUNK_SIZE: u64 = 64 << 10;

/// The priority of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Urgency {
    /// A read waits for the bytes now; the fetch never waits behind one of [`Urgency::Background`].
    Demand,
    /// No read waits yet: the bytes are preloaded, copied, or fetched to complete a blob.
    Background,
}

/// Identifies an image in messages between hosts: 64 bits of a hash of the digests and the hash tree roots of
/// its layers. It does not reveal any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ImageKey(pub u64);

/// The first read of a slice (64 KiB of a disk) by one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Access {
    /// Number of the slice, which starts at byte `slice * SLICE_SIZE` of the disk.
    pub slice: u32,
    /// Milliseconds from the creation of the disk to the read.
    pub at_ms: u32,
}
