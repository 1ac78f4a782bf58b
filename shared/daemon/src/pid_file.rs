//! Processes that a daemon starts and looks after: the lock that identifies each, and the file that it logs to.
//!
//! A process holds a lock on its PID file as long as it lives. So the lock shows a daemon whether the process runs,
//! even if a previous daemon has started it.

use headstart_block::guarded::open_own_file;
use headstart_block::{Error, ErrorKind, Result, private};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The length in bytes, 1 MiB, above which [`open_log`] starts a new log; the previous log is kept beside it.
pub const LOG_MAX: u64 = 1 << 20;

/// The score by which the out-of-memory killer spares this process, or prefers it.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// The times that a file is opened which is removed in between.
const TRIES: u32 = 16;

/// Opens (or creates) the PID file at `path` and locks it for this process, until the returned file is closed. The
/// content stays as it is, empty or the number of an earlier process: [`write()`] puts this process's number there.
/// `taken` is the text of the error if another process has the lock.
///
/// # Errors
/// [`ErrorKind::Conflict`] if another process has the lock; [`ErrorKind::Denied`] if the file belongs to neither
/// root nor this user; errors of the operating system.
pub fn lock(path: &Path, taken: &'static str) -> Result<File> {
    let about = |e: Error| e.about(path.display());
    let mut tries = 0;
    loop {
        tries += 1;
        let file = open_own_file(path)?;
        private::close(&file).map_err(|e| private::not_closed(path, e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(about(Error::new(ErrorKind::Conflict, taken))),
            Err(e) => return Err(about(Error::io("cannot lock", e.into()))),
        }
        // The lock of a file that has been removed meanwhile is worth nothing.
        let found = file.metadata().map_err(|e| about(Error::io("cannot look at it", e)))?;
        // Some file systems count no links.
        if found.nlink() > 0 || tries == TRIES {
            return Ok(file);
        }
    }
}

/// Unlocks a PID file that [`lock`] returned, and removes it if it is empty, that is, if no process has
/// written its number to it. A file that another process has since put at `path` stays.
pub fn give_back(path: &Path, file: File) {
    let of = |found: &Metadata| (found.dev(), found.ino());
    let is_ours = |found: &Metadata| path.symlink_metadata().is_ok_and(|at| of(&at) == of(found));
    if file.metadata().is_ok_and(|found| found.len() == 0 && is_ours(&found)) {
        let _ = std::fs::remove_file(path);
    }
    drop(file);
}

/// `true` if the open PID file was removed and there is another one at `path`. The lock of `file` then does not
/// prevent another process from starting.
pub fn is_removed(file: &File, path: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.nlink() == 0) && path.symlink_metadata().is_ok()
}

/// Writes the number of this process to the PID file that it has locked. The file is not emptied in between,
/// because an empty file means that no process has written to it yet.
///
/// # Errors
/// Errors of the operating system.
pub fn write(path: &Path, file: &mut File) -> Result<()> {
    let id = format!("{}\n", std::process::id());
    file.write_all(id.as_bytes())
        .and_then(|()| file.set_len(id.len() as u64))
        .map_err(|e| Error::io("cannot write", e).about(path.display()))
}

/// Separates this process from the daemon that started it: moves it to a session of its own, so that signals to the
/// daemon's session do not reach it, and gives up the protection from the out-of-memory killer that this process has
/// inherited from the daemon. The daemon keeps its own protection. Failures are logged or ignored.
pub fn leave_parent() {
    if let Err(error) = give_up_oom_protection(Path::new(OOM_SCORE)) {
        tracing::warn!(%error, "this process keeps the daemon's protection from the out-of-memory killer");
    }
    // If the process leads a session already, that is as good.
    let _ = rustix::process::setsid();
}

/// Gives up the protection from the out-of-memory killer that the daemon's process has: the killer then ends a process
/// that takes too much memory, and not a virtual machine. A score that prefers the process stays.
fn give_up_oom_protection(score: &Path) -> std::io::Result<()> {
    let is_protected = std::fs::read_to_string(score)?.trim().parse::<i32>().is_ok_and(|score| score < 0);
    if is_protected { std::fs::write(score, "0") } else { Ok(()) }
}

/// Returns the number in the PID file at `path`, provided that a process has the file locked. The number is that of the
/// process with the lock, if this process has called [`write()`] already; otherwise it may be an earlier process's.
/// `None` if no process has the file locked, or if the file cannot be read or has no number.
pub fn holder(path: &Path) -> Option<u32> {
    let mut file = File::open(path).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut text = String::new();
    Read::by_ref(&mut file).take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Opens a file for appending, and creates it if it is missing. Only this user may access it: permissions of
/// other users on an existing file are removed.
///
/// # Errors
/// Errors of the operating system.
pub fn append_to(path: &Path) -> std::io::Result<File> {
    let file = private::options().create(true).append(true).open(path)?;
    private::close(&file)?;
    Ok(file)
}

/// The line in a log before the output of another process.
const NEXT: &str = "-- the next process --";

/// Opens the log of a process that is about to start, for appending. If there is output of earlier processes, a line is
/// written that separates the new output from it. A log of more than [`LOG_MAX`] bytes is first renamed to the path
/// that [`earlier`] returns, in place of any file there; if that fails, the log goes on.
///
/// # Errors
/// Errors of the operating system.
pub fn open_log(path: &Path) -> std::io::Result<File> {
    if path.metadata().is_ok_and(|log| log.len() > LOG_MAX) {
        let _ = std::fs::rename(path, earlier(path));
    }
    let mut log = append_to(path)?;
    if log.metadata()?.len() > 0 || earlier(path).exists() {
        // Without the line, the last words of the process before are taken for this one's.
        let _ = log.write_all(format!("{NEXT}\n").as_bytes());
    }
    Ok(log)
}

/// Returns the path to which [`open_log`] renames a log that is too long: `.1` is appended to the name.
pub fn earlier(log: &Path) -> PathBuf {
    let mut name = OsString::from(log);
    name.push(".1");
    name.into()
}

/// Returns the last message for the user that the most recent process wrote to the log: a line that begins with
/// `headstart: ` or `error: `, without that beginning. `None` if that process wrote no such line. The daemon
/// shows the message when the process has ended.
pub fn last_words(log: &Path) -> Option<String> {
    // The process may have begun a new log just now.
    let files = [earlier(log), log.to_owned()];
    let text: Vec<u8> = files.iter().filter_map(|file| std::fs::read(file).ok()).flatten().collect();
    let text = String::from_utf8_lossy(&text);
    let mut own = text.lines().rev().take_while(|line| *line != NEXT);
    let said = own.find(|line| line.starts_with("headstart: ") || line.starts_with("error: "))?;
    Some(said.trim_start_matches("headstart: ").trim_start_matches("error: ").to_owned())
}

/// Returns the warnings in a log after its first `from` bytes: the lines that begin with `headstart: warning: `,
/// without that beginning. If the log is shorter than `from`, because a new one was started, returns all of its
/// warnings. Empty if the log cannot be read.
pub fn warnings_behind(log: &Path, from: u64) -> Vec<String> {
    let bytes = std::fs::read(log).unwrap_or_default();
    let behind = usize::try_from(from).ok().and_then(|from| bytes.get(from..)).unwrap_or(&bytes);
    let text = String::from_utf8_lossy(behind);
    text.lines().filter_map(|line| line.strip_prefix("headstart: warning: ")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_testkit::wait::wait_for_value;
    use std::time::Duration;

    /// Waits until a released lock is free: a program that another test starts has it for a moment.
    #[track_caller]
    fn wait_until_free(path: &Path) {
        let what = format!("nothing holds {}", path.display());
        wait_for_value(&what, Duration::from_secs(60), || holder(path), Option::is_none);
    }

    #[test]
    fn warnings_are_those_behind_a_byte_or_of_a_new_log() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let text = "headstart: warning: one\nheadstart: two\nheadstart: warning: three\n";
        std::fs::write(log.path(), text).unwrap();
        assert_eq!(warnings_behind(log.path(), 0), ["one", "three"]);
        assert_eq!(warnings_behind(log.path(), 24), ["three"]);
        assert_eq!(warnings_behind(log.path(), text.len() as u64), [""; 0]);
        assert_eq!(warnings_behind(log.path(), 1 << 20), ["one", "three"]);
        assert_eq!(warnings_behind(Path::new("/nowhere/log"), 0), [""; 0]);
    }

    #[test]
    fn protection_is_given_up_and_nothing_else_changed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (before, after) in [("-500\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")] {
            std::fs::write(file.path(), before).unwrap();
            give_up_oom_protection(file.path()).unwrap();
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), after);
        }
    }

    #[test]
    fn a_lock_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pid");
        assert_eq!(holder(&path), None);
        let mut file = lock(&path, "taken").unwrap();
        write(&path, &mut file).unwrap();
        assert_eq!(holder(&path), Some(std::process::id()));
        assert_eq!(lock(&path, "taken").unwrap_err().kind(), ErrorKind::Conflict);
        drop(file);
        wait_until_free(&path);
    }

    #[test]
    fn a_file_that_was_not_written_to_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pid");
        let opened_before = File::create(&path).unwrap();
        give_back(&path, lock(&path, "taken").unwrap());
        assert!(!path.exists());
        // Another process that had opened it gets no lock by that.
        assert_eq!(opened_before.metadata().unwrap().nlink(), 0);
        let mut file = lock(&path, "taken").unwrap();
        assert!(path.exists());
        // Nor does it remove a file that another process has made in its place.
        std::fs::remove_file(&path).unwrap();
        let of_another = File::create(&path).unwrap();
        assert!(is_removed(&file, &path) && !is_removed(&of_another, &path));
        give_back(&path, file);
        assert_eq!(of_another.metadata().unwrap().nlink(), 1);
        drop(of_another);
        file = lock(&path, "taken").unwrap();
        write(&path, &mut file).unwrap();
        give_back(&path, file);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn the_last_words_are_found_behind_the_logs_end() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("a.log");
        assert_eq!(last_words(&log), None);
        std::fs::write(earlier(&log), "headstart: warning: one\n").unwrap();
        std::fs::write(&log, "noise\n").unwrap();
        assert_eq!(last_words(&log).unwrap(), "warning: one");
        std::fs::write(&log, "error: two\nnoise\n").unwrap();
        assert_eq!(last_words(&log).unwrap(), "two");
    }

    #[test]
    fn the_words_of_an_earlier_process_are_not_the_next_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let mut log = open_log(&path).unwrap();
        assert_eq!(log.metadata().unwrap().len(), 0);
        log.write_all(b"headstart: warning: one\n").unwrap();
        assert_eq!(last_words(&path).unwrap(), "warning: one");
        let mut log = open_log(&path).unwrap();
        assert_eq!(last_words(&path), None);
        log.write_all(b"headstart: two\n").unwrap();
        assert_eq!(last_words(&path).unwrap(), "two");
        // The log is replaced while the process lives, and when the next one starts.
        std::fs::rename(&path, earlier(&path)).unwrap();
        std::fs::write(&path, "noise\n").unwrap();
        assert_eq!(last_words(&path).unwrap(), "two");
        std::fs::write(&path, vec![b'\n'; usize::try_from(LOG_MAX).unwrap() + 1]).unwrap();
        open_log(&path).unwrap();
        assert_eq!(last_words(&path), None);
    }
}
