//! Discrete-event simulators: the product's own decision makers on virtual time.
//!
//! [`disk`] replays a boot against one disk: `headstart_pull::Engine`, unchanged, fetches the missing bytes of the
//! boot's reads over a modelled link. No decision of the product's engine is made here, so the results are those of the
//! product. There is no clock, and all randomness comes from a seed: the same inputs give the same result to the last
//! bit.
//!
//! | module | content |
//! |---|---|
//! | [`time`] | nanoseconds since creation |
//! | [`link`] | the way to the store: bandwidth, round trip, latency |
//! | [`boot`] | the reads of a trace, ready to be replayed at their times or after each other |
//! | [`model`] | the two models, the paper's and the real one, as settings of engine, link and replay |
//! | [`disk`] | the event loop of one disk (read this first) |
//! | [`fleet`] | many hosts that boot at once, and help each other |
//! | [`harvest`] | regular VMs, their unused storage, and harvest VMs that borrow it |
//! | [`image`] | a real image as the simulated disk |
//! | [`guide`] | the pilot and policies that decide as reads come, in the simulator |
//! | [`outcome`] | the results: hit rate, accuracy, waits, slow reads, bytes |
//! | [`waits`] | percentiles of any number of waits |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small"))]

pub mod boot;
pub mod disk;
pub mod fleet;
pub mod guide;
pub mod harvest;
pub mod image;
pub mod link;
pub mod model;
pub mod outcome;
mod slab;
pub mod time;
pub mod waits;
mod world;

pub use boot::{Access, Boot, Guest};
pub use disk::{Guide, Simulator};
pub use guide::{Following, Piloting};
pub use image::ImageMap;
pub use link::{Bandwidth, Connections, Failures, Latency, Link, Sharing};
pub use model::{Clock, Misses, Model, Preloads};
pub use outcome::{Accuracy, Bytes, Gatherer, Outcome, Slow, Summary};
pub use time::Nanos;
pub use waits::Waits;
pub use world::Written;
