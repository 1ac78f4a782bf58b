//! The mark that bytes are being written: no evictor gives space back meanwhile.

use crate::blob_files::Files;
use crate::locks::{self, Mode};
use crate::sidecar::Locks;
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::time::Duration;

/// The longest wait of an insert for an evictor that gives space back.
const WRITE_LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// The mark of each thread that writes.
pub(crate) struct Writing<'a> {
    writers: &'a Mutex<usize>,
    files: &'a Files,
}

impl<'a> Writing<'a> {
    /// Marks this thread as one of the `writers` of a blob; waits for an evictor that is at work, within limits.
    pub(crate) fn begin(writers: &'a Mutex<usize>, files: &'a Files) -> Result<Self> {
        let mut count = writers.lock();
        if *count == 0
            && !locks::lock_within(&files.sidecar.file, &Locks::WRITE, Mode::Shared, WRITE_LOCK_TIMEOUT)?
        {
            return Err(Error::new(
                ErrorKind::Conflict,
                "another process evicts from this blob and does not end",
            )
            .about(files.data_path.display()));
        }
        *count += 1;
        drop(count);
        Ok(Self { writers, files })
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut count = self.writers.lock();
        *count -= 1;
        if *count == 0 {
            locks::unlock(&self.files.sidecar.file, &Locks::WRITE);
        }
    }
}
