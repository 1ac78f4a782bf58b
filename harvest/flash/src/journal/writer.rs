//! A new journal's file beside the place that it is to take.

use super::group::{self, Chain, FRONT, fits_mark, front, slot_at};
use super::room::{Medium, Room, is_full};
use super::{JournalRecord, encode};
use crate::replace::put_in_place;
use crate::{Error, Result};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are gathered for a write of a new journal.
const GATHERED: usize = 1 << 20;

/// The path of a journal that is to take the place of the one at `path`.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    PathBuf::from(beside)
}

/// A journal's file, and its end.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) file: Arc<Medium>,
    pub(super) generation: u64,
    pub(super) chain: Chain,
    /// The offset of the last group.
    pub(super) last: u64,
    /// The slot of the next mark.
    pub(super) slot: usize,
    /// The file's length.
    pub(super) len: u64,
}

impl Written {
    /// Writes groups, and makes them durable together with a mark. `after` is the journal's end after that.
    pub(super) fn write(&self, after: &Self, groups: &[u8]) -> io::Result<()> {
        if groups.is_empty() {
            return self.file.sync_data();
        }
        self.file.write(groups, self.len)?;
        let has_copy = after.last == self.len && fits_mark(groups.len());
        if !has_copy {
            // A mark without a copy declares the group durable.
            self.file.sync_data()?;
        }
        let copy = if has_copy { groups } else { &[] };
        let mark = group::mark(self.generation, &after.chain, after.last, copy, false);
        self.file.write(&mark, slot_at(self.slot))?;
        self.file.sync_data()
    }

    /// Writes a mark to a slot: all is there, and the journal is `closed` in good order or not.
    pub(super) fn mark(&self, slot: usize, closed: bool) -> io::Result<()> {
        let mark = group::mark(self.generation, &self.chain, self.last, &[], closed);
        self.file.write(&mark, slot_at(slot))?;
        self.file.sync_data()
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
    pub(super) fn write(&mut self, record: &JournalRecord) -> Result<()> {
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

pub(super) fn beside_failed(error: io::Error) -> Error {
    Error::io("cannot write the new one beside it", error)
}
