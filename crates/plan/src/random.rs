//! Randomness from a seed: the same seed gives the same numbers, on every machine and in every version.

pub use headstart_block::random::Random;
