//! Locks between processes: byte ranges of open files, which the kernel gives back when their holder dies.
//!
//! These are *open file description* locks (`F_OFD_SETLK`): they belong to an open file, not to a process, so that two
//! handles within one process exclude each other as two processes do, and closing one handle does not give back
//! another's locks. `kill -9` closes the file and thereby frees them. Threads that share a handle are not kept apart:
//! code that shares one keeps a table or a mutex beside it.
//!
//! Nothing here waits without a limit: a process that was stopped while it held a lock must not stop the others.
//!
//! rustix lacks these locks (its `fcntl_lock` makes a process's own, and of a whole file), and so does the standard
//! library (`flock`, of a whole file): the C library's `fcntl` is called.

use headstart_block::lock::try_within;
use headstart_block::{Error, Result, saturating};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compatible with other shared locks.
    Shared,
    /// Compatible with no other lock.
    Exclusive,
}

impl Mode {
    fn kind(self) -> libc::c_int {
        match self {
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
        }
    }
}

/// The kernel's form of a lock on `bytes`, which need not exist in the file.
fn flock(bytes: &Range<u64>, kind: libc::c_int) -> libc::flock {
    // No file reaches further.
    let (start, end) = (saturating::<i64>(bytes.start), saturating::<i64>(bytes.end));
    #[expect(clippy::cast_possible_truncation, reason = "these constants are 0 to 2")]
    libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: start,
        l_len: end - start,
        l_pid: 0,
    }
}

/// Does `command`, one of those for open file description locks, with `lock`.
fn fcntl(file: &File, command: libc::c_int, lock: &mut libc::flock) -> rustix::io::Result<()> {
    loop {
        // SAFETY: the descriptor is open while `file` is borrowed; both commands take a pointer to a `flock`, which
        // this is, and which the kernel reads and writes only during the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *lock) } >= 0 {
            return Ok(());
        }
        match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(Errno::INTR) => {}
            errno => return Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

fn failed(errno: Errno) -> Error {
    Error::io("cannot lock", errno.into()).remedy("keep the cache on a local file system that has file locks")
}

/// Locks `bytes`, or changes the lock that this open file has there; `false` if other handles hold it.
pub(crate) fn try_lock(file: &File, bytes: &Range<u64>, mode: Mode) -> Result<bool> {
    match fcntl(file, libc::F_OFD_SETLK, &mut flock(bytes, mode.kind())) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(failed(errno)),
    }
}

/// As [`try_lock`], but tries again for about `timeout`: the kernel's waiting form of this lock has no time-out.
pub(crate) fn lock_within(file: &File, bytes: &Range<u64>, mode: Mode, timeout: Duration) -> Result<bool> {
    let locked = try_within(timeout, || Ok::<_, Error>(try_lock(file, bytes, mode)?.then_some(())))?;
    Ok(locked.is_some())
}

/// Gives back this open file's locks on `bytes`.
pub(crate) fn unlock(file: &File, bytes: &Range<u64>) {
    // Unlocking fails if the kernel has no memory to split a lock in two; then closing the file gives it back.
    let _ = fcntl(file, libc::F_OFD_SETLK, &mut flock(bytes, libc::F_UNLCK));
}

/// A part of `bytes` that another open file holds in any mode; `None` if there is none.
pub(crate) fn held_by_others(file: &File, bytes: &Range<u64>) -> Result<Option<Range<u64>>> {
    let mut lock = flock(bytes, libc::F_WRLCK);
    fcntl(file, libc::F_OFD_GETLK, &mut lock).map_err(failed)?;
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let (start, len) = (saturating::<u64>(lock.l_start), saturating::<u64>(lock.l_len));
    let end = if len == 0 { u64::MAX } else { start.saturating_add(len) };
    Ok(Some(start.max(bytes.start)..end.min(bytes.end)))
}

/// Names all parts of `bytes` that other open files hold, in no order; they may overlap.
pub(crate) fn each_held_by_others(
    file: &File,
    bytes: Range<u64>,
    each: &mut dyn FnMut(Range<u64>),
) -> Result<()> {
    let mut todo = vec![bytes];
    while let Some(part) = todo.pop() {
        if part.is_empty() {
            continue;
        }
        if let Some(held) = held_by_others(file, &part)? {
            todo.push(part.start..held.start);
            todo.push(held.end..part.end);
            each(held);
        }
    }
    Ok(())
}

/// Locks as much of `bytes` exclusively as no other handle holds: names the parts that this handle has now, ascending.
/// `true` if other handles hold some.
pub(crate) fn lock_free_parts(
    file: &File,
    bytes: Range<u64>,
    each: &mut dyn FnMut(Range<u64>),
) -> Result<bool> {
    let mut todo = vec![bytes];
    let mut others = false;
    while let Some(part) = todo.pop() {
        if part.is_empty() {
            continue;
        }
        if try_lock(file, &part, Mode::Exclusive)? {
            each(part);
            continue;
        }
        others = true;
        // If it was given back in between, its former holder is done, and the caller looks again soon.
        if let Some(held) = held_by_others(file, &part)? {
            todo.push(held.end..part.end);
            todo.push(part.start..held.start);
        }
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handles(dir: &std::path::Path) -> [File; 2] {
        let path = dir.join("f");
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        [open(), open()]
    }

    #[test]
    fn handles_of_one_process_exclude_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = handles(dir.path());
        let far = 1 << 62..(1 << 62) + 10;
        assert!(try_lock(&a, &far, Mode::Shared).unwrap());
        assert!(try_lock(&b, &far, Mode::Shared).unwrap());
        assert!(!try_lock(&b, &far, Mode::Exclusive).unwrap());
        assert!(!lock_within(&b, &far, Mode::Exclusive, Duration::from_millis(3)).unwrap());
        drop(a);
        assert!(try_lock(&b, &far, Mode::Exclusive).unwrap());
    }

    #[test]
    fn free_parts_are_locked_around_what_others_hold() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = handles(dir.path());
        for held in [10..20, 30..31, 50..60] {
            assert!(try_lock(&a, &held, Mode::Exclusive).unwrap());
        }
        let mut ours = Vec::new();
        assert!(lock_free_parts(&b, 15..55, &mut |part| ours.push(part)).unwrap());
        assert_eq!(ours, [20..30, 31..50]);
        let mut theirs = Vec::new();
        each_held_by_others(&a, 0..100, &mut |part| theirs.push(part)).unwrap();
        theirs.sort_by_key(|part| part.start);
        assert_eq!(theirs, [20..30, 31..50]);
        unlock(&b, &(25..35));
        assert!(try_lock(&a, &(25..35), Mode::Exclusive).unwrap());
    }
}
