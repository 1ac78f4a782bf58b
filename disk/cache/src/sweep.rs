//! Tells the kernel of the pages that can go: see `page_cache`.

use crate::blob::CachedBlob;
use crate::blob_files::Files;
use crate::locks;
use crate::page_cache::{PageCache, PageUse, QueuedChunk};
use crate::policy;
use crate::sidecar::{CHUNK, Locks};
use crate::storage::Storage;
use headstart_block::ByteRange;
use rustix::fs::{Advice, fadvise};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Drops the pages of `blobs` that are not needed in the page cache, as far as they are on disk.
pub(crate) fn sweep(storage: &Storage, blobs: &[Arc<CachedBlob>]) {
    let way = storage.settings.page_cache;
    let now = storage.now_ms();
    let mut queue = storage.page_queue.lock();
    for blob in blobs {
        let Some((pages, files)) = in_use(blob).filter(|(pages, _)| pages.take_changed()) else { continue };
        pages.take_touched(&mut |chunk| queue.push(QueuedChunk { blob: blob.number, chunk }, now));
        if is_needed_by_others(way, files) {
            // They go when that process is done, unless it came back to them.
            pages.look_again();
        } else {
            pages.take_used(&mut |range| drop_pages(way, files, range));
        }
    }
    while let Some(due) = queue.pop_due(now) {
        let blob = blobs.iter().find(|blob| blob.number == due.blob);
        let Some((pages, files)) = blob.and_then(in_use) else { continue };
        let range = pages.leave_queue(due.chunk);
        if !is_needed_by_others(way, files) {
            drop_pages(way, files, range);
        }
    }
}

fn in_use(blob: &Arc<CachedBlob>) -> Option<(&PageUse, &Files)> {
    blob.page_use().zip(blob.present_files())
}

/// `true` if another process has the blob in use, and may need what this one is done with.
fn is_needed_by_others(way: PageCache, files: &Files) -> bool {
    // If locks fail, the pages are the kernel's.
    way == PageCache::Auto
        && locks::held_by_others(&files.sidecar.file, &Locks::USE).map_or(true, |held| held.is_some())
}

/// Drops the pages of a range, without those of chunks that were come back to.
fn drop_pages(way: PageCache, files: &Files, range: ByteRange) {
    let access = files.sidecar.access();
    let stays = |part: &ByteRange| {
        let word = usize::try_from(part.offset() / CHUNK).ok().and_then(|at| access.get(at));
        way == PageCache::Auto && word.is_some_and(|word| policy::is_proven(word.load(Ordering::Relaxed)))
    };
    let mut start = range.offset();
    for part in range.parts(CHUNK) {
        if stays(&part) {
            advise(files, ByteRange::between(start, part.offset()));
            start = part.end();
        }
    }
    advise(files, ByteRange::between(start.min(range.end()), range.end()));
}

fn advise(files: &Files, range: ByteRange) {
    let Some(len) = NonZeroU64::new(range.len()) else { return };
    if let Err(error) = fadvise(&files.data, range.offset(), Some(len), Advice::DontNeed) {
        tracing::debug!(file = %files.data_path.display(), %range, %error, "pages cannot be dropped");
    }
}
