//! A journal that is written beside another, to take its place.

use super::JournalRecord;
use super::file::Journal;
use super::room::Room;
use super::writer::{Writer, beside_failed};
use crate::{Error, ErrorKind, Result};

impl Journal {
    /// Begins to replace all records by others that lead to the same state. Records that are appended from now on
    /// follow them: the caller makes sure that nothing is appended between this call and its own look at the state; of
    /// a vSSD's map a later look does as well.
    ///
    /// # Errors
    /// Conflict if it is being rewritten; the journal failed before; the new file cannot be made.
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

/// A journal that is written beside one that is used, to take its place. Dropping it gives it up.
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

    /// Adds a record.
    ///
    /// # Errors
    /// The new file cannot be written; the record is too long.
    pub fn write(&mut self, record: &JournalRecord) -> Result<()> {
        let Self { new, tail: Tail(journal) } = self;
        new.write(record).map_err(|error| error.about(journal.path.display()))
    }

    /// Adds the records that were appended since this was begun, and puts it in the other's place. `before` is called
    /// when these records are settled, and before they are written, as in [`Journal::sync_after`]. All of it is durable
    /// when this returns. Calls that sync meanwhile wait.
    ///
    /// # Errors
    /// The new file cannot be written, and the old one is used as before. Or errors of `before`; or it is not known
    /// which of the two is there after a crash: then the journal takes no more.
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
