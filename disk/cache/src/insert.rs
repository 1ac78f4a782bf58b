//! Inserts of fetched bytes into a blob.

use crate::blob::CachedBlob;
use crate::blob_files::Files;
use crate::bypass_log::BypassReason;
use crate::policy;
use crate::presence;
use crate::room::Room;
use crate::whole;
use crate::writing::Writing;
use headstart_block::{ByteRange, Error, Result, to_usize};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

impl CachedBlob {
    /// Inserts `bytes`, which begin at `offset` and are whole units; the last unit may be cut at the blob's end. If the
    /// blob has a hash tree, they are verified against it before they become visible. They can be read when this
    /// returns. Units that are local already stay as they are. If the bytes cannot be written to the cache's files (the
    /// disk or the cache is full, or the disk fails), they are kept in memory, which is no error; beyond
    /// [`CacheSettings::overlay_limit`](crate::CacheSettings::overlay_limit) the oldest units in memory are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`](headstart_block::ErrorKind::Absent) if pages of the tree are missing
    /// ([`tree_missing`](Self::tree_missing) names them).
    /// [`ErrorKind::Corrupt`](headstart_block::ErrorKind::Corrupt) if the verification fails: fetch again,
    /// from another source if possible. If the tree is wrong, its pages are removed, and `tree_missing` names
    /// them again. Also `Corrupt` if the cache accepts no more of the blob
    /// ([`is_refused`](Self::is_refused)). [`ErrorKind::Invalid`](headstart_block::ErrorKind::Invalid) if the
    /// bytes are not whole units or extend past the blob's end.
    pub fn insert(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = ByteRange::new(offset, bytes.len() as u64).filter(|range| range.end() <= self.layout.len);
        let whole = |at: u64| at.is_multiple_of(self.layout.unit) || at == self.layout.len;
        let Some(range) = range.filter(|range| whole(range.end()) && range.offset() % self.layout.unit == 0)
        else {
            return Err(Error::invalid(format!("{} bytes at {offset} are not whole units", bytes.len()))
                .about(self.spec().digest));
        };
        if range.is_empty() {
            return Ok(());
        }
        self.check_taken()?;
        let about = |e: Error| e.about(format!("blob {} {range}", self.spec().digest));
        self.check_arrived(range, bytes).map_err(about)?;
        let units = self.layout.units_of(range.offset(), range.end());
        let stored = self.files_or_bypass().is_some_and(|files| {
            let stored = self.store(files, &units, bytes);
            let refused = |error: &_| self.storage.bypass_began(BypassReason::Refused, error);
            stored.inspect_err(refused).unwrap_or(false)
        });
        if !stored {
            self.keep_in_memory(&units, bytes);
        }
        self.notify();
        whole::check_if_whole(self);
        Ok(())
    }

    /// Writes units that are not local yet, and makes them visible. `false` if there is no room for them yet.
    fn store(&self, files: &Files, units: &Range<u64>, bytes: &[u8]) -> Result<bool> {
        let Some(room) = Room::make(&self.storage, bytes.len() as u64)? else { return Ok(false) };
        let writing = Writing::begin(&self.writers, files)?;
        let bits = files.sidecar.local();
        let mut missing = Vec::new();
        presence::runs(bits, units, false, &mut |run| missing.push(run));
        for run in missing {
            let range = self.bytes_of(&run);
            let start = to_usize(range.offset() - units.start * self.layout.unit);
            let end = start.saturating_add(to_usize(range.len()));
            let part = bytes.get(start..end).unwrap_or_default();
            let write = || {
                let failed = |e| Error::io("cannot write", e).about(files.data_path.display());
                files.data.write_all_at(part, range.offset()).map_err(failed)?;
                self.mark_inserted(files, &run);
                Ok::<_, Error>(())
            };
            if presence::insert(bits, &run, write)? > 0 {
                self.storage.state.add(range.len());
                self.storage.counts.inserted_bytes.fetch_add(range.len(), Ordering::Relaxed);
            }
        }
        drop(room);
        drop(writing);
        self.is_untouched.store(false, Ordering::Relaxed);
        self.dirty.store(true, Ordering::Release);
        self.storage.bypass_ended();
        Ok(true)
    }

    /// Resets the access words of chunks of which nothing was local.
    fn mark_inserted(&self, files: &Files, units: &Range<u64>) {
        let epoch = self.storage.state.epoch();
        if let Some(pages) = self.page_use() {
            pages.touch(&self.chunks_of(units));
        }
        for chunk in self.chunks_of(units) {
            if presence::count(files.sidecar.local(), &self.layout.units_of_chunk(chunk)) > 0 {
                continue;
            }
            if let Some(word) = usize::try_from(chunk).ok().and_then(|at| files.sidecar.access().get(at)) {
                word.store(policy::inserted(word.load(Ordering::Relaxed), epoch), Ordering::Relaxed);
            }
        }
    }

    fn keep_in_memory(&self, units: &Range<u64>, bytes: &[u8]) {
        self.storage.counts.bypassed_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let limit = self.storage.settings.overlay_limit;
        let mut overlay = self.storage.overlay.lock();
        let unit = to_usize(self.layout.unit);
        for (unit, bytes) in units.clone().zip(bytes.chunks(unit)) {
            if !self.has_unit(unit) {
                overlay.put((self.number, unit), bytes, &self.units_in_memory, limit);
            }
        }
    }
}
