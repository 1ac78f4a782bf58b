//! The host's journal: what survives a crash. Each step is in it before it is acted on.
//!
//! # The file
//!
//! All numbers little-endian. A header of 16 bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `HSharvst` |
//! | 8..12 | the version, 1 |
//! | 12..16 | CRC-32C of the bytes before |
//!
//! Then frames, without gaps:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | length of the record in bytes, 1 to 64 Mi |
//! | 4..8 | CRC-32C of all bytes of the frame after this |
//! | 8..16 | how long the file was when it was last synced before this frame was written |
//! | 16.. | a [`Record`], in postcard |
//!
//! # Torn tails
//!
//! A crash leaves a prefix of what was synced, whole, and of what was written since anything. So the first frame that
//! is not right ends the journal, and what follows is cut off, with a word ([`Torn`]): nothing was done yet that
//! follows from it. Unless a later frame is right and says that more was synced: then what broke was durable once,
//! somebody damaged it, and leases may be missing. That is an error, not a tail; a journal is not repaired by guessing.
//!
//! # Rewriting
//!
//! [`Journal::rewrite`] replaces the file by one that begins with records that lead to the present state (snapshots),
//! by way of a second file and a rename, so that at any time one of the two is whole.

use crate::broker::Step;
use crate::{Error, ErrorKind, Result, VssdId};
use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

const MAGIC: [u8; 8] = *b"HSharvst";
const VERSION: u32 = 1;
/// Bytes of the file's header.
const HEADER: usize = 16;
/// Bytes of a frame before its record.
const FRAME: usize = 16;
/// Bytes of a record at most: a vSSD's whole map takes a few MiB.
const RECORD_MOST: usize = 64 << 20;
/// A journal is worth rewriting when it is so many times as long as it was when it was written...
const GROWN_TIMES: u64 = 2;
/// ... and has so many bytes more.
const GROWN_BYTES: u64 = 1 << 20;

/// A buffer of more bytes is not kept for the next batch.
const KEPT: usize = 1 << 20;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A step of the broker.
    Broker(Step),
    /// A change of a vSSD's map, in the FTL's own form.
    Map {
        /// The vSSD.
        vssd: VssdId,
        /// The change.
        change: Vec<u8>,
    },
    /// The whole of a vSSD's map, in the FTL's own form: what was before does not count.
    Snapshot {
        /// The vSSD.
        vssd: VssdId,
        /// The map.
        map: Vec<u8>,
    },
    /// Says nothing but that what is before it was durable: written last where a journal is rewritten or closed, so
    /// that damage to it is told from a torn tail. Not given out by [`decode`].
    Whole,
    /// What the host itself has to remember, in its own form.
    Host {
        /// It.
        meta: Vec<u8>,
    },
}

/// What a journal's bytes say.
#[derive(Debug)]
pub struct Decoded {
    /// The records, in order.
    pub records: Vec<Record>,
    /// How many bytes are right.
    pub end: u64,
    /// What was cut off, if anything was.
    pub torn: Option<Torn>,
}

/// The end of a journal that is not right: what was being written when the host crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Where it begins.
    pub at: u64,
    /// How long it is.
    pub bytes: u64,
}

/// The header of a journal.
#[must_use]
pub fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc(&header[..12]);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Adds a record's frame to `out`; `synced` is how long the file was when it was last synced.
///
/// # Errors
/// The record is longer than 64 MiB.
pub fn encode(record: &Record, synced: u64, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&synced.to_le_bytes());
    let writer = Appended(out);
    let failed =
        |error| Error::new(ErrorKind::Invalid, "cannot be encoded").caused_by(error).about("journal record");
    postcard::serialize_with_flavor(record, writer).map_err(failed)?;
    let len = out.len() - start - FRAME;
    if len > RECORD_MOST {
        out.truncate(start);
        return Err(Error::invalid(format!("{len} bytes are too many")).about("journal record"));
    }
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let crc = crc(&out[start + 8..]);
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// What these bytes, a whole journal, say. Never panics, and takes no more memory than a few times their length.
///
/// # Errors
/// This is no journal, of a version that is not known, or damaged where it was durable.
pub fn decode(bytes: &[u8]) -> Result<Decoded> {
    check_header(bytes)?;
    let mut decoded = Decoded { records: Vec::new(), end: HEADER as u64, torn: None };
    let mut at = HEADER;
    while at < bytes.len() {
        let Some(payload) = frame(bytes, at).filter(Frame::is_right) else {
            if was_durable(bytes, at) {
                let error = Error::corrupt(format!("it is damaged at byte {at}, which was durable once"));
                return Err(error
                    .remedy("restore it from a backup, or begin anew: all harvested storage is lost then"));
            }
            decoded.torn = Some(Torn { at: at as u64, bytes: (bytes.len() - at) as u64 });
            break;
        };
        let record = postcard::from_bytes(payload.record).map_err(|error| {
            let cause = format!("the record at byte {at} is not one that this version knows");
            Error::unsupported(cause).caused_by(error).remedy("use the version that wrote it")
        })?;
        if record != Record::Whole {
            decoded.records.push(record);
        }
        at += FRAME + payload.record.len();
        decoded.end = at as u64;
    }
    Ok(decoded)
}

fn check_header(bytes: &[u8]) -> Result<()> {
    let Some(found) = bytes.get(..HEADER) else {
        return Err(Error::corrupt("it is too short for a journal"));
    };
    if found[..8] != MAGIC {
        return Err(Error::invalid("it is not a journal"));
    }
    if number(found, 12) != crc(&found[..12]) {
        return Err(Error::corrupt("its header is damaged"));
    }
    match number(found, 8) {
        VERSION => Ok(()),
        version => {
            Err(Error::unsupported(format!("its version is {version}, and this program knows {VERSION}")))
        }
    }
}

struct Frame<'a> {
    crc: u32,
    synced: u64,
    /// What the checksum is of.
    checked: &'a [u8],
    record: &'a [u8],
}

impl Frame<'_> {
    fn is_right(&self) -> bool {
        crc(self.checked) == self.crc
    }
}

/// The frame at a place, if what is there can be one.
fn frame(bytes: &[u8], at: usize) -> Option<Frame<'_>> {
    let rest = bytes.get(at..)?;
    let head = rest.get(..FRAME)?;
    let len = number(head, 0) as usize;
    let record = rest.get(FRAME..FRAME.checked_add(len)?)?;
    let synced = u64::from(number(head, 8)) | u64::from(number(head, 12)) << 32;
    let plausible = (1..=RECORD_MOST).contains(&len) && synced <= at as u64;
    plausible.then(|| Frame { crc: number(head, 4), synced, checked: &rest[8..FRAME + len], record })
}

/// Whether a frame after `at` says that more was synced than up to there. It stops looking when it has summed up four
/// times as many bytes as there are, so that hostile bytes do not take for ever.
fn was_durable(bytes: &[u8], at: usize) -> bool {
    let mut budget = 4 * bytes.len();
    for place in at + 1..bytes.len().saturating_sub(FRAME) {
        let Some(frame) = frame(bytes, place).filter(|frame| frame.synced > at as u64) else { continue };
        if frame.is_right() {
            return true;
        }
        budget = budget.saturating_sub(frame.checked.len());
        if budget == 0 {
            break;
        }
    }
    false
}

/// The little-endian number at a place where there is one.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn crc(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    u32::try_from(digest.finalize()).unwrap_or(0)
}

/// Lets postcard write to the end of a vector that has something in it.
struct Appended<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Appended<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

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
    file: std::sync::Arc<File>,
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
}

impl Journal {
    /// Makes a journal that begins with these records, in place of one that may be there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create<'a>(path: &Path, records: impl IntoIterator<Item = &'a Record>) -> Result<Self> {
        let create = || -> Result<Self> {
            let (file, len) = write_beside(path, records)?;
            put_in_place(path)?;
            Ok(Self::over(path, file, len, len))
        };
        create().map_err(|error| error.about(path.display()))
    }

    /// Opens a journal, and cuts off its torn tail.
    ///
    /// # Errors
    /// As [`decode`], or the file cannot be read.
    pub fn open(path: &Path) -> Result<(Self, Decoded)> {
        let open = || -> Result<(File, Decoded)> {
            let file = File::options().read(true).write(true).open(path);
            let mut file = file.map_err(|error| Error::io("cannot open it", error))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(|error| Error::io("cannot read it", error))?;
            let decoded = decode(&bytes)?;
            if decoded.torn.is_some() {
                file.set_len(decoded.end).map_err(|error| Error::io("cannot cut off its torn end", error))?;
            }
            // What was written may not have been durable: from here on it is relied upon.
            file.sync_all().map_err(|error| Error::io("cannot sync it", error))?;
            Ok((file, decoded))
        };
        let (file, decoded) = open().map_err(|error| error.about(path.display()))?;
        Ok((Self::over(path, file, decoded.end, HEADER as u64), decoded))
    }

    fn over(path: &Path, file: File, len: u64, written_len: u64) -> Self {
        let state = State {
            file: std::sync::Arc::new(file),
            pending: Vec::new(),
            len,
            durable_len: len,
            written_len,
            appended: Lsn(0),
            durable: Lsn(0),
            writing: false,
            failed: None,
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
        state.appended.0 += (state.pending.len() - before) as u64;
        Ok(state.appended)
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

    /// Replaces all records by these, which lead to the same state as all that were appended until now: the caller sees
    /// to it that nobody appends meanwhile. They are durable when this returns, and so is what was appended.
    ///
    /// # Errors
    /// The new file cannot be written, and the old one is as it was; or it is not known which of them is there after a
    /// crash, and the journal takes no more.
    pub fn rewrite<'a>(&self, records: impl IntoIterator<Item = &'a Record>) -> Result<()> {
        let mut state = self.lock();
        while state.writing {
            state = self.synced.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.check(&state)?;
        let (file, len) =
            write_beside(&self.path, records).map_err(|error| error.about(self.path.display()))?;
        if let Err(error) = put_in_place(&self.path) {
            state.failed = Some(error.to_string());
            return Err(error.about(self.path.display()));
        }
        state.file = std::sync::Arc::new(file);
        state.pending.clear();
        (state.len, state.durable_len, state.written_len) = (len, len, len);
        state.durable = state.appended;
        self.synced.notify_all();
        Ok(())
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

/// Writes a journal of these records beside the one at `path`, durably; its length.
fn write_beside<'a>(path: &Path, records: impl IntoIterator<Item = &'a Record>) -> Result<(File, u64)> {
    let mut bytes = header().to_vec();
    for record in records.into_iter().chain([&Record::Whole]) {
        let synced = bytes.len() as u64;
        encode(record, synced, &mut bytes)?;
    }
    let write = || -> io::Result<File> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(beside(path))?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        Ok(file)
    };
    let file = write().map_err(|error| Error::io("cannot write the new one beside it", error))?;
    Ok((file, bytes.len() as u64))
}

/// Puts what was written beside a journal in its place, durably.
fn put_in_place(path: &Path) -> Result<()> {
    let replace = || -> io::Result<()> {
        std::fs::rename(beside(path), path)?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    };
    replace().map_err(|error| Error::io("cannot be replaced by the new one", error))
}

#[cfg(test)]
mod tests;
