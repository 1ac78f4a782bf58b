//! A journal that is written beside another, to take its place.

use super::file::{Journal, Written};
use super::group::{self, Chain, FRONT, front, slot_at};
use super::room::{Medium, Room, is_full};
use super::{Record, encode};
use crate::replace::put_in_place;
use crate::{Error, Result};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

/// Bytes that are gathered for a write of a new journal.
const GATHERED: usize = 1 << 20;

/// The path of a journal that is to take the place of the one at `path`.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    PathBuf::from(beside)
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
    pub fn write(&mut self, record: &Record) -> Result<()> {
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
            state = journal.synced.wait(state).unwrap_or_else(PoisonError::into_inner);
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

/// A new journal beside another. It is removed unless it is put in the other's place.
#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    /// The content of the file.
    pub(super) written: Written,
    /// Records that are not in it yet.
    gathered: Vec<u8>,
    in_place: bool,
}

impl Writer {
    pub(super) fn beside(path: &Path, generation: u64) -> Result<Self> {
        // Only the owner may read the places of stored data.
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(beside(path)).and_then(|file| {
            // One may have been left there.
            file.set_permissions(Permissions::from_mode(0o600)).map(|()| file)
        });
        let file = file.map_err(|error| Error::io("cannot make the new one beside it", error))?;
        let file = Arc::new(Medium::of(file));
        let (chain, len) = (Chain::begin(generation), FRONT as u64);
        let written = Written { file, generation, chain, last: len, slot: 0, len };
        // Dropped if this fails, so that the file goes.
        let new = Self { path: path.to_owned(), written, gathered: Vec::new(), in_place: false };
        new.written.file.write(&front(generation), 0).map_err(beside_failed)?;
        Ok(new)
    }

    /// Adds a record, which is known to be durable with all before it once the journal is used.
    pub(super) fn write(&mut self, record: &Record) -> Result<()> {
        encode(record, &mut self.gathered)?;
        if self.gathered.len() >= GATHERED { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let Written { file, chain, last, len, .. } = &mut self.written;
        let mut groups = Vec::with_capacity(self.gathered.len() + group::HEAD);
        *last = *len + chain.append(&self.gathered, &mut groups) as u64;
        file.write(&groups, *len).map_err(beside_failed)?;
        *len += groups.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// Makes all writes until now durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.write_out()?;
        self.written.file.sync_all().map_err(beside_failed)
    }

    /// Adds records as they were appended elsewhere, and the mark that all is there: the file is not read before it is
    /// durable.
    pub(super) fn end(&mut self, records: &[u8]) -> Result<()> {
        self.gathered.extend_from_slice(records);
        self.write_out()?;
        let Written { file, generation, chain, last, slot, .. } = &mut self.written;
        if chain.next > 1 {
            let mark = group::mark(*generation, chain, *last, &[], false);
            file.write(&mark, slot_at(*slot)).map_err(beside_failed)?;
            *slot = 1 - *slot;
        }
        self.sync()
    }

    /// Takes room ahead, as far as there is.
    pub(super) fn room(&self) -> Room {
        self.written.file.room(self.written.len)
    }

    /// Puts it in the other's place, durably. The error comes with `true` if it is unknown which of the two is there.
    pub(super) fn put_in_place(&mut self) -> Result<(), (Error, bool)> {
        let placed = put_in_place(&beside(&self.path), &self.path);
        self.in_place = !matches!(placed, Err((_, false)));
        placed.map_err(|(error, in_place)| {
            let unknown = in_place || !is_full(&error);
            (Error::io("cannot be replaced by the new one", error), unknown)
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.in_place {
            // It takes space, perhaps the last; if it stays, the next one takes its place.
            std::fs::remove_file(beside(&self.path)).unwrap_or_default();
        }
    }
}

fn beside_failed(error: io::Error) -> Error {
    Error::io("cannot write the new one beside it", error)
}
