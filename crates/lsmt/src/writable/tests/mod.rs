//! Tests of the writable disk on a simulated machine, and on the real one.

#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

mod model;
mod sim;
mod steps;
