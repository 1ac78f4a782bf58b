//! Preloading by learned plans: the choice of the plan that a boot follows, and the end of preloading that does harm.
//!
//! The crate is pure, as the pull engine is: it reads no clock and does no I/O. A disk drives it with the reads of its
//! guest and the engine's report; the simulator drives it on virtual time. It decides which plan the engine follows.
//! The engine itself knows only the items of the plan that it is given.
//!
//! | module | content |
//! |---|---|
//! | [`pilot`] | the plan of a boot from its creation to its end (read this first) |
//! | [`switcher`] | the plan, among an image's plans, that fits the boot and the link |
//! | [`candidate`] | plans that were found for a disk, and their origins |
//! | [`plans`] | plans as a disk follows them: in its image's order, in whole blocks |
//!
//! The types of a plan are those of `headstart-plan`, which writes and reads the files of plans.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small"))]

pub mod candidate;
pub mod pilot;
pub mod plans;
pub mod switcher;

pub use candidate::{Origin, PlanCandidate, Preloaded};
#[doc(no_inline)]
pub use headstart_plan::ImagePlans;
pub use pilot::{Pilot, PilotReport, Stopped};
pub use switcher::{Switcher, Switches};
