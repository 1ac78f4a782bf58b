//! Unfinished blobs of a layout directory: written out of sight, then given their name.
//!
//! A copy of a large blob that breaks off, by a failure, Ctrl-C or a crash, leaves the part that was copied, and
//! the next copy goes on there:
//!
//! ```text
//! <store>/.headstart/partial/<hex>     the beginning of the blob; its writer holds a lock on it
//! ```
//!
//! Nothing of it is believed: after a power cut it may hold anything. The digest of the whole is computed from the
//! bytes that are there and those that come, and if it is wrong everything is copied again. [`remove_partial`]
//! deletes files that no writer is writing to.

use super::directory::PARTIAL;
use super::{LayoutDir, StagingDir, StalePolicy};
use headstart_block::guarded::FileAccess;
use headstart_block::{Digest, Error, FileSource, Result};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// Length in bytes from which on a blob is worth going on with.
const WORTH_KEEPING: u64 = 4 << 20;

/// A blob on its way into a layout directory. Its bytes are written to a file that readers of the store do not see,
/// until `publish` gives that file the name of the blob.
#[derive(Debug)]
pub struct Unfinished {
    file: File,
    path: PathBuf,
    /// Bytes that were there already.
    there: u64,
    /// Deletes a file that no later copy continues.
    _temp: Option<TempPath>,
}

impl Unfinished {
    /// Creates an empty file `name` in the directory `staging`. It is deleted when this is dropped, unless it
    /// is published.
    ///
    /// # Errors
    /// Errors of making a file.
    pub fn staged(layout: &LayoutDir, staging: &StagingDir, name: &str) -> Result<Self> {
        let path = staging.path().join(name);
        let made = layout.new_file_options().and_then(|options| options.open(&path));
        let file = made.map_err(|e| cannot_write(e, &path))?;
        let temp = TempPath::try_from_path(path.clone()).map_err(|e| cannot_write(e, &path))?;
        Ok(Self { file, path, there: 0, _temp: Some(temp) })
    }

    /// Opens the file with the part of `blob` that an interrupted copy left, or creates it. The file stays when this
    /// is dropped, so that a later copy continues there. `len` is the length of the whole blob in bytes. `None` if the
    /// blob is shorter than 4 MiB, too short to be worth continuing, or if another writer is copying it.
    ///
    /// # Errors
    /// Errors of making, opening or locking a file.
    pub fn kept(layout: &LayoutDir, blob: &Digest, len: u64) -> Result<Option<Self>> {
        if len < WORTH_KEEPING {
            return Ok(None);
        }
        let path = layout.partial_dir().join(blob.hex());
        let failed = |e| cannot_write(e, &path);
        let dir = layout.make_private_part(PARTIAL).map_err(failed)?;
        let most = layout.modes().map_err(failed)?.most;
        let file = match dir.open_file(&blob.hex(), FileAccess::ReadWrite) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match dir.create_file_by_umask(&blob.hex(), most) {
                    // Another writer was quicker.
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
                    made => made,
                }
            }
            opened => opened,
        };
        let file = file.map_err(failed)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(failed(e)),
            Ok(()) => {}
        }
        let meta = file.metadata().map_err(failed)?;
        // Its writer may have finished it, or prune deleted it, before the lock was taken.
        if fs::metadata(&path).map(|named| named.ino()).ok() != Some(meta.ino()) {
            return Ok(None);
        }
        let mut kept = Self { file, path, there: meta.len(), _temp: None };
        if kept.there > len {
            kept.clear()?;
        }
        Ok(Some(kept))
    }

    /// Returns the number of bytes of the blob that an earlier copy left; 0 for a new file, and after a call of
    /// `clear`.
    #[must_use]
    pub fn there(&self) -> u64 {
        self.there
    }

    /// Returns the file for reading, to get the bytes that an earlier copy left.
    ///
    /// # Errors
    /// Errors of duplicating the file handle.
    pub fn beginning(&self) -> Result<FileSource> {
        let file = self.file.try_clone().map_err(|e| cannot_write(e, &self.path))?;
        FileSource::from_file(file, &self.path)
    }

    /// Empties the file, so that the blob is copied from its start.
    ///
    /// # Errors
    /// Errors of truncating the file.
    pub fn clear(&mut self) -> Result<()> {
        self.there = 0;
        self.file.set_len(0).map_err(|e| cannot_write(e, &self.path))
    }

    /// Writes `part` at the given offset of the blob, in bytes.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::NoSpace`] if the disk is full; other errors of writing.
    pub fn write_at(&self, part: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(part, offset).map_err(|e| cannot_write(e, &self.path))
    }

    /// Publishes the file as the blob `blob`, which survives a power failure afterwards. The content is not
    /// checked here.
    ///
    /// # Errors
    /// Errors of syncing or renaming.
    pub fn publish(self, layout: &LayoutDir, blob: &Digest) -> Result<()> {
        self.file.sync_data().map_err(|e| cannot_write(e, &self.path))?;
        layout.put_in_place(&self.path, blob)
    }

    /// Deletes the file. Failures are ignored, because the next prune tries again.
    pub fn discard(self) {
        // Best effort: prune tries again.
        let _ = fs::remove_file(&self.path);
    }
}

/// Deletes or counts, as `policy` says, the first parts of blobs that no writer is copying any more. Returns
/// their number and their total length in bytes.
///
/// # Errors
/// Errors of reading or deleting.
pub fn remove_partial(layout: &LayoutDir, policy: StalePolicy) -> Result<(u64, u64)> {
    let about = || layout.partial_dir();
    let failed = |e| Error::io("cannot remove what a broken copy left", e).about(about().display());
    let Some(dir) = layout.private_part(PARTIAL).map_err(failed)? else { return Ok((0, 0)) };
    let (mut files, mut bytes) = (0, 0);
    for name in dir.names().map_err(failed)? {
        let file = match dir.open_file(&name, FileAccess::Read) {
            // Finished meanwhile, or no copy's.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => continue,
            file => file.map_err(failed)?,
        };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(e)) => return Err(failed(e)),
            Ok(()) => {}
        }
        let meta = file.metadata().map_err(failed)?;
        // Its writer may have finished it before the lock was taken, and another one may have begun the same blob:
        // that one has a lock of its own, on another file.
        let named = fs::metadata(about().join(&name));
        if named.map(|named| named.ino()).ok() != Some(meta.ino()) {
            continue;
        }
        files += 1;
        bytes += meta.len();
        if policy == StalePolicy::Delete {
            dir.remove_file(&name).map_err(failed)?;
        }
    }
    Ok((files, bytes))
}

fn cannot_write(error: io::Error, path: &Path) -> Error {
    Error::io("cannot write", error).about(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Ends the prunes, even if the test fails.
    struct Done<'a>(&'a AtomicBool);

    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A writer that ends and another one that begins the same blob, while prunes look for unused files.
    #[test]
    fn a_prune_deletes_nothing_of_a_writer_that_has_just_begun() {
        let dir = tempfile::tempdir().unwrap();
        let layout = LayoutDir::create_or_open(dir.path()).unwrap();
        let (blob, done) = (Digest::of(b"blob"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        remove_partial(&layout, StalePolicy::Delete).unwrap();
                    }
                });
            }
            let _done = Done(&done);
            let mut begun = 0;
            // On a busy machine a prune may have it for a long time.
            for round in 0..1_000_000 {
                if round >= 1000 && begun > 100 {
                    break;
                }
                let Some(kept) = Unfinished::kept(&layout, &blob, WORTH_KEEPING).unwrap() else {
                    continue;
                };
                begun += 1;
                (0..3).for_each(|_| std::thread::yield_now());
                assert!(kept.path.exists(), "it is lost in round {round}");
                kept.discard();
            }
            assert!(begun > 100, "{begun} begun");
        });
    }
}
