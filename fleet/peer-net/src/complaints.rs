//! Two limits for hosts whose orders are refused. A host can send thousands of such orders a second, and choose the
//! text that a log line would quote.
//!
//! The first limit is for log lines ([`PeerComplaints`]): for each cause and host, at most one line a minute is logged
//! as a warning, and the others at level `debug`. The second limit is for the orders ([`REFUSED_MAX`]): if more orders
//! of a host are refused in a minute, and none is accepted in between, the connection to the host is closed.

/// Limit of refused orders on one connection: if a host gets more than this many of its orders refused within
/// a minute, and none accepted in between, the connection is closed. The limit is high because an agent sends
/// a root an order for every blob of its disks twice a minute, and the root may be able to fetch none of
/// them.
pub const REFUSED_MAX: u32 = 8192;
const MINUTE_MS: u64 = 60_000;

/// The reason for a log line about another host. At most one warning a minute is logged for each pair of a reason and
/// a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// This host, a root, cannot exchange a blob that the other host has named.
    TakesNoPart,
    /// An order of the other host could not be carried out.
    NotDone,
    /// The connection is closed because too many orders of the other host were refused.
    OrdersInVain,
}

/// The rate limit of log lines about other hosts, with one entry for each reason and host name.
pub type PeerComplaints = headstart_block::Complaints<(Cause, String)>;

/// Logs a line about another host: by [`tracing::warn!`] if the rate limit admits the line as a warning, otherwise by
/// [`tracing::debug!`].
#[macro_export]
macro_rules! complain {
    ($complaints:expr, $cause:ident, $host:expr, $($line:tt)+) => {
        match $complaints.next(($crate::complaints::Cause::$cause, $host.clone())) {
            headstart_block::ComplaintLevel::Warning { left_out } => {
                tracing::warn!(left_out, host = %$host, $($line)+);
            }
            headstart_block::ComplaintLevel::Debug => tracing::debug!(host = %$host, $($line)+),
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
