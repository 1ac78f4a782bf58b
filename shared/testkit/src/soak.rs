//! The switch for tests that do more if there is time.

/// Returns `true` if the environment variable `HEADSTART_SOAK` is set, and neither empty nor `0`, as in `make soak`. A
/// test then goes through all of its cases; otherwise only through a part of them, for which there is time.
#[must_use]
pub fn is_on() -> bool {
    std::env::var_os("HEADSTART_SOAK").is_some_and(|value| !value.is_empty() && value != "0")
}
