//! The vocabulary of headstart: sizes, ranges, sources of bytes, block devices, errors.
//!
//! Every other crate speaks in these words. There is no I/O here but [`FileSource`], the one
//! [`ReadAt`] that everything needs, making private files, and locking files.
//!
//! | module | subject |
//! |---|---|
//! | [`complaints`] | lines of a log that others cause, a few of them aloud |
//! | [`digest`] | the names of blobs |
//! | [`size`] | sectors, sizes as people write them (`4k`, `40G`) |
//! | [`number`] | conversions of integers: lossless, asserted, saturating |
//! | [`range`] | a half-open interval of bytes |
//! | [`private`] | files and directories that are one user's alone |
//! | [`random`] | numbers from a seed |
//! | [`rate`] | bytes a second as people write them (`10MB/s`) |
//! | [`source`] | [`ReadAt`]: immutable bytes that can be read anywhere |
//! | [`mod@plan`] | blocks, slices, and the order in which to preload them |
//! | [`device`] | [`BlockDevice`]: a disk |
//! | [`exchange`] | chunks, urgencies and images, from the engine of a disk to the wire between hosts |
//! | [`time`] | [`Time`]: the clock that a decision maker is told |
//! | [`words`] | numbers in words |
//! | [`error`] | one error type: the thing, the cause, the remedy |
//! | [`lock`] | locks of files that other processes may hold, waited for with a limit |
//! | [`guarded`] | files in directories that other users may write to; files that must not belong to another user |

#![forbid(unsafe_code)]

pub mod complaints;
pub mod device;
pub mod digest;
pub mod error;
pub mod exchange;
pub mod guarded;
pub mod lock;
pub mod number;
pub mod plan;
pub mod private;
pub mod random;
pub mod range;
pub mod rate;
pub mod size;
pub mod source;
pub mod time;
pub mod words;

pub use complaints::{ComplaintLevel, Complaints};
pub use device::{BlockDevice, ClientGuard, Extent};
pub use digest::{Digest, SHA256};
pub use error::{Error, ErrorKind, Result};
pub use number::{exact, saturating, to_usize};
pub use plan::{BLOCK_SIZE, Plan, PlanItem, SLICE_SIZE};
pub use range::ByteRange;
pub use rate::ByteRate;
pub use size::{ByteSize, SECTOR_SIZE};
pub use source::{FileSource, ReadAt, copy_source};
pub use time::Time;
