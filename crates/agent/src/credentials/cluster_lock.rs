//! The lock of a cluster's directory: commands that change it take turns.
//!
//! The directory itself is locked, so that there is no further file in it. Version 0.1.0 does not know the lock.

use headstart_block::guarded::{GuardedDir, shell_word};
use headstart_block::lock::lock_within;
use headstart_block::{Error, ErrorKind, Result};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// The longest that another command is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lock, until it is dropped.
#[derive(Debug)]
pub(super) struct ClusterLock {
    _directory: File,
}

impl ClusterLock {
    /// Takes the lock of the directory `dir`, which has to be there.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] where another command has it all the time, [`ErrorKind::Denied`] where the directory or
    /// something in it belongs to another user, or others may write to the directory; errors of the operating system.
    pub(super) fn take(dir: &Path) -> Result<Self> {
        let failed = |e| Error::io("cannot lock", e).about(dir.display());
        let own = GuardedDir::open_own(dir)?;
        own.check_closed()?;
        own.check_entries()?;
        let directory = own.handle().try_clone().map_err(failed)?;
        if lock_within(&directory, PATIENCE).map_err(failed)? {
            return Ok(Self { _directory: directory });
        }
        Err(Error::new(ErrorKind::Conflict, "another command changes this cluster")
            .about(dir.display())
            .remedy(format!(
                "try again once it has ended; `fuser {}` names it",
                shell_word(&dir.to_string_lossy())
            )))
    }
}
