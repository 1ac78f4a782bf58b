//! The time that harvest operations may still cost a regular VM.

use super::SchedulerSettings;
use std::time::Duration;

/// The most that can be saved: the earnings of one thread in this time, in seconds.
const SAVED: f64 = 0.25;

/// The length of the parts of the time for which the most threads seen at work are remembered, and their number.
const PART: Duration = Duration::from_millis(100);
const PARTS: usize = 9;

/// The number of parts whose greatest counts are left out, as a burst.
const BURST: usize = 2;

/// The allowance of a regular VM: the waiting time that harvest operations may still cause the VM, shared by all its
/// channels. It has two parts: one for reads and programs of harvest VMs ([`SchedulerSettings::share`]), one for their
/// erasures ([`SchedulerSettings::erase_share`]).
///
/// Each part grows with time, by its share of the time of the VM's threads. At most as much is saved up as one thread
/// earns in a quarter of a second. The number of threads is unknown. It is estimated by the number of the VM's reads
/// and writes ([`Class::Regular`](super::Class::Regular)) that have come and not ended: the greatest number in each
/// tenth of a second is recorded, and the third greatest of the last nine records is the estimate (at least 1). While
/// more operations than that have come and not ended, their number counts instead. So a burst of writes by one thread
/// counts as many threads only as long as the writes have not ended.
#[derive(Clone, Debug)]
pub struct Budget {
    now: Duration,
    shares: [f64; 2],
    saved: [f64; 2],
    outstanding: u32,
    peaks: [u32; PARTS],
    threads: u32,
    /// The end of the part, and the most operations seen in it.
    part: (Duration, u32),
    spent: [Duration; 2],
}

impl Budget {
    /// Returns the allowance of a new VM: the largest amount that can be saved up.
    #[must_use]
    pub fn new(settings: &SchedulerSettings) -> Self {
        let shares = [settings.share, settings.erase_share].map(|share| share.clamp(0.0, 1.0));
        Self {
            now: Duration::ZERO,
            shares,
            saved: shares.map(|share| share * SAVED),
            outstanding: 0,
            peaks: [0; PARTS],
            threads: 1,
            part: (PART, 0),
            spent: [Duration::ZERO; 2],
        }
    }

    /// Returns the total times for which regular operations waited for harvest VMs: the first for reads and programs
    /// of harvest VMs, the second for their erasures.
    #[must_use]
    pub fn spent(&self) -> [Duration; 2] {
        self.spent
    }

    /// Lets time pass. It never runs backwards: late calls count as now.
    pub(super) fn advance(&mut self, now: Duration) {
        while self.part.0 <= now {
            self.earn(self.part.0);
            self.peaks.rotate_left(1);
            self.peaks[PARTS - 1] = self.part.1;
            let mut peaks = self.peaks;
            peaks.sort_unstable();
            self.threads = peaks[PARTS - 1 - BURST].max(1);
            if self.outstanding == 0 && self.part.1 == 0 && peaks[PARTS - 1] == 0 {
                // No operation is there: no need to count the parts one by one.
                self.part.0 = self.part.0.max(now);
                self.earn(now);
            }
            self.part = (self.part.0 + PART, self.outstanding);
        }
        self.earn(now);
    }

    /// Takes a regular operation that comes.
    pub(super) fn came(&mut self, now: Duration) {
        self.advance(now);
        self.outstanding += 1;
        self.part.1 = self.part.1.max(self.outstanding);
    }

    /// Takes one that is done.
    pub(super) fn went(&mut self, now: Duration) {
        self.advance(now);
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Charges the wait of a regular operation for a harvest one.
    pub(super) fn charge(&mut self, waited: Duration, erase: bool) {
        self.saved[usize::from(erase)] -= waited.as_secs_f64();
        self.spent[usize::from(erase)] += waited;
    }

    /// The time at which `part` of the most that can be saved will be there.
    pub(super) fn has_at(&self, part: f64, erase: bool) -> Duration {
        let which = usize::from(erase);
        let missing = part * SAVED * self.shares[which] - self.saved[which];
        if missing <= 0.0 {
            return Duration::ZERO;
        }
        let rate = self.shares[which] * f64::from(self.threads.max(self.outstanding));
        // Half a microsecond more than needed, so that no rounding makes it too early.
        Duration::try_from_secs_f64(missing / rate + 5e-7)
            .map_or(Duration::MAX, |span| self.now.saturating_add(span))
    }

    fn earn(&mut self, now: Duration) {
        let Some(passed) = now.checked_sub(self.now) else { return };
        let threads = f64::from(self.threads.max(self.outstanding));
        for (saved, share) in self.saved.iter_mut().zip(self.shares) {
            *saved = (*saved + passed.as_secs_f64() * share * threads).min(share * SAVED);
        }
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn budget() -> Budget {
        Budget::new(&SchedulerSettings { share: 0.04, erase_share: 0.01, ..SchedulerSettings::default() })
    }

    #[test]
    fn spent_time_is_earned_again() {
        let mut budget = budget();
        assert_eq!(budget.has_at(1.0, false), Duration::ZERO);
        // The savings are the earnings of a quarter of a second: 10 ms. The debt of 30 ms takes half a second's worth
        // beyond.
        budget.charge(Duration::from_millis(30), false);
        assert_eq!(budget.has_at(1.0, true), Duration::ZERO);
        let free = budget.has_at(0.0, false);
        assert!((0.499..0.502).contains(&free.as_secs_f64()), "{free:?}");
        budget.advance(free);
        assert_eq!(budget.has_at(0.0, false), Duration::ZERO);
        budget.charge(Duration::from_millis(1), true);
        assert_eq!(budget.spent(), [30, 1].map(Duration::from_millis));
    }

    #[test]
    fn many_threads_earn_more_and_a_burst_does_not() {
        let earns = |bursts: u32, many: u32| {
            let mut budget = budget();
            let mut now = Duration::ZERO;
            for tenth in 0..90 {
                let outstanding = if tenth % 9 < bursts { many } else { 1 };
                (0..outstanding).for_each(|_| budget.came(now));
                (0..outstanding).for_each(|_| budget.went(now + Duration::from_micros(100)));
                now += PART;
            }
            budget.charge(SECOND, false);
            let owed = SECOND.as_secs_f64() - 0.01;
            (owed / 0.04 / (budget.has_at(0.0, false) - budget.now).as_secs_f64()).round()
        };
        assert_eq!((earns(0, 64), earns(2, 64), earns(9, 8), earns(3, 8)), (1.0, 1.0, 8.0, 8.0));
    }

    #[test]
    fn a_long_pause_is_no_work() {
        let mut budget = budget();
        budget.charge(SECOND, false);
        budget.advance(Duration::from_secs(u64::MAX / 2));
        assert_eq!(budget.has_at(1.0, false), Duration::ZERO);
        // And is not followed by time that ran backwards.
        budget.advance(SECOND);
        assert!(budget.now > SECOND);
    }
}
