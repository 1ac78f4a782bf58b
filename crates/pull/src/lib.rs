//! The pull engine, a pure state machine: which ranges to fetch, when, from where.
//!
//! It reads no clock, does no I/O, starts no thread and draws no randomness but from the seed it is given: an
//! [`Event`] and the time go in, [`Action`]s come out. A disk drives it with sockets and a real clock, a simulator
//! drives the same code with a virtual one. What it knows of the disk it asks through [`World`].
//!
//! A driver does, for every event, `engine.on_event(now, event, &world, &mut actions)` and then what the actions
//! say; see [`Action`] for what each asks of it. It sends one [`Event::Tick`] at creation, so that preloading starts
//! in the grace period before the first read.
//!
//! | module | what it decides |
//! |---|---|
//! | [`engine`] | the states of a fetch, and which event moves it (read this first) |
//! | `active` | who brings which bytes: single-flight |
//! | `queue` | strict priority: miss, preload, left |
//! | `window` | what of a plan goes into one request |
//! | `preload`, `cursor` | what of the [`Plan`] comes next, and how far it is |
//! | `scans` | reading ahead |
//! | `left` | filling the disk at a set rate, progress and ETA |
//! | `estimator` | bandwidth and round trip; from them the depth and the size of background requests |
//! | `retry`, `timers` | back-off, deadlines |
//! | `source` | where to fetch from |
//! | [`switcher`] | which of an image's plans a boot follows |
//! | [`pilot`] | the switcher, and whether preloading is worth it: what a disk drives |
//! | [`settings`], [`counters`] | knobs and figures |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small"))]

mod active;
pub mod counters;
mod cursor;
pub mod engine;
mod estimator;
pub mod event;
mod left;
pub mod pilot;
mod preload;
mod queue;
mod request;
mod retry;
mod scans;
pub mod settings;
mod source;
pub mod switcher;
#[cfg(test)]
mod testing;
mod timers;
mod window;
pub mod world;

pub use counters::{Counters, Estimate, Progress};
pub use engine::Engine;
pub use event::{Action, Event, FetchId, Outcome, Priority, ReadId, Source, Time};
#[doc(no_inline)]
pub use headstart_block::{BLOCK_SIZE, Plan, PlanItem, SLICE_SIZE};
pub use pilot::{Pilot, Preloading, Report, Stopped};
pub use settings::{Rest, Retry, Settings, Sharing};
pub use switcher::{Switcher, Switches};
pub use world::{BlobId, BlobRange, World};
