//! The pace of a collector's thread: the share of the time that it takes for itself.
//!
//! While clients write that is a tenth, more as the garbage comes near the bound at which writes wait, and all of it
//! when a write waits or none has come for a second.

use super::gate::SpaceStatus;
use super::policy::Load;
use std::time::Duration;

/// The time without writes after which a disk counts as quiet.
const QUIET: Duration = Duration::from_secs(1);

/// The longest pause between two steps while there is something to do.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The shortest pause while clients come first.
const PAUSE_MIN: Duration = Duration::from_millis(1);

impl Load {
    /// Derives the load from the waiting writes in `space` and from `silence`, the duration since the last
    /// write of a client. A disk is quiet after more than one second.
    #[must_use]
    pub fn of(space: &SpaceStatus, silence: Duration) -> Self {
        if space.waiting_writes > 0 {
            Self::Pressed
        } else if silence > QUIET {
            Self::Quiet
        } else {
            Self::Busy
        }
    }

    /// Returns the pause before the next step of garbage collection, after a step that took `took`; at most 100 ms. The
    /// pause becomes shorter, and then zero, as garbage comes near the amount at which writes wait. The result is
    /// always zero unless `self` is [`Load::Busy`].
    #[must_use]
    pub fn pause(self, space: &SpaceStatus, took: Duration) -> Duration {
        match (self, space.garbage_percent) {
            (Self::Busy, 0..50) => (took * 9).clamp(PAUSE_MIN, PAUSE_MAX),
            (Self::Busy, 50..75) => took.min(PAUSE_MAX),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_come_first_until_the_garbage_is_much() {
        let took = Duration::from_millis(4);
        let at = |garbage_percent| SpaceStatus { garbage_percent, ..SpaceStatus::default() };
        assert_eq!(Load::Busy.pause(&at(10), took), took * 9);
        assert_eq!(Load::Busy.pause(&at(10), Duration::ZERO), Duration::from_millis(1));
        assert_eq!(Load::Busy.pause(&at(60), took), took);
        assert_eq!(Load::Busy.pause(&at(90), took), Duration::ZERO);
        assert_eq!(Load::Quiet.pause(&at(10), took), Duration::ZERO);
        let waiting = SpaceStatus { waiting_writes: 1, ..SpaceStatus::default() };
        assert_eq!(Load::of(&waiting, QUIET * 2), Load::Pressed);
        assert_eq!(Load::of(&SpaceStatus::default(), QUIET * 2), Load::Quiet);
        assert_eq!(Load::of(&SpaceStatus::default(), QUIET / 2), Load::Busy);
    }
}
