//! Sizes: the sector, and byte counts as people write and read them.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Bytes in a sector, the unit of a logical block address.
pub const SECTOR_SIZE: u64 = 512;

const UNITS: [(&str, u64); 6] =
    [("k", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40), ("P", 1 << 50), ("E", 1 << 60)];

/// A size in bytes. Parses from `4096`, `4k`, `2M`, `40G` (powers of 1024; `4kB` and `4KiB` are the same as `4k`) and
/// prints as `1.50 GiB`, or `2 GiB` if that is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!("`{}` is not a size", text.escape_debug()))
                .remedy("write it as 4096, 4k, 2M, 40G or 2T")
        };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let unit = unit.strip_suffix('B').unwrap_or(unit);
        let factor = match unit.strip_suffix('i').unwrap_or(unit) {
            "" if unit.is_empty() => 1,
            unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(bad)?.1,
        };
        number.checked_mul(factor).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((name, factor)) = UNITS.iter().rev().find(|(_, factor)| self.0 >= *factor) else {
            return write!(f, "{} B", self.0);
        };
        let name = name.to_ascii_uppercase();
        if self.0.is_multiple_of(*factor) {
            write!(f, "{} {name}iB", self.0 / factor)
        } else {
            #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
            let value = self.0 as f64 / *factor as f64;
            write!(f, "{value:.2} {name}iB")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("2M", 2 << 20),
            ("40GiB", 40 << 30),
            ("4Ki", 4096),
            ("7B", 7),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap(), ByteSize(bytes), "{text}");
        }
        for text in ["", "k", "4x", "-1", "1.5G", "99999999999P", "4i", "4iB", "4BB", "4kBB", "4kii", "4Bi"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_hostile_text_is_printed_escaped() {
        let message = "4\u{1b}[2J".parse::<ByteSize>().unwrap_err().to_string();
        assert!(message.contains("\\u{1b}") && !message.contains('\u{1b}'), "{message}");
    }

    #[test]
    fn prints_for_people() {
        assert_eq!(ByteSize(512).to_string(), "512 B");
        assert_eq!(ByteSize(4 << 30).to_string(), "4 GiB");
        assert_eq!(ByteSize(1536 << 20).to_string(), "1.50 GiB");
    }
}
