//! Waiting for a condition, with a limit: a test never waits for a fixed time.
//!
//! If the condition is not met within the limit, the test fails at the line of the call, with a text that says what was
//! waited for, for how long, and which value was seen last. Limits are for programs that hang, so they may be generous:
//! a test that passes never waits for as long.

use std::fmt::{self, Debug, Display};
use std::time::{Duration, Instant};

/// The first pause between two looks; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(32);

/// A wrapper that makes a failed wait print the value with `Display` in place of `Debug`, such as the lines
/// of a log.
pub struct Shown<T>(pub T);

impl<T: Display> Debug for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

/// The looks at a condition so far.
struct Looks<'a> {
    what: &'a str,
    began: Instant,
    limit: Duration,
    pause: Duration,
}

impl<'a> Looks<'a> {
    fn new(what: &'a str, limit: Duration) -> Self {
        Self { what, began: Instant::now(), limit, pause: PAUSE }
    }

    /// The pause until the next look, after one that saw `seen`.
    #[track_caller]
    fn next(&mut self, seen: &dyn Debug) -> Duration {
        let waited = self.began.elapsed();
        assert!(waited < self.limit, "waited {waited:.1?} for: {}; last seen: {seen:#?}", self.what);
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// Waits until `is_so` returns `true`. `what` describes the condition in the panic message, as in "a peer
/// shares the blob".
///
/// # Panics
/// Panics if `is_so` does not return `true` within `limit`.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let mut looks = Looks::new(what, limit);
    while !is_so() {
        std::thread::sleep(looks.next(&false));
    }
}

/// Calls `look` repeatedly until it returns `Ok`, and returns that value. The last `Err` is printed if that
/// takes too long, together with `what`.
///
/// # Panics
/// Panics if `look` does not return `Ok` within `limit`.
#[track_caller]
pub fn wait_for<T, E: Debug>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, E>) -> T {
    let mut looks = Looks::new(what, limit);
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) => std::thread::sleep(looks.next(&seen)),
        }
    }
}

/// Calls `look` repeatedly until `is_so` returns `true` for its result, and returns that result. The last
/// result is printed if that takes too long, together with `what`.
///
/// # Panics
/// Panics if `is_so` does not return `true` within `limit`.
#[track_caller]
pub fn wait_for_value<T: Debug>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> T,
    mut is_so: impl FnMut(&T) -> bool,
) -> T {
    wait_for(what, limit, || {
        let value = look();
        if is_so(&value) { Ok(value) } else { Err(value) }
    })
}

/// Does the same as [`wait_until`] without blocking the thread: it sleeps on the async runtime.
///
/// # Panics
/// Panics if `is_so` does not return `true` within `limit`.
pub async fn wait_until_async(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let mut looks = Looks::new(what, limit);
    while !is_so() {
        tokio::time::sleep(looks.next(&false)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_returned_once_it_is_right() {
        let mut values = 0..;
        let limit = Duration::from_secs(60);
        assert_eq!(wait_for_value("three", limit, || values.next().unwrap(), |value| *value == 3), 3);
        assert_eq!(values.next(), Some(4));
        wait_until("seven", limit, || values.next() == Some(7));
        assert_eq!(values.next(), Some(8));
        assert_eq!(wait_for("a value", limit, || values.next().ok_or(())), 9);
    }

    #[test]
    #[should_panic(expected = "for: the moon; last seen: \"a cloud\"")]
    fn a_failure_names_the_condition_and_the_last_value() {
        wait_for("the moon", Duration::from_millis(1), || Err::<(), _>("a cloud"));
    }
}
