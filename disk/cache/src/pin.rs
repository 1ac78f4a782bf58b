//! Pins: chunks that no process evicts.
//!
//! A pin is a shared lock on byte ranges of the sidecar, one byte a chunk. The evictor takes the exclusive lock of the
//! chunks that it evicts, and leaves alone those whose lock it does not get. So pins are seen by all processes and
//! vanish with their holder. The pins of one process on one blob share an open file, hence one set of locks: a list
//! says which chunks are still pinned when one pin ends.

use crate::blob::CachedBlob;
use crate::blob_files::Files;
use crate::locks::{self, Mode};
use crate::sidecar::{CHUNK, Locks};
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait for an evictor that is at work: it holds a lock for a sync of the disk.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps a range of a blob from eviction while it lives.
///
/// Local bytes stay; bytes that are inserted later stay as well. A pin does not hinder [`CachedBlob::discard`].
pub struct CachePin {
    blob: Arc<CachedBlob>,
    chunks: Range<u64>,
}

impl CachePin {
    pub(crate) fn new(blob: &Arc<CachedBlob>, range: ByteRange) -> Result<Self> {
        let chunks = range.offset() / CHUNK..range.end().div_ceil(CHUNK);
        let mut pins = blob.pins.lock();
        // Before there are files there is nothing to evict: the thread that makes them locks the chunks in the list.
        if let Some(files) = blob.present_files().filter(|_| !chunks.is_empty()) {
            lock_chunks(files, &chunks)?;
        }
        pins.push(chunks.clone());
        Ok(Self { blob: Arc::clone(blob), chunks })
    }
}

fn lock_chunks(files: &Files, chunks: &Range<u64>) -> Result<()> {
    if locks::lock_within(&files.sidecar.file, &Locks::pin(chunks), Mode::Shared, LOCK_TIMEOUT)? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Conflict, "another process evicts parts of this blob and does not end")
        .about(files.data_path.display())
        .remedy("find a stopped headstart process and end it"))
}

/// Locks the chunks that were pinned before there were files.
pub(crate) fn apply(files: &Files, pins: &[Range<u64>]) -> Result<()> {
    pins.iter().filter(|chunks| !chunks.is_empty()).try_for_each(|chunks| lock_chunks(files, chunks))
}

impl Drop for CachePin {
    fn drop(&mut self) {
        let mut pins = self.blob.pins.lock();
        if let Some(at) = pins.iter().position(|chunks| *chunks == self.chunks) {
            pins.swap_remove(at);
        }
        let Some(files) = self.blob.present_files() else { return };
        let mut free = Vec::new();
        uncovered(&pins, self.chunks.clone(), &mut free);
        for part in free {
            locks::unlock(&files.sidecar.file, &Locks::pin(&part));
        }
    }
}

/// The parts of `chunks` that are in none of `pins`.
fn uncovered(pins: &[Range<u64>], chunks: Range<u64>, free: &mut Vec<Range<u64>>) {
    if chunks.is_empty() {
        return;
    }
    match pins.iter().find(|pin| pin.start < chunks.end && chunks.start < pin.end) {
        None => free.push(chunks),
        Some(pin) => {
            uncovered(pins, chunks.start..pin.start.max(chunks.start), free);
            uncovered(pins, pin.end.min(chunks.end)..chunks.end, free);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_ended_pin_unlocks_the_chunks_that_no_other_covers(
            pins in prop::collection::vec((0u64..50, 0u64..50), 0..6), a in 0u64..50, b in 0u64..50,
        ) {
            let pins: Vec<_> = pins.into_iter().map(|(a, b)| a.min(b)..a.max(b)).collect();
            let chunks = a.min(b)..a.max(b);
            let mut free = Vec::new();
            uncovered(&pins, chunks.clone(), &mut free);
            let mut free: Vec<_> = free.into_iter().flatten().collect();
            free.sort_unstable();
            let expected: Vec<_> = chunks.filter(|chunk| !pins.iter().any(|pin| pin.contains(chunk))).collect();
            prop_assert_eq!(free, expected);
        }
    }
}
