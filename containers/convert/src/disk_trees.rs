//! Layers on file systems make the trees that they make in memory.

mod golden;
mod stacks;
pub(crate) mod support;

use headstart_block::FileSystemKind;

/// All file systems, each of which passes all tests.
pub(crate) const KINDS: [FileSystemKind; 2] = [FileSystemKind::Ext4, FileSystemKind::Erofs];
