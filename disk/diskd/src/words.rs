//! Numbers in words, for messages.

/// A number of things, with their name in the right form: `1 segment`, `2 segments`.
#[must_use]
pub fn count(number: u64, name: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {name}{plural}")
}
