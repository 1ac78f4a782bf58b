//! The mark that bytes are being written: no evictor gives space back meanwhile.

use crate::blob::CachedBlob;
use crate::blob_files::Files;
use crate::locks::{self, Mode};
use crate::sidecar::Locks;
use headstart_block::{Error, ErrorKind, Result};
use std::time::Duration;

/// The longest wait of an insert for an evictor that gives space back.
const WRITE_PATIENCE: Duration = Duration::from_millis(500);

/// The mark of each thread that writes.
pub(crate) struct Writing<'a> {
    blob: &'a CachedBlob,
    files: &'a Files,
}

impl<'a> Writing<'a> {
    /// Marks this thread as writing; waits for an evictor that is at work, within limits.
    pub(crate) fn begin(blob: &'a CachedBlob, files: &'a Files) -> Result<Self> {
        let mut writers = blob.writers.lock();
        if *writers == 0
            && !locks::lock_within(&files.sidecar.file, &Locks::WRITE, Mode::Shared, WRITE_PATIENCE)?
        {
            return Err(Error::new(
                ErrorKind::Conflict,
                "another process evicts from this blob and does not end",
            )
            .about(files.data_path.display()));
        }
        *writers += 1;
        drop(writers);
        Ok(Self { blob, files })
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut writers = self.blob.writers.lock();
        *writers -= 1;
        if *writers == 0 {
            locks::unlock(&self.files.sidecar.file, &Locks::WRITE);
        }
    }
}
