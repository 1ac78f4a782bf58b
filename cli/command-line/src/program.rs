//! The run of a program: options of every command, the terminal, the report, the exit status.

use crate::report::Report;
use crate::terminal::{self, Terminal};
use crate::{log, name, printable, report};
use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser};
use headstart_block::{Error, Result};
use std::convert::Infallible;
use std::io::Write;
use std::process::ExitCode;

/// The last lines of a program's help: its exit status, signals and environment variables.
pub const EXIT_STATUS: &str = "Exit status: 0 for success, 1 for a failure, with a message on standard \
                           error (also if the command was stopped), and for a report of damage or of \
                           differences, 2 for a wrong command line, 130 if the command was cut off by a second \
                           signal.\n\n\
                           Ctrl-C, SIGTERM and SIGHUP end a command in good order, within seconds; a second one ends \
                           it at once. Signals that come together are one: SIGTERM and SIGHUP within a second of the \
                           first, Ctrl-C within a tenth of one.\n\n\
                           Environment: HEADSTART_LOG sets the level of the log on standard error: error, warn \
                           (default), info, debug, or levels by crate such as warn,headstart_store=debug.";

/// The exit status of a wrong command line, which is clap's, too.
pub const WRONG_COMMAND_LINE: u8 = 2;

/// Options of every command.
#[derive(Args, Clone, Copy, Debug)]
pub struct Global {
    /// Print the report as JSON, for programs
    #[arg(long, global = true)]
    pub json: bool,
    /// Show no progress
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// Parses the arguments of this process. An error is printed as clap prints it, with the arguments in it made
/// [printable](printable::line), and the exit status is returned; most errors, and requests for help, end the process.
///
/// # Errors
/// The exit status of a wrong command line.
pub fn parse<P: Parser>() -> std::result::Result<P, ExitCode> {
    P::try_parse().map_err(in_order_of_usage).map_err(|error| {
        let raw: Vec<_> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let shown: Vec<_> = raw.iter().map(|arg| printable::line(arg)).collect();
        if shown == raw {
            error.exit();
        }
        // The arguments as they are printed make the same error, as a rule.
        if let Err(error) = P::try_parse_from(shown).map_err(in_order_of_usage) {
            error.exit();
        }
        let _ = std::io::stderr().write_all(printable::lines(&error.render().to_string()).as_bytes());
        ExitCode::from(WRONG_COMMAND_LINE)
    })
}

/// Puts the arguments that an error of a command line misses into the order in which they are written. clap has groups
/// of alternatives before all others.
fn in_order_of_usage(mut error: clap::Error) -> clap::Error {
    let (Some(ContextValue::StyledStr(usage)), Some(ContextValue::Strings(missing))) =
        (error.get(ContextKind::Usage), error.get(ContextKind::InvalidArg))
    else {
        return error;
    };
    let (usage, mut missing) = (usage.to_string(), missing.clone());
    missing.sort_by_key(|argument| usage.find(argument.as_str()).unwrap_or(usage.len()));
    error.insert(ContextKind::InvalidArg, ContextValue::Strings(missing));
    error
}

/// Runs a command of the program `name`: starts the log and the terminal, calls `work`, prints the report that it
/// returns or its error, and returns the exit status.
pub fn run(
    name: &'static str,
    global: Global,
    work: impl FnOnce(&Terminal) -> Result<Box<dyn Report>>,
) -> ExitCode {
    name::set(name);
    match start(global).and_then(|terminal| work(&terminal)) {
        Ok(report) => report.print(global.json),
        Err(error) => report::print_error(&error),
    }
}

/// Runs a command of the program `name` that serves without a terminal, until `work` fails or a signal ends the process
/// as it ends any other: starts the log, calls `work`, prints its error, and returns the exit status.
pub fn run_until_killed(name: &'static str, work: impl FnOnce() -> Result<Infallible>) -> ExitCode {
    name::set(name);
    match log::start().and_then(|()| work()) {
        Err(error) => report::print_error(&error),
    }
}

/// Prints the error of a command line of the program `name` whose arguments do not fit together, and returns the exit
/// status of a wrong command line.
pub fn refuse(name: &'static str, error: &Error) -> ExitCode {
    name::set(name);
    report::print_error(error);
    ExitCode::from(WRONG_COMMAND_LINE)
}

fn start(global: Global) -> Result<Terminal> {
    log::start()?;
    if global.quiet {
        terminal::be_quiet();
    }
    Terminal::new(global.quiet || global.json)
}
