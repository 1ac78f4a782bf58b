//! The answers of daemons of this host, for commands that wait for them.

use headstart_block::{Error, ErrorKind, Result};
use headstart_command_line::terminal::before_stop;
use std::path::Path;
use tokio::runtime::{Builder, Runtime};

/// The thread of requests.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().map_err(|e| Error::io("cannot start", e))
}

/// The answer of the daemon at `socket`.
///
/// # Errors
/// Errors of the daemon; [`ErrorKind::Cancelled`] if the user wants to stop first.
pub(crate) fn answer<T>(socket: &Path, work: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(before_stop(work)).unwrap_or_else(|| {
        let stopped = "stopped on request; what it was asked for and has begun goes on";
        Err(Error::new(ErrorKind::Cancelled, stopped).about(socket.display()))
    })
}
