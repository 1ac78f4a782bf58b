//! The end of patience with hosts whose orders are refused: few lines in the log, and then no connection.
//!
//! A host can order what is refused thousands of times a second, in words of its own choosing, and the log belongs to
//! all. So of each cause and host one line a minute is said aloud, with the number of those that were left out since;
//! the others are said at level `debug`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The time from a line to the next one of the same cause and host.
const EVERY: Duration = Duration::from_secs(60);

/// Causes and hosts that are known at a time; of more nothing is said aloud.
const KNOWN_MAX: usize = 4096;

/// Orders that are refused within [`MINUTE_MS`] before the connection is ended, where none is obeyed. An agent tells a
/// root of all blobs of its disks twice a minute, and the root may know none of their stores.
pub(super) const REFUSED_MAX: u32 = 8192;
const MINUTE_MS: u64 = 60_000;

/// The cause of a line about another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// A root does not take part in a blob.
    TakesNoPart,
    /// An order cannot be done.
    NotDone,
    /// All of its orders are refused.
    OrdersInVain,
}

/// The way in which a line is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    Aloud {
        /// Lines of the same cause and host that were left out since the last one; `None` without any.
        left_out: Option<u64>,
    },
    Quietly,
}

/// The lines that were said of other hosts.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<HashMap<(Cause, String), Said>>);

#[derive(Debug)]
struct Said {
    at: Instant,
    left_out: u64,
}

impl Complaints {
    /// The way in which the next line of this cause about this host is said.
    pub(crate) fn next(&self, cause: Cause, host: &str) -> Say {
        self.next_at(cause, host, Instant::now())
    }

    fn next_at(&self, cause: Cause, host: &str, now: Instant) -> Say {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |said: &Said| now.saturating_duration_since(said.at) >= EVERY;
        let key = (cause, host.to_owned());
        if let Some(said) = known.get_mut(&key) {
            if !is_over(said) {
                said.left_out += 1;
                return Say::Quietly;
            }
            let left_out = Some(said.left_out).filter(|number| *number > 0);
            *said = Said { at: now, left_out: 0 };
            return Say::Aloud { left_out };
        }
        if known.len() >= KNOWN_MAX {
            known.retain(|_, said| !is_over(said));
        }
        if known.len() >= KNOWN_MAX {
            return Say::Quietly;
        }
        known.insert(key, Said { at: now, left_out: 0 });
        Say::Aloud { left_out: None }
    }

    /// Lines of this cause about this host that were left out since the last one.
    #[cfg(test)]
    pub(crate) fn left_out(&self, cause: Cause, host: &str) -> u64 {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(cause, host.to_owned())).map_or(0, |said| said.left_out)
    }
}

/// Says a line about another host, as [`tracing::warn!`] where it is one of the few.
macro_rules! complain {
    ($complaints:expr, $cause:ident, $host:expr, $($line:tt)+) => {
        match $complaints.next($crate::peers::complaints::Cause::$cause, $host) {
            $crate::peers::complaints::Say::Aloud { left_out } => {
                tracing::warn!(left_out, host = %$host, $($line)+);
            }
            $crate::peers::complaints::Say::Quietly => tracing::debug!(host = %$host, $($line)+),
        }
    };
}

pub(crate) use complain;

/// The orders of a connection that were refused since the last one that was obeyed, in the minute that began then.
#[derive(Debug, Default)]
pub(super) struct InVain {
    since_ms: u64,
    refused: u32,
}

impl InVain {
    /// Notes what became of an order. `true` if too many were refused, and the connection is to end.
    pub(super) fn note(&mut self, is_refused: bool, now_ms: u64) -> bool {
        if !is_refused || now_ms.saturating_sub(self.since_ms) >= MINUTE_MS {
            *self = Self { since_ms: now_ms, refused: 0 };
        }
        self.refused = self.refused.saturating_add(u32::from(is_refused));
        self.refused > REFUSED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_is_said_aloud_of_each_cause_and_host() {
        let (start, complaints) = (Instant::now(), Complaints::default());
        let mut lines = Vec::new();
        for millis in 0..180_000 {
            let said = complaints.next_at(Cause::TakesNoPart, "a", start + Duration::from_millis(millis));
            if let Say::Aloud { left_out } = said {
                lines.push((millis, left_out));
            }
        }
        assert_eq!(lines, [(0, None), (60_000, Some(59_999)), (120_000, Some(59_999))]);
        for (cause, host) in [(Cause::NotDone, "a"), (Cause::TakesNoPart, "b")] {
            assert_eq!(complaints.next_at(cause, host, start), Say::Aloud { left_out: None });
            assert_eq!(complaints.next_at(cause, host, start), Say::Quietly);
        }
    }

    #[test]
    fn hosts_without_end_take_no_memory_without_end() {
        let (start, complaints) = (Instant::now(), Complaints::default());
        let aloud = |from: usize, now| {
            let hosts = (from..from + 2 * KNOWN_MAX).map(|n| n.to_string());
            hosts.filter(|host| complaints.next_at(Cause::NotDone, host, now) != Say::Quietly).count()
        };
        assert_eq!(aloud(0, start), KNOWN_MAX);
        assert_eq!(aloud(10 * KNOWN_MAX, start + EVERY), KNOWN_MAX);
        assert_eq!(complaints.0.lock().unwrap().len(), KNOWN_MAX);
    }

    #[test]
    fn a_connection_ends_after_many_orders_in_vain_and_not_for_few_a_minute() {
        let mut in_vain = InVain::default();
        assert!((0..REFUSED_MAX).all(|_| !in_vain.note(true, 5)));
        assert!(in_vain.note(true, 5));
        // One that is obeyed shows that it means no harm.
        let mut in_vain = InVain::default();
        assert!((0..4 * REFUSED_MAX).all(|n| !in_vain.note(n % REFUSED_MAX != 7, 5)));
        // As many in each minute.
        let mut in_vain = InVain::default();
        assert!((0..4 * REFUSED_MAX).all(|n| !in_vain.note(true, u64::from(n / REFUSED_MAX) * MINUTE_MS)));
    }
}
