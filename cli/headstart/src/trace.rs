//! `headstart trace`: recorded I/O of disks, imported and exported.

use crate::moved::Ignored;
use clap::Subcommand;
use headstart_block::Result;
use headstart_block::words::count;
use headstart_command_line::report::{Outcome, Report};
use headstart_image::progress::Progress;
use headstart_trace::fast26::{self, Imported};
use headstart_train::data_sets::{ExportedTraces, export, import};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Import a data set of the FAST'26 layout: one Parquet file a trace
    #[command(after_help = "Example:\n  headstart trace import /srv/fast26 -o /srv/traces")]
    Import {
        /// The data set: the directory of its table of creations
        dir: PathBuf,
        /// The directory to write the traces to; existing traces of the same creations are replaced
        #[arg(long, short, value_name = "TRACES")]
        output: PathBuf,
    },
    /// Write recorded traces as a data set of the FAST'26 layout
    #[command(after_help = "Examples:\n  headstart trace export /srv/traces -o /srv/fast26\n  \
                      headstart trace export /srv/cache/traces -o mine")]
    Export {
        /// The directory of the traces, or one trace
        traces: PathBuf,
        /// The directory to write the data set to; it must not hold one yet
        #[arg(long, short, value_name = "DIR")]
        output: PathBuf,
    },
    /// A command of headstart-lab
    #[command(hide = true, disable_help_flag = true)]
    Stats(Ignored),
    /// A command of headstart-lab
    #[command(hide = true, disable_help_flag = true)]
    Plot(Ignored),
    /// A command of headstart-lab
    #[command(hide = true, disable_help_flag = true)]
    Synthesize(Ignored),
}

impl Command {
    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::Import { dir, output } => {
                let imported = import(dir, output, progress)?;
                Ok(Box::new(ImportReport { imported, output: output.display().to_string() }))
            }
            Self::Export { traces, output } => {
                let exported = export(traces, output, progress)?;
                Ok(Box::new(ExportReport { exported, output: output.display().to_string() }))
            }
            Self::Stats(words) => Ok(words.refuse("trace stats")),
            Self::Plot(words) => Ok(words.refuse("trace plot")),
            Self::Synthesize(words) => Ok(words.refuse("trace synthesize")),
        }
    }
}

/// The result of an import.
#[derive(Serialize)]
struct ImportReport {
    #[serde(flatten)]
    imported: Imported,
    output: String,
}

impl Outcome for ImportReport {
    fn is_right(&self) -> bool {
        self.imported.unreadable.is_empty()
    }
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Imported { traces, records, unreadable, unlisted } = &self.imported;
        write!(f, "{} with {} into {}", count(*traces, "trace"), count(*records, "request"), self.output)?;
        for path in unlisted {
            write!(f, "\nleft out, since {} does not name it: {path}", fast26::CREATIONS)?;
        }
        write_unreadable(f, unreadable)
    }
}

fn write_unreadable(f: &mut fmt::Formatter<'_>, unreadable: &[String]) -> fmt::Result {
    unreadable.iter().try_for_each(|error| write!(f, "\nnot read: {error}"))
}

/// The result of an export.
#[derive(Serialize)]
struct ExportReport {
    #[serde(flatten)]
    exported: ExportedTraces,
    output: String,
}

impl Outcome for ExportReport {
    fn is_right(&self) -> bool {
        self.exported.unreadable.is_empty()
    }
}

impl fmt::Display for ExportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExportedTraces { traces, records, unreadable } = &self.exported;
        let (traces, records) = (count(*traces, "trace"), count(*records, "request"));
        write!(f, "{traces} with {records} into {}", self.output)?;
        write_unreadable(f, unreadable)
    }
}
