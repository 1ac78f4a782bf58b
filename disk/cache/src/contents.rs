//! The content of a cache, for people: listing, removing, pruning.

use crate::blob_files::Files;
use crate::cache::Cache;
use crate::durable;
use crate::evict::{self, Evicted};
use crate::locks;
use crate::sidecar::{CHUNK, Kind, Locks};
use headstart_block::{Digest, Error, ErrorKind, Result};
use serde::Serialize;
use std::path::Path;

/// The kind of a cached blob, by the way in which its bytes are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// A layer's blob with a hash tree: all its local bytes were verified.
    Verified,
    /// A layer's blob without a hash tree that is complete and matches its digest.
    Whole,
    /// A layer's blob without a hash tree that was not compared with its digest yet. Its bytes are trusted as the store
    /// sent them.
    Unverified,
    /// The outboard of a blob: the file of its hash tree.
    HashTree,
}

/// A blob in the cache, as listed by [`Cache::list`].
#[derive(Clone, Debug, Serialize)]
pub struct CacheEntry {
    /// The digest of the blob, which is its name.
    pub digest: Digest,
    /// The kind of the blob.
    pub kind: EntryKind,
    /// Length of the blob, in bytes.
    pub len: u64,
    /// Bytes of the blob that are in the cache.
    pub local_bytes: u64,
    /// Bytes of the blob that survive a loss of power.
    pub durable_bytes: u64,
    /// Bytes of the blob that attached disks have pinned (kept from eviction), in the cache or not.
    pub pinned_bytes: u64,
    /// `true` if a process has the blob open.
    pub in_use: bool,
}

/// The space that a cache uses, and the number of its blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// The number of blobs, outboards (files of hash trees) included.
    pub blobs: u64,
    /// The number of blobs that a process has open.
    pub blobs_in_use: u64,
    /// Bytes of blobs that are in the cache.
    pub local_bytes: u64,
    /// Bytes of the sidecars, the files that record the local units of each blob.
    pub sidecar_bytes: u64,
    /// Free bytes on the file system of the cache.
    pub free_bytes: u64,
}

/// The kind of a pair of files.
pub(crate) fn kind_of(files: &Files) -> EntryKind {
    match files.header.identity.kind {
        Kind::Verified => EntryKind::Verified,
        Kind::Outboard => EntryKind::HashTree,
        Kind::Plain if files.is_proven() => EntryKind::Whole,
        Kind::Plain => EntryKind::Unverified,
    }
}

fn entry(files: &Files) -> Result<CacheEntry> {
    let file = &files.sidecar.file;
    let layout = files.sidecar.layout;
    let identity = &files.header.identity;
    let kind = kind_of(files);
    let mut pinned = Vec::new();
    evict::each_pinned(files, &mut |chunks| pinned.push(chunks))?;
    pinned.sort_by_key(|chunks| chunks.start);
    let (mut pinned_bytes, mut at) = (0, 0);
    for chunks in pinned {
        let start = chunks.start.max(at);
        at = at.max(chunks.end);
        pinned_bytes += (at * CHUNK).min(layout.len).saturating_sub(start * CHUNK);
    }
    let durable = durable::durable_units(files)?.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
    Ok(CacheEntry {
        digest: identity.digest,
        kind,
        len: layout.len,
        local_bytes: files.all_local_bytes(),
        durable_bytes: (durable * layout.unit).min(layout.len),
        pinned_bytes,
        in_use: locks::held_by_others(file, &Locks::USE)?.is_some(),
    })
}

impl Cache {
    /// Lists all blobs in the order of their digests. A blob that images describe differently (with another hash tree,
    /// say) is listed once for each description. Blobs whose files cannot be opened are left out and logged; blobs
    /// whose files cannot be trusted are left out.
    ///
    /// # Errors
    /// Errors of reading the directory or of a file's locks.
    pub fn list(&self) -> Result<Vec<CacheEntry>> {
        let mut entries = Vec::new();
        for stem in self.storage.directory.stems()? {
            if let Some(files) = self.readable(&stem) {
                entries.push(entry(&files)?);
            }
        }
        Ok(entries)
    }

    /// The files under a name. Files that cannot be opened are logged and left out; they hide no others.
    pub(crate) fn readable(&self, stem: &str) -> Option<Files> {
        let opened = self.storage.directory.open_stem(stem);
        opened
            .inspect_err(|error| tracing::warn!(stem, %error, "a cached blob cannot be opened"))
            .ok()
            .flatten()
    }

    /// Adds up the space that the cache uses. Blobs whose files cannot be opened are left out and logged; blobs whose
    /// files cannot be trusted are left out.
    ///
    /// # Errors
    /// Errors of reading the directory, of a file's locks, or of the file system.
    pub fn usage(&self) -> Result<Usage> {
        let mut usage = Usage::default();
        for stem in self.storage.directory.stems()? {
            let Some(files) = self.readable(&stem) else { continue };
            usage.blobs += 1;
            usage.blobs_in_use +=
                u64::from(locks::held_by_others(&files.sidecar.file, &Locks::USE)?.is_some());
            usage.local_bytes += files.all_local_bytes();
            usage.sidecar_bytes += files.sidecar.layout.file_len();
        }
        usage.free_bytes = free_bytes(self.dir())?;
        Ok(usage)
    }

    /// Returns the usage of a cache that does not exist yet: no blobs, and the free bytes of the file system
    /// where `dir` would be.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn usage_of_none(dir: &Path) -> Result<Usage> {
        let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("."));
        Ok(Usage { free_bytes: free_bytes(there)?, ..Usage::default() })
    }

    /// Removes a blob, in all its descriptions, and its hash tree; the tree stays if a process has it open. Returns the
    /// number of removed bytes of blobs and trees, without their sidecars.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the blob is not in the cache, or only files of it that cannot be trusted, which are
    /// removed; [`ErrorKind::Conflict`] if a process has it open.
    pub fn remove(&self, digest: &Digest) -> Result<u64> {
        let stems = self.storage.directory.stems()?;
        let mut found = Vec::new();
        for stem in stems.iter().filter(|stem| stem.starts_with(&digest.hex())) {
            match self.storage.directory.open_stem(stem)? {
                Some(files) => found.push((stem, files)),
                None => {
                    self.storage.directory.change()?.unlink_if_wrong(stem)?;
                }
            }
        }
        if found.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "is not in the cache").about(digest));
        }
        let in_use = || {
            Error::new(ErrorKind::Conflict, "is in use by an attached disk")
                .about(digest)
                .remedy("detach the disks of its images first")
        };
        for (_, files) in &found {
            if locks::held_by_others(&files.sidecar.file, &Locks::USE)?.is_some() {
                return Err(in_use());
            }
        }
        let changing = self.storage.directory.change()?;
        let (mut bytes, mut beside) = (0, 0);
        let mut outboards = Vec::new();
        for (stem, files) in found {
            let local = files.all_local_bytes();
            if !changing.unlink_if_unused(stem, &files)? {
                return Err(in_use());
            }
            bytes += local;
            beside += files.sidecar.layout.file_len();
            outboards.push(Digest::from_bytes(files.header.identity.outboard).hex());
        }
        drop(changing);
        for stem in stems.iter().filter(|stem| outboards.iter().any(|hex| stem.starts_with(hex.as_str()))) {
            let Some(files) = self.storage.directory.open_stem(stem)? else { continue };
            let local = files.all_local_bytes();
            // Another image may need it: then it stays.
            if self.storage.directory.change()?.unlink_if_unused(stem, &files)? {
                bytes += local;
                beside += files.sidecar.layout.file_len();
            }
        }
        self.storage.state.subtract(bytes.saturating_add(beside));
        Ok(bytes)
    }

    /// Evicts chunks (64 KiB each) that are not pinned, the least useful first, until blobs and their sidecars use at
    /// most `target` bytes, or nothing more can be evicted. The files of blobs that have no byte left and that no
    /// process uses are removed too. Nothing is removed if blobs and sidecars use at most `target` already, unless
    /// `target` is 0.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another thread or process evicts for more than 30 seconds; errors of reading the
    /// directory.
    pub fn prune(&self, target: u64) -> Result<Evicted> {
        evict::evict_patiently(&self.storage, target)
    }
}

/// Bytes that are free on the disk of a directory.
fn free_bytes(dir: &Path) -> Result<u64> {
    let file_system = rustix::fs::statvfs(dir)
        .map_err(|e| Error::io("cannot look at its file system", e.into()).about(dir.display()))?;
    Ok(file_system.f_bavail.saturating_mul(file_system.f_frsize))
}
