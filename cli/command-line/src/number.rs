//! Arguments that are whole numbers within bounds.

use headstart_block::{Error, Result};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Returns a parser of whole numbers in `range`, for `value_parser`. `T` has to be the type of the argument, and is not
/// inferred from it: clap finds out when the command runs.
pub fn number<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    named("a whole number", range)
}

/// Returns a parser as [`number`] does, whose error calls the number `noun`, such as "a level".
pub fn named<T>(
    noun: &'static str,
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| Error::invalid(format!("give {noun} from {} to {}", range.start(), range.end())))
    }
}

/// Returns a parser as [`number`] does, of whole numbers from `least` to the largest one of their type.
pub fn at_least<T>(least: T) -> impl Fn(&str) -> Result<T> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number: Option<T> = text.parse().ok();
        if number.is_none() && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::invalid("give a smaller whole number"));
        }
        let number = number.filter(|number| *number >= least);
        number.ok_or_else(|| Error::invalid(format!("give a whole number, {least} at least")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_bounds_are_refused_in_words() {
        let level = named("a level", 1..=19);
        assert_eq!((level("1").unwrap(), level("19").unwrap()), (1, 19));
        for wrong in ["0", "20", "-1", "1.5", "x", "", "99999999999"] {
            assert_eq!(level(wrong).unwrap_err().to_string(), "give a level from 1 to 19", "{wrong}");
        }
        let threads = number::<u16>(1..=256);
        assert_eq!(threads("1.5").unwrap_err().to_string(), "give a whole number from 1 to 256");
    }

    #[test]
    fn numbers_without_an_upper_bound_are_refused_by_the_lower_one() {
        let copies = at_least::<u16>(1);
        assert_eq!((copies("1").unwrap(), copies("65535").unwrap()), (1, 65535));
        for wrong in ["0", "-1", "1.5", "x", ""] {
            assert_eq!(copies(wrong).unwrap_err().to_string(), "give a whole number, 1 at least", "{wrong}");
        }
        assert_eq!(copies("65536").unwrap_err().to_string(), "give a smaller whole number");
    }
}
