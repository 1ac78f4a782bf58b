//! The value of an order of preloading on recorded boots, at one bandwidth. Each module has a rule for the times at
//! which reads arrive, and a result:
//!
//! | module | times of reads | result |
//! |---|---|---|
//! | [`hits`] | open loop: reads arrive as recorded (the ThinkAhead paper's model) | hit rate, accuracy, waits |
//! | [`online`] | open loop, read by read, for policies that decide during the boot | as [`hits`] |
//! | [`boot`] | closed loop: a guest that waits reads later | the delay of the boot |
//! | [`bound`] | open loop for hits, closed loop for the delay | bounds that no order can beat |
//!
//! All modules count in whole nanoseconds, so that simulators that follow the same rules agree to the last digit.

pub mod boot;
pub mod bound;
pub mod hits;
pub mod online;

pub use boot::{BootEvaluator, BootLink, BootScore, Item, Misses};
pub use hits::{Evaluator, Score};
pub use online::{Online, replay};
