//! The `headstart-lab` command line: evaluation of the product without running it.
//!
//! | module | content |
//! |---|---|
//! | [`simulate`] | `headstart-lab simulate ...`: the value of plans for recorded boots, fleets, spare flash |
//! | [`replay`] | `headstart-lab replay`: a recorded boot against any NBD server |
//! | [`trace`] | `headstart-lab trace ...`: statistics, figures and synthesis of data sets |
//! | [`plots`] | pictures into files |

#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links, reason = "the table at the head is for readers of the code")]

mod plots;
mod replay;
mod simulate;
mod trace;

use clap::{CommandFactory, Parser, Subcommand};
use headstart_block::Result;
use headstart_command_line::program::{self, EXIT_STATUS, Global};
use headstart_command_line::report::Report;
use headstart_command_line::terminal::Terminal;
use std::process::ExitCode;

/// The evaluation of headstart: recorded boots replayed, fleets simulated, figures drawn.
#[derive(Parser)]
#[command(name = "headstart-lab", version, max_term_width = 100, after_help = EXIT_STATUS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

#[derive(Subcommand)]
enum Command {
    /// Simulate: the value of plans for recorded boots, fleets, harvesting
    #[command(subcommand)]
    Simulate(simulate::Command),
    /// Send a recorded boot's reads to an NBD server, and print how long they waited
    #[command(after_help = replay::EXAMPLES)]
    Replay(Box<replay::Replay>),
    /// Recorded I/O of disks: statistics, figures, synthetic data
    #[command(subcommand)]
    Trace(trace::Command),
}

impl Command {
    /// Checks the rules between arguments that clap cannot express.
    ///
    /// # Errors
    /// An error if the arguments do not fit together, whatever is on this host.
    fn check(&self) -> Result<()> {
        match self {
            Self::Simulate(simulate) => simulate.check(),
            Self::Replay(replay) => replay.check(),
            Self::Trace(trace) => trace.check(),
        }
    }
}

/// Returns the definition of the command line with all its commands, from which man pages, shell completions
/// and the reference are made.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments of this process, runs the command, prints its report or error, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match program::parse::<Cli>() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    if let Err(error) = cli.command.check() {
        return program::refuse("headstart-lab", &error);
    }
    program::run("headstart-lab", cli.global, |terminal| run(&cli, terminal))
}

fn run(cli: &Cli, terminal: &Terminal) -> Result<Box<dyn Report>> {
    match &cli.command {
        Command::Simulate(command) => {
            terminal.computes();
            command.run(terminal)
        }
        Command::Replay(command) => command.run(terminal),
        Command::Trace(command) => command.run(terminal),
    }
}
