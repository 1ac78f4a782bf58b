//! The pauses before a disk's process is started again.

use std::time::Duration;

/// The second pause after processes that did not last; the first is none at all. Each is twice the one before.
const SECOND: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);

/// The life of a process that has served, from which on its death is no sign of a disk that cannot be served: clients
/// wait, so the next one is started at once.
const LASTED: Duration = Duration::from_secs(1);

/// Grows the pauses.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    next: Duration,
}

impl Pauses {
    /// The pause after the end of a process that lived for a time, and that served or did not.
    pub(super) fn after(&mut self, lived: Duration, has_served: bool) -> Duration {
        if has_served && lived >= LASTED {
            self.next = Duration::ZERO;
        }
        let pause = self.next;
        self.next = (pause * 2).clamp(SECOND, LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pause_is_none_and_later_ones_grow_until_a_process_has_lasted() {
        let mut pauses = Pauses::default();
        let ms = Duration::from_millis;
        let short = [0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        for pause in short {
            assert_eq!(pauses.after(ms(100), true), ms(pause));
        }
        // A long wait for a store is no service.
        assert_eq!(pauses.after(ms(60_000), false), ms(10_000));
        for _ in 0..3 {
            assert_eq!(pauses.after(ms(1000), true), ms(0));
        }
        assert_eq!(pauses.after(ms(100), true), ms(50));
    }
}
