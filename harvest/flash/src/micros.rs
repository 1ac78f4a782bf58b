//! [`Time`] as a number of microseconds since its zero, which is its form in records: for serde's `with`.

use crate::Time;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Serializes a point in time as a number of microseconds.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
    time.0.serialize(serializer)
}

/// Deserializes a point in time from a number of microseconds.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    u64::deserialize(deserializer).map(Time)
}
