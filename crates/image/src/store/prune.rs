//! Deleting what nothing refers to.
//!
//! A blob is kept where the index leads to it: through indexes and manifests (other tools' as well), to
//! configs, layers, hash trees, and the subject of an artifact. To be on the safe side with documents of later
//! versions and other tools, *every* digest that stands anywhere in a reachable manifest counts. A manifest
//! that cannot be read might lead to anything, so prune then refuses; only one that an index of several
//! platforms names may be missing, since other tools copy a single platform's.
//!
//! Only files whose names are digests are deleted, in `blobs/sha256` alone.

use super::staging::LEASE;
use super::{ImageStore, MAX_DEPTH};
use crate::digest::Digest;
use crate::manifest::{INDEX_DOCKER, INDEX_OCI, MANIFEST_DOCKER, MANIFEST_OCI};
use headstart_block::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File, TryLockError};
use std::io;
use std::path::Path;

/// The documents that lead further. The last is of a draft that some registries still hold.
const LEADING: [&str; 5] =
    [MANIFEST_OCI, MANIFEST_DOCKER, INDEX_OCI, INDEX_DOCKER, "application/vnd.oci.artifact.manifest.v1+json"];

/// What [`ImageStore::prune`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PruneReport {
    /// Blobs deleted.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Directories of dead writers deleted.
    pub stale_writers: u64,
    /// Their bytes.
    pub stale_bytes: u64,
    /// Blobs kept.
    pub kept_blobs: u64,
    /// Their bytes.
    pub kept_bytes: u64,
}

/// Whether to delete or only to count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Delete,
    Count,
}

impl ImageStore {
    /// Deletes blobs that no image refers to, and what dead writers left. Safe beside running writers.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] or [`ErrorKind::NotFound`] about a manifest that cannot be read: nothing is deleted.
    pub fn prune(&self) -> Result<PruneReport> {
        self.prune_or_count(Deed::Delete)
    }

    /// What [`ImageStore::prune`] would do now.
    ///
    /// # Errors
    /// As [`ImageStore::prune`].
    pub fn prune_preview(&self) -> Result<PruneReport> {
        self.prune_or_count(Deed::Count)
    }

    fn prune_or_count(&self, deed: Deed) -> Result<PruneReport> {
        let _lock = self.lock()?;
        let reachable = self.reachable()?;
        let (stale_writers, stale_bytes) = remove_stale_staging(&self.staging_dir(), deed)?;
        let mut report = PruneReport { stale_writers, stale_bytes, ..PruneReport::default() };
        for (entry, digest) in self.blob_files()? {
            let failed = |e| Error::io("cannot delete", e).about(entry.path().display());
            let len = entry.metadata().map_err(failed)?.len();
            if reachable.contains(&digest) {
                report.kept_blobs += 1;
                report.kept_bytes += len;
                continue;
            }
            if deed == Deed::Delete {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
            report.blobs += 1;
            report.bytes += len;
        }
        Ok(report)
    }

    fn blob_files(&self) -> Result<Vec<(DirEntry, Digest)>> {
        let failed = |e| self.about(Error::io("cannot read its blobs", e));
        let entries = match fs::read_dir(self.blobs_dir()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let is_file = entry.file_type().map_err(failed)?.is_file();
            if let Some(digest) = entry.file_name().to_str().and_then(Digest::from_hex).filter(|_| is_file) {
                files.push((entry, digest));
            }
        }
        Ok(files)
    }

    /// Every digest that the index leads to.
    fn reachable(&self) -> Result<BTreeSet<Digest>> {
        let index = self.index()?;
        let mut search = Search { store: self, found: BTreeSet::new(), read: BTreeSet::new() };
        for entry in index.entries() {
            let Some(digest) = entry.digest else { continue };
            search.found.insert(digest);
            if entry.media_type.is_none_or(|media_type| LEADING.contains(&media_type)) {
                search.follow(digest, MayMiss::No, 0)?;
            }
        }
        Ok(search.found)
    }
}

/// Whether a document may be absent from a whole store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayMiss {
    Yes,
    No,
}

struct Search<'a> {
    store: &'a ImageStore,
    /// What is to be kept.
    found: BTreeSet<Digest>,
    /// Documents read already: each once, so that hostile graphs cost no more than their bytes.
    read: BTreeSet<Digest>,
}

impl Search<'_> {
    fn follow(&mut self, digest: Digest, may_miss: MayMiss, depth: usize) -> Result<()> {
        if !self.read.insert(digest) {
            return Ok(());
        }
        let bytes = match self.store.read_document(&digest) {
            Err(e) if e.kind() == ErrorKind::NotFound && may_miss == MayMiss::Yes => return Ok(()),
            Err(e) => return Err(e.remedy("nothing was pruned: repair or remove that image first")),
            Ok(bytes) => bytes,
        };
        let document: Value = serde_json::from_slice(&bytes).map_err(|e| {
            let error = Error::corrupt("is not JSON; nothing was pruned").caused_by(e);
            self.store.about_blob(error, &digest)
        })?;
        let mut leading = Vec::new();
        collect(&document, &mut self.found, &mut leading);
        if depth == MAX_DEPTH && !leading.is_empty() {
            return Err(self.store.about_blob(Error::corrupt("is an index of indexes without end"), &digest));
        }
        leading.into_iter().try_for_each(|digest| self.follow(digest, MayMiss::Yes, depth + 1))
    }
}

/// Finds all digests in a document, and those of documents that lead further.
fn collect(value: &Value, found: &mut BTreeSet<Digest>, leading: &mut Vec<Digest>) {
    match value {
        Value::String(text) => found.extend(text.parse::<Digest>().ok()),
        Value::Array(values) => values.iter().for_each(|value| collect(value, found, leading)),
        Value::Object(fields) => {
            let field = |key| fields.get(key).and_then(Value::as_str);
            if field("mediaType").is_some_and(|media_type| LEADING.contains(&media_type)) {
                leading.extend(field("digest").and_then(|text| text.parse::<Digest>().ok()));
            }
            fields.values().for_each(|value| collect(value, found, leading));
        }
        _ => {}
    }
}

/// Deletes, or counts, what dead writers left: their number and bytes. Under the store's lock, under which
/// living ones take their leases.
pub(super) fn remove_stale_staging(staging: &Path, deed: Deed) -> Result<(u64, u64)> {
    let failed = |e| Error::io("cannot remove what a dead writer left", e).about(staging.display());
    let entries = match fs::read_dir(staging) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
        entries => entries.map_err(failed)?,
    };
    let (mut dirs, mut bytes) = (0, 0);
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        // Held until the directory is gone; without a lease its owner died at its birth, or is removing it.
        let lease = match File::open(path.join(LEASE)) {
            Ok(lease) => Some(lease),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(failed(e)),
        };
        match lease.as_ref().map(File::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => continue,
            Some(Err(TryLockError::Error(e))) => return Err(failed(e)),
            Some(Ok(())) | None => {}
        }
        dirs += 1;
        bytes += size_of_files(&path);
        if deed == Deed::Delete {
            match fs::remove_dir_all(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
                _ => {}
            }
        }
    }
    Ok((dirs, bytes))
}

/// For the report only: what cannot be read counts as nothing.
fn size_of_files(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|meta| meta.len())
        .sum()
}
