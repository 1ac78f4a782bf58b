//! A journal in a file: appending, syncing together, and replacing the file while it is used.

use super::group::{self, FRONT};
use super::room::{Medium, Room, is_full};
use super::writer::{Writer, Written};
use super::{End, JournalRecord, VERSION, encode, old, replay};
use crate::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A journal is worth rewriting when it is this many times as long as when it was written...
const GROWN_TIMES: u64 = 2;
/// ... and has this many bytes more.
const GROWN_BYTES: u64 = 1 << 20;
/// A buffer of more bytes is not kept for the next batch.
const KEPT: usize = 1 << 20;
/// Bytes that are read at a time.
const READ: usize = 1 << 20;

/// A position in a journal: the number of bytes that were appended since it was opened. [`Journal::sync`]
/// takes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

/// A journal in a file. All methods may be called from any thread. Threads that call [`Self::sync`] at the same time
/// share one sync.
#[derive(Debug)]
pub struct Journal {
    pub(super) path: PathBuf,
    state: Mutex<State>,
    pub(super) synced: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    /// The file as it is, or will be after the present write.
    pub(super) written: Written,
    pub(super) room: Room,
    /// Records that were not written yet.
    pub(super) pending: Vec<u8>,
    /// A buffer for groups.
    groups: Vec<u8>,
    /// The file's length when it was last rewritten.
    pub(super) written_len: u64,
    pub(super) appended: Lsn,
    pub(super) durable: Lsn,
    pub(super) writing: bool,
    /// The reason of a first failure: after it the content of the file is unknown.
    pub(super) failed: Option<String>,
    /// Records appended since it began to be rewritten, while it is.
    pub(super) tail: Option<Vec<u8>>,
}

impl State {
    /// The offset at which the file ends when all is written.
    fn end(&self) -> u64 {
        let heads = self.pending.len().div_ceil(READ) * group::HEAD;
        self.written.len + (self.pending.len() + heads) as u64
    }

    /// Keeps buffers for the next batch.
    fn keep(&mut self, batch: Vec<u8>, groups: Vec<u8>) {
        if self.pending.is_empty() && batch.capacity() <= KEPT {
            self.pending = batch;
            self.pending.clear();
        }
        if groups.capacity() <= KEPT {
            self.groups = groups;
        }
    }

    /// Puts a batch back that was not written, before the records that were appended since.
    pub(super) fn put_back(&mut self, batch: Vec<u8>) {
        let later = std::mem::replace(&mut self.pending, batch);
        self.pending.extend_from_slice(&later);
    }
}

/// Puts right all parts of a journal's file that can be put right for certain, and cuts off its torn tail.
fn mend(file: &File, end: &End) -> Result<()> {
    let failed = |error| Error::io("cannot put it right", error);
    debug_assert_eq!(end.version, VERSION, "others are replaced");
    if end.front_restored {
        file.write_all_at(&group::front(end.generation)[..group::IDENTITY], 0).map_err(failed)?;
    }
    for (at, group) in &end.restored {
        file.write_all_at(group, *at).map_err(failed)?;
    }
    if end.torn.is_some() {
        file.set_len(end.end).map_err(|error| Error::io("cannot cut off its torn end", error))?;
    }
    // Written bytes may not have been durable: from here on they are relied upon.
    file.sync_all().map_err(|error| Error::io("cannot sync it", error))
}

impl Journal {
    /// Makes a journal at `path` that begins with `records`. A journal that is already there is replaced.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create<'a>(path: &Path, records: impl IntoIterator<Item = &'a JournalRecord>) -> Result<Self> {
        let create = || -> Result<Self> {
            let mut new = Writer::beside(path, 1)?;
            records.into_iter().try_for_each(|record| new.write(record))?;
            Self::placed(path, new)
        };
        create().map_err(|error| error.about(path.display()))
    }

    /// The journal that was written, in its place.
    fn placed(path: &Path, mut new: Writer) -> Result<Self> {
        new.end(&[])?;
        // If there is none, callers that need it will get the error.
        let room = new.room();
        new.put_in_place().map_err(|(error, _)| error)?;
        let len = new.written.len;
        Ok(Self::over(path, new.written.clone(), room, len))
    }

    /// Opens a journal, and calls `each` with its records in order. Damage for which the journal has a copy is put
    /// right, and an incomplete end is cut off. A journal of an earlier version is replaced by one of this version. The
    /// mark that the journal was closed is removed, durably. Returns the journal, and its end as it was found.
    ///
    /// # Errors
    /// As [`replay`]; the file cannot be opened or repaired.
    pub fn open(path: &Path, each: impl FnMut(JournalRecord) -> Result<()>) -> Result<(Self, End)> {
        Self::open_any(path, each).map_err(|error| error.about(path.display()))
    }

    fn open_any(path: &Path, mut each: impl FnMut(JournalRecord) -> Result<()>) -> Result<(Self, End)> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| Error::io("cannot open it", error))?;
        let mut reader = BufReader::with_capacity(READ, &file);
        let mut head = Vec::new();
        super::fill(&mut reader, &mut head, 16)?;
        let is_old = old::is_old(&head);
        let all = head.chain(reader);
        if is_old {
            let mut new = Writer::beside(path, 1)?;
            let end = replay(all, |record| {
                new.write(&record)?;
                each(record)
            })?;
            let cannot =
                |error: Error| error.remedy("make room on its disk: it is written again in a new form");
            return Ok((Self::placed(path, new).map_err(cannot)?, end));
        }
        let end = replay(all, each)?;
        mend(&file, &end)?;
        let written = Written {
            file: Arc::new(Medium::of(file)),
            generation: end.generation,
            chain: end.chain,
            last: end.last,
            slot: end.slot,
            len: end.end,
        };
        if end.closed {
            // Over each mark that declares it closed, and never over the only one: a crash may follow before anything
            // is appended.
            let other = Some(1 - written.slot).filter(|slot| end.closed_marks[*slot]);
            for slot in [written.slot].into_iter().chain(other) {
                let failed = |error| Error::io("cannot note that it is open", error);
                written.mark(slot, false).map_err(|error| failed(error).remedy("see to its disk"))?;
            }
        }
        let room = written.file.room(end.end);
        Ok((Self::over(path, written, room, FRONT as u64), end))
    }

    fn over(path: &Path, written: Written, room: Room, written_len: u64) -> Self {
        let state = State {
            written,
            room,
            pending: Vec::new(),
            groups: Vec::new(),
            written_len,
            appended: Lsn(0),
            durable: Lsn(0),
            writing: false,
            failed: None,
            tail: None,
        };
        Self { path: path.to_owned(), state: Mutex::new(state), synced: Condvar::new() }
    }

    /// Appends a record in memory; [`Journal::sync`] makes it durable. Returns the position behind it.
    ///
    /// # Errors
    /// An earlier write to the journal failed, or the record is too long.
    pub fn append(&self, record: &JournalRecord) -> Result<Lsn> {
        let mut state = self.lock();
        self.check(&state)?;
        let before = state.pending.len();
        encode(record, &mut state.pending)?;
        let State { pending, tail, appended, .. } = &mut *state;
        if let Some(tail) = tail {
            tail.extend_from_slice(&pending[before..]);
        }
        appended.0 += (pending.len() - before) as u64;
        Ok(*appended)
    }

    /// Makes all records up to position `lsn` durable, and those that other threads appended meanwhile.
    ///
    /// # Errors
    /// NoSpace if the file system is full: nothing is lost, and the call may be repeated. After any other
    /// error the journal accepts no more records, and records that were not durable before may be lost; the
    /// next [`Journal::open`] finds which ones.
    pub fn sync(&self, lsn: Lsn) -> Result<()> {
        self.sync_after(lsn, || Ok(()))
    }

    /// Does the same as [`Journal::sync`], but calls `before` when the set of records to write is fixed and none of
    /// them is written yet. In `before` the caller makes the data durable that these records refer to.
    ///
    /// # Errors
    /// As [`Journal::sync`]; errors of `before`, after which the journal accepts no more records.
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
            self.synced.wait(&mut state);
        }
        state.writing = true;
        let (batch, upto) = (std::mem::take(&mut state.pending), state.appended);
        let mut groups = std::mem::take(&mut state.groups);
        let (before_it, mut after_it) = (state.written.clone(), state.written.clone());
        groups.clear();
        let last = after_it.chain.append(&batch, &mut groups);
        (after_it.last, after_it.len) = (before_it.len + last as u64, before_it.len + groups.len() as u64);
        after_it.slot = 1 - before_it.slot;
        state.written.len = after_it.len;
        let wanted = if state.room.refusal().is_none() { state.room.wanted(after_it.len) } else { None };
        drop(state);
        let given = wanted.map(|wanted| (wanted, before_it.file.take(wanted)));
        let written = before().map(|()| before_it.write(&after_it, &groups));
        let mut state = self.lock();
        state.writing = false;
        if let Some((wanted, given)) = given {
            state.room.on_outcome(wanted, &given);
        }
        match written {
            Ok(Ok(())) => {
                (state.durable, state.written) = (upto, after_it);
                state.room.written();
                state.keep(batch, groups);
            }
            Ok(Err(error)) if is_full(&error) => {
                // The part of it that was written is overwritten.
                state.room.refused(&error, after_it.len);
                state.written = before_it;
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

    /// Makes all records durable, and marks the journal as closed properly. Records may still be appended. Without an
    /// error the mark is left out if the journal has no records, if another thread appends or syncs meanwhile, or if
    /// the file system is full.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub fn close(&self) -> Result<()> {
        self.sync(self.appended())?;
        let mut state = self.lock();
        if state.writing || !state.pending.is_empty() || state.written.chain.next == 1 {
            return Ok(());
        }
        state.writing = true;
        let written = state.written.clone();
        drop(state);
        let closed = written.mark(written.slot, true);
        let mut state = self.lock();
        state.writing = false;
        match closed {
            Ok(()) => state.written.slot = 1 - written.slot,
            // The journal is known to be whole without that.
            Err(error) if is_full(&error) => {}
            Err(error) => state.failed = Some(Error::io("it cannot be written", error).to_string()),
        }
        self.synced.notify_all();
        self.check(&state)
    }

    /// Appends a record and makes it durable.
    ///
    /// # Errors
    /// As [`Journal::append`] and [`Journal::sync`].
    pub fn write(&self, record: &JournalRecord) -> Result<()> {
        let lsn = self.append(record)?;
        self.sync(lsn)
    }

    /// Returns the position behind the last appended record.
    #[must_use]
    pub fn appended(&self) -> Lsn {
        self.lock().appended
    }

    /// Returns the position up to which all records are durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.lock().durable
    }

    /// Returns the size of the journal in bytes: the length of the file, and of the records that are not written
    /// yet.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.lock().end()
    }

    /// Checks that the file system has room for `bytes` bytes to append, with `others` bytes left for other callers,
    /// and allocates room ahead if there is less. After the file system has refused room once, this asks for no more
    /// until [`Journal::look_for_room`] has been called. On a file system that allocates no room ahead, the check fails
    /// only after a write was refused.
    ///
    /// # Errors
    /// NoSpace if the file system is full; an earlier write to the journal failed.
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

    /// Allocates room ahead on the file system if little is left. To be called at intervals, so that work resumes
    /// soon after space is freed. Returns the NoSpace error that callers get while there is no room, or
    /// `None` if there is room.
    pub fn look_for_room(&self) -> Option<Error> {
        let state = self.lock();
        let state = self.take_room(state, 0);
        state.room.refusal().map(|error| self.full(error))
    }

    fn take_room<'a>(&'a self, mut state: MutexGuard<'a, State>, bytes: u64) -> MutexGuard<'a, State> {
        let end = state.end().saturating_add(bytes);
        let Some(wanted) = state.room.wanted(end) else { return state };
        let file = Arc::clone(&state.written.file);
        drop(state);
        let given = file.take(wanted);
        let mut state = self.lock();
        // It may have been replaced.
        if Arc::ptr_eq(&file, &state.written.file) {
            state.room.on_outcome(wanted, &given);
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

    /// Returns `true` if the file has grown so much that it should be rewritten: since it was last made or rewritten it
    /// has grown to at least twice its size, and by at least 1 MiB. A journal that was opened and not rewritten since
    /// is compared with an empty one.
    #[must_use]
    pub fn has_grown(&self) -> bool {
        let state = self.lock();
        let (len, before) = (state.written.len, state.written_len);
        len >= before * GROWN_TIMES && len - before >= GROWN_BYTES
    }

    pub(super) fn check(&self, state: &State) -> Result<()> {
        match &state.failed {
            None => Ok(()),
            Some(cause) => Err(Error::new(ErrorKind::Io, format!("a write to it failed: {cause}"))
                .about(self.path.display())
                .remedy("see to its disk, then start again")),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests;
