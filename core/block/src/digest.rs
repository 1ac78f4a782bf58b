//! Digests: the names of blobs.
//!
//! Stores name blobs by SHA-256 alone; other algorithms that OCI allows are refused, since no tool writes
//! them.

use crate::{Error, Result};
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// The name of the only supported digest algorithm: the part of a digest before the colon, and the name of
/// the directory of blobs in a store.
pub const SHA256: &str = "sha256";

/// The SHA-256 of a blob: its name in a store, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the SHA-256 of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Makes a digest from its 32 bytes, the output of a SHA-256 hasher.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the digest.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits without the algorithm: the blob's file name in a store.
    #[must_use]
    pub fn hex(&self) -> String {
        self.to_string().split_off(SHA256.len() + 1)
    }

    /// Parses exactly 64 lower-case hexadecimal digits, without `sha256:`. `None` for any other text.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<Self> {
        parse_hex(hex).map(Self)
    }
}

/// Parses exactly 64 lower-case hexadecimal digits as 32 bytes. `None` for any other text.
#[must_use]
pub fn parse_hex(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some((SHA256, hex)) => Self::from_hex(hex).ok_or_else(|| {
                Error::invalid(format!("`{}` is not a digest", text.escape_debug()))
                    .remedy("a digest is sha256: and 64 lower-case hexadecimal digits")
            }),
            Some((algorithm @ ("sha384" | "sha512"), _)) => {
                Err(Error::unsupported(format!("digests of kind {algorithm} are not supported, only sha256")))
            }
            _ => Err(Error::invalid(format!("`{}` is not a digest", text.escape_debug()))
                .remedy("a digest is sha256: and 64 lower-case hexadecimal digits")),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SHA256}:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn prints_what_it_parses() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        let digest: Digest = EMPTY.parse().unwrap();
        assert_eq!((digest, format!("sha256:{}", digest.hex())), (Digest::of(b""), EMPTY.to_owned()));
    }

    #[test]
    fn refuses_what_is_no_sha256() {
        for text in ["", "sha256", "sha256:", &EMPTY[..70], &EMPTY.to_uppercase(), "sha256:../../etc/passwd"]
        {
            assert_eq!(text.parse::<Digest>().unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
        let message = "sha256:\u{1b}[2J".parse::<Digest>().unwrap_err().to_string();
        assert!(message.contains("\\u{1b}") && !message.contains('\u{1b}'), "{message}");
        // Right length in bytes, but not in digits.
        assert!(format!("sha256:{}", "é".repeat(32)).parse::<Digest>().is_err());
        let sha512 = format!("sha512:{}", "0".repeat(128));
        assert_eq!(sha512.parse::<Digest>().unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
