//! The journal's file.

use super::{FRONT, JournalEnd, MARK, VERSION, front, replay, slot_at};
use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::table::SnapshotChange;
use headstart_block::{Error, Result, private, sync_dir_of};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of records from which on a journal is rewritten, if it has grown to four times of what the last rewriting
/// left.
const REWRITTEN_FROM: u64 = 1 << 20;

/// A journal that is open for appending.
#[derive(Debug)]
pub struct SnapshotJournal {
    path: PathBuf,
    file: File,
    end: JournalEnd,
    /// The file's length at which it is worth rewriting.
    rewritten_at: u64,
    /// The reason for which nothing more can be recorded.
    broken: Option<String>,
}

/// The repairs that were made when a journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalReport {
    /// Bytes of an incomplete record, which a crash had left at the end, and which were cut off.
    pub torn: u64,
    /// The number of broken records that were restored from their copies.
    pub restored: usize,
    /// `true` if the first bytes were damaged and were restored from their copy.
    pub is_front_restored: bool,
}

/// The path of the file that is written in place of another.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

impl SnapshotJournal {
    /// Opens the journal at `path`, or begins one, and calls `each` with its changes. `None` in place of a report if
    /// there was none.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] with the place and the remedy if the journal is damaged; errors of
    /// `each`; errors of the operating system.
    pub fn open(
        path: &Path,
        each: impl FnMut(SnapshotChange) -> Result<()>,
    ) -> Result<(Self, Option<JournalReport>)> {
        let about = |error: Error| error.about(path.display());
        let failed = |error| about(Error::io("cannot open the journal", error));
        match fs::remove_file(beside(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (file, end) = replace(path, 1, std::iter::empty()).map_err(about)?;
                sync_dir_of(path).map_err(failed)?;
                return Ok((Self::new(path, file, end), None));
            }
            Err(error) => return Err(failed(error)),
        };
        let mut end = replay(&bytes, each).map_err(about)?;
        let report = JournalReport {
            torn: end.torn,
            restored: end.restored.len(),
            is_front_restored: end.is_front_restored,
        };
        let file = private::options().read(true).write(true).open(path).map_err(failed)?;
        if report != JournalReport::default() {
            mend(&file, &mut end).map_err(|error| about(Error::io("cannot mend the journal", error)))?;
        }
        Ok((Self::new(path, file, end), Some(report)))
    }

    fn new(path: &Path, file: File, end: JournalEnd) -> Self {
        let rewritten_at = FRONT as u64 + REWRITTEN_FROM.max((end.end - FRONT as u64).saturating_mul(4));
        Self { path: path.to_owned(), file, end, rewritten_at, broken: None }
    }

    /// The reason for which nothing more can be recorded; `None` as long as all is well.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Appends a change and makes it durable.
    ///
    /// # Errors
    /// [`FaultKind::Failed`]: the change is not recorded, such as for lack of space; [`FaultKind::Unavailable`]: it is
    /// unknown whether it is, as the file system failed, and nothing more can be recorded until the journal is opened
    /// again; [`FaultKind::InvalidArgument`] if the change is too long.
    pub fn append(&mut self, change: &SnapshotChange) -> FaultResult<()> {
        self.check()?;
        let record = self.end.record(change);
        let record =
            record.map_err(|error| SnapshotFault::new(FaultKind::InvalidArgument, error.to_string()))?;
        if let Err(error) = self.file.write_all_at(&record, self.end.end) {
            // A part of it may be there, and must not be once the next is written.
            if let Err(error) = self.file.set_len(self.end.end) {
                return Err(self.breaks(&error));
            }
            let error = Error::io("cannot write the journal", error).about(self.path.display());
            return Err(error.into());
        }
        let written = write_mark(&self.file, &self.end, &record).and_then(|()| self.file.sync_data());
        written.map_err(|error| self.breaks(&error))?;
        self.end.follow(&record);
        self.end.slot ^= 1;
        Ok(())
    }

    /// `true` if the journal is of an earlier version: it has to be rewritten before changes are appended that this
    /// version does not know.
    #[must_use]
    pub fn is_of_earlier_version(&self) -> bool {
        self.end.version < VERSION
    }

    /// `true` if the journal has grown so far that it is worth rewriting.
    #[must_use]
    pub fn has_grown(&self) -> bool {
        self.broken.is_none() && self.end.end > self.rewritten_at
    }

    /// Replaces the journal by one of `changes`, which lead to the same table.
    ///
    /// # Errors
    /// [`FaultKind::Failed`]: the journal is as before, and goes on; [`FaultKind::Unavailable`]: nothing more can be
    /// recorded until the journal is opened again.
    pub fn rewrite(&mut self, changes: impl Iterator<Item = SnapshotChange>) -> FaultResult<()> {
        self.check()?;
        // Not again at once if it fails.
        self.rewritten_at = self.rewritten_at.saturating_mul(2);
        let replaced = replace(&self.path, self.end.generation + 1, changes);
        let (file, end) = replaced.map_err(|error| SnapshotFault::from(error.about(self.path.display())))?;
        *self = Self::new(&self.path, file, end);
        sync_dir_of(&self.path).map_err(|error| self.breaks(&error))
    }

    fn check(&self) -> FaultResult<()> {
        self.broken
            .as_ref()
            .map_or(Ok(()), |text| Err(SnapshotFault::new(FaultKind::Unavailable, text.clone())))
    }

    /// Nothing more is recorded: the file may differ from what this process knows of it.
    fn breaks(&mut self, error: &io::Error) -> SnapshotFault {
        let text =
            format!("{}: cannot be made durable ({error}): start the snapshotter again", self.path.display());
        self.broken = Some(text.clone());
        SnapshotFault::new(FaultKind::Unavailable, text)
    }
}

/// Writes the mark of `record`, which is at the journal's end.
fn write_mark(file: &File, end: &JournalEnd, record: &[u8]) -> io::Result<()> {
    let mark = end.mark(record);
    if mark.len() == MARK {
        // Without a copy, the mark must not be durable before the record.
        file.sync_data()?;
    }
    file.write_all_at(&mark, slot_at(end.slot) as u64)
}

/// Writes a whole journal, durably, and puts it at `path`. The directory is not durable yet.
fn replace(
    path: &Path,
    generation: u64,
    changes: impl Iterator<Item = SnapshotChange>,
) -> Result<(File, JournalEnd)> {
    let mut end = JournalEnd::new(VERSION, generation);
    let mut bytes = front(VERSION, generation);
    for change in changes {
        let record = end.record(&change)?;
        let mark = end.mark(&record);
        let slot = slot_at(end.slot);
        bytes[slot..slot + mark.len()].copy_from_slice(&mark);
        bytes.extend_from_slice(&record);
        end.follow(&record);
        end.slot ^= 1;
    }
    let write = || {
        let new = beside(path);
        let file = private::options().read(true).write(true).create(true).truncate(true).open(&new)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        Ok(file)
    };
    let file = write().map_err(|error| Error::io("cannot write the journal", error))?;
    Ok((file, end))
}

/// Makes the file what [`replay`] read from it.
fn mend(file: &File, end: &mut JournalEnd) -> io::Result<()> {
    if end.is_front_restored {
        // The marks stay, and so does the copy that gave these bytes.
        let front = front(end.version, end.generation);
        file.write_all_at(&front[..super::IDENTITY], 0)?;
    }
    for (at, record) in end.restored.drain(..) {
        file.write_all_at(&record, at)?;
    }
    // Records that were restored at the end made the file longer.
    if end.torn > 0 {
        file.set_len(end.end)?;
    }
    end.torn = 0;
    file.sync_all()
}
