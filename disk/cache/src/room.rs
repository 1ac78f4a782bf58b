//! Room for bytes that are about to be written, so that one process keeps to the size limit at every moment.

use crate::evict;
use crate::storage::Storage;
use headstart_block::{Error, ErrorKind, Result};
use std::sync::atomic::Ordering;

/// The longest time for which inserts find no room beside the same evictor before the disk is left alone, in
/// milliseconds: an eviction seldom takes as long, unless its process was stopped.
const CROWDED_MS: u64 = 1000;

/// Room in a cache for bytes that are being written. When it is dropped, the bytes count as taken, or the write has
/// failed.
pub(crate) struct Room<'a> {
    storage: &'a Storage,
    bytes: u64,
}

impl<'a> Room<'a> {
    fn reserve(storage: &'a Storage, bytes: u64) -> Self {
        storage.reserved.fetch_add(bytes, Ordering::AcqRel);
        Self { storage, bytes }
    }

    /// Reserves room for `bytes` more to be written, and evicts if that is necessary. `None` if there is no room
    /// because another thread or process that evicts has not made it yet, or because of bytes that other threads are
    /// writing: neither is waited for, because a read may wait for the insert.
    pub(crate) fn make(storage: &'a Storage, bytes: u64) -> Result<Option<Self>> {
        if storage.is_bypassing() {
            return Err(Error::new(ErrorKind::NoSpace, "the cache's disk took nothing a moment ago"));
        }
        let Some(limit) = storage.settings.size_limit else { return Ok(Some(Self::reserve(storage, bytes))) };
        // No eviction makes room for more than the limit.
        if bytes > limit {
            return Err(is_full());
        }
        let room = Self::reserve(storage, bytes);
        let taken = || storage.state.taken_bytes();
        // In this order, so that bytes whose write another thread finishes meanwhile count twice, not never.
        let fits = || storage.reserved.load(Ordering::Acquire).saturating_add(taken()) <= limit;
        let is_too_much = || taken().saturating_add(bytes) > limit;
        // An eviction goes down to this: below it only bytes that others are writing stand in the way.
        let low = target_for(limit, 0);
        if !fits() && (is_too_much() || taken() > low) {
            match evict::evict(storage, target_for(limit, bytes))? {
                None if !fits() => return crowded_out(storage),
                None => {}
                // If it was not stuck, or gave back enough, others took the room first.
                Some(evicted) if evicted.is_stuck && evicted.bytes < bytes && is_too_much() => {
                    return Err(is_full());
                }
                Some(_) => storage.crowded_since.store(0, Ordering::Relaxed),
            }
        }
        if !fits() {
            return Ok(None);
        }
        if storage.crowded_since.load(Ordering::Relaxed) > 0 {
            storage.crowded_since.store(0, Ordering::Relaxed);
        }
        Ok(Some(room))
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.storage.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The bytes that may stay in the cache when `bytes` more are to fit.
fn target_for(limit: u64, bytes: u64) -> u64 {
    Storage::low_mark(limit).min(limit.saturating_sub(bytes))
}

/// Notes that an insert found no room beside an evictor; an error once that has lasted for too long.
fn crowded_out(storage: &Storage) -> Result<Option<Room<'_>>> {
    let now = storage.now_ms().max(1);
    let since = storage.crowded_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    if now.saturating_sub(since.map_or_else(|since| since, |_| now)) < CROWDED_MS {
        return Ok(None);
    }
    let cause = "the cache is full, and another thread or process that evicts from it does not end";
    // The warning about it names the directory.
    Err(Error::new(ErrorKind::NoSpace, cause)
        .remedy("end the program that evicts, or give the cache a larger size limit"))
}

/// The error of a full cache of which nothing may be evicted.
fn is_full() -> Error {
    let cause = "the cache is full of what attached disks have pinned or use";
    // The warning about it names the directory.
    Error::new(ErrorKind::NoSpace, cause).remedy("give it a larger size limit")
}
