//! The progress of learning, and the request to stop it.

use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_plan::knowledge::OnProgress;

/// Returns an error if the user has asked the command to stop, so that long work ends early.
///
/// # Errors
/// [`ErrorKind::Cancelled`] if the user has asked the command to stop.
pub fn cancelled(progress: &dyn Progress) -> Result<()> {
    if progress.is_cancelled() { Err(Error::new(ErrorKind::Cancelled, "interrupted")) } else { Ok(()) }
}

/// Calls `work` and returns its result. `work` is given a callback for its progress, which is shown to the user under
/// the name `task`.
///
/// # Errors
/// The errors of `work`. If the user asks the command to stop, the callback returns [`ErrorKind::Cancelled`], which
/// `work` must pass on.
pub fn reported<T>(
    progress: &dyn Progress,
    task: &'static str,
    work: impl FnOnce(OnProgress<'_>) -> Result<T>,
) -> Result<T> {
    let mut shown = None;
    work(&mut |now| {
        let before = shown.unwrap_or_else(|| {
            progress.begin_items(task, now.all);
            0
        });
        progress.advance(now.done.saturating_sub(before));
        shown = Some(now.done);
        cancelled(progress)
    })
}
