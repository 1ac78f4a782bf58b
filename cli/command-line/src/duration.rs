//! Arguments that are times within bounds.

use headstart_block::{Error, Result};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Returns a parser of times in `range`, with their units, for `value_parser`.
pub fn duration(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration> + Clone + Send + Sync + 'static {
    move |text| {
        let time = humantime::parse_duration(text.trim()).ok().filter(|time| range.contains(time));
        time.ok_or_else(|| {
            let [least, most] = [range.start(), range.end()].map(|bound| humantime::format_duration(*bound));
            Error::invalid(format!("give a time from {least} to {most} with its unit, such as 20ms or 5s"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_bounds_are_refused_in_words() {
        let parse = duration(Duration::from_millis(1)..=Duration::from_secs(3600));
        let (millisecond, hour) = (Duration::from_millis(1), Duration::from_secs(3600));
        assert_eq!((parse("1ms").unwrap(), parse(" 60m ").unwrap()), (millisecond, hour));
        let said = "give a time from 1ms to 1h with its unit, such as 20ms or 5s";
        for wrong in ["0s", "3601s", "999999999999d", "99999999999999999999d", "5", "x", "", "-1s"] {
            assert_eq!(parse(wrong).unwrap_err().to_string(), said, "{wrong}");
        }
    }
}
