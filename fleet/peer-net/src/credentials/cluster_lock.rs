//! The lock of a cluster's directory: commands that change it take turns.
//!
//! The lock is that of a file which only the owner can open, because a user that can open a file or a directory can
//! hold its lock for ever. Version 0.1.0 has no lock, so the file is made in its directories, too.

use super::LOCK;
use headstart_block::guarded::{GuardedDir, Like, check_own_file, shell_word};
use headstart_block::lock::lock_within;
use headstart_block::private::{FILE_MODE, close, not_closed};
use headstart_block::{Error, ErrorKind, Result};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// The longest wait for another command.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The lock, until it is dropped.
#[derive(Debug)]
pub(super) struct ClusterLock {
    _file: File,
}

impl ClusterLock {
    /// Takes the lock of the directory `dir`, which has to be there.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another command has it all the time, [`ErrorKind::Denied`] if the directory or
    /// something in it belongs to another user, or others may write to the directory; errors of the operating system,
    /// and an error that names its kind if an entry other than a file has the lock's name.
    pub(super) fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK);
        let failed = |e| Error::io("cannot lock", e).about(path.display());
        let own = GuardedDir::open_own(dir)?;
        own.check_closed()?;
        own.check_entries()?;
        let file = own.open_or_create(LOCK, Like::own(FILE_MODE)).map_err(|e| {
            let is_no_file = e.kind() == std::io::ErrorKind::InvalidInput;
            let error = failed(e);
            if is_no_file { error.remedy("remove it: the lock is made again") } else { error }
        })?;
        check_own_file(&file, &path)?;
        close(&file).map_err(|e| not_closed(&path, e))?;
        if lock_within(&file, LOCK_TIMEOUT).map_err(failed)? {
            return Ok(Self { _file: file });
        }
        Err(Error::new(ErrorKind::Conflict, "another command changes this cluster")
            .about(dir.display())
            .remedy(format!(
                "try again once it has ended; `fuser {}` names it",
                shell_word(&path.to_string_lossy())
            )))
    }
}
