//! Recorded boots, read with progress.

use crate::progress::cancelled;
use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_trace::Trace;
use headstart_trace::data_set::{DataSet, Skipped};
use std::path::Path;

/// Creates the error for a data set that has nothing to work on, of the kind [`ErrorKind::NotFound`]. The error names
/// `path`; its text is `cause`, followed by the reasons for which traces were skipped.
#[must_use]
pub fn nothing(path: &Path, cause: &str, skipped: &Skipped) -> Error {
    let mut cause = cause.to_owned();
    if !skipped.is_empty() {
        let lines = skipped.to_string();
        cause = format!("{cause}: {}", lines.lines().map(str::trim).collect::<Vec<_>>().join("; "));
    }
    Error::new(ErrorKind::NotFound, cause).about(path.display())
}

/// Reads the traces of a data set with `threads` threads (0: one for each processor) and shows progress as `task`. Each
/// trace is passed to `map` on one of the threads, and the result to `each` with the index of the trace, in the order
/// of the data set. A trace that cannot be read is left out. Returns the counts of traces that were left out or sorted
/// by time, by reason.
///
/// # Errors
/// The first error of `each`; [`ErrorKind::Cancelled`] if the user asks the command to stop; an error of the operating
/// system if a thread cannot be started.
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

/// Returns the length of a file in bytes, for the progress bar; 0 if it is unknown.
#[must_use]
pub fn len(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}
