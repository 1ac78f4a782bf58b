//! Times of the command line.

use headstart_block::{Error, Result};
use std::time::Duration;

/// A time of the command line, such as `90s` or `5m`.
pub(super) fn parse_time(text: &str) -> Result<Duration> {
    let bad = |e| {
        if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) {
            return Error::invalid(format!("`{text}` has no unit"))
                .remedy(format!("write {text}s or {text}m"));
        }
        let text = text.escape_debug();
        Error::invalid(format!("`{text}` is not a time")).caused_by(e).remedy("write it as 500ms, 30s or 5m")
    };
    humantime::parse_duration(text).map_err(bad)
}
