//! A journal in a file: appending, syncing together, and replacing the file while it is used.

use super::{End, HEADER, Record, encode, header, reframe, replay};
use crate::replace::put_in_place;
use crate::{Error, ErrorKind, Result};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;
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
    file: Arc<File>,
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
            new.put_in_place()?;
            Ok(Self::over(path, Arc::clone(&new.file), new.len, new.len))
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
        Ok((Self::over(path, Arc::new(file), end.end, HEADER as u64), end))
    }

    fn over(path: &Path, file: Arc<File>, len: u64, written_len: u64) -> Self {
        let state = State {
            file,
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
    /// The file cannot be written. Nothing that was not durable before may be relied upon, and the journal takes no
    /// more: what the file holds is known when it is opened again.
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
        let file = state.file.clone();
        drop(state);
        let written = before().and_then(|()| {
            let written = file.write_all_at(&batch, at).and_then(|()| file.sync_data());
            written.map_err(|error| Error::io("it cannot be written", error))
        });
        let mut state = self.lock();
        state.writing = false;
        match written {
            Ok(()) => (state.durable, state.durable_len) = (upto, at + batch.len() as u64),
            Err(error) => state.failed = Some(error.to_string()),
        }
        // The buffer is kept for the next batch.
        if state.pending.is_empty() && batch.capacity() <= KEPT {
            state.pending = batch;
            state.pending.clear();
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
        let state = self.lock();
        state.len + state.pending.len() as u64
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
        let ready = match before() {
            Ok(()) => self.new.end(&mut tail).map_err(|error| (error, false)),
            Err(error) => Err((error, true)),
        };
        let placed = ready.and_then(|()| self.new.put_in_place().map_err(|error| (error, true)));
        let mut state = journal.lock();
        state.writing = false;
        journal.synced.notify_all();
        match placed {
            Ok(()) => {
                let len = self.new.len;
                reframe(&mut state.pending, |_| len);
                state.file = Arc::clone(&self.new.file);
                (state.len, state.durable_len, state.written_len) = (len, len, len);
                state.durable = upto;
                Ok(())
            }
            Err((error, true)) => {
                state.failed = Some(error.to_string());
                Err(error.about(journal.path.display()))
            }
            Err((error, false)) => {
                let later = std::mem::replace(&mut state.pending, batch);
                state.pending.extend_from_slice(&later);
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
    file: Arc<File>,
    /// What is not in the file yet.
    gathered: Vec<u8>,
    /// Bytes, with those.
    len: u64,
    in_place: bool,
}

impl Writer {
    fn beside(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(beside(path));
        let file = file.map_err(|error| Error::io("cannot make the new one beside it", error))?;
        let gathered = header().to_vec();
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(file),
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
        self.file.write_all_at(&self.gathered, at).map_err(beside_failed)?;
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

    /// Puts it in the other's place, durably.
    fn put_in_place(&mut self) -> Result<()> {
        let placed = put_in_place(&beside(&self.path), &self.path);
        placed.map_err(|error| Error::io("cannot be replaced by the new one", error))?;
        self.in_place = true;
        Ok(())
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
