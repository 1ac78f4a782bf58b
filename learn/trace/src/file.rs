//! A trace as a Parquet file.
//!
//! # Version 1
//!
//! Any Parquet reader can open such a file. It has one table, in which each row is a request to the disk or a sample of
//! the link to the store. All requests are sorted by time, and so are all samples; the row groups with the samples come
//! after those with the requests.
//!
//! | column | type | meaning |
//! |---|---|---|
//! | `t_us` | `int64`, unsigned | microseconds from the creation to the request's arrival, or to the link sample |
//! | `op` | `int32`, unsigned 8 bits | 0 write (also zeroing and trimming), 1 read, 2 link sample |
//! | `offset` | `int64`, unsigned | of a request: its place on the disk, in bytes; 0 in a link sample |
//! | `length` | `int64`, unsigned | of a request: its length in bytes; 0 in a link sample |
//! | `service_us` | `int32`, unsigned, nullable | of a request: time from arrival to completion, in microseconds |
//! | `bandwidth` | `int64`, unsigned, nullable | of a link sample: bytes a second |
//! | `round_trip_us` | `int32`, unsigned, nullable | of a link sample: round-trip time in microseconds |
//!
//! The file's key-value metadata has one entry, `headstart.trace`: a JSON object with `version` (1), `creation` (the
//! fields of [`Creation`](crate::Creation)) and `dropped` (the number of requests that are missing because the recorder
//! had no room for them). Readers skip fields that they do not know. A change that older readers would misunderstand
//! takes a new version, and a reader refuses versions newer than its own.
//!
//! Pages are of the first kind (data page v1), encoded as `PLAIN`, with `RLE` levels in nullable columns, and
//! compressed by zstd. Other encodings would save a few percent at most; without them, the reader stays small.
//!
//! # Reading
//!
//! Traces come from other hosts and users. The `parquet` crate, which writes them, trusts the files that it reads: it
//! allocates a page of the size that a header claims, and asserts conditions that a hostile footer breaks (an offset
//! below zero, a block of deltas without values). So this module has a reader of its own, for version 1 only. The
//! reader bounds the size and depth of the footer and of page headers, holds one page of up to 1 MiB (decompressed) at
//! a time, and refuses a file with more records than the caller allows.

mod read;
mod thrift;
mod write;

pub use read::{ReadLimits, read, read_creation, read_file};
pub(crate) use read::{read_any_order, read_bounded};
pub use write::encode;

use serde::{Deserialize, Serialize};

/// The version of the trace file format that is written; files of newer versions are refused.
pub const VERSION: u32 = 1;

/// The entry of the key-value metadata.
const KEY: &str = "headstart.trace";

/// Most bytes of its JSON.
const HEADER_MAX: usize = 64 << 10;

/// Most bytes of a page, uncompressed.
const PAGE_MAX: usize = 1 << 20;

/// The value of [`KEY`].
#[derive(Serialize, Deserialize)]
struct Header<C> {
    version: u32,
    #[serde(default)]
    creation: C,
    #[serde(default)]
    dropped: u64,
}

/// The form in which values of a column are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Physical {
    Int32,
    Int64,
}

/// A column: its name, its type, its Parquet annotation, `true` if it is nullable.
struct Column {
    name: &'static str,
    physical: Physical,
    bits: u8,
    nullable: bool,
}

const fn column(name: &'static str, physical: Physical, bits: u8, nullable: bool) -> Column {
    Column { name, physical, bits, nullable }
}

const COLUMNS: [Column; 7] = [
    column("t_us", Physical::Int64, 64, false),
    column("op", Physical::Int32, 8, false),
    column("offset", Physical::Int64, 64, false),
    column("length", Physical::Int64, 64, false),
    column("service_us", Physical::Int32, 32, true),
    column("bandwidth", Physical::Int64, 64, true),
    column("round_trip_us", Physical::Int32, 32, true),
];

/// Values of the column `op`.
const WRITE: u32 = 0;
const READ: u32 = 1;
const LINK: u32 = 2;

#[cfg(test)]
mod tests;
