//! What the crates below have to say while they work: warnings, as lines on standard error.
//!
//! `HEADSTART_LOG` says more or less: a level (`error`, `warn`, `info`, `debug`, `trace`, `off`), or levels by crate
//! (`warn,headstart_store=debug`). Without it our own warnings are printed, and nothing of the libraries below.

use crate::terminal;
use headstart_block::{Error, Result};
use std::fmt::{Debug, Write};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// The variable that chooses what is said.
const VARIABLE: &str = "HEADSTART_LOG";

/// The start of the names of our crates.
const OURS: &str = "headstart";

/// Prints what is worth it from now on.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] where `HEADSTART_LOG` says nothing that can be understood.
pub(crate) fn start() -> Result<()> {
    let chosen = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse::<Targets>().map_err(|e| {
            Error::invalid(format!("{VARIABLE} is no level of logging: {e}")).remedy(
                "write warn, info, debug or trace, or levels by crate such as warn,headstart_store=debug",
            )
        })?,
        _ => Targets::new().with_target(OURS, LevelFilter::WARN),
    };
    let lines = tracing_subscriber::registry().with(Lines.with_filter(chosen));
    // Somebody was first only where the program is a part of another, which then does as he likes.
    let _ = tracing::subscriber::set_global_default(lines);
    Ok(())
}

/// Prints each event as a line.
struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        terminal::print_above(&line.finish(*event.metadata().level()));
    }
}

/// One event in words: its message, what went wrong, and the other facts.
#[derive(Default)]
struct Line {
    message: String,
    cause: String,
    facts: String,
}

impl Line {
    fn finish(self, level: Level) -> String {
        let level = if level == Level::WARN { "warning".to_owned() } else { level.as_str().to_lowercase() };
        let facts = if self.facts.is_empty() { String::new() } else { format!(" ({})", self.facts) };
        let line = format!("headstart: {level}: {}{}{facts}", self.message, self.cause);
        // Parts of it come from servers and files: they must not play with the terminal.
        line.chars().flat_map(printable).collect()
    }
}

fn printable(c: char) -> impl Iterator<Item = char> {
    let escaped = c.is_control().then(|| c.escape_default());
    let plain = escaped.is_none().then_some(c);
    escaped.into_iter().flatten().chain(plain)
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" | "why" => write!(self.cause, ": {value:?}"),
            name => {
                let comma = if self.facts.is_empty() { "" } else { ", " };
                write!(self.facts, "{comma}{name} {value:?}")
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_and_why() {
        let line = |message: &str, cause: &str, facts: &str| {
            let [message, cause, facts] = [message, cause, facts].map(str::to_owned);
            Line { message, cause, facts }.finish(Level::WARN)
        };
        assert_eq!(line("it stopped", ": no space", ""), "headstart: warning: it stopped: no space");
        assert_eq!(line("it stopped", "", "peer a, uri b"), "headstart: warning: it stopped (peer a, uri b)");
        assert_eq!(line("\u{1b}[2Jä\n", "", ""), "headstart: warning: \\u{1b}[2Jä\\n");
    }
}
