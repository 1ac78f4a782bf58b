//! The copies of images that a process makes. Their reads must end before the process's async runtime does;
//! [`Copies::end`] sees to that.

use headstart_store::{RetrySettings, Stop, StopSender, StoreSettings};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// The longest wait for reads of a copy that ended early.
const LAST_READS: Duration = Duration::from_secs(2);

/// All image copies that a process makes, so that they can be ended together. Reads of a copy that was abandoned may go
/// on for a while: the process must call [`Copies::end`] before it drops its runtime, whose timers these reads use.
pub struct Copies {
    sender: StopSender,
    stop: Stop,
}

impl Default for Copies {
    fn default() -> Self {
        let (sender, stop) = Stop::new();
        Self { sender, stop }
    }
}

impl Copies {
    /// The settings of the stores of a copy, which give up after `deadline` and warn of no silence: the copy does.
    pub(crate) fn settings(&self, settings: &StoreSettings, deadline: Option<Duration>) -> StoreSettings {
        let settings =
            StoreSettings { stop: Some(self.stop.clone()), warn_of_silence: false, ..settings.clone() };
        let Some(deadline) = deadline else { return settings };
        StoreSettings {
            connect_timeout: settings.connect_timeout.min(deadline),
            first_byte_timeout: settings.first_byte_timeout.min(deadline),
            stall_timeout: settings.stall_timeout.min(deadline),
            retry: RetrySettings { deadline, ..settings.retry },
            ..settings
        }
    }

    /// Ends the reads of abandoned copies and waits for their end, at most 2 seconds. Must be called before `runtime`
    /// is dropped, and not in async code, where it panics.
    pub fn end(self, runtime: &Runtime) {
        let Self { sender, stop } = self;
        sender.ask();
        drop(stop);
        if runtime.block_on(async { timeout(LAST_READS, sender.unused()).await }).is_err() {
            tracing::debug!("reads of a copy do not end");
        }
    }
}
