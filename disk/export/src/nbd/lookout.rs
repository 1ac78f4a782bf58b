//! The decision of a receiver to look for the next request for a moment before it goes to sleep.
//!
//! A client with one request in flight has the next ready a few microseconds after a reply, on another processor. To
//! sleep and be woken takes longer than that, so a receiver that keeps looking for [`LOOK`] serves such a client
//! sooner, and for less CPU than two passes through the scheduler cost. If nothing comes, looking costs [`LOOK`] once:
//! a receiver looks only if the wait before was no longer than that, and in one of [`TRY_EVERY`] waits, to find out.
//!
//! A decision maker without a clock: `wire` looks and measures the time.

use std::time::Duration;

/// The time for which a receiver looks.
pub(crate) const LOOK: Duration = Duration::from_micros(10);
/// One in this number of waits begins with a look in any case, because waits that slept are measured longer than waits
/// that looked.
const TRY_EVERY: u8 = 64;

/// The waits of one connection. See the [module](self).
#[derive(Debug)]
pub(crate) struct Lookout {
    /// `true` if the client has a processor while this one looks.
    can_pay: bool,
    last_was_short: bool,
    /// The number of waits since the last try.
    waits: u8,
}

impl Lookout {
    /// Creates the state for a host with `processors` processors.
    pub(crate) fn new(processors: usize) -> Self {
        Self { can_pay: processors > 1, last_was_short: false, waits: 0 }
    }

    /// `true` if the receiver should look before it goes to sleep.
    pub(crate) fn looks(&mut self) -> bool {
        self.waits = (self.waits + 1) % TRY_EVERY;
        self.can_pay && (self.last_was_short || self.waits == 0)
    }

    /// Notes that bytes came after `wait`.
    pub(crate) fn came_after(&mut self, wait: Duration) {
        self.last_was_short = wait <= LOOK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of `waits` that begin with a look.
    fn looks(lookout: &mut Lookout, waits: usize, wait: Duration) -> usize {
        let mut looks = 0;
        for _ in 0..waits {
            looks += usize::from(lookout.looks());
            lookout.came_after(wait);
        }
        looks
    }

    #[test]
    fn looks_where_that_pays() {
        let mut lookout = Lookout::new(2);
        // This client is slow, then quick, then slow again.
        assert_eq!(looks(&mut lookout, 640, 5 * LOOK), 10);
        assert_eq!(looks(&mut lookout, 640, LOOK / 2), 639);
        assert_eq!(looks(&mut lookout, 640, 5 * LOOK), 11);
    }

    #[test]
    fn one_processor_is_left_to_the_client() {
        assert_eq!(looks(&mut Lookout::new(1), 640, LOOK / 2), 0);
    }
}
