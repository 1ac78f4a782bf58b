//! Staging directories: the unpublished files of one writer of a layout directory.
//!
//! Each holds a `lease`, a file that its writer holds a lock on while it lives. The kernel drops the lock when the
//! writer dies: then the directory is stale, and the next writer removes it.
//!
//! Most writers publish all of an image at once. One that copies from another store publishes blob by blob, so that a
//! copy that breaks off can be taken up again; it announces that by a file named `early` beside its lease. While one
//! such writer lives, blobs that no image refers to may be of an image that is about to come.

use super::LayoutDir;
use super::directory::STAGING;
use headstart_block::guarded::{FileAccess, GuardedDir, Like};
use headstart_block::{Error, Result};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use tempfile::TempDir;

/// The file that a directory's owner holds a lock on.
const LEASE: &str = "lease";

/// The file by which its owner announces that it publishes blobs before their image.
const EARLY: &str = "early";

/// A directory for the unpublished files of one writer. A lock marks it as in use; it is deleted when this is
/// dropped.
#[derive(Debug)]
pub struct StagingDir {
    /// Dropped before the lease: the directory is never seen unlocked, unless its owner died.
    temp: TempDir,
    _lease: File,
}

/// The treatment of files that belong to writers that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StalePolicy {
    /// The files are deleted.
    Delete,
    /// The files are only counted.
    Count,
}

/// The result of [`remove_stale`]: the leftovers of writers that died, and the effect of the running writers on a
/// prune.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Living {
    /// The number of staging directories whose writers died.
    pub stale: u64,
    /// The total length of the files in those directories, in bytes.
    pub stale_bytes: u64,
    /// `true` if a running writer publishes blobs before the image that needs them, so that unneeded blobs
    /// must not be deleted.
    pub publishes_early: bool,
}

impl StagingDir {
    /// Creates a staging directory. Waits for the store's lock and releases it again, so the caller must not
    /// hold it. `early` is `true` if the writer publishes blobs before the image that needs them.
    ///
    /// # Errors
    /// Errors of locking the store and of creating the directory.
    pub fn new(layout: &LayoutDir, early: bool) -> Result<Self> {
        // The lock keeps others from seeing the directory before its lease is held.
        let _lock = layout.lock()?;
        let parent = layout.staging_dir();
        let failed = |e| Error::io("cannot write", e).about(parent.display());
        layout.make_private_part(STAGING).map_err(failed)?;
        // Files of dead writers take space that is about to be needed. If they cannot be removed (another user's,
        // say), prune reports that.
        let _ = remove_stale(layout, StalePolicy::Delete);
        let temp = TempDir::with_prefix_in("", &parent).map_err(failed)?;
        // For its owner alone, as the directory.
        let own = GuardedDir::open(temp.path()).map_err(failed)?;
        if early {
            own.create_file(EARLY, Like::own(0o600)).map_err(failed)?;
        }
        let lease = own.create_file(LEASE, Like::own(0o600)).map_err(failed)?;
        lease.lock().map_err(failed)?;
        Ok(Self { temp, _lease: lease })
    }

    /// Returns the path of the staging directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.temp.path()
    }
}

/// Deletes or counts, as `policy` says, the staging directories whose writers died. The caller must hold the
/// store's lock; otherwise the directory of a writer that is just starting may be deleted.
///
/// # Errors
/// Errors of reading or deleting.
pub fn remove_stale(layout: &LayoutDir, policy: StalePolicy) -> Result<Living> {
    let about = || layout.staging_dir();
    let failed = |e| Error::io("cannot remove what a dead writer left", e).about(about().display());
    let mut living = Living::default();
    let Some(staging) = layout.private_part(STAGING).map_err(failed)? else { return Ok(living) };
    for name in staging.names().map_err(failed)? {
        // An entry that is not a directory belongs to no writer.
        let opened = match staging.open_dir(&name) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => continue,
            opened => opened.map_err(failed)?,
        };
        // Held until the directory is gone; without a lease its owner died at its birth, or is removing it.
        let lease = match opened.open_file(LEASE, FileAccess::Read) {
            Ok(lease) => Some(lease),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => None,
            Err(e) => return Err(failed(e)),
        };
        match lease.as_ref().map(File::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => {
                living.publishes_early |= opened.open_file(EARLY, FileAccess::Read).is_ok();
                continue;
            }
            Some(Err(TryLockError::Error(e))) => return Err(failed(e)),
            Some(Ok(())) | None => {}
        }
        // In the directory that was examined, whatever has its name by now.
        let path = staging.anchored(&name).map_err(failed)?;
        living.stale += 1;
        living.stale_bytes += size_of_files(&path);
        if policy == StalePolicy::Delete {
            match fs::remove_dir_all(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
                _ => {}
            }
        }
    }
    Ok(living)
}

/// The bytes of the files in a directory, for reports only: unreadable files count as nothing.
fn size_of_files(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|meta| meta.len())
        .sum()
}
