//! Blobs without a hash tree: checked by their digest once they are whole.
//!
//! Other tools make images without trees; their bytes are trusted as they came from the store, range by range. As soon
//! as all of them are here, the thread that inserts the last one starts another that computes the digest, and with it
//! the root of the tree that the blob would have, which is kept in the sidecar. No read waits for that thread, and it
//! ends early if nothing uses the blob any more; the next open of the blob starts another. The result holds for one
//! generation: forgetting a unit ends it, and when the blob is whole again it is checked again.
//!
//! # A blob that is wrong
//!
//! All of it is forgotten, so that no read sees it any more; it is logged and counted; watchers of the blob are told,
//! because they may have made something of its bytes; and it is fetched again like anything else that is missing. A
//! store may be wrong for good: after some times (`check_state`) nothing of the blob is taken any more, and its reads
//! get an error that names it. That ends when nothing uses the blob any more: a later attach starts again.
//!
//! # Limits
//!
//! Not checked are: a blob of which parts are in memory only, because the disk did not take them; one of which parts
//! are never read, because later layers hide them; one that is larger than the cache, and so is never whole. If two
//! processes bring a blob together, one of them checks it.

use crate::blob::CachedBlob;
use crate::blob_files::Files;
use crate::locks::{self, Mode};
use crate::sidecar::Locks;
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result, copy_source};
use headstart_hash_tree::sums::{BlobSums, HashingWriter};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The result of a check.
#[derive(Debug)]
pub(crate) enum Checked {
    /// All of it is right.
    Right,
    /// The blob was not whole, or is not any more.
    NotWhole,
    /// Another process checks it.
    Elsewhere,
    /// The digest is another one; all of the blob was forgotten.
    Wrong(Error),
}

/// Reads a blob's file without marking it as accessed.
struct Unmarked<'a> {
    blob: &'a CachedBlob,
    files: &'a Files,
}

impl ReadAt for Unmarked<'_> {
    fn len(&self) -> u64 {
        self.blob.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if self.blob.read_file(self.files, buf, offset) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Absent, "is not whole any more"))
    }
}

/// The lock of the process that checks a blob.
struct Checking<'a>(&'a Files);

impl Drop for Checking<'_> {
    fn drop(&mut self) {
        locks::unlock(&self.0.sidecar.file, &Locks::CHECK);
    }
}

/// The files of a blob without a tree that is whole, in its file, and not found right yet.
fn is_due(blob: &CachedBlob) -> Option<&Files> {
    let files = blob.present_files().filter(|_| blob.is_plain())?;
    // Of two threads that insert the last two units at the same time, one at least must see both.
    fence(Ordering::SeqCst);
    (files.is_whole() && !files.is_proven()).then_some(files)
}

/// Starts the check of a blob that has become whole. Called after inserts and opens; waits for nothing.
pub(crate) fn check_if_whole(blob: &CachedBlob) {
    if !blob.storage.settings.check_whole
        || is_due(blob).is_none()
        || blob.check().running.swap(true, Ordering::AcqRel)
    {
        return;
    }
    let Some(shared) = blob.shared() else { return };
    let started =
        std::thread::Builder::new().name("check".to_owned()).spawn(move || check_until_done(&shared));
    if let Err(error) = started {
        blob.check().running.store(false, Ordering::Release);
        tracing::warn!(blob = %blob.spec().digest, %error, "a blob is whole and cannot be checked");
    }
}

/// The thread that checks a blob. Other checks of this process wait for it, because hashing takes a core.
fn check_until_done(blob: &Arc<CachedBlob>) {
    // Only this thread holds the blob: nothing else uses it any more.
    let is_unused = || Arc::strong_count(blob) == 1;
    loop {
        let checked = {
            let _alone = blob.storage.checking.lock();
            check(blob, &is_unused)
        };
        // A thread that inserted the last unit meanwhile saw the flag, and left the look to this thread.
        blob.check().running.swap(false, Ordering::AcqRel);
        let goes_on = match &checked {
            Ok(Checked::Right) => {
                tracing::info!(blob = %blob.spec().digest, "a blob is whole and right");
                true
            }
            Ok(Checked::Wrong(error)) => {
                log_wrong(blob, error);
                blob.watchers().into_iter().for_each(|watcher| watcher.found_wrong(blob));
                true
            }
            Ok(Checked::NotWhole) => true,
            Ok(Checked::Elsewhere) => false,
            Err(error) => {
                if error.kind() != ErrorKind::Cancelled {
                    tracing::warn!(blob = %blob.spec().digest, %error, "a blob is whole and cannot be checked");
                }
                false
            }
        };
        if !goes_on || is_due(blob).is_none() || blob.check().running.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

fn log_wrong(blob: &CachedBlob, error: &Error) {
    if let Some(error) = blob.refusal() {
        tracing::error!(%error, "wrong bytes were served; the cached bytes are dropped");
    } else {
        tracing::warn!(%error, "wrong bytes were served; the cached bytes are dropped and fetched again");
    }
}

/// Checks a blob that is whole by its digest. Reads all of it, unless it was found right before.
///
/// # Errors
/// [`ErrorKind::Cancelled`] if `is_unused` says that nothing uses the blob any more; errors of the disk.
pub(crate) fn check(blob: &CachedBlob, is_unused: &dyn Fn() -> bool) -> Result<Checked> {
    let Some(files) = blob.present_files() else { return Ok(Checked::NotWhole) };
    if files.is_proven() {
        return Ok(Checked::Right);
    }
    let mut go_on = |_| match is_unused() {
        true => Err(Error::new(ErrorKind::Cancelled, "it is not used any more")),
        false => Ok(()),
    };
    let (sums, generation) = match hash(blob, files, &mut go_on)? {
        Hashed::Whole(sums, generation) => (sums, generation),
        Hashed::NotWhole => return Ok(Checked::NotWhole),
        Hashed::Elsewhere => return Ok(Checked::Elsewhere),
    };
    let (sidecar, proven) = (&files.sidecar, generation.wrapping_add(1));
    let counts = &blob.storage.counts;
    if sums.digest == blob.spec().digest {
        sidecar.write_whole_root(sums.root.as_bytes())?;
        sidecar.whole_at().store(proven, Ordering::Release);
        counts.proven_blobs.fetch_add(1, Ordering::Relaxed);
        blob.check().wrong.store(0, Ordering::Release);
        return Ok(Checked::Right);
    }
    counts.wrong_blobs.fetch_add(1, Ordering::Relaxed);
    blob.check().wrong.fetch_add(1, Ordering::AcqRel);
    blob.check().wrong_in_all.fetch_add(1, Ordering::AcqRel);
    let mut error = Error::corrupt(format!("all of it was here, and its digest is {}", sums.digest))
        .about(format!("blob {}", blob.spec().digest));
    if let Err(kept) = blob.discard(ByteRange::between(0, blob.len())) {
        error = error.remedy(format!(
            "remove it from the cache when it is not used any more, it may be back after a loss of power ({kept})"
        ));
    }
    Ok(Checked::Wrong(error.remedy("its store gave wrong bytes: if this comes again, repair it there")))
}

/// The sums of all of a blob's file, and the generation for which they hold.
enum Hashed {
    Whole(BlobSums, u64),
    /// The blob was not whole, or is not any more.
    NotWhole,
    /// Another process checks it.
    Elsewhere,
}

/// Reads all of a blob's file; calls `read` with the number of bytes that were read, and ends if that returns an error.
fn hash(blob: &CachedBlob, files: &Files, read: &mut dyn FnMut(u64) -> Result<()>) -> Result<Hashed> {
    let sidecar = &files.sidecar;
    let generation = sidecar.generation().load(Ordering::Acquire);
    if !files.is_whole() {
        return Ok(Hashed::NotWhole);
    }
    if !locks::try_lock(&sidecar.file, &Locks::CHECK, Mode::Exclusive)? {
        return Ok(Hashed::Elsewhere);
    }
    let _checking = Checking(files);
    let mut hashes = HashingWriter::new(io::sink(), blob.storage.dir());
    match copy_source(&Unmarked { blob, files }, &mut hashes, read) {
        Err(e) if e.kind() == ErrorKind::Absent => return Ok(Hashed::NotWhole),
        copied => copied?,
    }
    let (_, sums) = hashes.finish(io::sink())?;
    let is_same = sidecar.generation().load(Ordering::Acquire) == generation;
    Ok(if is_same { Hashed::Whole(sums, generation) } else { Hashed::NotWhole })
}

/// `true` if a blob that is whole still matches its digest, whatever was found before; `None` if that cannot be said.
///
/// # Errors
/// The error of `read`; errors of the disk.
pub(crate) fn is_right(blob: &CachedBlob, read: &mut dyn FnMut(u64) -> Result<()>) -> Result<Option<bool>> {
    let Some(files) = blob.present_files() else { return Ok(None) };
    Ok(match hash(blob, files, read)? {
        Hashed::Whole(sums, _) => Some(sums.digest == blob.spec().digest),
        Hashed::NotWhole | Hashed::Elsewhere => None,
    })
}
