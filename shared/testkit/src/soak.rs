//! Tests that do more where there is time.

/// Returns `true` in `make soak`, which sets `HEADSTART_SOAK`: a test then goes through all of its cases, where
/// `make test` takes a part of them that it says.
#[must_use]
pub fn is_on() -> bool {
    std::env::var_os("HEADSTART_SOAK").is_some_and(|value| !value.is_empty() && value != "0")
}
