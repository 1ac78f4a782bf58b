//! A journal that is written beside another, to take its place.

use super::JournalRecord;
use super::file::Journal;
use super::room::Room;
use super::writer::{Writer, beside_failed};
use crate::{Error, ErrorKind, Result};

impl Journal {
    /// Begins to replace all records by fewer that lead to the same state. Records appended from now on are
    /// kept after them. The caller must make sure that between this call and the moment at which it reads the state
    /// to write, only records of vSSDs' maps are appended; otherwise a record is applied twice. The maps
    /// themselves may be read later: recovery skips changes that a snapshot contains.
    ///
    /// # Errors
    /// Conflict if the journal is being rewritten already; an earlier write to the journal failed; the new
    /// file cannot be made.
    pub fn rewriting(&self) -> Result<Rewriting<'_>> {
        let mut state = self.lock();
        self.check(&state)?;
        if state.tail.is_some() {
            let error = Error::new(ErrorKind::Conflict, "it is being rewritten");
            return Err(error.about(self.path.display()));
        }
        state.tail = Some(Vec::new());
        let generation = state.written.generation + 1;
        drop(state);
        Rewriting::new(self, generation)
    }
}

/// A new journal that is written beside the one in use, and that [`Self::finish`] puts in its place. Dropping
/// it before that removes the new file.
#[derive(Debug)]
#[must_use = "it takes the other's place when it is finished"]
pub struct Rewriting<'a> {
    pub(super) new: Writer,
    /// Dropped last: until then no other rewriting makes a file of this name.
    tail: Tail<'a>,
}

impl<'a> Rewriting<'a> {
    /// Begins one; the journal keeps all records that are appended from now on.
    pub(super) fn new(journal: &'a Journal, generation: u64) -> Result<Self> {
        let tail = Tail(journal);
        let new = Writer::beside(&journal.path, generation);
        Ok(Self { new: new.map_err(|error| error.about(journal.path.display()))?, tail })
    }

    /// Adds a record to the new journal.
    ///
    /// # Errors
    /// The new file cannot be written; the record is too long.
    pub fn write(&mut self, record: &JournalRecord) -> Result<()> {
        let Self { new, tail: Tail(journal) } = self;
        new.write(record).map_err(|error| error.about(journal.path.display()))
    }

    /// Adds the records that were appended to the old journal since the rewriting began, and replaces the old file by
    /// the new one. Calls `before` as [`Journal::sync_after`] does: the set of these records is fixed, and they are not
    /// written yet. All records are durable when this returns; other threads' syncs wait for it.
    ///
    /// # Errors
    /// The new file cannot be written, or there is no room to allocate ahead for it: the old one stays in use. After an
    /// error of `before`, or if it is unknown which of the files would be found after a crash, the journal accepts no
    /// more records.
    pub fn finish(mut self, before: impl FnOnce() -> Result<()>) -> Result<()> {
        let Tail(journal) = self.tail;
        // The bulk of it while the other is used.
        self.new.sync().map_err(|error| error.about(journal.path.display()))?;
        let mut state = journal.lock();
        while state.writing {
            journal.synced.wait(&mut state);
        }
        journal.check(&state)?;
        state.writing = true;
        let (batch, upto) = (std::mem::take(&mut state.pending), state.appended);
        let tail = state.tail.as_mut().map(std::mem::take).unwrap_or_default();
        drop(state);
        let mut room = Room::of(0);
        let ready = match before() {
            Ok(()) => self
                .new
                .end(&tail)
                .and_then(|()| {
                    room = self.new.room();
                    // The room of the old one is not available again.
                    room.refusal().map_or(Ok(()), |error| Err(beside_failed(error)))
                })
                .map_err(|error| (error, false)),
            Err(error) => Err((error, true)),
        };
        let placed = ready.and_then(|()| self.new.put_in_place());
        let mut state = journal.lock();
        state.writing = false;
        journal.synced.notify_all();
        match placed {
            Ok(()) => {
                (state.written, state.room) = (self.new.written.clone(), room);
                state.written_len = state.written.len;
                state.durable = upto;
                Ok(())
            }
            Err((error, true)) => {
                state.failed = Some(error.to_string());
                Err(error.about(journal.path.display()))
            }
            Err((error, false)) => {
                state.put_back(batch);
                Err(error.about(journal.path.display()))
            }
        }
    }
}

/// Keeps appended records for a rewriting, until this is dropped.
#[derive(Debug)]
struct Tail<'a>(&'a Journal);

impl Drop for Tail<'_> {
    fn drop(&mut self) {
        self.0.lock().tail = None;
    }
}
