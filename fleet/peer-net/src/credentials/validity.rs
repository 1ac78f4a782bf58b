//! The validity of a certificate, and the notices to an operator that it ends.

use std::fmt;

/// The remedy for a certificate that ends.
pub(crate) const REMEDY: &str = "run `headstart swarm init DIR --host NAME` where the authority is, \
                                 and copy the files that it makes to this host; its disks go on meanwhile";

/// Seconds of a day.
pub(crate) const DAY: u64 = 24 * 3600;

/// Seconds between two reminders.
const EVERY: u64 = DAY;

/// The time by which the validity begins before the certificate is signed, because clocks differ: a day, or a tenth of
/// a shorter time.
const SKEW: u64 = DAY;
const SKEW_PART: u64 = 10;

/// The divisor of a certificate's time for "ends soon": notices begin in its last quarter. Agents renew it before that.
const NEAR: u64 = 4;

/// The validity of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    /// The first second in which it is valid.
    pub(crate) not_before: u64,
    /// The last second in which it is valid.
    pub(crate) not_after: u64,
}

impl Validity {
    /// The validity of a certificate that is signed now and lasts for `seconds`.
    pub(crate) fn of(seconds: u64, now: u64) -> Self {
        let skew = SKEW.min(seconds / SKEW_PART);
        Self { not_before: now.saturating_sub(skew), not_after: now.saturating_add(seconds) }
    }

    /// The seconds for which the certificate was signed: its length without the part before the signing.
    pub(crate) fn lifetime(self) -> u64 {
        let length = self.length();
        if length >= SKEW * (SKEW_PART + 1) { length - SKEW } else { length - length / (SKEW_PART + 1) }
    }

    /// Seconds from its beginning to its end.
    pub(crate) fn length(self) -> u64 {
        self.not_after.saturating_sub(self.not_before)
    }

    /// The notice that is due at a time, if any.
    fn notice(self, now: u64) -> Option<Notice> {
        if now > self.not_after {
            Some(Notice::Ended)
        } else if now < self.not_before {
            Some(Notice::NotYet { seconds: self.not_before - now })
        } else if self.not_after - now < self.length() / NEAR {
            Some(Notice::EndsSoon { seconds: self.not_after - now })
        } else {
            None
        }
    }
}

/// A notice to an operator about a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Becomes valid after this time, because clocks differ.
    NotYet { seconds: u64 },
    /// Ends after this time.
    EndsSoon { seconds: u64 },
    /// Other hosts refuse it.
    Ended,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |seconds: &u64| match seconds / 3600 {
            hours @ 0..48 => format!("{hours} hours"),
            hours => format!("{} days", hours / 24),
        };
        match self {
            Self::NotYet { seconds } => {
                write!(
                    f,
                    "this host's certificate is not valid before {} from now: is the clock right?",
                    span(seconds)
                )
            }
            Self::EndsSoon { seconds } => write!(f, "this host's certificate ends in {}", span(seconds)),
            Self::Ended => f.write_str("this host's certificate has ended: other hosts refuse it"),
        }
    }
}

/// Gives the notice of a certificate when it changes, and again each day.
#[derive(Debug, Default)]
pub(crate) struct Reminder {
    /// The last notice, and its time.
    reported: Option<(Notice, u64)>,
}

impl Reminder {
    /// The notice that is to be logged now, if any.
    pub(crate) fn due(&mut self, validity: Validity, now: u64) -> Option<Notice> {
        let Some(notice) = validity.notice(now) else {
            self.reported = None;
            return None;
        };
        let is_same = |(before, at): &(Notice, u64)| {
            std::mem::discriminant(before) == std::mem::discriminant(&notice)
                && now.saturating_sub(*at) < EVERY
        };
        if self.reported.as_ref().is_some_and(is_same) {
            return None;
        }
        self.reported = Some((notice, now));
        Some(notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_operator_is_told_each_day_from_the_last_quarter_on() {
        let validity = Validity { not_before: 1000 * DAY, not_after: 1091 * DAY };
        let mut reminder = Reminder::default();
        // The certificate is checked each hour.
        let said: Vec<_> = (1000 * 24..1094 * 24)
            .filter_map(|hour| reminder.due(validity, hour * 3600).map(|notice| (hour / 24, notice)))
            .collect();
        assert_eq!(said.first().map(|(day, _)| *day), Some(1068));
        assert!(matches!(said.first(), Some((_, Notice::EndsSoon { .. }))), "{said:?}");
        assert_eq!(said.iter().filter(|(_, notice)| *notice == Notice::Ended).count(), 3);
        assert_eq!(said.len(), 23 + 3);
        assert_eq!(
            said.first().map(|(_, notice)| notice.to_string()).unwrap(),
            "this host's certificate ends in 22 days"
        );
        // A renewed certificate gives no notice.
        assert_eq!(reminder.due(Validity { not_after: 2000 * DAY, ..validity }, 1094 * DAY), None);
    }

    proptest! {
        #[test]
        fn a_certificate_is_renewed_for_as_long_as_it_was_made_for(seconds in 1u64..4000 * DAY, now in DAY..1 << 40) {
            let validity = Validity::of(seconds, now);
            prop_assert!(validity.not_before <= now && validity.not_after == now + seconds);
            prop_assert!(now - validity.not_before <= seconds / SKEW_PART);
            prop_assert!(validity.lifetime().abs_diff(seconds) <= 1, "{} for {seconds}", validity.lifetime());
        }

        #[test]
        fn no_reminder_calls_a_valid_certificate_ended(
            not_before: u64, not_after: u64, now: u64,
        ) {
            let notice = Reminder::default().due(Validity { not_before, not_after }, now);
            let is_valid = (not_before..=not_after).contains(&now);
            prop_assert_eq!(is_valid, !matches!(notice, Some(Notice::Ended | Notice::NotYet { .. })));
        }
    }
}
