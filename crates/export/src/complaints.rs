//! Warnings that clients cause, of which a server says a few aloud.
//!
//! A client can do the same wrong thing a thousand times a second, and the log belongs to all. So of each cause a
//! server says the first aloud, then one a minute at most, with the number of those that it left out meanwhile. The
//! others are said at level `debug`.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time from a line to the next one of the same cause.
const EVERY: Duration = Duration::from_secs(60);

/// The cause of a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A client loses its place to another one.
    MakesRoom,
    /// A client finds no place.
    TurnedAway,
    /// A client cannot be accepted.
    NotAccepted,
    /// A thread cannot be started.
    NoThread,
    /// A client fails to begin with TLS.
    Tls,
    /// A client sends what is not the protocol.
    Protocol,
    /// A client takes no replies.
    NoReplies,
    /// A request fails.
    Fault,
    /// A reply that has begun cannot be finished.
    Unfinished,
    /// A guest's driver breaks the rules.
    Driver,
    /// A client waits for another one to leave. The last: see [`CAUSES`].
    Waits,
}

/// The number of causes.
const CAUSES: usize = Cause::Waits as usize + 1;

/// The way in which a line is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    Aloud {
        /// Lines of the same cause that were left out since the last one; `None` without any.
        left_out: Option<u64>,
    },
    Quietly,
}

/// What a server has said of its clients.
#[derive(Debug, Default)]
pub(crate) struct Complaints([Mutex<Said>; CAUSES]);

/// What was said of one cause.
#[derive(Debug, Default)]
struct Said {
    at: Option<Instant>,
    left_out: u64,
}

impl Said {
    fn next(&mut self, now: Instant) -> Say {
        if self.at.is_some_and(|at| now.saturating_duration_since(at) < EVERY) {
            self.left_out += 1;
            return Say::Quietly;
        }
        let left_out = Some(self.left_out).filter(|number| *number > 0);
        *self = Self { at: Some(now), left_out: 0 };
        Say::Aloud { left_out }
    }
}

impl Complaints {
    /// The way in which the next line of this cause is said.
    #[expect(clippy::disallowed_methods, reason = "lines are limited by the clock")]
    pub(crate) fn next(&self, cause: Cause) -> Say {
        let said = self.0.get(cause as usize).map(|said| said.lock().unwrap_or_else(PoisonError::into_inner));
        said.map_or(Say::Quietly, |mut said| said.next(Instant::now()))
    }
}

/// Says a line about a client, as [`tracing::warn!`] where it is one of the few.
macro_rules! complain {
    ($complaints:expr, $cause:ident, $($line:tt)+) => {
        match $complaints.next($crate::complaints::Cause::$cause) {
            $crate::complaints::Say::Aloud { left_out } => tracing::warn!(left_out, $($line)+),
            $crate::complaints::Say::Quietly => tracing::debug!($($line)+),
        }
    };
}

pub(crate) use complain;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "times count from now")]
    fn the_first_line_is_said_aloud_and_then_one_a_minute_with_the_number_of_the_others() {
        let (start, mut said) = (Instant::now(), Said::default());
        // A thousand lines a second, for three minutes.
        let lines: Vec<_> = (0..180_000)
            .filter_map(|millis| match said.next(start + Duration::from_millis(millis)) {
                Say::Aloud { left_out } => Some((millis, left_out)),
                Say::Quietly => None,
            })
            .collect();
        assert_eq!(lines, [(0, None), (60_000, Some(59_999)), (120_000, Some(59_999))]);
        assert_eq!(said.next(start + 10 * EVERY), Say::Aloud { left_out: Some(59_999) });
        assert_eq!(said.next(start + 20 * EVERY), Say::Aloud { left_out: None });
    }

    #[test]
    fn no_cause_hides_another() {
        let complaints = Complaints::default();
        for cause in [Cause::MakesRoom, Cause::Protocol, Cause::Waits] {
            assert_eq!(complaints.next(cause), Say::Aloud { left_out: None }, "{cause:?}");
            assert_eq!(complaints.next(cause), Say::Quietly, "{cause:?}");
        }
    }
}
