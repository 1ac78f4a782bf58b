//! One traced request.

use headstart_block::ByteRange;

/// What was asked of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Bytes were read.
    Read,
    /// Bytes were written, or became zeros without being sent: neither the published layout nor ours tells these apart,
    /// and for what traces are made for it is the same, since later reads of such bytes take nothing of the image.
    Write,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time of its arrival, in microseconds since the boot's first read, or the disk's creation.
    pub t_us: u64,
    /// What it was.
    pub op: Op,
    /// The bytes of the disk.
    pub range: ByteRange,
    /// How long it took, in microseconds; `None` in data sets that do not tell.
    pub service_us: Option<u32>,
}
