//! The storage that a vSSD can spare for hours and days. Leases that end after a few minutes are of no use.
//!
//! Predictors of levels look minutes ahead, and a level that moves often lasts only for a short time: in a simulated
//! fleet two thirds of the leases made by such forecasts ended early (`docs/harvest-fleets.md`). Storage that was never
//! used in weeks will mostly not be used tomorrow either. So the spare capacity is the part that was free all that
//! time, less a share that is kept back. It is offered for a while ([`LASTS`]), and the offer is renewed as long as the
//! capacity is spare. If the owner uses more than expected, the lease is ended, which should be rare. For bandwidth
//! only the last minutes count, because the owner's I/O goes first in any case.

use std::collections::VecDeque;
use std::time::Duration;

/// The duration for which spare flash is offered: an hour, two of the BlockFlex paper's units of 30 minutes
/// (section 4.3.2). The offer is renewed every three minutes.
pub const LASTS: Duration = Duration::from_secs(3600);

/// The maximum of the latest numbers in a window of fixed length. Only those numbers are stored that can still become
/// the maximum: usually few, and never more than the length of the window.
#[derive(Clone, Debug)]
pub struct Peak {
    window: usize,
    seen: usize,
    queue: VecDeque<(usize, f32)>,
}

impl Peak {
    /// Returns the maximum over a window of `window` numbers (0 counts as 1), to which no number was added yet.
    #[must_use]
    pub fn new(window: usize) -> Self {
        Self { window: window.max(1), seen: 0, queue: VecDeque::new() }
    }

    /// Adds the next number; once the window is full, the oldest number no longer counts.
    pub fn push(&mut self, number: f32) {
        while self.queue.pop_back_if(|(_, last)| *last <= number).is_some() {}
        self.queue.push_back((self.seen, number));
        self.seen += 1;
        let oldest = self.seen.saturating_sub(self.window);
        while self.queue.pop_front_if(|(at, _)| *at < oldest).is_some() {}
    }

    /// Returns the maximum of the numbers in the window; `None` before the first number.
    #[must_use]
    pub fn get(&self) -> Option<f32> {
        self.queue.front().map(|(_, number)| *number)
    }

    /// Returns the memory that the numbers take, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<(usize, f32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_peak_is_the_highest_of_the_window(
            numbers in prop::collection::vec(0_u8..20, 1..200), window in 1_usize..30,
        ) {
            let mut peak = Peak::new(window);
            prop_assert_eq!(peak.get(), None);
            for end in 1..=numbers.len() {
                peak.push(f32::from(numbers[end - 1]));
                let highest = numbers[end.saturating_sub(window)..end].iter().max().unwrap();
                prop_assert_eq!(peak.get(), Some(f32::from(*highest)));
                prop_assert!(peak.queue.len() <= window);
            }
        }
    }
}
