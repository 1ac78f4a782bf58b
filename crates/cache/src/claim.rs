//! Single-flight.

use headstart_block::ByteRange;
use std::time::Duration;

/// How to wait for what others fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitHint {
    /// Nobody else fetches anything of the range.
    Nothing,
    /// Others of this process fetch it: [`subscribe`](crate::CachedBlob::subscribe).
    Notified,
    /// Another process does: look again after this time.
    Poll(Duration),
}

/// The right (and the duty) to fetch some runs of a blob; given back when dropped.
pub struct Claim {
    owned: Vec<ByteRange>,
}

impl Claim {
    /// The runs of units to fetch and insert: aligned, ascending.
    #[must_use]
    pub fn owned(&self) -> &[ByteRange] {
        &self.owned
    }

    /// Whether others fetch parts of the range.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.wait_hint() != WaitHint::Nothing
    }

    /// How to wait for those.
    #[must_use]
    pub fn wait_hint(&self) -> WaitHint {
        WaitHint::Nothing
    }
}
