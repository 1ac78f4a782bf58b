//! Training: recorded boots of images become plans, which are written to files or published with the images.
//!
//! `headstart-plan` computes the plans; this crate reads and writes the files, stores and images for it.
//!
//! | module | content |
//! |---|---|
//! | [`training`] | one run of training, from the boots to learn from to the written plans (read this first) |
//! | [`summary`] | the result of training for an image, in numbers |
//! | [`traces`] | recorded boots, read with progress |
//! | [`data_sets`] | data sets of the FAST'26 layout, imported and exported |
//! | [`counted`] | the counts of trackers, as boots to learn from |
//! | [`published`] | plans that are published with images |
//! | [`plan_files`] | plans that were written to a file |
//! | [`layer_map`] | the layer of each part of a disk, so that images that share layers can share plans |
//! | [`order`] | an image that is laid out again in the order of its plans |
//! | [`export`] | a plan as a trace of OverlayBD's prefetcher |
//! | [`progress`] | the progress of learning, and the request to stop it |

#![forbid(unsafe_code)]

pub mod counted;
pub mod data_sets;
pub mod export;
pub mod layer_map;
pub mod order;
pub mod plan_files;
pub mod progress;
pub mod published;
pub mod summary;
pub mod traces;
pub mod training;
