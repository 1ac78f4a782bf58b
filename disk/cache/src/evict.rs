//! Giving space back: [`policy`] chooses the chunks, this module removes them.
//!
//! One evictor at a time on a cache (a lock on the file `evict`); an evictor that finds it held leaves the work to its
//! holder. Blobs are opened one after the other, twice: an evictor needs no more files or memory for a large cache than
//! for a small one. It has file handles of its own, so that it meets the locks of its own process like those of others.
//!
//! Per blob: take the pins' lock of the chunks that are to go, exclusively, leaving out pinned ones; forget their units
//! (see `durable`); then, while no thread writes, punch holes where nothing was inserted meanwhile. A blob of which
//! nothing is left and that no process uses is unlinked.

use crate::blob_files::Files;
use crate::durable;
use crate::locks::{self, Mode};
use crate::policy::{self, Census, Cut};
use crate::presence;
use crate::sidecar::{CHUNK, Locks};
use crate::storage::Storage;
use headstart_block::lock::try_within;
use headstart_block::{Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// The longest wait until no thread writes to a blob: a write takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest wait of a command for another thread or process that evicts.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The lock between processes on evicting.
struct Evicting<'a>(&'a File);

impl Drop for Evicting<'_> {
    fn drop(&mut self) {
        locks::unlock(self.0, &(0..1));
    }
}

/// The result of an eviction. All fields are 0 if nothing was even counted: the cache has no size limit, or another
/// thread or process was evicting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evicted {
    /// Bytes of blobs that were evicted.
    pub bytes: u64,
    /// Bytes of blobs that are still in the cache.
    pub left_bytes: u64,
    /// The number of blobs that are still in the cache, outboards (files of hash trees) included.
    pub left_blobs: u64,
    /// `true` if less could be evicted than was needed: the rest is pinned or describes blobs in use, or an error kept
    /// it.
    #[serde(skip)]
    pub(crate) is_stuck: bool,
}

/// Evicts until blobs and their sidecars take at most `target` bytes, as far as possible. `None` if another thread or
/// process evicts.
///
/// # Errors
/// Errors of the directory; a blob that fails is left alone, with a warning.
pub(crate) fn evict(storage: &Storage, target: u64) -> Result<Option<Evicted>> {
    let Some(file) = storage.evictor.try_lock() else { return Ok(None) };
    if !locks::try_lock(&file, &(0..1), Mode::Exclusive)? {
        return Ok(None);
    }
    let _evicting = Evicting(&file);
    let added_before = storage.state.added_bytes();
    let stems = storage.directory.stems()?;
    let mut census = Census::new(storage.state.epoch());
    let mut evicted = Evicted::default();
    let mut beside = 0;
    for stem in &stems {
        if let Some(files) = open(storage, stem) {
            evicted.left_blobs += 1;
            beside += files.sidecar.layout.file_len();
            evicted.left_bytes += count(&files, &mut census).unwrap_or_default();
        }
    }
    let local = evicted.left_bytes;
    let taken = storage.state.set_counted_bytes(local.saturating_add(beside), added_before);
    // A prune of everything also removes blobs of which nothing is local.
    if taken <= target && target > 0 {
        return Ok(Some(evicted));
    }
    let capacity = storage.settings.size_limit.unwrap_or(local);
    let need = taken.saturating_sub(target);
    let mut cut = census.cut(need, capacity);
    let mut could_go = census.bytes();
    let mut freed_beside = 0;
    for stem in &stems {
        let Some(files) = open(storage, stem) else { continue };
        match evict_from(&files, &mut cut) {
            Ok(bytes) => evicted.bytes += bytes,
            Err(error) => {
                could_go = 0;
                tracing::warn!(file = %files.data_path.display(), %error, "cannot evict");
            }
        }
        if files.all_local_bytes() == 0 {
            match storage.directory.change().and_then(|change| change.unlink_if_unused(stem, &files)) {
                Ok(true) => {
                    evicted.left_blobs -= 1;
                    freed_beside += files.sidecar.layout.file_len();
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(file = %files.data_path.display(), %error, "cannot remove an empty blob");
                }
            }
        }
    }
    evicted.left_bytes = local.saturating_sub(evicted.bytes);
    // Chunks that were read or pinned since they were counted stay, and may go the next time.
    evicted.is_stuck = could_go.max(evicted.bytes).saturating_add(freed_beside) < need;
    storage.state.subtract(evicted.bytes.saturating_add(freed_beside));
    storage.counts.evicted_bytes.fetch_add(evicted.bytes, Ordering::Relaxed);
    Ok(Some(evicted))
}

/// A blob's files; a pair that cannot be trusted and that no process uses is removed.
fn open(storage: &Storage, stem: &str) -> Option<Files> {
    let opened = storage.directory.open_stem(stem).and_then(|files| match files {
        None => storage.directory.change()?.unlink_if_wrong(stem).map(|_| None),
        files => Ok(files),
    });
    opened.inspect_err(|error| tracing::warn!(stem, %error, "a cached blob cannot be opened")).ok().flatten()
}

/// Adds a blob's chunks that may go to the census; returns the bytes that are local in all.
fn count(files: &Files, census: &mut Census) -> Result<u64> {
    each_evictable(files, &mut |_, word, bytes| census.add(word.load(Ordering::Relaxed), bytes))?;
    Ok(files.all_local_bytes())
}

/// Names the chunks of which something is local and that are not pinned, with their words and bytes.
fn each_evictable(files: &Files, each: &mut dyn FnMut(u64, &AtomicU32, u64)) -> Result<()> {
    let mut pinned = Vec::new();
    each_pinned(files, &mut |chunks| pinned.push(chunks))?;
    let layout = files.sidecar.layout;
    for (chunk, word) in (0..layout.chunks()).zip(files.sidecar.access()) {
        let bytes = files.local_bytes(&layout.units_of_chunk(chunk));
        if bytes > 0 && !pinned.iter().any(|chunks| chunks.contains(&chunk)) {
            each(chunk, word, bytes);
        }
    }
    Ok(())
}

/// Names the chunks that other handles than `files` have pinned; may name some twice.
pub(crate) fn each_pinned(files: &Files, each: &mut dyn FnMut(Range<u64>)) -> Result<()> {
    let all = Locks::pin(&(0..files.sidecar.layout.chunks()));
    let base = all.start;
    locks::each_held_by_others(&files.sidecar.file, all, &mut |held| each(held.start - base..held.end - base))
}

/// Evicts the chunks below the cut; returns the bytes given back.
fn evict_from(files: &Files, cut: &mut Cut) -> Result<u64> {
    let mut going: Vec<Range<u64>> = Vec::new();
    each_evictable(files, &mut |chunk, word, bytes| {
        if cut.takes(word.load(Ordering::Relaxed), bytes) {
            match going.last_mut() {
                Some(run) if run.end == chunk => run.end += 1,
                _ => going.push(chunk..chunk + 1),
            }
        } else if cut.ages {
            policy::age(word);
        }
    })?;
    evict_chunks(files, going)
}

/// Evicts chunks that are not pinned; returns the bytes given back.
fn evict_chunks(files: &Files, chunks: Vec<Range<u64>>) -> Result<u64> {
    let file = &files.sidecar.file;
    let layout = files.sidecar.layout;
    let mut units = Vec::new();
    for run in chunks {
        let base = Locks::pin(&(0..0)).start;
        locks::lock_free_parts(file, Locks::pin(&run), &mut |part| {
            let chunks = part.start - base..part.end - base;
            units.push(layout.units_of_chunk(chunks.start).start..layout.units_of_chunk(chunks.end - 1).end);
        })?;
    }
    if units.is_empty() {
        return Ok(0);
    }
    let bytes = units.iter().map(|run| files.local_bytes(run)).sum();
    let done = durable::forget(files, &units).and_then(|_| give_back(files, &units));
    locks::unlock(file, &Locks::pin(&(0..layout.chunks())));
    done.map(|()| bytes)
}

/// Punches holes where units were forgotten and not inserted again.
fn give_back(files: &Files, units: &[Range<u64>]) -> Result<()> {
    let file = &files.sidecar.file;
    if !locks::lock_within(file, &Locks::WRITE, Mode::Exclusive, LOCK_TIMEOUT)? {
        // The writer was stopped in the middle. The space comes back with the next eviction of these chunks.
        tracing::warn!(file = %files.data_path.display(), "space is not given back: a writer does not end");
        return Ok(());
    }
    let layout = files.sidecar.layout;
    let mut result = Ok(());
    for run in units {
        presence::runs(files.sidecar.local(), run, false, &mut |free| {
            // Up to the end of the last unit, although the blob may end before: its last page goes as well.
            let (start, len) = (free.start * layout.unit, (free.end - free.start) * layout.unit);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&files.data, flags, start, len) {
                Ok(()) => {}
                // The space is used again when the chunk comes back, or free when the blob is removed.
                Err(Errno::OPNOTSUPP) => warn_of_no_holes(files),
                Err(errno) => result = Err(Error::io("cannot give space back", errno.into())),
            }
        });
    }
    locks::unlock(file, &Locks::WRITE);
    result
}

/// Logs once that the file system has no holes.
fn warn_of_no_holes(files: &Files) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            file = %files.data_path.display(),
            "the cache's file system cannot give back parts of files: the size limit holds for what is in use only"
        );
    }
}

const _: () = assert!(CHUNK.is_multiple_of(crate::sidecar::DATA_UNIT));
const _: () = assert!(CHUNK.is_multiple_of(crate::sidecar::TREE_UNIT));

/// Evicts as [`evict`] does, but waits for the end of another eviction, as commands and tests can.
pub(crate) fn evict_patiently(storage: &Storage, target: u64) -> Result<Evicted> {
    // No lock is held meanwhile: inserts of other threads do not wait.
    let evicted = try_within(COMMAND_TIMEOUT, || evict(storage, target))?;
    evicted.ok_or_else(|| {
        Error::new(ErrorKind::Conflict, "another process evicts already")
            .about(storage.dir().display())
            .remedy("run it again in a while")
    })
}
