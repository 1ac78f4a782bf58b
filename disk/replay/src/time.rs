//! Virtual time.
//!
//! The engine counts microseconds; the simulator counts nanoseconds, so that the transfers of many blocks one after the
//! other add up without rounding. The engine is told the microsecond that contains a moment.

use headstart_block::saturating;
use headstart_pull::Time;
use std::time::Duration;

/// A time in nanoseconds since a disk's creation, or a duration in nanoseconds. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A time later than any event.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the time or duration of `micros` microseconds.
    #[must_use]
    pub fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1000))
    }

    /// Converts a duration.
    #[must_use]
    pub fn from_duration(span: Duration) -> Self {
        Self(saturating::<u64>(span.as_nanos()))
    }

    /// Returns the duration from `earlier` to this time; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Returns the sum of this and `span`.
    #[must_use]
    pub fn plus(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Converts to seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people and statistics")]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Converts to the engine's time, in microseconds, rounded down.
    #[must_use]
    pub fn engine_time(self) -> Time {
        Time(self.0 / 1000)
    }

    /// Converts from the engine's time, in microseconds.
    #[must_use]
    pub fn of_engine(time: Time) -> Self {
        Self::from_micros(time.0)
    }
}
