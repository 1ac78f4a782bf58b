//! Discrete-event simulators: the product's own decision makers on virtual time.
//!
//! No decision that the product makes is made here, so the results are those of the product. There is no clock, and all
//! randomness comes from a seed: the same inputs give the same result to the last bit.
//!
//! | module | content |
//! |---|---|
//! | [`fleet`] | many hosts that boot at once, and help each other |
//! | [`harvest`] | regular VMs, their unused storage, and harvest VMs that borrow it |
//!
//! One disk is replayed by `headstart_replay`, which also has the time, the guests and the local bytes of fleets.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small"))]

pub mod fleet;
pub mod harvest;
mod slab;
