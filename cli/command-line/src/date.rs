//! Dates and times in reports, in the format of RFC 3339, to the second.
//!
//! Other programs and damaged clocks give files times before 1970, and durations from users may lead beyond the year
//! 9999. RFC 3339 cannot express such years, and `humantime` panics at them, so they are replaced by the nearest time
//! that can be written.

use std::time::{Duration, SystemTime};

/// The last second of the year 9999, counted from 1970.
const LAST_SECOND: u64 = 253_402_300_799;

/// Formats a time in UTC as RFC 3339, to the second. Times before 1970 count as the start of 1970, times
/// after 9999 as the end of 9999.
#[must_use]
pub fn date(time: SystemTime) -> String {
    date_of_second(time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Formats a time, given in seconds since 1970, in UTC as RFC 3339. Times after 9999 count as the end of
/// 9999.
#[must_use]
pub fn date_of_second(second: u64) -> String {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(second.min(LAST_SECOND)));
    time.map(|time| humantime::format_rfc3339_seconds(time).to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_can_be_written() {
        let first = "1970-01-01T00:00:00Z";
        let last = "9999-12-31T23:59:59Z";
        let epoch = SystemTime::UNIX_EPOCH;
        for (time, written) in [
            (epoch, first),
            (epoch - Duration::from_nanos(1), first),
            (epoch - Duration::from_secs(1 << 40), first),
            (epoch + Duration::from_millis(1_700_000_000_999), "2023-11-14T22:13:20Z"),
            (epoch + Duration::from_secs(LAST_SECOND), last),
            (epoch + Duration::from_secs(LAST_SECOND + 1), last),
            (epoch + Duration::from_secs(1 << 60), last),
        ] {
            assert_eq!(date(time), written);
        }
        assert_eq!((date_of_second(0), date_of_second(u64::MAX)), (first.to_owned(), last.to_owned()));
    }
}
