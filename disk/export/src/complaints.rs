//! Warnings that clients cause: for each cause a server logs the first one as a warning, then at most one a minute. See
//! [`headstart_block::complaints`].

/// The cause of a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// A client sends bytes that are not the protocol.
    Protocol,
    /// A client takes no replies.
    NoReplies,
    /// A request fails.
    Fault,
    /// A reply that has begun cannot be finished.
    Unfinished,
    /// A guest's driver breaks the rules.
    Driver,
    /// A client waits for another one to leave.
    Waits,
}

/// The log lines of a server about its clients.
pub(crate) type Complaints = headstart_block::Complaints<Cause>;

/// Logs a line about a client: as [`tracing::warn!`] if its cause is due, otherwise as [`tracing::debug!`].
macro_rules! complain {
    ($complaints:expr, $cause:ident, $($line:tt)+) => {
        match $complaints.next($crate::complaints::Cause::$cause) {
            headstart_block::ComplaintLevel::Warning { left_out } => tracing::warn!(left_out, $($line)+),
            headstart_block::ComplaintLevel::Debug => tracing::debug!($($line)+),
        }
    };
}

pub(crate) use complain;
