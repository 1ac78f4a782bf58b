//! The space of writable layers, reported to the agent that looks after the disk.

use headstart_agentd::disk_process::spaces;
use headstart_agentd::disks::{DiskSpace, report_space};
use headstart_diskd::DiskSession;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time between two reports.
const EVERY: Duration = Duration::from_secs(1);

/// Writes reports beside the file of the process; without one, it does nothing.
pub(super) struct SpaceReporter {
    pid_file: Option<PathBuf>,
    last: Option<(Instant, Vec<DiskSpace>)>,
}

impl SpaceReporter {
    pub(super) fn new(pid_file: Option<&Path>) -> Self {
        Self { pid_file: pid_file.map(Path::to_owned), last: None }
    }

    /// Writes a report if one is due and the space has changed.
    pub(super) fn refresh(&mut self, session: &DiskSession) {
        let Some(pid_file) = &self.pid_file else { return };
        if self.last.as_ref().is_some_and(|(at, _)| at.elapsed() < EVERY) {
            return;
        }
        let spaces = spaces(session);
        let is_news = self.last.as_ref().map_or(!spaces.is_empty(), |(_, last)| *last != spaces);
        if is_news && let Err(error) = report_space(pid_file, &spaces) {
            tracing::debug!(%error, "the space of a writable layer is not said");
        }
        self.last = Some((Instant::now(), spaces));
    }
}
