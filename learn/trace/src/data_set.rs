//! One way to read every kind of data set.
//!
//! | argument of [`DataSet::open`] | listed traces |
//! |---|---|
//! | a directory with `VD_creation_meta.csv` | the creations of the table, as [`fast26`] says |
//! | any other directory | its Parquet traces, as [`directory`](crate::directory) says |
//! | a `.npy` file | that trace; the image, the disk's size and the grace period are not known |
//! | any other file | that Parquet trace |
//!
//! Opening is cheap: it reads the rows of a table or the footers of Parquet files, but no requests. In every layout the
//! list is sorted by image ([`Creation::image_id`]), size of the disk, time of creation, and volume, so that the traces
//! of an image ([`DataSet::groups`]) come one after another.
//!
//! Then [`DataSet::for_each`] and [`DataSet::map_each`] stream the traces. Each thread reads a few files ahead; the
//! results arrive in the order of the list. So results do not depend on the number of threads, and at most
//! [`AHEAD`] + 2 traces for each thread are in memory.
//!
//! Data sets come from other people. A trace that cannot be learned from is skipped and counted with its reason
//! ([`Skipped`]), and the others are read. A trace that is not in the order of time is sorted, and counted as mended.
//! In the traces that are passed on, no read is longer than 1 GiB, and each request is within the disk, within the
//! first PiB, and no later after the creation than [`DataSetLimits::span_us_max`]. Whatever a file contains, reading it
//! neither panics nor takes more memory than [`DataSetLimits`] allow. A table of creations is refused if it is larger
//! than 256 MiB.

mod read;
mod skipped;
#[cfg(test)]
mod tests;

pub use skipped::{Count, EXAMPLES_MAX, SkipReason, Skipped};

use crate::directory::TraceDirectory;
use crate::fast26;
use crate::file::{ReadLimits, read_creation};
use crate::trace::{Creation, Trace};
use headstart_block::{Error, ErrorKind, Result};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// The number of traces that the queue between a reading thread and the caller has room for. A thread whose queue is
/// full holds one more trace.
pub const AHEAD: usize = 4;

/// The limits on a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSetLimits {
    /// The limits on one trace; a trace beyond them is skipped.
    pub trace: ReadLimits,
    /// The maximum time from a creation to the last request of its trace, in microseconds. A trace with a
    /// later request is skipped, because its clock must be wrong.
    pub span_us_max: u64,
    /// The maximum number of traces; a data set with more is refused.
    pub traces_max: usize,
}

impl Default for DataSetLimits {
    /// Limits of a day from creation to last request, ten million traces, and the defaults of [`ReadLimits`] for each
    /// of them.
    fn default() -> Self {
        Self { trace: ReadLimits::default(), span_us_max: 86_400_000_000, traces_max: 10_000_000 }
    }
}

/// A list of traces, in any of the layouts, whose requests are read one trace after another.
#[derive(Clone, Debug)]
pub struct DataSet {
    entries: Vec<Entry>,
    /// The metadata of each trace, separate from the entries because callers want all of them.
    creations: Vec<Creation>,
    skipped: Skipped,
    limits: DataSetLimits,
}

/// One trace.
#[derive(Clone, Debug)]
struct Entry {
    path: PathBuf,
    form: Form,
}

/// The form in which a trace is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Parquet,
    /// A file of the FAST'26 layout and its row in the table of creations.
    Listed,
    /// Such a file without a row.
    Bare,
}

impl DataSet {
    /// Lists the traces at `path`, a directory or a file.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if `path` does not exist, or is a directory in which there is neither a trace nor one to
    /// skip; [`ErrorKind::Corrupt`] if the header of the table of creations is malformed (malformed rows are skipped);
    /// [`ErrorKind::Invalid`] if there are more traces than `limits` allow, or the table has more than 256 MiB; for a
    /// single Parquet file those that [`read_file`](crate::file::read_file) has for the metadata; errors of the
    /// operating system.
    pub fn open(path: &Path, limits: &DataSetLimits) -> Result<Self> {
        let about = |e: Error| e.about(path.display());
        let meta =
            path.metadata().map_err(|e| about(Error::io("cannot be read", e)).remedy("check the path"))?;
        let mut skipped = Skipped::default();
        let mut found = if !meta.is_dir() {
            vec![of_file(path)?]
        } else if fast26::is_data_set(path) {
            of_table(path, &mut skipped)?
        } else {
            of_directory(path, limits, &mut skipped)?
        };
        if found.is_empty() && skipped.is_empty() {
            return Err(about(Error::new(ErrorKind::NotFound, "has no traces")).remedy(format!(
                "name a directory of Parquet traces, one that has a {} in it, or a file",
                fast26::CREATIONS
            )));
        }
        if found.len() > limits.traces_max {
            return Err(about(Error::invalid(format!("has more than {} traces", limits.traces_max))));
        }
        found.sort_by(|(a, a_entry), (b, b_entry)| {
            (a.image_id().cmp(b.image_id()))
                .then_with(|| a.size.cmp(&b.size))
                .then_with(|| a.entrypoint().cmp(b.entrypoint()))
                .then_with(|| a.created_us.cmp(&b.created_us))
                .then_with(|| a.volume.cmp(&b.volume))
                .then_with(|| a_entry.path.cmp(&b_entry.path))
        });
        let (creations, entries) = found.into_iter().unzip();
        Ok(Self { entries, creations, skipped, limits: *limits })
    }

    /// The number of listed traces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// `true` if no traces are listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The metadata of each trace, by the index of the trace, as known without reading the requests. In a trace that
    /// [`read`](Self::read) returns, the time of creation may be another one: a table of creations has whole seconds,
    /// and if such a time is later than the first request, the time of that request is used. The time of a single
    /// `.npy` file is 0 here, and in the trace that of the first request.
    #[must_use]
    pub fn creations(&self) -> &[Creation] {
        &self.creations
    }

    /// Returns the path of the trace with this index; `None` if there is no such trace.
    #[must_use]
    pub fn path(&self, index: usize) -> Option<&Path> {
        self.entries.get(index).map(|entry| entry.path.as_path())
    }

    /// The traces that are not in the list, by reason: files that the table of creations does not name, rows of the
    /// table that are malformed or repeated, and Parquet files whose metadata cannot be read. Faults that are found
    /// later, while requests are read, are not included.
    #[must_use]
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Returns the groups of traces that have the same image and size of disk, each as a range of indices, in
    /// ascending order. Plans are made for one such group at a time.
    pub fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.creations.chunk_by(Creation::is_grouped_with).map(move |group| {
            let range = start..start + group.len();
            start = range.end;
            range
        })
    }

    /// Returns a data set of only those traces for which `wanted` returns `true`, given their index and
    /// metadata. [`skipped`](Self::skipped) of the result is empty.
    #[must_use]
    pub fn filter(&self, mut wanted: impl FnMut(usize, &Creation) -> bool) -> Self {
        let all = self.creations.iter().zip(&self.entries).enumerate();
        let some = all.filter(|(index, (creation, _))| wanted(*index, creation));
        let (creations, entries) =
            some.map(|(_, (creation, entry))| (creation.clone(), entry.clone())).unzip();
        Self { entries, creations, skipped: Skipped::default(), limits: self.limits }
    }

    /// Returns a data set of only the traces in a range of indices, such as one of [`DataSet::groups`]. Indices past
    /// the end are left out. [`skipped`](Self::skipped) of the result is empty.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let range = range.start.min(self.len())..range.end.min(self.len());
        let (creations, entries) = (self.creations.get(range.clone()), self.entries.get(range));
        Self {
            entries: entries.unwrap_or_default().to_vec(),
            creations: creations.unwrap_or_default().to_vec(),
            skipped: Skipped::default(),
            limits: self.limits,
        }
    }

    /// Returns the total size of the files of all traces, in bytes. A file whose size cannot be read counts as 0.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let bytes = |entry: &Entry| entry.path.metadata().map_or(0, |meta| meta.len());
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(bytes(entry)))
    }

    /// Reads the trace with this index. The second value is `true` if the trace was not in the order of time and
    /// was sorted.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no trace with this index; an error that describes the fault if the trace
    /// cannot be learned from ([`for_each`](Self::for_each) would skip the trace).
    pub fn read(&self, index: usize) -> Result<(Trace, bool)> {
        self.read_entry(index).map_err(|(_, error)| error)
    }

    fn read_entry(&self, index: usize) -> Result<(Trace, bool), (SkipReason, Error)> {
        let (Some(entry), Some(creation)) = (self.entries.get(index), self.creations.get(index)) else {
            return Err((SkipReason::Missing, Error::invalid(format!("there is no trace {index}"))));
        };
        read::read(&entry.path, entry.form, creation, &self.limits)
            .map_err(|(reason, error)| (reason, error.about(entry.path.display())))
    }

    /// Reads all traces on `threads` threads (0 for the number of processors), and passes them to `each` on the calling
    /// thread, each with its index, in the order of the indices. In place of a trace that is skipped, an error is
    /// passed, which describes the fault. Returns the counts of skipped and of sorted traces, by reason.
    ///
    /// # Errors
    /// The first error of `each`, which ends the reading; an error of the operating system if a thread cannot be
    /// started.
    pub fn for_each(
        &self,
        threads: usize,
        each: impl FnMut(usize, Result<Trace>) -> Result<()>,
    ) -> Result<Skipped> {
        self.map_each(threads, |_, trace| trace, each)
    }

    /// Reads all traces as [`DataSet::for_each`] does, but passes to `each` the results of `map` in place of the
    /// traces. The threads that read the traces call `map`, with the index of the trace and the trace.
    ///
    /// # Errors
    /// Those of [`DataSet::for_each`].
    pub fn map_each<T: Send>(
        &self,
        threads: usize,
        map: impl Fn(usize, Trace) -> T + Sync,
        mut each: impl FnMut(usize, Result<T>) -> Result<()>,
    ) -> Result<Skipped> {
        let mut skipped = Skipped::default();
        let work = |index| self.read_entry(index).map(|(trace, sorted)| (map(index, trace), sorted));
        let mut take = |index, outcome: Outcome<T>| match outcome {
            Ok((made, sorted)) => {
                if sorted {
                    let path = self.path(index).unwrap_or(Path::new(""));
                    skipped.note(SkipReason::Unsorted, path.display());
                }
                each(index, Ok(made))
            }
            Err((reason, error)) => {
                skipped.note(reason, &error);
                each(index, Err(error))
            }
        };
        in_order(self.len(), threads, &work, &mut take)?;
        Ok(skipped)
    }
}

/// The outcome of a trace: its result and `true` if it was sorted, or the reason for which it is skipped.
type Outcome<T> = Result<(T, bool), (SkipReason, Error)>;

/// Processors that this process may use.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Does `count` pieces of work on `threads` threads (0: the number of processors) and takes the results in order
/// on this one. One thread, or one piece of work, is this thread.
///
/// Thread t does the pieces t, t + threads, ...: the turns need no agreement, and each thread's results wait
/// in a short channel of its own. When the taker gives up, it drops the channels' ends, and the threads with them;
/// when a thread panics, its channel ends, and the scope passes the panic on.
pub(crate) fn in_order<T: Send>(
    count: usize,
    threads: usize,
    work: &(impl Fn(usize) -> T + Sync),
    mut take: impl FnMut(usize, T) -> Result<()>,
) -> Result<()> {
    let threads = if threads == 0 { processors() } else { threads }.min(count);
    if threads <= 1 {
        return (0..count).try_for_each(|index| take(index, work(index)));
    }
    thread::scope(|scope| {
        let mut results: Vec<Receiver<T>> = Vec::with_capacity(threads);
        for first in 0..threads {
            let (send, receive): (SyncSender<T>, _) = sync_channel(AHEAD);
            results.push(receive);
            let run = move || (first..count).step_by(threads).try_for_each(|index| send.send(work(index)));
            thread::Builder::new()
                .name(format!("traces-{first}"))
                .spawn_scoped(scope, run)
                .map_err(|e| Error::io("cannot start a thread", e))?;
        }
        let turns = results.iter().cycle();
        for (index, receiver) in (0..count).zip(turns) {
            let Ok(result) = receiver.recv() else { break };
            take(index, result)?;
        }
        Ok(())
    })
}

/// The creation and the entry of a single file.
fn of_file(path: &Path) -> Result<(Creation, Entry)> {
    let entry = |form| Entry { path: path.to_owned(), form };
    if path.extension().is_some_and(|extension| extension == "npy") {
        let volume = fast26::volume_of(path);
        return Ok((Creation { volume, ..Creation::default() }, entry(Form::Bare)));
    }
    Ok((read_creation(path)?, entry(Form::Parquet)))
}

/// The Parquet traces of a directory.
fn of_directory(dir: &Path, limits: &DataSetLimits, skipped: &mut Skipped) -> Result<Vec<(Creation, Entry)>> {
    let paths = TraceDirectory::list(dir)?;
    if paths.len() > limits.traces_max {
        let cause = format!("has more than {} traces", limits.traces_max);
        return Err(Error::invalid(cause).about(dir.display()));
    }
    let mut found = Vec::with_capacity(paths.len());
    for path in paths {
        match read_creation(&path) {
            Ok(creation) => found.push((creation, Entry { path, form: Form::Parquet })),
            Err(error) => skipped.note(SkipReason::of(&error), &error),
        }
    }
    Ok(found)
}

/// The creations of a table.
fn of_table(dir: &Path, skipped: &mut Skipped) -> Result<Vec<(Creation, Entry)>> {
    let listing = fast26::list(dir)?;
    for error in &listing.malformed {
        skipped.note(SkipReason::BadMetadata, error);
    }
    for path in &listing.repeated {
        skipped.note(SkipReason::Repeated, dir.join(path).display());
    }
    for path in &listing.unlisted {
        skipped.note(SkipReason::Unlisted, dir.join(path).display());
    }
    let entry = |path: PathBuf| Entry { path: dir.join(path), form: Form::Listed };
    Ok(listing.creations.into_iter().map(|(path, creation)| (creation, entry(path))).collect())
}
