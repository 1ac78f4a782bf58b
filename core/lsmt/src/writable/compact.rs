//! The garbage of a writable directory that is not attached, collected to the end.

use super::{Load, WritableDisk};
use headstart_block::{BlockDevice, Error, ErrorKind, Result};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The result of [`WritableDisk::compact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compaction {
    /// Bytes of the file system that the files of the directory took before.
    pub before_bytes: u64,
    /// Bytes of the file system that the files of the directory take now.
    pub after_bytes: u64,
    /// Bytes of stored data that reads can still return.
    pub live_bytes: u64,
    /// Bytes of live data that were written again to free the space around them.
    pub copied_bytes: u64,
}

impl WritableDisk {
    /// Opens the disk in the directory `dir`, collects all its garbage, and closes it. `is_cancelled` is called after
    /// each step; a result of `true` ends the work.
    ///
    /// # Errors
    /// Those of [`WritableDisk::open_alone`]; [`ErrorKind::Cancelled`] if `is_cancelled` returned `true`: the space
    /// that was freed until then stays free; errors of the files.
    pub fn compact(dir: &Path, is_cancelled: &dyn Fn() -> bool) -> Result<Compaction> {
        let before_bytes = taken(dir)?;
        let disk = Self::open_alone(dir)?;
        let about = |e: Error| e.about(dir.display());
        while disk.collect(Load::Offline).map_err(about)? {
            if is_cancelled() {
                // After each step the disk is whole.
                return Err(Error::new(
                    ErrorKind::Cancelled,
                    "stopped; the space that was freed until now stays free",
                ));
            }
        }
        disk.flush().map_err(about)?;
        disk.note_logs().map_err(about)?;
        let space = disk.space();
        drop(disk);
        let (live_bytes, copied_bytes) = (space.live_bytes, space.copied_bytes);
        Ok(Compaction { before_bytes, after_bytes: taken(dir)?, live_bytes, copied_bytes })
    }
}

/// Bytes that the files of a directory take on their file system.
fn taken(dir: &Path) -> Result<u64> {
    let failed = |e| Error::io("cannot list the directory", e).about(dir.display());
    let mut taken = 0;
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        taken += entry.and_then(|entry| entry.metadata()).map_err(failed)?.blocks() * 512;
    }
    Ok(taken)
}
