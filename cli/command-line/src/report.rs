//! The report of a command: lines for people, or JSON for programs.

use crate::{name, printable};
use headstart_block::Error;
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// The result of a command, as it is printed: with `Display` for people, without a newline at the end, or as
/// JSON for programs. What `Display` writes is made [printable](printable::lines); texts of others in it that may have
/// several lines, such as tags and errors, go through [`printable::line`] first.
pub trait Outcome: Serialize + fmt::Display {
    /// `true` if the command found no problem; `false` makes its exit status that of a failure.
    fn is_right(&self) -> bool {
        true
    }

    /// `true` if the JSON is printed as one line, because further lines follow or because it is long.
    fn is_line(&self) -> bool {
        false
    }
}

/// A result of any type that can be printed: implemented for every [`Outcome`].
pub trait Report {
    /// Prints the result on standard output, as JSON if `json` is `true`, and returns the exit status: a failure if the
    /// command found a problem or the result cannot be written. A reader that closed the pipe is no failure.
    fn print(&self, json: bool) -> ExitCode;
}

impl<T: Outcome> Report for T {
    fn print(&self, json: bool) -> ExitCode {
        let text = match (json, self.is_line()) {
            (true, true) => serde_json::to_string(self).unwrap_or_default(),
            (true, false) => serde_json::to_string_pretty(self).unwrap_or_default(),
            (false, _) => printable::lines(&self.to_string()),
        };
        let mut out = std::io::stdout().lock();
        let written = if text.is_empty() { Ok(()) } else { writeln!(out, "{text}") };
        match written.and_then(|()| out.flush()) {
            // A reader that went away (`| head`) is no error of this command.
            Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                return print_error(&Error::io("cannot write to standard output", e));
            }
            _ => {}
        }
        if self.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Prints an error on standard error, after the name of the program, and returns the exit status of a
/// failure.
pub fn print_error(error: &Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}: {}", name::get(), printable::line(&error.to_string()));
    ExitCode::FAILURE
}

/// A block of lines `name: value`, with the values aligned in a column and made [printable](printable::line).
pub struct Fields<'a>(pub &'a [(&'a str, String)]);

impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
        for (i, (name, value)) in self.0.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{:width$} {}", format!("{name}:"), printable::line(value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_field_makes_no_line_of_its_own() {
        let fields = [("made by", "x\u{1b}[2J\nsize: 0".to_owned()), ("size", "1".to_owned())];
        assert_eq!(Fields(&fields).to_string(), "made by: x\\u{1b}[2J\\nsize: 0\nsize:    1");
    }
}
