//! Extended attributes in PAX records.
//!
//! ```text
//! SCHILY.xattr.NAME=VALUE        as they are
//! LIBARCHIVE.xattr.NAME=VALUE    bytes of NAME other than printable ASCII, and "%" and "=", as "%" and two
//!                                hexadecimal digits; VALUE in base 64
//! ```
//!
//! The same name may have records of both forms, as from bsdtar, which writes each attribute twice.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use headstart_block::{Error, Result};

pub(crate) const SCHILY: &[u8] = b"SCHILY.xattr.";
pub(crate) const LIBARCHIVE: &[u8] = b"LIBARCHIVE.xattr.";

/// Base 64 as libarchive writes it, which leaves the padding out, and as others do.
const BASE_64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Decodes the value of a record of libarchive.
///
/// # Errors
/// Corrupt if it is not base 64.
pub(crate) fn decode_value(text: &[u8]) -> Result<Vec<u8>> {
    BASE_64
        .decode(text)
        .map_err(|_| Error::corrupt("the value of its LIBARCHIVE.xattr record is not base 64"))
}

/// Decodes the name in the key of a record of libarchive. A "%" that no two hexadecimal digits follow stands for
/// itself, as in libarchive.
pub(crate) fn decode_name(mut text: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(text.len());
    while let Some((first, rest)) = text.split_first() {
        let (byte, after) = escaped(text).unwrap_or((*first, rest));
        name.push(byte);
        text = after;
    }
    name
}

/// The byte that an escape at the start of `text` stands for, and the text after it.
fn escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let (escape, rest) = text.split_first_chunk::<3>()?;
    let [b'%', digits @ ..] = escape else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = digit(digits[0])? * 16 + digit(digits[1])?;
    Some((u8::try_from(byte).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_of_libarchive_are_decoded() {
        assert_eq!(decode_name(b"user.a%3Db%25%c3%a9%zz%4"), b"user.a=b%\xc3\xa9%zz%4");
        assert_eq!(decode_value(b"AAEC").unwrap(), [0, 1, 2]);
        assert_eq!(decode_value(b"AAE").unwrap(), decode_value(b"AAE=").unwrap());
        assert!(decode_value(b"").unwrap().is_empty());
        assert!(decode_value(b"A?==").is_err());
    }
}
