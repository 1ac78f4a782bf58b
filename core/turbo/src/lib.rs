//! TurboOCI: images of containers that are used as disks without being converted.
//!
//! A TurboOCI image has a small blob for each layer of an ordinary image: the *package*. The package holds the metadata
//! of a file system, and where in the layer's tar the content of each file is. The tar stays what it is, mostly
//! compressed by gzip, and is called the *target*. An index of places at which the inflater can start makes any range
//! of the target readable.
//!
//! | module | contents |
//! |---|---|
//! | [`format`](mod@format) | the index of a gzip file (`gzip.meta`), byte by byte |
//! | [`index`] | reading an index, and the compressed bytes that a range needs |
//! | [`index_writer`] | writing an index |
//! | [`view`] | any range of the uncompressed bytes of a gzip blob |
//! | [`cache`] | uncompressed parts that were read lately, shared by many views |
//! | [`indexer`] | an index made in passing, while a gzip stream is read once |
//! | [`package`] | the blob of a TurboOCI layer and the files in it |
//! | [`package_writer`] | writing such a blob |
//! | [`spool`] | bytes in memory, or in a temporary file if they are many |
//!
//! The metadata of the file system is a layer in the LSMT format, which `headstart-lsmt` reads; this crate does not
//! know it. `headstart-image` puts both together.
//!
//! # Peers
//!
//! OverlayBD, the reference implementation, reads the indexes that this crate makes, and this crate reads those of
//! OverlayBD. They differ where [`indexer`] says so.

#![forbid(unsafe_code)]

pub mod cache;
mod first_bit;
pub mod format;
pub mod index;
pub mod index_writer;
pub mod indexer;
mod inflater;
mod member;
pub mod package;
pub mod package_writer;
mod point_writer;
mod recorder;
pub mod spool;
pub mod view;
mod window_use;

#[cfg(test)]
mod support;

pub use cache::InflatedCache;
pub use format::RestartPoint;
pub use index::GzipIndex;
pub use indexer::{BuiltIndex, IndexingReader};
pub use package::{PackageBudget, TurboPackage};
pub use package_writer::NewPackage;
pub use spool::Spool;
pub use view::InflatedView;
