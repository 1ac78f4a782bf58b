//! How long work tells its caller where it is, and how the caller stops it.

use headstart_block::{Error, ErrorKind, Result};

/// What a caller hears of long work. Called from any thread, often: it must be quick.
pub trait Progress: Sync {
    /// A task of `total` bytes begins; a task before it is over.
    fn begin(&self, task: &'static str, total: u64);

    /// A task of `total` things that are no bytes begins.
    fn begin_items(&self, task: &'static str, total: u64) {
        self.begin(task, total);
    }

    /// `bytes` more of the task are done.
    fn advance(&self, bytes: u64);

    /// Whether the user wants it to stop. Work then ends with [`ErrorKind::Cancelled`] and leaves nothing.
    fn is_cancelled(&self) -> bool;
}

/// Tells nobody and never stops.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _task: &'static str, _total: u64) {}

    fn advance(&self, _bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Counts `bytes` as done.
///
/// # Errors
/// [`ErrorKind::Cancelled`] where the user wants to stop.
pub fn step(progress: &dyn Progress, bytes: u64) -> Result<()> {
    if progress.is_cancelled() {
        return Err(Error::new(ErrorKind::Cancelled, "stopped on request; nothing was changed"));
    }
    progress.advance(bytes);
    Ok(())
}
