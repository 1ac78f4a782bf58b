//! Blobs without a hash tree: once whole, checked by their digest.
//!
//! Other tools make images without trees; their bytes are believed to their store, range by range. When all of them
//! are there, the digest can be computed, and with it the root of the tree that the blob would have, which is kept
//! in the sidecar. What was found holds for one generation: forgetting a unit ends it.

use crate::blob::CachedBlob;
use crate::files::Files;
use crate::presence;
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result, copy_source};
use headstart_image::digest::HashingWriter;
use std::io;
use std::sync::atomic::Ordering;

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

/// See [`CachedBlob::verify_whole`].
pub(crate) fn verify_whole(blob: &CachedBlob) -> Result<bool> {
    let Some(files) = blob.present_files() else { return Ok(false) };
    let sidecar = &files.sidecar;
    let generation = sidecar.generation().load(Ordering::Acquire);
    if !presence::all_set(sidecar.local(), &(0..blob.layout().units())) {
        return Ok(false);
    }
    let proven = generation.wrapping_add(1);
    if !blob.is_plain() || sidecar.whole_at().load(Ordering::Acquire) == proven {
        return Ok(true);
    }
    let mut hashes = HashingWriter::new(io::sink(), blob.cache().dir());
    match copy_source(&Unmarked { blob, files }, &mut hashes, &mut |_| Ok(())) {
        Err(e) if e.kind() == ErrorKind::Absent => return Ok(false),
        copied => copied?,
    }
    let (_, sums) = hashes.finish(io::sink())?;
    if sidecar.generation().load(Ordering::Acquire) != generation {
        return Ok(false);
    }
    if sums.digest != blob.spec().digest {
        blob.discard(ByteRange::between(0, blob.len()))?;
        return Err(Error::corrupt(format!("all of it is here, but its digest is {}", sums.digest))
            .about(format!("blob {}", blob.spec().digest))
            .remedy("its store gives wrong bytes: repair it; what was cached is dropped"));
    }
    sidecar.write_whole_root(sums.root.as_bytes())?;
    sidecar.whole_at().store(proven, Ordering::Release);
    Ok(true)
}

/// Whether a plain blob was found right and nothing was forgotten since.
pub(crate) fn is_proven(files: &Files) -> bool {
    let generation = files.sidecar.generation().load(Ordering::Acquire);
    files.sidecar.whole_at().load(Ordering::Acquire) == generation.wrapping_add(1)
        && presence::all_set(files.sidecar.local(), &(0..files.sidecar.layout.units()))
}
