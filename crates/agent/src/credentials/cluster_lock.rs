//! The lock of a cluster's directory: commands that change it take turns.
//!
//! The directory itself is locked, so that there is no further file in it. Version 0.1.0 does not know the lock.

use headstart_block::guarded::{GuardedDir, shell_word};
use headstart_block::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// The number of tries, and the pause between two: ten seconds in all.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(50);

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
    /// something in it belongs to another user; errors of the operating system.
    #[expect(clippy::disallowed_methods, reason = "a command line waits for another one")]
    pub(super) fn take(dir: &Path) -> Result<Self> {
        let failed = |e| Error::io("cannot lock", e).about(dir.display());
        let own = GuardedDir::open_own(dir)?;
        own.check_entries()?;
        let directory = own.handle().try_clone().map_err(failed)?;
        for _ in 0..TRIES {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _directory: directory }),
                Err(Errno::WOULDBLOCK) => sleep(PAUSE),
                Err(e) => return Err(failed(e.into())),
            }
        }
        Err(Error::new(ErrorKind::Conflict, "another command changes this cluster")
            .about(dir.display())
            .remedy(format!(
                "try again once it has ended; `fuser {}` names it",
                shell_word(&dir.to_string_lossy())
            )))
    }
}
