//! LSMT layers: segment index, merged view, writable layer, commit, garbage collection.

pub mod segment;

pub use segment::Segment;
