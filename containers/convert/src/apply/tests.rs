//! Tests of the applier on trees in memory.

mod containerd;
mod golden;
mod naive;
mod properties;
mod rules;
mod support;
