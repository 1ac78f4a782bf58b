//! The name of the running program, with which its messages begin.

use std::sync::OnceLock;

/// The name, once it is set.
static NAME: OnceLock<&str> = OnceLock::new();

/// Sets the name of this program, with which its messages begin. Only the first call counts.
pub fn set(name: &'static str) {
    let _ = NAME.set(name);
}

/// Returns the name of this program; `headstart` if it was not set.
#[must_use]
pub fn get() -> &'static str {
    NAME.get().copied().unwrap_or("headstart")
}
