//! The common parts of the commands that serve until they are asked to stop.

use headstart_block::{Error, Result};
use headstart_command_line::printable;
use headstart_command_line::report::{Outcome, Report};
use headstart_command_line::terminal::Terminal;
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// The interval of checks for the end: short enough that no user waits for it.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// The longest wait at the end for threads that wait for others.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs `work` on `threads` threads of this name, until it ends, however long that takes after a request to stop. Then
/// reports the time that it ran, and prints `farewell` for people.
///
/// # Errors
/// If threads cannot be started; the errors of `work`.
pub(crate) fn run(
    name: &'static str,
    threads: usize,
    farewell: &'static str,
    terminal: &Terminal,
    work: impl FnOnce(&Runtime) -> Result<()>,
) -> Result<Box<dyn Report>> {
    terminal.serves();
    let started = Instant::now();
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|e| Error::io("cannot start threads", e))?;
    let ended = work(&runtime);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended?;
    Ok(Box::new(Ended { ran_s: started.elapsed().as_secs(), farewell }))
}

/// Prints the places of a server as soon as it can be used: one line of JSON, or text for people.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn announce(ready: &(impl Serialize + fmt::Display), json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = if json {
        writeln!(out, "{}", serde_json::to_string(ready).unwrap_or_default())
    } else {
        writeln!(out, "{}", printable::lines(&ready.to_string()))
    };
    written.and_then(|()| out.flush()).map_err(|e| Error::io("cannot write to standard output", e))
}

/// The output at the end.
#[derive(Serialize)]
struct Ended {
    ran_s: u64,
    #[serde(skip)]
    farewell: &'static str,
}

impl Outcome for Ended {
    /// This is the second of two JSON lines.
    fn is_line(&self) -> bool {
        true
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.farewell)
    }
}
