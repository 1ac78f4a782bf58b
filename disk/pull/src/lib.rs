//! The pull engine, a pure state machine that chooses ranges to fetch and their times.
//!
//! It reads no clock, does no I/O, starts no thread and draws randomness only from the seed that it is given: an
//! [`EngineEvent`] and the time go in, [`EngineAction`]s come out. A disk runs it with sockets and a real clock, a
//! simulator runs the same code with a virtual clock. The engine asks about the disk through [`BlobView`].
//!
//! A *driver* is the code that runs an engine. For every event it calls
//! `engine.on_event(now, event, &view, &mut actions)` and then carries out the actions; see [`EngineAction`] for the
//! meaning of each. It must report one [`EngineEvent::Tick`] at creation, so that preloading starts in the grace period
//! before the first read.
//!
//! | module | content |
//! |---|---|
//! | [`engine`] | the states of a request, and the events that change them (read this first) |
//! | [`event`], [`blob_view`] | the inputs and outputs of the engine, and its view of the disk |
//! | `active` | the one request that fetches each byte |
//! | `queue` | strict priority: miss, preload, fill |
//! | `window` | the parts of a plan that go into one request |
//! | `preload`, `cursor` | the next part of the [`Plan`], and its progress |
//! | `scans` | reading ahead |
//! | `background_fill` | filling the disk at a set rate, progress and ETA |
//! | `estimator` | bandwidth and round trip; from them the depth and the size of background requests |
//! | `retry`, `timers` | back-off, deadlines |
//! | `store_health` | the pause of background fetches after failures of the store |
//! | [`settings`], [`counters`] | settings and figures |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small"))]

mod active;
mod background_fill;
pub mod blob_view;
pub mod counters;
mod cursor;
pub mod engine;
mod estimator;
pub mod event;
mod preload;
mod queue;
mod request;
mod retry;
mod scans;
pub mod settings;
mod store_health;
#[cfg(test)]
mod testing;
mod timers;
mod window;

pub use blob_view::{BlobRange, BlobView, DiskBlobId};
pub use counters::{EngineCounters, Estimate, FillProgress, Preloading};
pub use engine::Engine;
pub use event::{EngineAction, EngineEvent, FetchId, FetchOutcome, Priority, ReadId, Time};
#[doc(no_inline)]
pub use headstart_block::{BLOCK_SIZE, Plan, PlanItem, SLICE_SIZE};
pub use settings::{BackgroundSharing, EngineSettings, MissRest, Retry};
