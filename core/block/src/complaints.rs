//! Limits on log lines that clients and other hosts cause: a server logs only a few of them as warnings.
//!
//! A client or another host can do the same wrong thing a thousand times a second, and all users of the host share the
//! log. Of each cause, a server therefore logs the first line as a warning, then at most one line a minute, with the
//! number of lines that were no warnings meanwhile. It logs all other lines at level `debug`. ([`Complaints`] says what
//! happens if there are more than 4096 causes.)

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// The time from a line to the next one of the same cause.
const EVERY: Duration = Duration::from_secs(60);

/// The number of causes that are known at a time. Lines of further causes are never warnings.
const KNOWN_MAX: usize = 4096;

/// The level at which a server logs a line that another host or a client caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComplaintLevel {
    /// As a warning, which every reader of the log sees.
    Warning {
        /// Lines of the same cause that were logged at level `debug` since the last warning; `None` if there were none,
        /// or if the cause was not known.
        left_out: Option<u64>,
    },
    /// At level `debug`.
    Debug,
}

/// Limits the warnings of a log to one a minute for each cause; see the [module](self). A `Cause` is a kind of event,
/// or a kind and the host that caused it. At most 4096 causes are known at a time. A new cause beyond that number takes
/// the place of causes whose last warning is a minute old, and their counts are lost. While there are none of these,
/// lines of new causes are not warnings.
#[derive(Debug)]
pub struct Complaints<Cause>(Mutex<HashMap<Cause, LoggedLines>>);

/// The lines of one cause.
#[derive(Debug)]
struct LoggedLines {
    at: Instant,
    left_out: u64,
}

impl LoggedLines {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= EVERY
    }
}

impl<Cause> Default for Complaints<Cause> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Cause: Eq + Hash> Complaints<Cause> {
    /// Counts a line of `cause` that is about to be logged, and returns its level: [`ComplaintLevel::Warning`] for the
    /// first one and then for at most one a minute, otherwise [`ComplaintLevel::Debug`].
    #[expect(clippy::disallowed_methods, reason = "lines are limited by the clock")]
    pub fn next(&self, cause: Cause) -> ComplaintLevel {
        self.next_at(cause, Instant::now())
    }

    fn next_at(&self, cause: Cause, now: Instant) -> ComplaintLevel {
        let mut known = self.0.lock();
        if let Some(logged) = known.get_mut(&cause) {
            if !logged.is_over(now) {
                logged.left_out += 1;
                return ComplaintLevel::Debug;
            }
            let left_out = Some(logged.left_out).filter(|number| *number > 0);
            *logged = LoggedLines { at: now, left_out: 0 };
            return ComplaintLevel::Warning { left_out };
        }
        if known.len() >= KNOWN_MAX {
            known.retain(|_, logged| !logged.is_over(now));
        }
        if known.len() >= KNOWN_MAX {
            return ComplaintLevel::Debug;
        }
        known.insert(cause, LoggedLines { at: now, left_out: 0 });
        ComplaintLevel::Warning { left_out: None }
    }

    /// Returns how many lines of `cause` were not warnings since its last warning; 0 for an unknown cause.
    pub fn left_out(&self, cause: &Cause) -> u64 {
        let known = self.0.lock();
        known.get(cause).map_or(0, |logged| logged.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "times count from now")]
    fn the_first_line_is_a_warning_and_then_one_a_minute_with_the_number_of_the_others() {
        let (start, complaints) = (Instant::now(), Complaints::default());
        // A thousand lines a second, for three minutes.
        let lines: Vec<_> = (0..180_000)
            .filter_map(|millis| match complaints.next_at("a", start + Duration::from_millis(millis)) {
                ComplaintLevel::Warning { left_out } => Some((millis, left_out)),
                ComplaintLevel::Debug => None,
            })
            .collect();
        assert_eq!(lines, [(0, None), (60_000, Some(59_999)), (120_000, Some(59_999))]);
        assert_eq!(complaints.left_out(&"a"), 59_999);
        assert_eq!(
            complaints.next_at("a", start + 10 * EVERY),
            ComplaintLevel::Warning { left_out: Some(59_999) }
        );
        assert_eq!(complaints.next_at("a", start + 20 * EVERY), ComplaintLevel::Warning { left_out: None });
    }

    #[test]
    fn no_cause_hides_another() {
        let complaints = Complaints::default();
        for cause in ["a", "b", "c"] {
            assert_eq!(complaints.next(cause), ComplaintLevel::Warning { left_out: None }, "{cause}");
            assert_eq!(complaints.next(cause), ComplaintLevel::Debug, "{cause}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "times count from now")]
    fn causes_without_end_take_no_memory_without_end() {
        let (start, complaints) = (Instant::now(), Complaints::default());
        let warnings = |from: usize, now| {
            (from..from + 2 * KNOWN_MAX)
                .filter(|n| complaints.next_at(*n, now) != ComplaintLevel::Debug)
                .count()
        };
        assert_eq!(warnings(0, start), KNOWN_MAX);
        assert_eq!(warnings(10 * KNOWN_MAX, start + EVERY), KNOWN_MAX);
        assert_eq!(complaints.0.lock().len(), KNOWN_MAX);
    }
}
