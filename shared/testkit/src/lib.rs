//! Helpers for tests, demos and comparisons: slow and faulty links, servers of other projects, and running programs.
//!
//! | module | content |
//! |---|---|
//! | [`shaper`] | a link of a given rate and round trip, over which any TCP client reaches any server |
//! | [`faults`] | an HTTP proxy that breaks messages, as a test orders, and records the requests |
//! | [`nginx`], [`s3`] | servers of other projects, on free ports, stopped at the end of the test |
//! | [`registry`], [`memory_registry`] | an OCI registry of another project, and one that can misbehave |
//! | [`token_server`], [`redirect`] | servers beside a registry: one for tokens, one that redirects to signed URLs |
//! | [`process`] | programs that a test starts, watches and ends |
//! | [`scene`] | a directory of a test's own, the programs of the workspace run in it, and their output |
//! | [`attached`] | a running `headstart attach` |
//! | [`metrics`] | a strict parser of pages of metrics |
//! | [`disk`] | disks with pseudo-random content, the same in each run |
//! | [`data_sets`] | small data sets of recorded boots |
//! | [`golden_set`] | blobs that the tools of the reference implementation (`OverlayBD`) made |
//! | [`help`] | the help texts of the programs, and the examples in them |
//! | [`files`] | the contents of directories, and the ages of files |
//! | `model` | atomic words of a model of memory, for protocols without locks (feature `model`) |
//! | [`mod@wait`] | waiting for a condition, with a limit |
//! | [`soak`] | the switch for tests that do more if there is time |
//! | [`fio`] | NBD servers measured side by side |
//! | [`containerd`], [`shell_image`] | a containerd of a test's own, and a small image for it |
//! | [`snapshot_suite`] | containerd's own suite of tests for snapshotters |
//!
//! This crate is not part of the product.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "for tests only: it looks at the clock, and what goes wrong fails the test"
)]

pub mod attached;
pub mod containerd;
pub mod data_sets;
pub mod disk;
pub mod faults;
pub mod files;
pub mod fio;
pub mod golden_set;
pub mod help;
pub mod memory_registry;
pub mod metrics;
#[cfg(feature = "model")]
pub mod model;
pub mod nginx;
pub mod process;
pub mod redirect;
pub mod registry;
pub mod s3;
pub mod scene;
mod served;
pub mod shaper;
pub mod shell_image;
pub mod snapshot_suite;
pub mod soak;
pub mod token_server;
pub mod wait;
