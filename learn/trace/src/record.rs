//! One traced request.

use headstart_block::ByteRange;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Bytes were read.
    Read,
    /// Bytes were written, or became zeros without being sent. Neither the published layout nor ours tells these
    /// apart. For the use of traces they are the same, because later reads of such bytes take nothing of the image.
    Write,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time of its arrival, in microseconds since the boot's first read, or the disk's creation.
    pub t_us: u64,
    /// The kind of the request.
    pub op: Op,
    /// The bytes of the disk.
    pub range: ByteRange,
    /// The time that it took, in microseconds; `None` in data sets that do not tell.
    pub service_us: Option<u32>,
}
