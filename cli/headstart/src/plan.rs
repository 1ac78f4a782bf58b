//! `headstart plan`: learned plans, shown, compared and written for other programs.

use clap::Subcommand;
use headstart_block::Result;
use headstart_command_line::report::Report;

mod diff;
mod export;
mod show;

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart plan show --plans plans\n  \
    headstart plan diff monday tuesday";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the images that have plans; or print the plan that a disk gets, and the reason
    #[command(after_help = show::EXAMPLES)]
    Show(Box<show::Show>),
    /// Print the differences between two files of plans; exit status 1 if they differ
    #[command(after_help = diff::EXAMPLES)]
    Diff(diff::Diff),
    /// Write the plan of an image for OverlayBD's prefetcher
    #[command(after_help = export::EXAMPLES)]
    Export(Box<export::Export>),
}

impl Command {
    pub(crate) fn run(&self) -> Result<Box<dyn Report>> {
        match self {
            Self::Show(show) => show.run(),
            Self::Diff(diff) => Ok(Box::new(diff.run()?)),
            Self::Export(export) => Ok(Box::new(export.run()?)),
        }
    }
}

/// Millions, the form in which people read bytes and bytes a second.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
