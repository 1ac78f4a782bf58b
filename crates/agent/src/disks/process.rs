//! The process of one disk: started here, or found.

use super::images::{KeptImage, forget_images, kept_images};
use super::{DiskSpec, DisksSettings, file};
use headstart_block::{Error, ErrorKind, Result, private};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use tokio::io::unix::AsyncFd;
use tokio::process::Command;

/// Length of a disk's log in bytes from which on it gives way to a new one; one before it is kept.
pub const LOG_MAX: u64 = 1 << 20;

/// What a process finds that is to serve a disk of an agent.
pub struct Held {
    /// An earlier process served the same disk, with the same arguments, and has died.
    pub has_served: bool,
    /// The images that it had; none where it was the first process, or an earlier version's.
    pub images: Option<Vec<KeptImage>>,
}

/// Makes this process the one that serves a disk of an agent: in a session of its own, so that nothing that
/// befalls the agent's befalls it, and with the lock that says so, which lasts as long as the process.
///
/// # Errors
/// [`ErrorKind::Conflict`] where another process has it; where what an earlier process has left cannot be understood.
pub fn hold_pid_file(path: &Path) -> Result<Held> {
    let about = |e: Error| e.about(path.display());
    let file = private::options().create(true).truncate(false).read(true).write(true).open(path);
    let mut file = file.map_err(|e| about(Error::io("cannot open", e)))?;
    private::close(&file).map_err(|e| private::not_closed(path, e))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return Err(about(Error::new(ErrorKind::Conflict, "another process serves this disk")));
        }
        Err(e) => return Err(about(Error::io("cannot lock", e.into()))),
    }
    if let Err(error) = give_up_oom_protection(Path::new(OOM_SCORE)) {
        tracing::warn!(%error, "the disk's process keeps the agent's protection from the out-of-memory killer");
    }
    // Where it leads a session already, that is as good.
    let _ = rustix::process::setsid();
    // The agent removes the file of a disk that was detached, or could not be attached at all.
    let has_served = file.metadata().is_ok_and(|meta| meta.len() > 0);
    let images = if has_served {
        kept_images(path)?
    } else {
        // An agent of an earlier version does not know of that file, and leaves it.
        forget_images(path)?;
        None
    };
    // At no moment it is empty: the file says that this is not the first process.
    let id = format!("{}\n", std::process::id());
    file.write_all(id.as_bytes())
        .and_then(|()| file.set_len(id.len() as u64))
        .map_err(|e| about(Error::io("cannot write", e)))?;
    // The lock is held until the process ends.
    let _ = Box::leak(Box::new(file));
    Ok(Held { has_served, images })
}

/// The score by which the out-of-memory killer protects this process, or prefers it.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Gives up the protection from the out-of-memory killer that the agent's process has: a disk that takes too much
/// memory ends itself, and not a virtual machine. A score that prefers the process stays.
fn give_up_oom_protection(score: &Path) -> std::io::Result<()> {
    let is_protected = std::fs::read_to_string(score)?.trim().parse::<i32>().is_ok_and(|score| score < 0);
    if is_protected { std::fs::write(score, "0") } else { Ok(()) }
}

/// A process that serves a disk, and that has been seen alive.
pub(super) struct Process {
    pub(super) pid: u32,
    fd: AsyncFd<OwnedFd>,
}

impl Process {
    /// The one that serves a disk, where there is one.
    pub(super) fn find(dir: &Path, name: &str) -> Option<Self> {
        let path = file(dir, name, "pid");
        let pid = holder(&path)?;
        let fd = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        // Had it ended before it was opened, the lock would be free by now.
        (holder(&path) == Some(pid)).then_some(())?;
        Some(Self { pid, fd: watched(fd).ok()? })
    }

    /// Starts one. It has ended, or has the lock, or is about to take it.
    ///
    /// # Errors
    /// What starting a program reports.
    pub(super) fn start(settings: &DisksSettings, spec: &DiskSpec) -> Result<Self> {
        let about = |what: &'static str| move |e| Error::io(what, e);
        let dir = &settings.dir;
        let out = file(dir, &spec.name, "out");
        let out = append_to(&out)
            .and_then(|out| out.set_len(0).map(|()| out))
            .map_err(about("cannot make a file"))?;
        let log = file(dir, &spec.name, "log");
        if log.metadata().is_ok_and(|log| log.len() > LOG_MAX) {
            let _ = std::fs::rename(&log, file(dir, &spec.name, "log.1"));
        }
        let log = append_to(&log).map_err(about("cannot make a file"))?;
        let mut command = Command::new(&settings.program);
        command.args(["attach", "--json", "--quiet", "--pid-file"]).arg(file(dir, &spec.name, "pid"));
        command.arg("--cache").arg(&settings.cache);
        if let Some(swarm) = &settings.swarm {
            command.arg("--swarm").arg(swarm);
        }
        command.arg("--rate-file").arg(&settings.rate);
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
        let mut child = command
            .spawn()
            .map_err(|e| about("cannot start the process of a disk")(e).about(settings.program.display()))?;
        let pid = child.id().unwrap_or_default();
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // Not waited for yet, so the number is its own.
        let opened = raw.ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let fd = opened.map_err(|e| about("cannot watch the process of a disk")(e.into()))?;
        let fd = watched(fd).map_err(about("cannot watch the process of a disk"))?;
        tokio::spawn(async move { child.wait().await });
        Ok(Self { pid, fd })
    }

    /// Returns when it has ended.
    pub(super) async fn ended(&self) {
        // It becomes readable then. Where it cannot be watched, it is taken for ended, and found again by its lock.
        let _ = self.fd.readable().await;
    }

    /// Asks it to detach its disk and to end.
    pub(super) fn stop(&self) {
        // One that has ended needs no signal.
        let _ = pidfd_send_signal(&self.fd, Signal::TERM);
    }
}

/// A file of this user's alone, to be written at its end.
fn append_to(path: &Path) -> std::io::Result<File> {
    let file = private::options().create(true).append(true).open(path)?;
    private::close(&file)?;
    Ok(file)
}

fn watched(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor is open, and the same, until it is dropped, which the `AsyncFd` does.
    let watched = unsafe { AsyncFd::register(fd) };
    watched.map_err(Into::into)
}

/// The process that has the lock of a file.
fn holder(path: &Path) -> Option<u32> {
    let mut file = File::open(path).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut text = String::new();
    Read::by_ref(&mut file).take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// The last of what a disk's process warned of.
pub(super) fn last_words(dir: &Path, name: &str) -> Option<String> {
    // It may have begun a new log just now.
    let text: Vec<u8> = ["log.1", "log"]
        .iter()
        .filter_map(|ending| std::fs::read(file(dir, name, ending)).ok())
        .flatten()
        .collect();
    let text = String::from_utf8_lossy(&text);
    let said =
        text.lines().rev().find(|line| line.starts_with("headstart: ") || line.starts_with("error: "))?;
    Some(said.trim_start_matches("headstart: ").trim_start_matches("error: ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_is_given_up_and_nothing_else_changed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (before, after) in [("-500\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")] {
            std::fs::write(file.path(), before).unwrap();
            give_up_oom_protection(file.path()).unwrap();
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), after);
        }
    }
}
