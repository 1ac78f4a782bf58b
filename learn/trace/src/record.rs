//! One traced request.

use headstart_block::ByteRange;

/// The kind of a request to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Bytes were read.
    Read,
    /// Bytes were written, or were set to zeros by a request that carries no data (zeroing or trimming). Neither the
    /// published layout nor headstart's own tells the two apart. For learning they are alike: later reads of such bytes
    /// take nothing from the image.
    Write,
}

/// A traced request to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The arrival of the request, in microseconds since
    /// [`Creation::created_us`](crate::Creation::created_us).
    pub t_us: u64,
    /// The kind of the request.
    pub op: Op,
    /// The range of the disk that was read or written.
    pub range: ByteRange,
    /// The time from the arrival of the request to its completion, in microseconds; `None` if the data set
    /// does not contain it.
    pub service_us: Option<u32>,
}
