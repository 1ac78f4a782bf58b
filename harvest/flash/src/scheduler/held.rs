//! The time for which a channel's regular VM holds up harvest VMs' programs, as of late: by its own operations, and by
//! its protection.

use crate::device::timing::Span;
use std::time::Duration;

/// The weight of one program.
const PART: f64 = 1.0 / 32.0;

/// The time in which half is forgotten: the regular VM may do less by now. Only a program can tell.
const FORGET: Duration = Duration::from_secs(5);

/// A mean of the latest programs. The waits that harvest operations cause each other do not count: they show how busy
/// their VM is, not the channel.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// In seconds.
    mean: f64,
    updated_at: Duration,
    /// The time until which harvest operations hold each die, and the bus.
    dies: Vec<Duration>,
    bus: Duration,
}

impl Held {
    pub(super) fn new(dies: usize) -> Self {
        Self { mean: 0.0, updated_at: Duration::ZERO, dies: vec![Duration::ZERO; dies], bus: Duration::ZERO }
    }

    /// Notes that a harvest operation started.
    pub(super) fn started(&mut self, die: usize, span: &Span) {
        self.dies[die] = self.dies[die].max(span.die.end);
        self.bus = self.bus.max(span.bus.end);
    }

    /// Notes the end of one of unknown duration: another may start.
    pub(super) fn ended(&mut self, now: Duration) {
        self.bus = self.bus.max(now);
    }

    /// The time since which the first program of a die's queue, which came at `since`, waits for others than harvest
    /// VMs.
    pub(super) fn waits_since(&self, die: usize, since: Duration) -> Duration {
        since.max(self.dies[die]).max(self.bus)
    }

    /// Adds a program that started after a wait of `waited`.
    pub(super) fn add(&mut self, now: Duration, waited: Duration) {
        self.mean = self.with(now, waited);
        self.updated_at = now;
    }

    /// The mean with another program that waited `waited`.
    pub(super) fn with(&self, now: Duration, waited: Duration) -> f64 {
        let mean = self.at(now);
        mean + (waited.as_secs_f64() - mean) * PART
    }

    /// The expected wait now, in seconds.
    pub(super) fn at(&self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.updated_at).as_secs_f64() / FORGET.as_secs_f64();
        self.mean * (-passed).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn held_up_time_decays() {
        let mut held = Held::new(1);
        (0..200).for_each(|_| held.add(MS, MS * 8));
        let at = |seconds| (held.at(MS + Duration::from_secs(seconds)) * 1e3 * 100.0).round() / 100.0;
        assert_eq!([0, 5, 10].map(at), [7.99, 3.99, 2.0]);
        assert!(held.with(MS, MS * 40) > 0.008);
    }

    #[test]
    fn time_of_harvest_vms_is_not_counted_as_held_up() {
        let mut held = Held::new(2);
        held.started(1, &Span { die: MS..MS * 4, bus: MS..MS * 2 });
        assert_eq!([0, 1].map(|die| held.waits_since(die, MS)), [MS * 2, MS * 4]);
        assert_eq!(held.waits_since(1, MS * 5), MS * 5);
    }
}
