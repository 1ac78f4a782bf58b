//! The parts of a data set that are no traces to learn from: the reasons, their counts, and examples.

use headstart_block::{Error, ErrorKind};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The maximum number of examples that are kept for one reason.
pub const EXAMPLES_MAX: usize = 5;

/// The reason for which a trace was skipped. [`SkipReason::Unsorted`] is the exception: such a trace was
/// sorted by time, and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    /// The file is cut short, or its bytes are damaged; in a Parquet file also a row that is not a request.
    Damaged,
    /// The file is not a trace that can be read: its numbers have another type or shape, or its version is
    /// newer.
    WrongType,
    /// The file has more bytes or requests than the limits allow.
    TooLarge,
    /// There is no file for a creation that the table names, or the file was removed after it was listed.
    Missing,
    /// There is a file, but the table of creations does not name it.
    Unlisted,
    /// The row of the trace in the table of creations is malformed.
    BadMetadata,
    /// The table of creations names the trace twice; the first row counts.
    Repeated,
    /// The operating system cannot read the file, or the path in the table of creations leads to something other than a
    /// file.
    Unreadable,
    /// The trace has no requests.
    Empty,
    /// A time is before 1970, or longer after the creation than the limits allow.
    Time,
    /// A row of a NumPy file is neither a read nor a write, or its range is impossible; or a read of any file is longer
    /// than 1 GiB.
    NoRequest,
    /// A request reaches beyond the end of the disk, or beyond the first PiB.
    PastDisk,
    /// The trace was not skipped: its requests were not in the order of time, and were sorted.
    Unsorted,
}

impl SkipReason {
    /// Returns a description for people, such as `cut short or damaged`.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Damaged => "cut short or damaged",
            Self::WrongType => "of another kind than traces are",
            Self::TooLarge => "larger than the limits allow",
            Self::Missing => "named, but not there",
            Self::Unlisted => "there, but without metadata",
            Self::BadMetadata => "with metadata that make no sense",
            Self::Repeated => "named twice",
            Self::Unreadable => "not given out by the operating system",
            Self::Empty => "without requests",
            Self::Time => "with a time before 1970 or long after the creation",
            Self::NoRequest => "with a row that is not a request",
            Self::PastDisk => "with a request past the end of the disk",
            Self::Unsorted => "not in the order of time: sorted",
        }
    }

    /// The reason that an error of reading a file stands for.
    pub(super) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Corrupt => Self::Damaged,
            ErrorKind::Unsupported => Self::WrongType,
            ErrorKind::Invalid => Self::TooLarge,
            ErrorKind::NotFound => Self::Missing,
            _ => Self::Unreadable,
        }
    }
}

/// The number of traces that were skipped for one reason, with examples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The number of traces.
    pub count: u64,
    /// Messages about the first of these traces, at most [`EXAMPLES_MAX`]; each names the file.
    pub examples: Vec<String>,
}

/// The traces of a data set that were skipped or sorted, counted by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Skipped {
    reasons: BTreeMap<SkipReason, Count>,
}

impl Skipped {
    /// Counts a trace for `reason`. The message `example` is kept if fewer than [`EXAMPLES_MAX`] messages are kept for
    /// this reason so far.
    pub fn note(&mut self, reason: SkipReason, example: impl fmt::Display) {
        let count = self.reasons.entry(reason).or_default();
        count.count += 1;
        if count.examples.len() < EXAMPLES_MAX {
            count.examples.push(example.to_string());
        }
    }

    /// Adds the counts and examples of another part of a data set.
    pub fn add(&mut self, other: &Self) {
        for (reason, more) in &other.reasons {
            let count = self.reasons.entry(*reason).or_default();
            count.count += more.count;
            let room = EXAMPLES_MAX.saturating_sub(count.examples.len());
            count.examples.extend(more.examples.iter().take(room).cloned());
        }
    }

    /// Returns the number of traces with this reason.
    #[must_use]
    pub fn count(&self, reason: SkipReason) -> u64 {
        self.reasons.get(&reason).map_or(0, |count| count.count)
    }

    /// Returns the number of all skipped traces; those that were only sorted do not count.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reasons()
            .filter(|(reason, _)| *reason != SkipReason::Unsorted)
            .fold(0, |sum, (_, count)| sum.saturating_add(count.count))
    }

    /// Returns the number of traces that were not in the order of time and were sorted.
    #[must_use]
    pub fn mended(&self) -> u64 {
        self.count(SkipReason::Unsorted)
    }

    /// Returns the reasons that occurred, in the order of [`SkipReason`], with their counts and examples.
    pub fn reasons(&self) -> impl Iterator<Item = (SkipReason, &Count)> {
        self.reasons.iter().map(|(reason, count)| (*reason, count))
    }

    /// Returns `true` if no trace was skipped or sorted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// A line for each reason, and below it examples.
impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (reason, Count { count, examples })) in self.reasons().enumerate() {
            let verb = if reason == SkipReason::Unsorted { "mended" } else { "skipped" };
            let line_end = if at == 0 { "" } else { "\n" };
            write!(f, "{line_end}{verb} {count} {}", reason.text())?;
            for example in examples {
                write!(f, "\n  {example}")?;
            }
        }
        Ok(())
    }
}
