//! Data sets of the FAST'26 layout, imported and exported.

use crate::progress::cancelled;
use crate::traces::len;
use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_trace::fast26::{self, Exporter, Imported};
use headstart_trace::file::{ReadLimits, read_file};
use headstart_trace::{DirectoryLimits, TraceDirectory, npy};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The result of an export: counts, and the traces that were left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExportedTraces {
    /// The number of traces that were written.
    pub traces: u64,
    /// The number of requests in these traces.
    pub records: u64,
    /// Messages about the traces that could not be read and were left out; each names the file.
    pub unreadable: Vec<String>,
}

/// Imports the data set in `dir` into `output`, a directory of traces, which is created if it does not exist. Traces of
/// the same creations in `output` are replaced. A trace that cannot be read is left out and noted in the result.
///
/// # Errors
/// [`ErrorKind::NotFound`] if `dir` is no data set of the FAST'26 layout; [`ErrorKind::Corrupt`] if its table of
/// creations is malformed; errors of writing a trace; [`ErrorKind::Cancelled`] if the user asks the command to stop.
pub fn import(dir: &Path, output: &Path, progress: &dyn Progress) -> Result<Imported> {
    if !fast26::is_data_set(dir) {
        return Err(Error::new(ErrorKind::NotFound, format!("has no {}", fast26::CREATIONS))
            .about(dir.display())
            .remedy("name the directory that has it: see `headstart trace import --help`"));
    }
    let directory = TraceDirectory::open(output, DirectoryLimits::default())?;
    progress.begin("importing traces", fast26::stored_bytes(dir)?);
    fast26::import(dir, &ReadLimits::default(), |trace| {
        cancelled(progress)?;
        directory.save(&trace, false)?;
        progress.advance((trace.records.len() * size_of::<npy::NpyRow>()) as u64);
        Ok(())
    })
}

/// Writes traces as a data set of the FAST'26 layout into `output`, which is created if it does not exist. `traces` is
/// a trace file or a directory of them. A trace that cannot be read is left out and noted in the result.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there are no traces; [`ErrorKind::Conflict`] if `output` is a data set already; errors of
/// writing the data set; [`ErrorKind::Cancelled`] if the user asks the command to stop.
pub fn export(traces: &Path, output: &Path, progress: &dyn Progress) -> Result<ExportedTraces> {
    let mut report = ExportedTraces::default();
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
