//! The progress of long work: reports to the caller, and the caller's way of stopping it.

use headstart_block::{Error, ErrorKind, Result};

/// A receiver of progress reports of long-running work, which can also stop that work. Its methods are called
/// often and from any thread, so they must return quickly.
pub trait Progress: Sync {
    /// Announces a task of `total` bytes. A task begins only after the task before it is over.
    fn begin(&self, task: &'static str, total: u64);

    /// Announces a task of `total` items that are not bytes.
    fn begin_items(&self, task: &'static str, total: u64) {
        self.begin(task, total);
    }

    /// Reports that `bytes` more bytes (or items) of the current task are done.
    fn advance(&self, bytes: u64);

    /// `true` if the user wants the work to stop. The work then ends soon, with [`ErrorKind::Cancelled`].
    fn is_cancelled(&self) -> bool;
}

/// A [`Progress`] receiver that ignores all reports and never stops the work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _task: &'static str, _total: u64) {}

    fn advance(&self, _bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Reports that `bytes` more are done, unless the user wants to stop.
///
/// # Errors
/// [`ErrorKind::Cancelled`] if the user wants to stop; nothing is reported then.
pub fn step(progress: &dyn Progress, bytes: u64) -> Result<()> {
    if progress.is_cancelled() {
        return Err(Error::new(ErrorKind::Cancelled, "stopped on request; nothing was changed"));
    }
    progress.advance(bytes);
    Ok(())
}
