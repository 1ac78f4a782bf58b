//! Layers on an ext4 file system make the trees that they make in memory.

mod golden;
mod stacks;
pub(crate) mod support;
