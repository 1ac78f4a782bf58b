//! Locks of files that other processes may hold. A caller waits for such a lock for a limited time.
//!
//! Waiting is limited because a process may be suspended while it holds a lock, and must not block the others for ever.
//! The operating system has no call that waits for a lock for a limited time, so a caller tries again and again: after
//! 1 ms at first, and finally every 16 ms.

use std::fs::{File, TryLockError};
use std::io;
use std::time::Duration;

/// The pause after the first try, which doubles with each further one.
const PAUSE: Duration = Duration::from_millis(1);

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// Takes the exclusive lock of an open file or directory, as `flock` does, and returns `true`. Returns `false` if the
/// lock could not be taken within `timeout`, because others hold it; a timeout of zero makes one attempt. Closing the
/// file releases the lock.
///
/// # Errors
/// Errors of the operating system.
pub fn lock_within(file: &File, timeout: Duration) -> io::Result<bool> {
    Ok(try_within(timeout, || Ok::<_, io::Error>(try_lock(file)?.then_some(())))?.is_some())
}

/// Takes the exclusive lock of an open file or directory without waiting, and returns `true`; `false` if
/// others hold the lock, or if a signal interrupted the attempt.
///
/// # Errors
/// Errors of the operating system.
pub fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Calls `attempt` until it returns a value, with pauses of 1 to 16 ms in between. `None` if there is no
/// value after pauses of `timeout` in total; with a timeout of zero, there is one call.
///
/// # Errors
/// The first error of `attempt`, which ends the calls.
#[expect(clippy::disallowed_methods, reason = "a lock of another process tells nobody when it is free")]
pub fn try_within<T, E>(
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let (mut left, mut pause) = (timeout, PAUSE);
    loop {
        let found = attempt()?;
        if found.is_some() || left.is_zero() {
            return Ok(found);
        }
        let pausing = pause.min(left);
        std::thread::sleep(pausing);
        left -= pausing;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_others_hold_is_waited_for_with_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        File::create(&path).unwrap();
        for path in [path.as_path(), dir.path()] {
            let [one, other] = [(); 2].map(|()| File::open(path).unwrap());
            assert!(lock_within(&one, Duration::ZERO).unwrap());
            assert!(!try_lock(&other).unwrap());
            assert!(!lock_within(&other, Duration::from_millis(40)).unwrap());
            // The lock is taken as soon as it is given back, long before the limit.
            let waiting = std::thread::spawn(move || lock_within(&other, Duration::MAX).unwrap());
            drop(one);
            assert!(waiting.join().unwrap());
        }
    }

    #[test]
    fn tries_end_with_a_result_an_error_or_the_limit() {
        let until = |last: u32, timeout: u64| {
            let mut tries = 0;
            let found = try_within(Duration::from_millis(timeout), || {
                tries += 1;
                match (tries == last, last % 2) {
                    (true, 0) => Err("an error"),
                    (is_last, _) => Ok(is_last.then_some("a result")),
                }
            });
            (found, tries)
        };
        assert_eq!(until(3, 10_000), (Ok(Some("a result")), 3));
        assert_eq!(until(4, 10_000), (Err("an error"), 4));
        assert_eq!(until(99, 0), (Ok(None), 1));
        // Pauses of 1, 2, 4, 8, 16, 16 and 3 milliseconds.
        assert_eq!(until(99, 50), (Ok(None), 8));
    }
}
