//! Bandwidths in MB/s, as arguments of the command line and in reports.

use serde::{Serialize, Serializer};
use std::str::FromStr;

/// A bandwidth in MB/s, 0.001 to 1,000,000 if parsed. The context decides whether a MB is 10^6 or 2^20 bytes:
/// see [`Megabytes::times`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Megabytes(pub f64);

impl Megabytes {
    /// Returns the bandwidth in bytes a second if a MB is `unit` bytes, rounded.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0.001 to 10^6, of 2^20 at most"
    )]
    #[must_use]
    pub fn times(self, unit: f64) -> u64 {
        (self.0 * unit).round() as u64
    }
}

impl FromStr for Megabytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().parse().ok().filter(|number| (0.001..=1e6).contains(number));
        number.map(Self).ok_or_else(|| {
            "not a number of MB/s between 0.001 and 1000000: write the number alone, such as 10".to_owned()
        })
    }
}

impl Serialize for Megabytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 {
            serializer.serialize_u64(self.times(1.0))
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}
