//! The numbers and times of headers and records.
//!
//! A numeric field of a header is one of these:
//!
//! * Octal digits, with spaces and NULs around them; an empty field is 0.
//! * Base 256, if the highest bit of the first byte is set: the other bits of the field are a number in two's
//!   complement, most significant byte first. It has to fit in 64 bits.
//!
//! Records and maps have decimal numbers, with a sign or without. Times in records may have a fraction, of which nine
//! digits count: `-1.25` is a quarter of a second before second -1.

use crate::entry::TarTime;

/// Returns the number in a field of a header; `None` if it is malformed or does not fit.
pub(crate) fn field(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => base_256(field),
        _ => octal(field),
    }
}

/// Octal digits between spaces and NULs. A NUL after the digits ends the number.
pub(crate) fn octal(field: &[u8]) -> Option<i64> {
    let is_padding = |byte: &u8| matches!(byte, b' ' | 0);
    let Some(start) = field.iter().position(|byte| !is_padding(byte)) else { return Some(0) };
    let end = field.iter().rposition(|byte| !is_padding(byte))?;
    let text = until_nul(field.get(start..=end)?);
    text.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        number.checked_mul(8)?.checked_add(i64::from(digit))
    })
}

fn base_256(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    // A negative number is the complement of the number whose bits are inverted.
    let invert = if first & 0x40 == 0 { 0 } else { 0xff };
    let start = i64::from((first ^ invert) & 0x7f);
    let number = rest
        .iter()
        .try_fold(start, |number, byte| number.checked_mul(256)?.checked_add(i64::from(byte ^ invert)))?;
    Some(if invert == 0 { number } else { !number })
}

/// Returns the bytes before the first NUL, or all if there is none.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns a decimal number of 64 bits; `None` if the text is anything else.
pub(crate) fn decimal(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Returns the time that a text of decimal seconds says; `None` if the text is anything else.
pub(crate) fn time(text: &[u8]) -> Option<TarTime> {
    const DIGITS: usize = 9;
    let point = text.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (text.get(..point)?, text.get(point + 1..)?),
        None => (text, &[][..]),
    };
    let seconds = decimal(whole)?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(DIGITS);
    let nanoseconds = digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
    if whole.starts_with(b"-") && nanoseconds > 0 {
        return Some(TarTime { seconds: seconds.checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds });
    }
    Some(TarTime { seconds, nanoseconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_fields_have_padding_on_both_sides() {
        for (text, number) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0 17 \0", Some(0o17)),
            (b"12345670", Some(0o1234_5670)),
            (b"17\x0099\0\0\0", Some(0o17)),
            (b"\0\0\0\0", Some(0)),
            (b"    ", Some(0)),
            (b"18\0", None),
            (b"1 7\0", None),
            (b"-7\0", None),
            (b"+7\0", None),
        ] {
            assert_eq!(field(text), number, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn base_256_fields_have_a_sign_and_64_bits() {
        for (bytes, number) in [
            (&b"\x80\0\0\0\0\0\0\x07"[..], Some(7)),
            (b"\x80\0\0\0\xff\xff\xff\xff", Some(0xffff_ffff)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\x80\0\0\0\0\0\0\0", Some(i64::MIN)),
            (b"\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(field(bytes), number, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn times_have_fractions_of_any_length() {
        let at = |seconds, nanoseconds| Some(TarTime { seconds, nanoseconds });
        for (text, time_of_text) in [
            ("1350244992", at(1_350_244_992, 0)),
            ("1350244992.3", at(1_350_244_992, 300_000_000)),
            ("1350244992.0239604521", at(1_350_244_992, 23_960_452)),
            ("5.", at(5, 0)),
            ("+5.000000001", at(5, 1)),
            ("-1.25", at(-2, 750_000_000)),
            ("-0.5", at(-1, 500_000_000)),
            ("-7", at(-7, 0)),
            ("-0.0000000009", at(0, 0)),
            ("8589934597.5", at(8_589_934_597, 500_000_000)),
            ("-9223372036854775808.5", None),
            ("9223372036854775808", None),
            (".5", None),
            ("1.2.3", None),
            ("1.-2", None),
            ("1e3", None),
            (" 1", None),
            ("", None),
        ] {
            assert_eq!(time(text.as_bytes()), time_of_text, "{text}");
        }
    }
}
