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

/// The result of an export.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExportedTraces {
    /// Traces that were written.
    pub traces: u64,
    /// Requests of these traces.
    pub records: u64,
    /// The errors of traces that could not be read.
    pub unreadable: Vec<String>,
}

/// Imports a data set into a directory of traces; existing traces of the same creations are replaced.
///
/// # Errors
/// If there is no data set; if a trace cannot be written; an error if the user wants to stop.
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

/// Writes a trace, or those of a directory, as a data set.
///
/// # Errors
/// If there are no traces, or the data set cannot be written; an error if the user wants to stop.
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
