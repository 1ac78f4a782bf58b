//! Rates: bytes a second as people write and read them, in powers of ten and always with a unit.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

const UNITS: [(&str, u64); 4] =
    [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000)];

/// A rate in bytes a second. Parses from `10MB/s`, `10M`, `1.5GB/s`, `500kB/s` (powers of 10, as network
/// links are measured), 1 B/s to 10^15 B/s, and prints as `10.0 MB/s`. A number without a unit is refused,
/// because `3` rarely means three bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRate(pub u64);

impl FromStr for ByteRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!("`{}` is not a rate", text.escape_debug()))
                .remedy("write it as 10MB/s, 500kB/s or 1.5GB/s")
        };
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit() || c == b'.') {
            return Err(Error::invalid(format!("`{text}` has no unit"))
                .remedy(format!("write {text}MB/s or {text}kB/s, or {text}B/s if single bytes are meant")));
        }
        let amount = text.strip_suffix("/s").unwrap_or(text);
        let amount = amount.strip_suffix('B').unwrap_or(amount);
        let unit = UNITS.iter().find(|(name, _)| {
            amount.as_bytes().last().is_some_and(|last| last.eq_ignore_ascii_case(&name.as_bytes()[0]))
        });
        let (number, factor) = match unit {
            Some((_, factor)) => (&amount[..amount.len() - 1], *factor),
            None => (amount, 1),
        };
        if number.is_empty() || !number.bytes().all(|c| c.is_ascii_digit() || c == b'.') {
            return Err(bad());
        }
        let number: f64 = number.parse().map_err(|_| bad())?;
        #[expect(clippy::cast_precision_loss, reason = "a factor is a small power of ten")]
        let rate = (number * factor as f64).round();
        // Far above any link, far below where a sum of rates would overflow.
        if !(1.0..=1e15).contains(&rate) {
            return Err(bad());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 10^15")]
        Ok(Self(rate as u64))
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((name, factor)) = UNITS.iter().rev().find(|(_, factor)| self.0 >= *factor) else {
            return write!(f, "{} B/s", self.0);
        };
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let value = self.0 as f64 / *factor as f64;
        write!(f, "{value:.1} {name}B/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_powers_of_ten() {
        for (text, rate) in [
            ("10MB/s", 10_000_000),
            ("10M", 10_000_000),
            ("1.5GB/s", 1_500_000_000),
            ("500kB/s", 500_000),
            ("7B/s", 7),
        ] {
            assert_eq!(text.parse::<ByteRate>().unwrap(), ByteRate(rate), "{text}");
        }
        for text in [
            "",
            "0",
            "MB/s",
            "-1M",
            "1e9",
            "10 furlongs",
            "1.2.3M",
            "99999999T",
            "inf",
            "é",
            "512",
            "1.5",
            "B",
            "/s",
            "10MB/s/s",
            "10MBB/s",
        ] {
            assert!(text.parse::<ByteRate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_alone_is_told_which_units_there_are() {
        let message = "3".parse::<ByteRate>().unwrap_err().to_string();
        assert!(
            message.contains("`3` has no unit") && message.contains("3MB/s") && message.contains("3B/s"),
            "{message}"
        );
    }

    #[test]
    fn prints_for_people() {
        assert_eq!(ByteRate(10_000_000).to_string(), "10.0 MB/s");
        assert_eq!(ByteRate(999).to_string(), "999 B/s");
    }
}
