//! Recorded boots, read with progress.

use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_trace::Trace;
use headstart_trace::data_set::{DataSet, Skipped};
use std::path::Path;

/// Checks that the user does not want to stop.
///
/// # Errors
/// [`ErrorKind::Cancelled`] if the user does.
pub fn cancelled(progress: &dyn Progress) -> Result<()> {
    if progress.is_cancelled() { Err(Error::new(ErrorKind::Cancelled, "interrupted")) } else { Ok(()) }
}

/// The error that there is nothing to work on: `cause`, and the reasons of skipping.
#[must_use]
pub fn nothing(path: &Path, cause: &str, skipped: &Skipped) -> Error {
    let mut cause = cause.to_owned();
    if !skipped.is_empty() {
        let lines = skipped.to_string();
        cause = format!("{cause}: {}", lines.lines().map(str::trim).collect::<Vec<_>>().join("; "));
    }
    Error::new(ErrorKind::NotFound, cause).about(path.display())
}

/// Reads the traces of a data set with `threads` threads (0: one for each processor), shows the progress, and hands the
/// result of `map` for each to `each`, in their order. Skipped traces are counted.
///
/// # Errors
/// The first error of `each`; an error if the user wants to stop.
pub fn read_all<T: Send>(
    set: &DataSet,
    (task, threads): (&'static str, usize),
    progress: &dyn Progress,
    map: impl Fn(Trace) -> T + Sync,
    mut each: impl FnMut(usize, T) -> Result<()>,
) -> Result<Skipped> {
    progress.begin(task, set.stored_bytes());
    set.map_each(
        threads,
        |_, trace| map(trace),
        |index, made| {
            cancelled(progress)?;
            progress.advance(set.path(index).map_or(0, len));
            made.map_or(Ok(()), |made| each(index, made))
        },
    )
}

/// The bytes of a file, for the progress bar.
#[must_use]
pub fn len(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}
