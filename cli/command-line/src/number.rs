//! Arguments that are whole numbers within bounds.

use headstart_block::{Error, Result};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Returns a parser of numbers in `range`, for `value_parser`. Its error says what to give: `noun`, such as
/// "a level", and the bounds. `T` has to be the type of the argument, and is not inferred from it: clap finds out when
/// the command runs.
pub fn number<T>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_bounds_are_refused_in_words() {
        let level = number("a level", 1..=19);
        assert_eq!((level("1").unwrap(), level("19").unwrap()), (1, 19));
        for wrong in ["0", "20", "-1", "x", "", "99999999999"] {
            assert_eq!(level(wrong).unwrap_err().to_string(), "give a level from 1 to 19", "{wrong}");
        }
    }
}
