//! Slots: a few places for something that only so many processes of this host may do at once.
//!
//! Each is a byte of the directory's lock file, beside the one that is locked for changes of the directory. A process
//! that ends gives its slot back.

use crate::files::Directory;
use crate::locks::{self, Mode};
use std::fs::File;

/// The byte of the first slot in the lock file. Byte 0 is for changes of the directory.
const FIRST: u64 = 1;

/// A slot that this process has until this is dropped.
#[derive(Debug)]
pub struct HostSlot {
    /// The lock goes when it is closed.
    _file: File,
}

impl HostSlot {
    /// Takes one of the first `count` slots of a directory; `None` if others have them all, or if it cannot be told.
    pub(crate) fn take(directory: &Directory, count: u64) -> Option<Self> {
        let file = directory.open_changes_lock().ok()?;
        let mut bytes = (FIRST..FIRST + count).map(|at| at..at + 1);
        bytes
            .any(|byte| locks::try_lock(&file, &byte, Mode::Exclusive).unwrap_or(false))
            .then_some(Self { _file: file })
    }
}
