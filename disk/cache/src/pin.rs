//! Pins: chunks that no process evicts.
//!
//! A pin is a shared lock on byte ranges of the sidecar, one byte a chunk. The evictor takes the exclusive lock of the
//! chunks that it evicts, and leaves alone those whose lock it does not get. So pins are seen by all processes and
//! vanish with their holder. The pins of one process on one blob share an open file, hence one set of locks: a list
//! says which chunks are still pinned when one pin ends.

use crate::blob::CachedBlob;
use crate::locks;
use crate::pin_table::{lock_chunks, uncovered};
use crate::sidecar::{CHUNK, Locks};
use headstart_block::{ByteRange, ReadAt, Result};
use std::ops::Range;
use std::sync::Arc;

/// A guard that keeps a range of a blob from eviction until it is dropped.
///
/// The pin covers bytes that are local now and those that are inserted later, and all of each chunk (64 KiB) that the
/// range touches. A pin does not prevent [`CachedBlob::discard`].
pub struct CachePin {
    blob: Arc<CachedBlob>,
    chunks: Range<u64>,
}

impl CachePin {
    fn new(blob: &Arc<CachedBlob>, range: ByteRange) -> Result<Self> {
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

impl CachedBlob {
    /// Pins `range`: no process evicts bytes of it until the returned guard is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](headstart_block::ErrorKind::Conflict) if another process is evicting parts of the range
    /// for more than 5 seconds; errors of the operating system's locks.
    pub fn pin(self: &Arc<Self>, range: ByteRange) -> Result<CachePin> {
        CachePin::new(self, range.intersect(ByteRange::between(0, self.len())))
    }
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
