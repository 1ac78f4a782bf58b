//! The limit for hosts whose orders are refused: few lines in the log, and then the end of the connection.
//!
//! A host can send thousands of refused orders a second, in words of its own choosing. For each cause and host, one
//! line a minute is logged as a warning (see [`headstart_block::complaints`]).

/// Orders that are refused within a minute before the connection is ended, if none is obeyed. An agent names all
/// blobs of its disks to a root twice a minute, and the root may know none of their stores.
pub const REFUSED_MAX: u32 = 8192;
const MINUTE_MS: u64 = 60_000;

/// The cause of a line about another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A root does not take part in a blob.
    TakesNoPart,
    /// An order cannot be carried out.
    NotDone,
    /// All of its orders are refused.
    OrdersInVain,
}

/// The lines that were logged about other hosts, by cause and the host's name.
pub type PeerComplaints = headstart_block::Complaints<(Cause, String)>;

/// Logs a line about another host, as [`tracing::warn!`] if it is one of the few.
#[macro_export]
macro_rules! complain {
    ($complaints:expr, $cause:ident, $host:expr, $($line:tt)+) => {
        match $complaints.next(($crate::complaints::Cause::$cause, $host.clone())) {
            headstart_block::Say::Aloud { left_out } => {
                tracing::warn!(left_out, host = %$host, $($line)+);
            }
            headstart_block::Say::Quietly => tracing::debug!(host = %$host, $($line)+),
        }
    };
}

/// The orders of a connection that were refused since the last obeyed one, in the minute that began then.
#[derive(Debug, Default)]
pub(super) struct InVain {
    since_ms: u64,
    refused: u32,
}

impl InVain {
    /// Records the outcome of an order. Returns `true` if too many were refused, and the connection is to end.
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
    fn a_connection_ends_after_many_orders_in_vain_and_not_for_few_a_minute() {
        let mut in_vain = InVain::default();
        assert!((0..REFUSED_MAX).all(|_| !in_vain.note(true, 5)));
        assert!(in_vain.note(true, 5));
        // A host with an obeyed order is taken to mean no harm.
        let mut in_vain = InVain::default();
        assert!((0..4 * REFUSED_MAX).all(|n| !in_vain.note(n % REFUSED_MAX != 7, 5)));
        // The same number is allowed in each minute.
        let mut in_vain = InVain::default();
        assert!((0..4 * REFUSED_MAX).all(|n| !in_vain.note(true, u64::from(n / REFUSED_MAX) * MINUTE_MS)));
    }
}
