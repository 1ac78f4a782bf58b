//! The process of one disk: started here, or found.

use super::images::{KeptImage, forget_images, images_before};
use super::keeper_places::{is_mounted, keeper_socket};
use super::record::Recorded;
use super::{DiskSpec, DisksSettings, file};
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::pid_file::{self, append_to, holder};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The longest wait for the status of a process that has ended.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of [`hold_pid_file`]: what an earlier process of the same disk has left.
pub struct Held {
    /// `true` if an earlier process of the same disk has served clients and has died.
    pub has_served: bool,
    /// The images that the earlier process recorded. `None` if there was none, or if it was of a version
    /// without such a record.
    pub images: Option<Vec<KeptImage>>,
}

/// The cause where a disk has a process.
const TAKEN: &str = "another process serves this disk";

/// Makes this process the one that serves the disk with the PID file `path`. Takes the lock of that file until this
/// process ends, writes this process's number to the file, and moves this process to a session of its own, so that
/// signals to the agent's session do not reach it.
///
/// # Errors
/// [`headstart_block::ErrorKind::Conflict`] if another process has the lock; an error if the files of an earlier
/// process cannot be understood.
pub fn hold_pid_file(path: &Path) -> Result<Held> {
    let was_there = path.symlink_metadata().is_ok();
    let mut file = pid_file::lock(path, TAKEN)?;
    pid_file::leave_parent();
    match begin(path, &mut file) {
        Ok(held) => {
            // The lock is held until the process ends.
            let _ = Box::leak(Box::new(file));
            Ok(held)
        }
        Err(refused) => {
            if !was_there {
                pid_file::give_back(path, file);
            }
            Err(refused)
        }
    }
}

/// Reads the state that an earlier process left, and writes the number of this process to its file.
fn begin(path: &Path, file: &mut File) -> Result<Held> {
    // The agent removes the file of a disk that was detached, or could not be attached at all.
    let has_begun = file.metadata().is_ok_and(|meta| meta.len() > 0);
    let recorded = Recorded::of(path)?;
    // The record decides: the file of process numbers may have been lost.
    let has_served = recorded.map_or(has_begun, |recorded| recorded.served);
    let images = if has_served || has_begun {
        images_before(path, recorded.is_some_and(|recorded| recorded.has_images))?
    } else {
        // An agent of an earlier version does not know of that file, and leaves it.
        forget_images(path)?;
        None
    };
    pid_file::write(path, file)?;
    // An agent may remove it meanwhile, and start the disk again.
    if pid_file::is_removed(file, path) {
        return Err(Error::new(ErrorKind::Conflict, TAKEN).about(path.display()));
    }
    Ok(Held { has_served, images })
}

/// The task of a process of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Serving the disk.
    Serve,
    /// Giving up the disk's images, and ending.
    Release,
}

/// A process that serves a disk, and that has been seen alive.
pub(super) struct Process {
    pub(super) pid: u32,
    fd: AsyncFd<OwnedFd>,
    /// The wait for its exit status; `None` if an agent before this one has started it.
    waiting: Option<JoinHandle<std::io::Result<ExitStatus>>>,
}

impl Process {
    /// The process that serves a disk, if there is one.
    pub(super) fn find(dir: &Path, name: &str) -> Option<Self> {
        let path = file(dir, name, "pid");
        let pid = holder(&path)?;
        let fd = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        // If the process had ended before it was opened, the lock would be free by now.
        (holder(&path) == Some(pid)).then_some(())?;
        Some(Self { pid, fd: watched(fd).ok()?, waiting: None })
    }

    /// Starts a process. On return it has ended, or has the lock, or is about to take it.
    ///
    /// # Errors
    /// Errors of starting a program.
    pub(super) fn start(settings: &DisksSettings, spec: &DiskSpec, task: Task) -> Result<Self> {
        let about = |what: &'static str| move |e| Error::io(what, e);
        let dir = &settings.dir;
        let out = file(dir, &spec.name, "out");
        let out = append_to(&out)
            .and_then(|out| out.set_len(0).map(|()| out))
            .map_err(about("cannot make a file"))?;
        let log = pid_file::open_log(&file(dir, &spec.name, "log")).map_err(about("cannot make a file"))?;
        let mut command = Command::new(&settings.program);
        command.args(["attach", "--json", "--quiet", "--pid-file"]).arg(file(dir, &spec.name, "pid"));
        command.arg("--cache").arg(&settings.cache);
        if let Some(swarm) = &settings.swarm {
            command.arg("--swarm").arg(swarm);
        }
        command.arg("--rate-file").arg(&settings.rate);
        if is_mounted(spec) {
            command.arg("--keeper").arg(keeper_socket(&settings.keeper));
        }
        if task == Task::Release {
            command.arg("--release");
        }
        if settings.require_tree {
            command.arg("--require-tree");
        }
        if settings.cached_although_denied {
            command.arg("--cached-although-denied");
        }
        command.args(&spec.arguments).stdin(Stdio::null()).stdout(out).stderr(log);
        if let Some(directory) = &spec.directory {
            command.current_dir(directory);
        }
        Self::of(command.spawn().map_err(|e| not_started(e, settings, spec))?)
    }

    /// A process that was started just now.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn of(mut child: Child) -> Result<Self> {
        let about = |what: &'static str| move |e| Error::io(what, e);
        let pid = child.id().unwrap_or_default();
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // The process is not waited for yet, so the number is its own.
        let opened = raw.ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let fd = opened.map_err(|e| about("cannot watch the process of a disk")(e.into()))?;
        let fd = watched(fd).map_err(about("cannot watch the process of a disk"))?;
        let waiting = Some(tokio::spawn(async move { child.wait().await }));
        Ok(Self { pid, fd, waiting })
    }

    /// Waits for the end of the process.
    pub(super) async fn ended(&self) {
        // The descriptor becomes readable then. If it cannot be watched, the process is taken for ended, and found
        // again by its lock.
        let _ = self.fd.readable().await;
    }

    /// The exit status of a process that has ended, if this agent has started it.
    pub(super) async fn status(self) -> Option<ExitStatus> {
        timeout(STATUS_TIMEOUT, self.waiting?).await.ok()?.ok()?.ok()
    }

    /// Asks it to detach its disk and to end.
    pub(super) fn stop(&self) {
        // A process that has ended needs no signal.
        let _ = pidfd_send_signal(&self.fd, Signal::TERM);
    }
}

/// The error of a process that could not be started. The operating system reports the same for a missing program and a
/// missing directory.
fn not_started(error: std::io::Error, settings: &DisksSettings, spec: &DiskSpec) -> Error {
    let reached = spec.directory.as_ref().map(|directory| (directory, directory.join(".").metadata()));
    if let Some((directory, Err(e))) = reached {
        return Error::io("the working directory of the disk cannot be used", e)
            .about(directory.display())
            .remedy("make it again, or detach the disk and attach it from another directory");
    }
    Error::io("cannot start the process of a disk", error).about(settings.program.display())
}

fn watched(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor is open, and the same, until it is dropped, which the `AsyncFd` does.
    let watched = unsafe { AsyncFd::register(fd) };
    watched.map_err(Into::into)
}
