//! Layers in OverlayBD's LSMT format (log-structured merge-tree): segment index, merged view, writable layer, commit,
//! garbage collection.
//!
//! OverlayBD is the reference implementation of the format. "The DADI paper" is the paper that describes it (USENIX ATC
//! 2020).
//!
//! | module | content |
//! |---|---|
//! | [`segment`] | 16 bytes that give the place of one run of sectors |
//! | [`format`](mod@format) | header and trailer pages, byte by byte |
//! | [`index`] | the searchable table of segments, and merging tables |
//! | [`layer`] | opening an immutable layer: sealed, sparse, with a target (TurboOCI) |
//! | [`pair`] | opening an unsealed writable layer for reading |
//! | [`stack`] | layers on top of each other, read as one disk |
//! | [`layer_writer`] | writing a sealed layer as a stream |
//! | [`writable`] | the writable layer on top of a stack |

pub mod format;
pub mod index;
pub mod layer;
pub mod layer_writer;
pub mod pair;
pub mod segment;
pub mod stack;
pub mod writable;

pub use index::Index;
pub use layer::{Layer, LayerForm, LayerInfo, LayerTarget};
pub use layer_writer::{LayerMeta, LayerSummary, LayerWriter, copy_segments};
pub use pair::open_pair;
pub use segment::Segment;
pub use stack::{Stack, StackSource};
