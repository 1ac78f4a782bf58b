//! A journal in a file: appending, syncing together, and replacing the file while it is used.

use super::room::{Medium, Room, is_full};
use super::{End, HEADER, Record, encode, header, reframe, replay};
use crate::replace::put_in_place;
use crate::{Error, ErrorKind, Result};
use std::fs::{File, Permissions};
use std::io::{self, BufReader};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A journal is worth rewriting when it is so many times as long as it was when it was written...
const GROWN_TIMES: u64 = 2;
/// ... and has so many bytes more.
const GROWN_BYTES: u64 = 1 << 20;
/// A buffer of more bytes is not kept for the next batch.
const KEPT: usize = 1 << 20;
/// Bytes that are gathered for a write of a new journal.
const GATHERED: usize = 1 << 20;

/// How much was appended to a journal, since it was opened: what is to be synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

/// A journal in a file. All methods may be called from any thread; those who sync at the same time share a sync.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    state: Mutex<State>,
    synced: Condvar,
}

#[derive(Debug)]
struct State {
    file: Arc<Medium>,
    room: Room,
    /// Frames that were not written yet.
    pending: Vec<u8>,
    /// The file's length, without `pending`, and with what is being written.
    len: u64,
    /// The file's length as last synced.
    durable_len: u64,
    /// Its length when it was last rewritten.
    written_len: u64,
    appended: Lsn,
    durable: Lsn,
    writing: bool,
    /// Why it failed once: then nobody knows what is in the file.
    failed: Option<String>,
    /// Frames appended since it began to be rewritten, while it is.
    tail: Option<Vec<u8>>,
}

impl State {
    /// Where the file ends when all is written.
    fn end(&self) -> u64 {
        self.len + self.pending.len() as u64
    }

    /// What was to be written waits again, before what was appended since.
    fn put_back(&mut self, batch: Vec<u8>) {
        let later = std::mem::replace(&mut self.pending, batch);
        self.pending.extend_from_slice(&later);
    }
}

impl Journal {
    /// Makes a journal that begins with these records, in place of one that may be there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create<'a>(path: &Path, records: impl IntoIterator<Item = &'a Record>) -> Result<Self> {
        let create = || -> Result<Self> {
            let mut new = Writer::beside(path)?;
            records.into_iter().try_for_each(|record| new.write(record))?;
            new.end(&mut [])?;
            // Where there is none, who needs it will hear of it.
            let room = new.room();
            new.put_in_place().map_err(|(error, _)| error)?;
            Ok(Self::over(path, Arc::clone(&new.file), room, new.len, new.len))
        };
        create().map_err(|error| error.about(path.display()))
    }

    /// Opens a journal, hands its records over in order, and cuts off its torn tail.
    ///
    /// # Errors
    /// As [`replay`], or the file cannot be opened or cut.
    pub fn open(path: &Path, each: impl FnMut(Record) -> Result<()>) -> Result<(Self, End)> {
        let open = || -> Result<(File, End)> {
            let file = File::options().read(true).write(true).open(path);
            let file = file.map_err(|error| Error::io("cannot open it", error))?;
            let end = replay(BufReader::with_capacity(GATHERED, &file), each)?;
            if end.torn.is_some() {
                file.set_len(end.end).map_err(|error| Error::io("cannot cut off its torn end", error))?;
            }
            // What was written may not have been durable: from here on it is relied upon.
            file.sync_all().map_err(|error| Error::io("cannot sync it", error))?;
            Ok((file, end))
        };
        let (file, end) = open().map_err(|error| error.about(path.display()))?;
        let file = Medium::of(file);
        let room = file.room(end.end);
        Ok((Self::over(path, Arc::new(file), room, end.end, HEADER as u64), end))
    }

    fn over(path: &Path, file: Arc<Medium>, room: Room, len: u64, written_len: u64) -> Self {
        let state = State {
            file,
            room,
            pending: Vec::new(),
            len,
            durable_len: len,
            written_len,
            appended: Lsn(0),
            durable: Lsn(0),
            writing: false,
            failed: None,
            tail: None,
        };
        Self { path: path.to_owned(), state: Mutex::new(state), synced: Condvar::new() }
    }

    /// Appends a record; [`Journal::sync`] makes it durable.
    ///
    /// # Errors
    /// The journal failed before, or the record is too long.
    pub fn append(&self, record: &Record) -> Result<Lsn> {
        let mut state = self.lock();
        self.check(&state)?;
        let (before, synced) = (state.pending.len(), state.durable_len);
        encode(record, synced, &mut state.pending)?;
        let State { pending, tail, appended, .. } = &mut *state;
        if let Some(tail) = tail {
            tail.extend_from_slice(&pending[before..]);
        }
        appended.0 += (pending.len() - before) as u64;
        Ok(*appended)
    }

    /// Makes all durable that was appended up to `lsn`, and whatever others appended meanwhile.
    ///
    /// # Errors
    /// NoSpace where its file system is full: nothing is lost, and it can be called again. Otherwise the file cannot be
    /// written: nothing that was not durable before may be relied upon, and the journal takes no more; what the file
    /// holds is known when it is opened again.
    pub fn sync(&self, lsn: Lsn) -> Result<()> {
        self.sync_after(lsn, || Ok(()))
    }

    /// As [`Journal::sync`], with something to be done when it is settled which records are written, and before they
    /// are: what they speak of is made durable first.
    ///
    /// # Errors
    /// As [`Journal::sync`]; what `before` says, which counts as if the file could not be written.
    pub fn sync_after(&self, lsn: Lsn, before: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        loop {
            self.check(&state)?;
            if state.durable >= lsn {
                return Ok(());
            }
            if !state.writing {
                break;
            }
            state = self.synced.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        let (batch, at, upto) = (std::mem::take(&mut state.pending), state.len, state.appended);
        state.len += batch.len() as u64;
        let len = state.len;
        let wanted = if state.room.refusal().is_none() { state.room.wanted(len) } else { None };
        let file = Arc::clone(&state.file);
        drop(state);
        let given = wanted.map(|wanted| (wanted, file.take(wanted)));
        let written = before().map(|()| file.write(&batch, at).and_then(|()| file.sync_data()));
        let mut state = self.lock();
        state.writing = false;
        if let Some((wanted, given)) = given {
            state.room.asked(wanted, &given);
        }
        match written {
            Ok(Ok(())) => {
                (state.durable, state.durable_len) = (upto, at + batch.len() as u64);
                state.room.written();
                // The buffer is kept for the next batch.
                if state.pending.is_empty() && batch.capacity() <= KEPT {
                    state.pending = batch;
                    state.pending.clear();
                }
            }
            Ok(Err(error)) if is_full(&error) => {
                // What came through of it is written over.
                state.len = at;
                state.room.refused(&error, at + batch.len() as u64);
                state.put_back(batch);
                self.synced.notify_all();
                return Err(self.full(error));
            }
            Ok(Err(error)) => state.failed = Some(Error::io("it cannot be written", error).to_string()),
            Err(error) => state.failed = Some(error.to_string()),
        }
        self.synced.notify_all();
        self.check(&state)
    }

    /// Appends a record and makes it durable.
    ///
    /// # Errors
    /// As [`Journal::append`] and [`Journal::sync`].
    pub fn write(&self, record: &Record) -> Result<()> {
        let lsn = self.append(record)?;
        self.sync(lsn)
    }

    /// Up to where it was appended to.
    #[must_use]
    pub fn appended(&self) -> Lsn {
        self.lock().appended
    }

    /// Up to where it is durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.lock().durable
    }

    /// Bytes of the file, with what waits to be written.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.lock().end()
    }

    /// Whether so many bytes can be appended, and so many more be left for others; takes room on its file system where
    /// that is not so. Once that was refused it is not asked again, but by [`Journal::look_for_room`].
    ///
    /// # Errors
    /// NoSpace where its file system is full; the journal failed before.
    pub fn check_room(&self, bytes: u64, others: u64) -> Result<()> {
        let state = self.lock();
        self.check(&state)?;
        let needed = bytes.saturating_add(others);
        if state.room.left(state.end()) >= needed {
            return Ok(());
        }
        let state = if state.room.refusal().is_none() { self.take_room(state, bytes) } else { state };
        match state.room.refusal() {
            Some(error) if state.room.left(state.end()) < needed => Err(self.full(error)),
            _ => Ok(()),
        }
    }

    /// Takes room ahead where there is little; to be called now and then, so that all goes on when there is room again.
    /// The error that those get who need it where there is none.
    pub fn look_for_room(&self) -> Option<Error> {
        let state = self.lock();
        let state = self.take_room(state, 0);
        state.room.refusal().map(|error| self.full(error))
    }

    fn take_room<'a>(&'a self, mut state: MutexGuard<'a, State>, bytes: u64) -> MutexGuard<'a, State> {
        let end = state.end().saturating_add(bytes);
        let Some(wanted) = state.room.wanted(end) else { return state };
        let file = Arc::clone(&state.file);
        drop(state);
        let given = file.take(wanted);
        let mut state = self.lock();
        // It may have been replaced.
        if Arc::ptr_eq(&file, &state.file) {
            state.room.asked(wanted, &given);
        }
        state
    }

    fn full(&self, error: io::Error) -> Error {
        Error::new(ErrorKind::NoSpace, "its file system is full, and no record can be added")
            .caused_by(error)
            .about(self.path.display())
            .remedy(
                "make room there, and all goes on by itself; vSSDs can be trimmed and deleted, and leases released, \
                 meanwhile",
            )
    }

    /// Whether it has grown so much that it should be rewritten.
    #[must_use]
    pub fn has_grown(&self) -> bool {
        let state = self.lock();
        state.len >= state.written_len * GROWN_TIMES && state.len - state.written_len >= GROWN_BYTES
    }

    /// Begins to replace all records by others that lead to the same state. What is appended from now on follows them:
    /// who calls this sees to it that nobody appends between this call and his look at the state; of a vSSD's map a
    /// later look does as well.
    ///
    /// # Errors
    /// Conflict where it is being rewritten; the journal failed before; the new file cannot be made.
    pub fn rewriting(&self) -> Result<Rewriting<'_>> {
        let mut state = self.lock();
        self.check(&state)?;
        if state.tail.is_some() {
            let error = Error::new(ErrorKind::Conflict, "it is being rewritten");
            return Err(error.about(self.path.display()));
        }
        state.tail = Some(Vec::new());
        drop(state);
        let tail = Tail(self);
        let new = Writer::beside(&self.path).map_err(|error| error.about(self.path.display()))?;
        Ok(Rewriting { new, tail })
    }

    fn check(&self, state: &State) -> Result<()> {
        match &state.failed {
            None => Ok(()),
            Some(cause) => Err(Error::new(ErrorKind::Io, format!("a write to it failed: {cause}"))
                .about(self.path.display())
                .remedy("see to its disk, then start again")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a journal is written that is to take the place of the one at `path`.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    PathBuf::from(beside)
}

/// A journal that is written beside one that is used, to take its place. Given up where it is dropped.
#[derive(Debug)]
#[must_use = "it takes the other's place when it is finished"]
pub struct Rewriting<'a> {
    new: Writer,
    /// Dropped last: until then nobody else makes a file of this name.
    tail: Tail<'a>,
}

impl Rewriting<'_> {
    /// Adds a record.
    ///
    /// # Errors
    /// The new file cannot be written; the record is too long.
    pub fn write(&mut self, record: &Record) -> Result<()> {
        let Self { new, tail: Tail(journal) } = self;
        new.write(record).map_err(|error| error.about(journal.path.display()))
    }

    /// Adds what was appended since this was begun, and puts it in the other's place. `before` is done when it is
    /// settled what that is, and before it is written, as in [`Journal::sync_after`]. All of it is durable when this
    /// returns. Who syncs meanwhile waits.
    ///
    /// # Errors
    /// The new file cannot be written, and the old one is used as before. Or what `before` says; or it is not known
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
        let mut tail = state.tail.as_mut().map(std::mem::take).unwrap_or_default();
        drop(state);
        let mut room = Room::of(0);
        let ready = match before() {
            Ok(()) => self
                .new
                .end(&mut tail)
                .and_then(|()| {
                    room = self.new.room();
                    // What the old one has is not to be had again.
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
                let len = self.new.len;
                reframe(&mut state.pending, |_| len);
                (state.file, state.room) = (Arc::clone(&self.new.file), room);
                (state.len, state.durable_len, state.written_len) = (len, len, len);
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

/// What is appended is kept for a rewriting, until this is dropped.
#[derive(Debug)]
struct Tail<'a>(&'a Journal);

impl Drop for Tail<'_> {
    fn drop(&mut self) {
        self.0.lock().tail = None;
    }
}

/// A new journal beside another. What is not put in its place is removed.
#[derive(Debug)]
struct Writer {
    path: PathBuf,
    file: Arc<Medium>,
    /// What is not in the file yet.
    gathered: Vec<u8>,
    /// Bytes, with those.
    len: u64,
    in_place: bool,
}

impl Writer {
    fn beside(path: &Path) -> Result<Self> {
        // Who stores what where is for nobody else to read.
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(beside(path)).and_then(|file| {
            // One may have been left there.
            file.set_permissions(Permissions::from_mode(0o600)).map(|()| file)
        });
        let file = file.map_err(|error| Error::io("cannot make the new one beside it", error))?;
        let gathered = header().to_vec();
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(Medium::of(file)),
            gathered,
            len: HEADER as u64,
            in_place: false,
        })
    }

    /// Adds a record, which is known to be durable with all before it once the journal is used.
    fn write(&mut self, record: &Record) -> Result<()> {
        let before = self.gathered.len();
        encode(record, self.len, &mut self.gathered)?;
        self.len += (self.gathered.len() - before) as u64;
        if self.gathered.len() >= GATHERED { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        let at = self.len - self.gathered.len() as u64;
        self.file.write(&self.gathered, at).map_err(beside_failed)?;
        self.gathered.clear();
        Ok(())
    }

    /// Makes durable what was written until now.
    fn sync(&mut self) -> Result<()> {
        self.write_out()?;
        self.file.sync_all().map_err(beside_failed)
    }

    /// Adds frames as they were appended elsewhere, and the end.
    fn end(&mut self, frames: &mut [u8]) -> Result<()> {
        let begin = self.len;
        reframe(frames, |at| begin + at as u64);
        self.gathered.extend_from_slice(frames);
        self.len += frames.len() as u64;
        self.write(&Record::Whole)?;
        self.sync()
    }

    /// Takes room ahead, as far as there is.
    fn room(&self) -> Room {
        self.file.room(self.len)
    }

    /// Puts it in the other's place, durably. Where that fails, with whether nobody knows which is there.
    fn put_in_place(&mut self) -> Result<(), (Error, bool)> {
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
            // It takes space, perhaps the last; where it stays, the next one takes its place.
            std::fs::remove_file(beside(&self.path)).unwrap_or_default();
        }
    }
}

fn beside_failed(error: io::Error) -> Error {
    Error::io("cannot write the new one beside it", error)
}

#[cfg(test)]
mod tests;
