//! The budget of a disk's traces: limits the number of traces that the boots of one disk leave in any hour. It reads no
//! clock; the caller passes the times in.
//!
//! A guest decides when a boot begins: it reads the boot sector after a pause. Without a budget, one guest could fill
//! the trace directory, drive out the traces of other disks, and outvote them in learning. An honest guest boots a few
//! times an hour at most, so the budget does not affect it.

use std::collections::VecDeque;
use std::time::Duration;

/// The time span of a budget.
const SPAN: Duration = Duration::from_secs(3600);

/// Limits the number of traces that the boots of one disk leave in any hour.
#[derive(Clone, Debug)]
pub struct TraceBudget {
    most: usize,
    /// The boots of the last hour that were granted one, in the order of the grants.
    granted: VecDeque<Duration>,
}

impl TraceBudget {
    /// Creates the budget of a disk whose boots leave at most `most` traces in any hour.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, granted: VecDeque::new() }
    }

    /// Asks for a trace for the boot that began at `at` (the time since a fixed moment, the same for all calls).
    /// Returns `true` if the trace is granted, and `false` if the boots that began in the hour before `at` were granted
    /// the maximum number. The caller must make the calls in the order of `at`.
    pub fn grant(&mut self, at: Duration) -> bool {
        self.granted.retain(|before| at.saturating_sub(*before) < SPAN);
        let is_granted = self.granted.len() < self.most;
        if is_granted {
            self.granted.push_back(at);
        }
        is_granted
    }

    /// Takes back the grant of the boot that began at `at`, because that boot leaves no trace. Does nothing
    /// if there is no such grant.
    pub fn take_back(&mut self, at: Duration) {
        if let Some(place) = self.granted.iter().rposition(|granted| *granted == at) {
            self.granted.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_guest_that_boots_without_end_has_so_many_traces_an_hour() {
        let mut budget = TraceBudget::new(6);
        let granted: Vec<_> = (0..7200).filter(|second| budget.grant(Duration::from_secs(*second))).collect();
        assert_eq!(granted, [0, 1, 2, 3, 4, 5, 3600, 3601, 3602, 3603, 3604, 3605]);
        // A guest that boots every ten minutes has all its traces.
        let mut budget = TraceBudget::new(6);
        assert!((0..100).all(|boot| budget.grant(10 * boot * MINUTE)));
        assert!(!budget.grant(990 * MINUTE + MINUTE));
        budget.take_back(990 * MINUTE);
        assert!(budget.grant(990 * MINUTE + 2 * MINUTE));
    }

    proptest! {
        /// Compares the budget with all grants that were not taken back.
        #[test]
        fn no_hour_has_more_and_none_is_refused_before(
            most in 0_usize..5, steps in proptest::collection::vec((0_u32..40, any::<bool>()), 1..80)
        ) {
            let (mut budget, mut model, mut now) = (TraceBudget::new(most), Vec::<Duration>::new(), Duration::ZERO);
            for (minutes, taken_back) in steps {
                now += minutes * MINUTE;
                let of_hour = model.iter().filter(|at| now - **at < SPAN).count();
                prop_assert!(of_hour <= most);
                let granted = budget.grant(now);
                prop_assert_eq!(granted, of_hour < most);
                if granted && taken_back {
                    budget.take_back(now);
                } else if granted {
                    model.push(now);
                }
            }
        }
    }
}
