//! The form of a [`Time`] in records: the number of microseconds since the zero of the clock. For the attribute
//! `#[serde(with = "...")]` on fields of type [`Time`].

use crate::Time;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Serializes a point in time as the number of microseconds since the zero of the clock, a `u64`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
    time.0.serialize(serializer)
}

/// Deserializes a point in time from the number of microseconds since the zero of the clock, a `u64`.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    u64::deserialize(deserializer).map(Time)
}
