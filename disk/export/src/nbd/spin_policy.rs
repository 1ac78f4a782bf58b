//! The decision of a receiver to spin: to poll for the next request for a moment before it goes to sleep.
//!
//! A client with one request in flight has the next ready a few microseconds after a reply, on another processor. To
//! sleep and be woken takes longer than that, so a receiver that spins for [`SPIN`] serves such a client
//! sooner, and for less CPU than two passes through the scheduler cost. If nothing comes, spinning costs [`SPIN`] once:
//! a receiver spins only if the wait before was no longer than that, and in one of [`TRY_EVERY`] waits, to find out.
//!
//! A decision maker without a clock: `wire` polls and measures the time.

use std::time::Duration;

/// The time for which a receiver spins.
pub(crate) const SPIN: Duration = Duration::from_micros(10);
/// One in this number of waits begins with a spin in any case, because waits that slept are measured longer than waits
/// that spun.
const TRY_EVERY: u8 = 64;

/// The waits of one connection. See the [module](self).
#[derive(Debug)]
pub(crate) struct SpinPolicy {
    /// `true` if the client has a processor while this one spins.
    can_pay: bool,
    last_was_short: bool,
    /// The number of waits since the last try.
    waits: u8,
}

impl SpinPolicy {
    /// Creates the state for a host with `processors` processors.
    pub(crate) fn new(processors: usize) -> Self {
        Self { can_pay: processors > 1, last_was_short: false, waits: 0 }
    }

    /// `true` if the receiver should spin before it goes to sleep.
    pub(crate) fn should_spin(&mut self) -> bool {
        self.waits = (self.waits + 1) % TRY_EVERY;
        self.can_pay && (self.last_was_short || self.waits == 0)
    }

    /// Notes that bytes came after `wait`.
    pub(crate) fn came_after(&mut self, wait: Duration) {
        self.last_was_short = wait <= SPIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of `waits` that begin with a spin.
    fn spins(policy: &mut SpinPolicy, waits: usize, wait: Duration) -> usize {
        let mut spins = 0;
        for _ in 0..waits {
            spins += usize::from(policy.should_spin());
            policy.came_after(wait);
        }
        spins
    }

    #[test]
    fn spins_where_that_pays() {
        let mut policy = SpinPolicy::new(2);
        // This client is slow, then quick, then slow again.
        assert_eq!(spins(&mut policy, 640, 5 * SPIN), 10);
        assert_eq!(spins(&mut policy, 640, SPIN / 2), 639);
        assert_eq!(spins(&mut policy, 640, 5 * SPIN), 11);
    }

    #[test]
    fn one_processor_is_left_to_the_client() {
        assert_eq!(spins(&mut SpinPolicy::new(1), 640, SPIN / 2), 0);
    }
}
