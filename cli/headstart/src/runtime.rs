//! What the requests of a command run on.

use headstart_block::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// Does `work` with threads for its requests: so many, or as many as there are processors.
///
/// # Errors
/// Where there are no threads to be had, and what `work` reports.
pub(crate) fn with_runtime<T>(threads: Option<usize>, work: impl FnOnce(&Runtime) -> Result<T>) -> Result<T> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let runtime = builder.enable_all().build().map_err(|e| Error::io("cannot start threads", e))?;
    // It ends with the process, which is soon. A thread that looks up a name or waits for a dead server must not keep
    // the command from ending, and one that reads a blob must not find its timers gone.
    work(Box::leak(Box::new(runtime)))
}

/// Threads for some requests that wait for a store more than they work.
pub(crate) const FEW: Option<usize> = Some(2);
