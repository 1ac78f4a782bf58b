//! Blobs that are deleted: first their names, under the lock, then their bytes, without it.
//!
//! ```text
//! <store>/.headstart/trash/<hex>   a blob that was pruned
//! ```
//!
//! Deleting a large file takes a file system long, and attaches wait for the lock. So a prune moves blobs out of the
//! layout while it has the lock: from then on they are gone for all processes. If a crash leaves files in the
//! trash, the next prune deletes them.

use super::{LayoutDir, LayoutLock};
use headstart_block::guarded::GuardedDir;
use headstart_block::{Digest, Error, Result};
use std::io;

/// The directory of blobs that were pruned.
const TRASH: &str = "trash";

impl LayoutDir {
    /// Moves the blobs `digests`, in that order, out of the layout into the trash directory. No process finds them
    /// any more from then on; [`LayoutDir::empty_trash`] frees their space. Blobs that cannot be moved are deleted at
    /// once.
    ///
    /// # Errors
    /// Errors of deleting a blob, also if the layout does not have it; the blobs before it are already gone.
    pub fn discard_blobs<'a>(
        &self,
        _lock: &LayoutLock,
        digests: impl IntoIterator<Item = &'a Digest>,
    ) -> Result<()> {
        let about = self.blobs_dir();
        let failed = |e| Error::io("cannot delete", e).about(about.display());
        let mut opened = None;
        for digest in digests {
            let (blobs, trash) = match &opened {
                Some(opened) => opened,
                None => {
                    let blobs = GuardedDir::open(&about).map_err(failed)?;
                    // A full disk may have no room for it: then the files are deleted at once.
                    opened.insert((blobs, self.make_private_part(TRASH).ok()))
                }
            };
            let name = digest.hex();
            let is_moved = trash.as_ref().is_some_and(|trash| blobs.rename(&name, trash, &name).is_ok());
            let removed = if is_moved { Ok(()) } else { blobs.remove_file(&name) };
            removed.map_err(|e| Error::io("cannot delete", e).about(about.join(&name).display()))?;
        }
        Ok(())
    }

    /// Deletes the blobs in the trash directory, which this prune or an earlier one moved there. Does not
    /// need the store's lock.
    ///
    /// # Errors
    /// Errors of deleting a file.
    pub fn empty_trash(&self) -> Result<()> {
        let about = self.private_dir().join(TRASH);
        let failed = |e| Error::io("cannot delete", e).about(about.display());
        let Some(trash) = self.private_part(TRASH).map_err(failed)? else { return Ok(()) };
        for name in trash.names().map_err(failed)? {
            match trash.remove_file(&name) {
                // Another prune was quicker, or no prune put this entry there.
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory) => {}
                removed => removed.map_err(failed)?,
            }
        }
        Ok(())
    }
}
