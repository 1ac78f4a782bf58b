//! Virtual time.
//!
//! The engine counts microseconds; the simulator counts nanoseconds, so that the transfers of many blocks one after the
//! other add up without rounding. The engine is told the microsecond that contains a moment.

use headstart_block::saturating;
use headstart_pull::Time;
use std::time::Duration;

/// Nanoseconds since a disk's creation, or a span of them. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than anything that happens.
    pub const NEVER: Self = Self(u64::MAX);

    /// The span of `micros` microseconds.
    #[must_use]
    pub fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1000))
    }

    /// A span of time.
    #[must_use]
    pub fn from_duration(span: Duration) -> Self {
        Self(saturating::<u64>(span.as_nanos()))
    }

    /// The time from `earlier` to this moment; zero if it is not after.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// This and `span` more.
    #[must_use]
    pub fn plus(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// In seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people and statistics")]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The engine's microsecond that contains this moment.
    #[must_use]
    pub fn engine_time(self) -> Time {
        Time(self.0 / 1000)
    }

    /// The first moment of the engine's `time`.
    #[must_use]
    pub fn of_engine(time: Time) -> Self {
        Self::from_micros(time.0)
    }
}
