//! The types that the engines of disks share with the messages between hosts: chunks, urgencies, image keys, first
//! reads of slices, and the counts of these reads.

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

/// Identifies an image in messages between hosts: 64 bits of a hash of the digests and the hash tree roots of its disk
/// layers. The key reveals none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ImageKey(pub u64);

/// The first read of a slice (64 KiB of a disk) by one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SliceAccess {
    /// Number of the slice, which starts at byte `slice * SLICE_SIZE` of the disk.
    pub slice: u32,
    /// Milliseconds from the creation of the disk to the read.
    pub at_ms: u32,
}

/// A hint from a tracker: a slice that disks of an image read while they booted, the number of these disks, and the
/// mean time of their first reads of the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// The slice's number on the disk, in units of 64 KiB.
    pub slice: u32,
    /// The number of disks that have read the slice.
    pub disks: u32,
    /// The mean time from the creation of a disk to its first read of the slice, in milliseconds.
    pub mean_ms: u32,
}

/// A tracker's counts of one image as plain data, to be saved across a restart or used to make a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageCounts {
    /// The image that was counted.
    pub image: ImageKey,
    /// The number of disks of the image that were counted. When this number exceeds 16384, it is halved, and so are the
    /// counts of all slices.
    pub disks: u32,
    /// One entry for each slice that at least one disk has read, by ascending slice number.
    pub slices: Vec<Hint>,
}
