//! Discrete-event simulators: the product's own decision makers on virtual time.
//!
//! The product's own code makes all decisions, so the results are those of the product. No clock is read, and all
//! random numbers come from a seed: the same inputs give the same result to the last bit.
//!
//! | module | content |
//! |---|---|
//! | [`fleet`] | many hosts that boot at once, and help each other |
//! | [`harvest`] | regular VMs, their unused storage, and harvest VMs that borrow it |
//!
//! The replay of a single disk is in `headstart_replay`, which also has the virtual time, the guests and the local
//! bytes that fleets use.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small"))]

pub mod fleet;
pub mod harvest;
mod slab;
