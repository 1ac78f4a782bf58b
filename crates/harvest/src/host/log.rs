//! The journal as the host uses it: what a map says becomes durable only after the pages that it maps.

use super::media::Media;
use super::volume::Inner;
use crate::broker::Step;
use crate::journal::{Journal, Lsn, Record};
use crate::vssd::Change;
use crate::{Error, Result, VssdId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Asked before the journal is written: tests let a host crash there.
pub(crate) type Guard = std::sync::Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The journal, and what was written to it.
pub(crate) struct Log {
    journal: Journal,
    guard: Option<Guard>,
    /// A map was changed since the flash was flushed last.
    maps: AtomicBool,
    records: AtomicU64,
    syncs: AtomicU64,
    rewrites: AtomicU64,
}

impl Log {
    pub(crate) fn new(journal: Journal, guard: Option<Guard>) -> Self {
        Self {
            journal,
            guard,
            maps: AtomicBool::new(true),
            records: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            rewrites: AtomicU64::new(0),
        }
    }

    /// Appends a change of a vSSD, under the lock under which it was made.
    pub(crate) fn change(&self, vssd: VssdId, inner: &mut Inner, change: &Change) -> Result<()> {
        let bytes = encoded(change)?;
        // Before the record: whoever takes the record along flushes the flash.
        self.maps.store(true, Ordering::SeqCst);
        inner.last = change.number;
        inner.lsn = self.append(&Record::Map { vssd, change: bytes })?;
        Ok(())
    }

    pub(crate) fn step(&self, step: &Step) -> Result<Lsn> {
        self.append(&Record::Broker(step.clone()))
    }

    pub(crate) fn append(&self, record: &Record) -> Result<Lsn> {
        self.records.fetch_add(1, Ordering::Relaxed);
        self.journal.append(record)
    }

    /// Makes all durable up to `lsn`. Those who ask at the same time share it.
    pub(crate) fn sync(&self, media: &Media, lsn: Lsn) -> Result<()> {
        self.journal.sync_after(lsn, || {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            if self.maps.swap(false, Ordering::SeqCst) {
                media.flush().map_err(|error| from_flash(error, "the flash cannot be flushed"))?;
            }
            self.guard.as_ref().map_or(Ok(()), |guard| guard())
        })
    }

    /// Whether it is time to replace old records by snapshots.
    pub(crate) fn has_grown(&self) -> bool {
        self.journal.has_grown()
    }

    /// Replaces all by these. Nobody appends meanwhile.
    pub(crate) fn rewrite(&self, media: &Media, records: &[Record]) -> Result<()> {
        media.flush().map_err(|error| from_flash(error, "the flash cannot be flushed"))?;
        self.rewrites.fetch_add(1, Ordering::Relaxed);
        self.guard.as_ref().map_or(Ok(()), |guard| guard())?;
        self.journal.rewrite(records)
    }

    /// Bytes, records, syncs, rewrites.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let [records, syncs, rewrites] =
            [&self.records, &self.syncs, &self.rewrites].map(|count| count.load(Ordering::Relaxed));
        [self.journal.size(), records, syncs, rewrites]
    }
}

/// In the form that the journal keeps.
pub(crate) fn encoded<T: serde::Serialize>(what: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(what).map_err(|error| Error::invalid("cannot be encoded").caused_by(error))
}

/// From the form that the journal keeps.
pub(crate) fn decoded<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| {
        let cause = format!("{what} in it is not one that this version knows");
        Error::unsupported(cause).caused_by(error).remedy("use the version that wrote it")
    })
}

/// An error of the flash as one for whoever asked.
pub(crate) fn from_flash(error: crate::flash::FlashError, cause: &'static str) -> Error {
    match error {
        crate::flash::FlashError::Failed(error) => error.about("the flash"),
        other => Error::new(crate::ErrorKind::Io, cause).caused_by(other),
    }
}
