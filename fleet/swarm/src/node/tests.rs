//! Tests of the node, in a world of its own.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::panic,
    reason = "small numbers, and tests may fail"
)]

mod ahead;
mod check;
mod events;
mod faults;
mod model;
mod patterns;
mod roots;
mod search;
mod throttling;
mod world;
