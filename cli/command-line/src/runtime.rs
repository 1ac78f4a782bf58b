//! The asynchronous runtime on which a command sends its requests to stores.

use headstart_block::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// Runs `work` with an asynchronous runtime of `threads` threads for its requests; `None`: one thread for
/// each processor. The runtime is never shut down: it ends with the process.
///
/// # Errors
/// An error if the threads cannot be started; the errors of `work`.
pub fn with_runtime<T>(threads: Option<usize>, work: impl FnOnce(&Runtime) -> Result<T>) -> Result<T> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().build().map_err(|e| Error::io("cannot start threads", e))?;
    // The runtime ends with the process, which is soon. A thread that looks up a name or waits for a dead server must
    // not keep the command from ending, and one that reads a blob must not find its timers gone.
    work(Box::leak(Box::new(runtime)))
}

/// The number of threads for a command with few requests, which waits for the store more than it computes.
pub const FEW: Option<usize> = Some(2);
