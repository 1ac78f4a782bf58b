//! Numbers with their nouns, for messages: `2 segments`.

/// Returns `number` with the noun `name` in the singular or with a plural `s`: `1 segment`, `2 segments`.
#[must_use]
pub fn count(number: u64, name: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {name}{plural}")
}
