//! The times at which a host has its certificate renewed, and the authority that it asks: a state machine without clock
//! or randomness.
//!
//! A certificate is due once two thirds of its time are over, and slightly later on some hosts, so that they do not all
//! ask at once. Authorities are asked in rounds: each connected one once, one after the other, and one that connects in
//! the middle of a round at once. After a round in which none has renewed the certificate there is a pause, which
//! doubles from round to round and is varied at random.

use super::validity::Validity;
use std::collections::BTreeSet;

/// The most requests to authorities in a round, however often they connect.
const ASKS_MAX: u32 = 16;

/// The bounds of the longest pause between rounds, in seconds: it is a hundredth of the certificate's time, within
/// these.
const LONGEST_PAUSE: (u64, u64) = (1, 3600);

/// The first pause is this part of the longest, and at most a minute.
const FIRST_PAUSE_PART: u64 = 60;
const FIRST_PAUSE_MAX: u64 = 60;

/// Hosts of the same age ask within this part of the certificate's time: one fiftieth.
const SPREAD_PART: u64 = 50;

/// Draws the next number.
fn draw(state: &mut u64) -> u64 {
    // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The schedule of one host's renewals; authorities are `T`.
#[derive(Clone, Debug)]
pub(crate) struct Schedule<T> {
    /// A number that differs from host to host.
    seed: u64,
    drawn: u64,
    /// Authorities that were asked in this round and are still connected.
    asked: BTreeSet<T>,
    /// The number of authorities that were asked in this round.
    asks: u32,
    /// Rounds since the certificate became due.
    rounds: u32,
    /// The time before which no round begins, in milliseconds of the host's clock.
    next_round_ms: u64,
}

impl<T: Ord + Copy> Schedule<T> {
    /// The schedule of a host whose certificate is not known to be due. `seed` differs from host to host.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, drawn: seed, asked: BTreeSet::new(), asks: 0, rounds: 0, next_round_ms: 0 }
    }

    /// The second since 1970 from which on a certificate is to be renewed.
    pub(crate) fn due_at(&self, validity: Validity) -> u64 {
        let length = validity.length();
        let spread = self.seed % (length / SPREAD_PART + 1);
        validity.not_before.saturating_add(length - length / 3).saturating_add(spread)
    }

    /// The connected authority that is to be asked now, if any. `calendar` is in seconds since 1970, `now_ms` in
    /// milliseconds of a monotonic clock.
    pub(crate) fn next(
        &mut self,
        validity: Validity,
        calendar: u64,
        now_ms: u64,
        connected: &[T],
    ) -> Option<T> {
        if calendar < self.due_at(validity) {
            (self.asks, self.rounds, self.next_round_ms) = (0, 0, 0);
            self.asked.clear();
            return None;
        }
        self.asked.retain(|one| connected.contains(one));
        if now_ms >= self.next_round_ms {
            connected.first()?;
            self.asked.clear();
            self.asks = 0;
            self.next_round_ms = now_ms.saturating_add(self.pause_ms(validity));
            self.rounds = self.rounds.saturating_add(1);
        }
        let next = connected.iter().copied().find(|one| !self.asked.contains(one))?;
        if self.asks >= ASKS_MAX {
            return None;
        }
        self.asks += 1;
        self.asked.insert(next);
        Some(next)
    }

    /// The pause after the round that begins.
    fn pause_ms(&mut self, validity: Validity) -> u64 {
        let longest = (validity.length() / 100).clamp(LONGEST_PAUSE.0, LONGEST_PAUSE.1);
        let first = (longest / FIRST_PAUSE_PART).clamp(1, FIRST_PAUSE_MAX);
        let pause = first.saturating_mul(1 << self.rounds.min(16)).min(longest);
        // Three quarters to five quarters of it.
        pause * (750 + draw(&mut self.drawn) % 501)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: u64 = 24 * 3600;

    fn ninety_days(from: u64) -> Validity {
        Validity { not_before: from - DAY, not_after: from + 90 * DAY }
    }

    #[test]
    fn renewals_are_due_at_two_thirds_and_spread_over_hosts_of_one_age() {
        let validity = ninety_days(1000 * DAY);
        let due: Vec<u64> = (0..100u64)
            .map(|host| Schedule::<u32>::new(host.wrapping_mul(0x9E37_79B9_7F4A_7C15)).due_at(validity))
            .collect();
        for at in &due {
            let days = (*at as f64 - validity.not_before as f64) / DAY as f64;
            // This is before the last quarter, in which operators are warned.
            assert!((91.0 * 2.0 / 3.0..91.0 * 0.70).contains(&days), "{days}");
        }
        let (first, last) = (due.iter().min().unwrap(), due.iter().max().unwrap());
        assert!(last - first > DAY, "{first} to {last}");
    }

    #[test]
    fn authorities_that_do_not_renew_are_asked_ever_more_seldom_and_a_new_one_at_once() {
        let (validity, mut schedule) = (ninety_days(1000 * DAY), Schedule::new(7));
        let due = schedule.due_at(validity);
        let mut asked = Vec::new();
        for second in 0..DAY {
            let connected: &[u32] = if second < 3000 { &[1, 2] } else { &[1, 2, 3] };
            if let Some(one) = schedule.next(validity, due + second, second * 1000, connected) {
                asked.push((second, one));
            }
        }
        assert_eq!(&asked[..2], &[(0, 1), (1, 2)]);
        assert!(asked.contains(&(3000, 3)), "{asked:?}");
        let times: Vec<u64> = asked.iter().filter(|(_, one)| *one == 1).map(|(at, _)| *at).collect();
        let first_hour = times.iter().filter(|at| **at < 3600).count();
        assert!((5..=8).contains(&first_hour), "{first_hour} in the first hour");
        assert!((24..=40).contains(&times.len()), "{} in a day", times.len());
    }

    #[test]
    fn an_authority_that_connects_again_and_again_is_not_asked_without_end() {
        let (validity, mut schedule) = (ninety_days(1000 * DAY), Schedule::new(7));
        let due = schedule.due_at(validity);
        let asks = (0..3600).filter(|second| {
            let other = u32::try_from(*second).unwrap();
            schedule.next(validity, due + second, second * 1000, &[other]).is_some()
        });
        assert!(asks.count() <= 8 * ASKS_MAX as usize);
    }

    proptest! {
        /// Years of a host on virtual time: an authority that is connected from time to time, and renews on request or
        /// fails. The certificate never ends if the authority is away for less than a fifth of its time.
        #[test]
        fn a_certificate_is_renewed_in_time_and_never_too_early(
            seed: u64,
            length in 60u64..100 * DAY,
            ways in prop::collection::vec((1u64..18, 1u64..4, prop::bool::weighted(0.3)), 1..12),
        ) {
            // Each step is a hundredth of the certificate's time.
            let step = (length / 100).max(1);
            let mut schedule = Schedule::new(seed);
            let mut validity = Validity { not_before: 1_000_000, not_after: 1_000_000 + length };
            let (mut calendar, mut clock, mut renewals) = (1_000_000, 0, 0);
            for (away, there, fails) in ways.iter().cycle().take(60) {
                for at in 0..away + there + 4 {
                    let connected: &[u8] = if at >= *away { &[1] } else { &[] };
                    let due = schedule.due_at(validity);
                    match schedule.next(validity, calendar, clock, connected) {
                        Some(_) => {
                            prop_assert!(calendar >= due && at >= *away);
                            prop_assert!(calendar - validity.not_before >= length * 2 / 3);
                            if !fails || at > *away {
                                validity = Validity { not_before: calendar, not_after: calendar + length };
                                renewals += 1;
                            }
                        }
                        // The host asks at once if it is due, can ask, and has not asked just now.
                        None => prop_assert!(
                            calendar < due || connected.is_empty() || schedule.next_round_ms > clock
                        ),
                    }
                    prop_assert!(calendar <= validity.not_after, "it has ended, after {} renewals", renewals);
                    (calendar, clock) = (calendar + step, clock + step * 1000);
                }
            }
        }
    }
}
