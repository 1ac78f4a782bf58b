//! Tests of the node, in a world of its own.

mod check;
mod faults;
mod model;
mod patterns;
mod world;
