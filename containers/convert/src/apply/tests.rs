//! Tests of the applier on trees in memory, and random layers and golden images for trees of other kinds.

mod containerd;
pub(crate) mod golden;
pub(crate) mod naive;
pub(crate) mod properties;
mod rules;
pub(crate) mod support;
