//! A file that is written to the disk while it is written.

use headstart_block::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// The number of bytes after which the kernel is asked to begin writing out the data.
const WRITEBACK_STEP: u64 = 8 << 20;

/// A file that the kernel begins to write out during the writing, so that the final sync is short.
pub struct Writeback {
    file: File,
    path: PathBuf,
    written: u64,
    /// The offset up to which the kernel was asked to write out.
    asked: u64,
}

impl Write for Writeback {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buf).map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted => e,
            _ => Error::io("cannot write", e).about(self.path.display()).into(),
        })?;
        self.written += written as u64;
        if self.written - self.asked >= WRITEBACK_STEP {
            self.ask();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Writeback {
    /// A writer to `file`, which is new and has the path `path`.
    pub(crate) fn new(file: File, path: PathBuf) -> Self {
        Self { file, path, written: 0, asked: 0 }
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Bytes written so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Asks the kernel to write out. "Not needed" starts writing the range out without waiting for it; only then would
    /// it be dropped from the cache, and data that is being written is not. The result does not matter.
    fn ask(&mut self) {
        let len = std::num::NonZeroU64::new(self.written - self.asked);
        let _ = rustix::fs::fadvise(&self.file, self.asked, len, rustix::fs::Advice::DontNeed);
        self.asked = self.written;
    }
}
