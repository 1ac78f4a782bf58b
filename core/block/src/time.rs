//! [`Time`]: a moment, for code that decides by the time it is told and reads no clock itself.

use crate::saturating;
use std::ops::Add;
use std::time::Duration;

/// A moment of a monotonic clock, in microseconds since a start that the program or simulation chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// The duration from `earlier` to this moment; zero if this moment is not after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(saturating::<u64>(span.as_micros())))
    }
}
