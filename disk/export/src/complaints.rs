//! Warnings that clients cause: of each cause a server says the first aloud, then one a minute at most. See
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
    /// A client waits for another one to leave.
    Waits,
}

/// The lines that a server said of its clients.
pub(crate) type Complaints = headstart_block::Complaints<Cause>;

/// Says a line about a client, as [`tracing::warn!`] where it is one of the few.
macro_rules! complain {
    ($complaints:expr, $cause:ident, $($line:tt)+) => {
        match $complaints.next($crate::complaints::Cause::$cause) {
            headstart_block::Say::Aloud { left_out } => tracing::warn!(left_out, $($line)+),
            headstart_block::Say::Quietly => tracing::debug!($($line)+),
        }
    };
}

pub(crate) use complain;
