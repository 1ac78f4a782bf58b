//! `headstart trace`: recorded I/O of disks, brought in, given out, counted.

use crate::report::{Outcome, Report, count};
use clap::Subcommand;
use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_trace::fast26::{self, Exporter, Imported};
use headstart_trace::file::{ReadLimits, read_file};
use headstart_trace::stats::{self, Stats};
use headstart_trace::{DirectoryLimits, Trace, TraceDirectory, npy};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Bring in a data set of the FAST'26 layout: one Parquet file a trace
    #[command(after_help = "Example:\n  headstart trace import /srv/fast26 -o /srv/traces")]
    Import {
        /// The data set: the directory of its table of creations
        dir: PathBuf,
        /// Where to write the traces; what is there of the same creations is replaced
        #[arg(long, short, value_name = "TRACES")]
        output: PathBuf,
    },
    /// Write recorded traces as a data set of the FAST'26 layout
    #[command(after_help = "Examples:\n  headstart trace export /srv/traces -o /srv/fast26\n  \
                      headstart trace export /srv/cache/traces -o mine")]
    Export {
        /// The directory of the traces, or one trace
        traces: PathBuf,
        /// Where to write the data set: a directory that has none
        #[arg(long, short, value_name = "DIR")]
        output: PathBuf,
    },
    /// Say what traces read: how much, in how many places, when
    #[command(after_help = "Examples:\n  headstart trace stats /srv/traces\n  \
                      headstart trace stats /srv/fast26 --json\n  \
                      headstart trace stats boot.parquet boot.npy")]
    Stats {
        /// Traces, directories of them, data sets of the FAST'26 layout
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

impl Command {
    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::Import { dir, output } => Ok(Box::new(import(dir, output, progress)?)),
            Self::Export { traces, output } => Ok(Box::new(export(traces, output, progress)?)),
            Self::Stats { paths } => Ok(Box::new(StatsReport::of(paths, progress)?)),
        }
    }
}

fn cancelled(progress: &dyn Progress) -> Result<()> {
    if progress.is_cancelled() { Err(Error::new(ErrorKind::Cancelled, "interrupted")) } else { Ok(()) }
}

/// What was brought in.
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
        progress.advance((trace.records.len() * size_of::<npy::Row>()) as u64);
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

/// What was given out.
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

/// A trace, or those in a directory.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let meta = path.metadata().map_err(|e| Error::io("cannot be read", e).about(path.display()))?;
    if !meta.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let paths = TraceDirectory::list(path)?;
    if paths.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "has no traces").about(path.display()));
    }
    Ok(paths)
}

/// Bytes of a file, for the progress bar.
fn len(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
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

/// What traces read.
#[derive(Default, Serialize)]
struct StatsReport {
    traces: Vec<TraceStats>,
    images: Vec<ImageStats>,
    total: Stats,
    /// What the numbers of `distinct_bytes` count, in bytes.
    units: [u64; stats::UNITS.len()],
    /// Up to which size the numbers of `sizes` count reads; the last has no bound.
    sizes_to: [u64; stats::SIZES.len()],
    unreadable: Vec<String>,
}

#[derive(Serialize)]
struct TraceStats {
    volume: String,
    image: String,
    created: String,
    /// Requests that the recorder had no room for.
    dropped: u64,
    /// Samples of what was known of the link to the store.
    link_samples: usize,
    #[serde(flatten)]
    stats: Stats,
}

/// The traces of an image: the median of each number.
#[derive(Serialize)]
struct ImageStats {
    image: String,
    traces: usize,
    reads: u64,
    read_bytes: u64,
    distinct_bytes: [u64; stats::UNITS.len()],
    cross_block_reads: u64,
    first_us: u64,
    duration_us: u64,
}

impl StatsReport {
    fn of(paths: &[PathBuf], progress: &dyn Progress) -> Result<Self> {
        let mut report = Self { units: stats::UNITS, sizes_to: stats::SIZES, ..Self::default() };
        for path in paths {
            if fast26::is_data_set(path) {
                progress.begin("reading traces", fast26::stored_bytes(path)?);
                let imported = fast26::import(path, &ReadLimits::default(), |trace| {
                    cancelled(progress)?;
                    report.add(&trace);
                    progress.advance((trace.records.len() * size_of::<npy::Row>()) as u64);
                    Ok(())
                })?;
                report.unreadable.extend(imported.unreadable);
                continue;
            }
            let files = files(path)?;
            progress.begin("reading traces", files.iter().map(|path| len(path)).sum());
            for file in files {
                cancelled(progress)?;
                match read_any(&file) {
                    Ok(trace) => report.add(&trace),
                    Err(error) => report.unreadable.push(error.to_string()),
                }
                progress.advance(len(&file));
            }
        }
        report.summarize();
        Ok(report)
    }

    fn add(&mut self, trace: &Trace) {
        let stats = Stats::of(&trace.records);
        self.total.add(&stats);
        let created = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(trace.creation.created_us));
        self.traces.push(TraceStats {
            volume: trace.creation.volume.clone(),
            image: trace.creation.image.clone(),
            // Later years than 9999 cannot be written.
            created: created
                .filter(|_| trace.creation.created_us < 253_402_300_800_000_000)
                .map(|time| humantime::format_rfc3339_seconds(time).to_string())
                .unwrap_or_default(),
            dropped: trace.dropped,
            link_samples: trace.link.len(),
            stats,
        });
    }

    fn summarize(&mut self) {
        let mut images = BTreeMap::<&str, Vec<&Stats>>::new();
        for trace in &self.traces {
            images.entry(&trace.image).or_default().push(&trace.stats);
        }
        let images = images.into_iter().map(|(image, traces)| {
            let median =
                |number: &dyn Fn(&Stats) -> u64| stats::median(traces.iter().map(|stats| number(stats)));
            ImageStats {
                image: image.to_owned(),
                traces: traces.len(),
                reads: median(&|stats| stats.reads),
                read_bytes: median(&|stats| stats.read_bytes),
                distinct_bytes: std::array::from_fn(|unit| median(&|stats| stats.distinct_bytes[unit])),
                cross_block_reads: median(&|stats| stats.cross_block_reads),
                first_us: median(&|stats| stats.first_us),
                duration_us: median(&|stats| stats.duration_us),
            }
        });
        self.images = images.collect();
    }
}

/// A Parquet trace, or the bare requests of the FAST'26 layout.
fn read_any(path: &Path) -> Result<Trace> {
    if path.extension().is_some_and(|extension| extension == "npy") {
        return fast26::read_bare(path, &ReadLimits::default());
    }
    read_file(path, &ReadLimits::default())
}

impl Outcome for StatsReport {
    fn is_right(&self) -> bool {
        self.unreadable.is_empty()
    }
}

/// A line of the table; each number is of one trace, a median, or a sum.
struct Line<'a> {
    name: &'a str,
    reads: u64,
    read_bytes: u64,
    distinct_bytes: [u64; stats::UNITS.len()],
    cross_block_reads: u64,
    first_us: u64,
    duration_us: u64,
}

impl<'a> Line<'a> {
    fn of(name: &'a str, stats: &Stats) -> Self {
        Self {
            name,
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            distinct_bytes: stats.distinct_bytes,
            cross_block_reads: stats.cross_block_reads,
            first_us: stats.first_us,
            duration_us: stats.duration_us,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn write(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let [pages, slices, blocks] = self.distinct_bytes.map(mb);
        let cross = self.cross_block_reads as f64 * 100.0 / self.reads.max(1) as f64;
        let seconds = |us: u64| us as f64 / 1e6;
        write!(
            f,
            "\n{:width$} {:>8} {:>8.1} {pages:>8.1} {slices:>8.1} {blocks:>8.1} {cross:>6.1}% {:>8.1} {:>8.1}",
            self.name.escape_debug().to_string(),
            self.reads,
            mb(self.read_bytes),
            seconds(self.first_us),
            seconds(self.duration_us),
        )
    }
}

impl fmt::Display for StatsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.traces.iter().flat_map(|trace| [trace.volume.len(), trace.image.len()]);
        let width = names.chain(["median by image".len()]).max().unwrap_or(0).min(60);
        let columns = "   reads  read MB    by 4K   by 64K    by 2M   cross  first s   span s";
        write!(f, "{:width$} {columns}", "trace")?;
        for trace in &self.traces {
            Line::of(&trace.volume, &trace.stats).write(f, width)?;
        }
        write!(f, "\n\n{:width$} {columns}", "median by image")?;
        for image in &self.images {
            let ImageStats { reads, read_bytes, distinct_bytes, cross_block_reads, .. } = *image;
            let (first_us, duration_us) = (image.first_us, image.duration_us);
            let name = image.image.as_str();
            Line { name, reads, read_bytes, distinct_bytes, cross_block_reads, first_us, duration_us }
                .write(f, width)?;
        }
        let traces = count(self.traces.len() as u64, "trace");
        write!(f, "\n\n{:width$} {columns}", "sum")?;
        Line::of(&traces, &self.total).write(f, width)?;
        let written = self.total.written_bytes / 1_000_000;
        write!(f, "\n\n{} of {written} MB in all", count(self.total.writes, "write"))?;
        let sizes = self.total.sizes.iter().enumerate().filter(|(_, reads)| **reads > 0);
        let sizes = sizes.map(|(class, reads)| format!("{reads} {}", stats::size_class(class)));
        write!(f, "\nreads by size: {}", sizes.collect::<Vec<_>>().join(", "))?;
        write_unreadable(f, &self.unreadable)
    }
}
