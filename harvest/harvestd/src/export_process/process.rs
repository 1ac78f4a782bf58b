//! An export process in the operating system: its start, its end, and the search for it.

use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::pid_file::{self, holder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// This very program, even if its file has been replaced since: both ends of the channel are of one version.
const PROGRAM: &str = "/proc/self/exe";

/// The time that a process has to end by itself once it has announced its end.
const GRACE: Duration = Duration::from_secs(2);

/// The time that a killed process may take to end.
const KILL: Duration = Duration::from_secs(10);

/// The pauses before a process is started again: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// The life after which a process is taken to be healthy: a later death counts as a new failure.
const LASTED: Duration = Duration::from_secs(60);

/// Pauses that grow while processes die soon.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn new() -> Self {
        Self(PAUSES.0)
    }

    /// The pause after a process that lived for `life`.
    pub(super) fn after(&mut self, life: Duration) -> Duration {
        let pause = if life > LASTED { PAUSES.0 } else { self.0 };
        self.0 = (pause * 2).min(PAUSES.1);
        pause
    }
}

/// A process that runs. It is killed when this is dropped.
pub(super) struct Running {
    child: Child,
    /// The descriptor that becomes readable at its end; `None` if the process cannot be watched.
    watched: Option<OwnedFd>,
    has_grace: bool,
}

impl Running {
    /// Starts one for a vSSD, with `channel` as its standard input.
    pub(super) fn start(pid_file: &Path, vssd: &str, channel: OwnedFd) -> Result<Self> {
        let failed = |e| Error::io("cannot start an export process", e);
        let log = pid_file::open_log(&pid_file.with_extension("log")).map_err(failed)?;
        let child = Command::new(PROGRAM)
            .arg0("headstart")
            .args(["harvest", "export", "--quiet", "--pid-file"])
            .arg(pid_file)
            .arg(vssd)
            .stdin(channel)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // The process is not waited for yet, so the number is its own.
        let watched = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self { child, watched, has_grace: false })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A descriptor that becomes readable when the process ends.
    pub(super) fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.watched.as_ref().map(AsFd::as_fd)
    }

    /// `true` if it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.watched.as_ref().is_some_and(|process| has_ended(process, Duration::ZERO))
    }

    /// Lets it end by itself.
    pub(super) fn ends_by_itself(&mut self) {
        self.has_grace = true;
    }

    /// Waits for its end, and kills it if it has no grace or takes longer.
    pub(super) fn end(mut self) {
        if self.has_grace {
            self.wait(GRACE);
        }
    }

    fn wait(&mut self, time: Duration) -> bool {
        self.watched.as_ref().is_none_or(|process| has_ended(process, time))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process that has ended needs no signal; its number stays its own until it is waited for.
        let _ = self.child.kill();
        if self.wait(KILL) {
            let _ = self.child.wait();
        } else {
            tracing::warn!(pid = self.child.id(), "a killed export process does not end");
        }
    }
}

/// `true` if a process ends within `time`.
fn has_ended(process: &OwnedFd, time: Duration) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    loop {
        match poll(&mut watched, Timespec::try_from(time).ok().as_ref()) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Kills the process that has the lock of `pid_file`, if there is one: a previous daemon has left it.
///
/// # Errors
/// [`ErrorKind::Conflict`] if it does not end.
pub(super) fn end_leftover(pid_file: &Path) -> Result<()> {
    let Some(number) = holder(pid_file) else { return Ok(()) };
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return Ok(()) };
    // If the process had ended before it was opened, the lock would be free by now.
    if holder(pid_file) != Some(number) {
        return Ok(());
    }
    let _ = pidfd_send_signal(&process, Signal::KILL);
    if has_ended(&process, KILL) {
        return Ok(());
    }
    let cause = format!("the export process {number} of an earlier daemon does not end");
    Err(Error::new(ErrorKind::Conflict, cause).about(pid_file.display()).remedy("find out why it waits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_processes_die_soon() {
        let mut pauses = Pauses::new();
        let soon = [(); 10].map(|()| pauses.after(Duration::from_secs(1)).as_millis());
        assert_eq!(soon, [50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(pauses.after(Duration::from_secs(61)).as_millis(), 50);
        assert_eq!(pauses.after(Duration::from_secs(1)).as_millis(), 100);
    }

    #[test]
    fn a_process_of_an_earlier_daemon_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pid");
        end_leftover(&path).unwrap();
        // The lock is on the open file, which the child inherits as its standard input.
        let mut file = pid_file::lock(&path, "taken").unwrap();
        let mut child = Command::new("sleep").arg("60").stdin(file.try_clone().unwrap()).spawn().unwrap();
        std::io::Write::write_all(&mut file, format!("{}\n", child.id()).as_bytes()).unwrap();
        drop(file);
        assert_eq!(holder(&path), Some(child.id()));
        end_leftover(&path).unwrap();
        assert!(!child.wait().unwrap().success());
        // A program that another test starts has the lock for a moment.
        let is_free = (0..3000).any(|_| {
            std::thread::park_timeout(Duration::from_millis(10));
            holder(&path).is_none()
        });
        assert!(is_free, "{:?} holds {}", holder(&path), path.display());
    }
}
