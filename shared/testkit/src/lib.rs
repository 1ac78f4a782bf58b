//! What tests, demos and comparisons need around the product: a slow link, a faulty one, and real servers.
//!
//! | module | what it is |
//! |---|---|
//! | [`shaper`] | a link of a given rate and round trip, over which any TCP client reaches any server |
//! | [`faults`] | an HTTP proxy that breaks what passes, as a test says, and remembers what was asked |
//! | [`nginx`], [`s3`] | other people's servers, on ports of their own, gone with the test |
//! | [`registry`], [`memory_registry`] | an OCI registry that others wrote, and one that can misbehave |
//! | [`token_server`], [`redirect`] | what stands around registries: tokens, and signed addresses of a storage |
//! | [`process`] | programs that a test starts, watches and ends |
//! | [`files`] | what a directory holds |
//! | [`fio`] | NBD servers measured side by side |
//!
//! Nothing in here is part of the product.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "for tests only: it looks at the clock, and what goes wrong fails the test"
)]

pub mod faults;
pub mod files;
pub mod fio;
pub mod memory_registry;
pub mod nginx;
pub mod process;
pub mod redirect;
pub mod registry;
pub mod s3;
mod served;
pub mod shaper;
pub mod token_server;
