//! Learning from traces: the ranges to preload, and their order.
//!
//! The crate is pure: no clock, no I/O except through its arguments, and no randomness but from a seed. "The paper" is
//! ThinkAhead (FAST'26) in all modules; each module names the sections that it follows. The paper's *artifact* is its
//! published simulator.
//!
//! | module | content |
//! |---|---|
//! | [`block_table`] | the blocks of an image, numbered densely |
//! | [`compact_trace`] | a trace reduced to the data that learning needs |
//! | [`statistics`] | sums over many traces for each block, so that training is incremental |
//! | [`evaluate`] | the value of an order of preloading on recorded boots |
//! | [`similarity`] | the similarity of two boots |
//! | [`preprocess`] | the division of an image's traces into groups of similar ones, without outliers |
//! | [`policy`] | ways to make an order of preloading |
//! | [`knowledge`] | everything learned from a data set, image by image |
//! | [`train`] | from knowledge to plans |
//! | [`artifact`] | plans as one file |
//! | [`plans`] | the results of training: plans by group and bandwidth |
//! | [`difference`] | the differences between two files of plans |
//! | [`layers`] | plans for an image from the plans of other images that share layers with it |
//! | [`overlaybd_trace`] | the trace files of another prefetcher: read as plans, written from plans |
//! | [`zero_shot`] | the choice of traces to learn from for an image that has none |
//! | [`bandwidth`] | bandwidths, and the bins that plans are made for |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small"))]

pub mod artifact;
pub mod bandwidth;
mod best;
pub mod block_table;
pub mod compact_trace;
mod container;
pub mod difference;
mod encoding;
pub mod evaluate;
mod image_key;
pub mod knowledge;
pub mod layers;
pub mod overlaybd_trace;
pub mod plans;
pub mod policy;
pub mod preprocess;
pub mod similarity;
mod slices;
pub mod statistics;
mod tasks;
#[cfg(test)]
mod testing;
pub mod train;
pub mod zero_shot;

pub use artifact::PlanFile;
pub use bandwidth::{Bandwidth, Bin, RawNanos};
pub use block_table::{BlockId, BlockTable};
pub use compact_trace::{BlockAccess, CompactRead, CompactTrace, READS_MAX};
pub use headstart_block::{BLOCK_SIZE, Plan, PlanItem, SLICE_SIZE};
pub use knowledge::{ImageKnowledge, Knowledge, RecordedImage};
pub use plans::{Centroid, FirstRead, GroupPlans, ImagePlans, RatedPlan};
pub use statistics::{BlockStats, ReadWindow, Statistics};
pub use train::{Plans, TrainConfig};
