//! `headstart trace`: recorded I/O of disks, imported and exported.

use crate::moved::Ignored;
use crate::report::{Outcome, Report};
use clap::Subcommand;
use headstart_block::words::count;
use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_trace::fast26::{self, Exporter, Imported};
use headstart_trace::file::{ReadLimits, read_file};
use headstart_trace::{DirectoryLimits, TraceDirectory, npy};
use headstart_train::progress::cancelled;
use headstart_train::traces::len;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

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
            Self::Import { dir, output } => Ok(Box::new(import(dir, output, progress)?)),
            Self::Export { traces, output } => Ok(Box::new(export(traces, output, progress)?)),
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

fn import(dir: &Path, output: &Path, progress: &dyn Progress) -> Result<ImportReport> {
    if !fast26::is_data_set(dir) {
        return Err(Error::new(ErrorKind::NotFound, format!("has no {}", fast26::CREATIONS))
            .about(dir.display())
            .remedy("name the directory that has it: see `headstart trace import --help`"));
    }
    let directory = TraceDirectory::open(output, DirectoryLimits::default())?;
    progress.begin("importing traces", fast26::stored_bytes(dir)?);
    let imported = fast26::import(dir, &ReadLimits::default(), |trace| {
        cancelled(progress)?;
        directory.save(&trace, false)?;
        progress.advance((trace.records.len() * size_of::<npy::NpyRow>()) as u64);
        Ok(())
    })?;
    Ok(ImportReport { imported, output: output.display().to_string() })
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
#[derive(Default, Serialize)]
struct ExportReport {
    traces: u64,
    records: u64,
    unreadable: Vec<String>,
    output: String,
}

fn export(traces: &Path, output: &Path, progress: &dyn Progress) -> Result<ExportReport> {
    let mut report = ExportReport { output: output.display().to_string(), ..ExportReport::default() };
    let paths = files(traces)?;
    let mut exporter = Exporter::new(output)?;
    progress.begin("exporting traces", paths.iter().map(|path| len(path)).sum());
    for path in paths {
        cancelled(progress)?;
        match read_file(&path, &ReadLimits::default()) {
            Ok(trace) => {
                exporter.add(&trace)?;
                report.traces += 1;
                report.records += trace.records.len() as u64;
            }
            Err(error) => report.unreadable.push(error.to_string()),
        }
        progress.advance(len(&path));
    }
    exporter.finish()?;
    Ok(report)
}

/// The path of a trace, or those in a directory.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let meta = path
        .metadata()
        .map_err(|e| Error::io("cannot be read", e).about(path.display()).remedy("check the path"))?;
    if !meta.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let paths = TraceDirectory::list(path)?;
    if paths.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "has no traces").about(path.display()));
    }
    Ok(paths)
}

impl Outcome for ExportReport {
    fn is_right(&self) -> bool {
        self.unreadable.is_empty()
    }
}

impl fmt::Display for ExportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (traces, records) = (count(self.traces, "trace"), count(self.records, "request"));
        write!(f, "{traces} with {records} into {}", self.output)?;
        write_unreadable(f, &self.unreadable)
    }
}
