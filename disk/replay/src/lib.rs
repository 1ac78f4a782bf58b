//! Replay of a recorded boot of one disk on virtual time.
//!
//! [`disk`] replays a boot against one disk: `headstart_pull::Engine`, unchanged, fetches the missing bytes of the
//! boot's reads over a modelled link. No decision of the product's engine is made here, so the results are those of the
//! product. There is no clock, and all randomness comes from a seed: the same inputs give the same result to the last
//! bit.
//!
//! A replay is *closed-loop*, where a guest that waits reads later, or *open-loop*, where reads come at their recorded
//! times ([`ReplayClock`]). The simulator of fleets in `lab/` has its disks, guests and local bytes from here.
//!
//! | module | content |
//! |---|---|
//! | [`time`] | nanoseconds since creation |
//! | [`link`] | the way to the store: bandwidth, round trip, latency |
//! | [`boot`] | the reads of a trace, ready to be replayed at their times or after each other |
//! | [`model`] | the two models, the paper's and the real one, as settings of engine, link and replay |
//! | [`disk`] | the event loop of one disk (read this first) |
//! | [`image`] | a real image as the simulated disk |
//! | [`world`] | the local bytes of a disk or of a host |
//! | [`guide`] | the pilot and policies that decide as reads come, in the replay |
//! | [`outcome`] | the results: hit rate, accuracy, waits, slow reads, bytes |
//! | [`waits`] | percentiles of any number of waits |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small"))]

pub mod boot;
pub mod disk;
pub mod guide;
pub mod image;
pub mod link;
pub mod model;
pub mod outcome;
pub mod time;
pub mod waits;
pub mod world;

pub use boot::{Boot, BootAccess, Guest};
pub use disk::{Guide, Simulator};
pub use guide::{Following, Piloting};
pub use image::ImageMap;
pub use link::{Connections, Failures, Latency, LinkBandwidth, LinkModel, Sharing};
pub use model::{MissPolicy, Model, PreloadUnit, ReplayClock};
pub use outcome::{Accuracy, BootOutcome, Bytes, Gatherer, Slow, Summary};
pub use time::Nanos;
pub use waits::ReadWaits;
pub use world::Written;
