//! What a vSSD can spare for hours and days: a lease is no good that ends with the next three minutes.
//!
//! Predictors of levels look minutes ahead, and how long a level lasts is short where it moves often: in a simulated
//! fleet two thirds of the leases made by such forecasts ended early (`docs/harvest-fleets.md`). What was never used in
//! weeks is not used tomorrow either, mostly: so what can be spared of capacity is what was free all that time, less a
//! share that is kept back. It is said to last for a while, and said again while it does; who has less loses the lease,
//! which is what is to be rare. Bandwidth is looked at for minutes only: the owner's I/O goes first in any case.

use std::collections::VecDeque;
use std::time::Duration;

/// How long what is spare is said to last: two of the paper's 30 minutes (section 4.3.2). It is said anew every three.
pub const LASTS: Duration = Duration::from_secs(3600);

/// The highest of the last numbers. Keeps those that can still become it: for weeks of three-minute steps mostly a few,
/// never more than the window.
#[derive(Clone, Debug)]
pub struct Peak {
    window: usize,
    seen: usize,
    queue: VecDeque<(usize, f32)>,
}

impl Peak {
    /// Of so many numbers, at least one.
    #[must_use]
    pub fn new(window: usize) -> Self {
        Self { window: window.max(1), seen: 0, queue: VecDeque::new() }
    }

    /// The next number.
    pub fn push(&mut self, number: f32) {
        while self.queue.pop_back_if(|(_, last)| *last <= number).is_some() {}
        self.queue.push_back((self.seen, number));
        self.seen += 1;
        let oldest = self.seen.saturating_sub(self.window);
        while self.queue.pop_front_if(|(at, _)| *at < oldest).is_some() {}
    }

    /// The highest; `None` before the first.
    #[must_use]
    pub fn get(&self) -> Option<f32> {
        self.queue.front().map(|(_, number)| *number)
    }

    /// What it keeps in memory, in bytes.
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
