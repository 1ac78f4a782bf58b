//! The vocabulary of headstart: sizes, ranges, sources of bytes, block devices, errors.
//!
//! Nearly every other crate uses these types. The only I/O here is on files: reading them ([`FileSource`]), creating
//! private ones, taking away other users' permissions, syncing directories, handling files in directories of other
//! users, and locking.
//!
//! | module | subject |
//! |---|---|
//! | [`atomic`] | [`AtomicWord`]: atomic words; tests check protocols without locks on a model of memory |
//! | [`bits`] | bitmaps in words |
//! | [`complaints`] | log lines that clients and other hosts cause: a few are warnings, all others debug lines |
//! | [`digest`] | the names of blobs |
//! | [`file_system`] | the kinds of file systems on disks of containers, and how they are told apart |
//! | [`size`] | sectors, sizes as people write them (`4k`, `40G`) |
//! | [`number`] | conversions of integers: lossless, asserted, saturating |
//! | [`range`] | a half-open interval of bytes |
//! | [`private`] | files and directories that only their owner may access |
//! | [`random`] | numbers from a seed |
//! | [`rate`] | bytes a second as people write them (`10MB/s`) |
//! | [`source`] | [`ReadAt`]: immutable bytes that can be read at any offset |
//! | [`mod@plan`] | blocks, slices, and the order in which to preload them |
//! | [`device`] | [`BlockDevice`]: a disk |
//! | [`exchange`] | types that disk engines share with messages between hosts: chunks, urgencies, image keys |
//! | [`time`] | [`Time`]: a moment, for code that is told the time and reads no clock itself |
//! | [`words`] | numbers with their nouns, for messages (`2 segments`) |
//! | [`error`] | the one error type: names the thing that failed, the cause and the remedy |
//! | [`small_file`] | small files that a user names, read with a limit |
//! | [`durable_names`] | names of files that survive a loss of power |
//! | [`lock`] | locking files, with a limit on the time of waiting |
//! | [`guarded`] | files in directories that other users may write to; files that this user or root must own |

#![forbid(unsafe_code)]

pub mod atomic;
pub mod bits;
pub mod complaints;
pub mod device;
pub mod digest;
pub mod durable_names;
pub mod error;
pub mod exchange;
pub mod file_system;
pub mod guarded;
pub mod lock;
pub mod number;
pub mod plan;
pub mod private;
pub mod random;
pub mod range;
pub mod rate;
pub mod size;
pub mod small_file;
pub mod source;
pub mod time;
pub mod words;

pub use atomic::AtomicWord;
pub use complaints::{ComplaintLevel, Complaints};
pub use device::{BlockDevice, ClientGuard, Extent};
pub use digest::{Digest, SHA256};
pub use durable_names::{sync_dir, sync_dir_of};
pub use error::{Error, ErrorKind, Result};
pub use file_system::FileSystemKind;
pub use number::{exact, saturating, to_usize};
pub use plan::{BLOCK_SIZE, Plan, PlanItem, SLICE_SIZE};
pub use range::ByteRange;
pub use rate::ByteRate;
pub use size::{ByteSize, SECTOR_SIZE};
pub use source::{FileSource, ReadAt, copy_source};
pub use time::Time;
