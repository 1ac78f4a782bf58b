//! Deleting what nothing refers to.
//!
//! A blob is kept where the index leads to it: through indexes and manifests (other tools' as well), to
//! configs, layers, hash trees, and the subject of an artifact. To be on the safe side with documents of later
//! versions and other tools, *every* digest that stands anywhere in a reachable manifest counts. A manifest
//! that cannot be read might lead to anything, so prune then refuses; only one that an index of several
//! platforms names may be missing, since other tools copy a single platform's.
//!
//! While an image is being copied into the store its blobs are there before its manifest: nothing that might be
//! one of them is deleted then.
//!
//! Artifacts that are listed under a tag of their subject's digest (plans, say) live as long as that: the list is
//! followed only where something else leads to the subject, and its entry goes with the subject.
//!
//! Only files whose names are digests are deleted, in `blobs/sha256` alone.

use super::{ImageStore, MAX_DEPTH};
use crate::digest::Digest;
use crate::manifest::{INDEX_DOCKER, INDEX_OCI, MANIFEST_DOCKER, MANIFEST_OCI};
use crate::reference::{Selector, Tag};
use headstart_block::{Error, ErrorKind, Result};
use headstart_store::layout::{Entry, StalePolicy, referrers_subject, remove_partial, remove_stale};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, DirEntry};
use std::io;

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
    /// Directories of dead writers, and beginnings of blobs whose copy broke off, that were deleted.
    pub stale_writers: u64,
    /// Their bytes.
    pub stale_bytes: u64,
    /// Blobs kept.
    pub kept_blobs: u64,
    /// Their bytes.
    pub kept_bytes: u64,
}

impl ImageStore {
    /// Deletes blobs that no image refers to, and what dead writers left. Safe beside running writers.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] or [`ErrorKind::NotFound`] about a manifest that cannot be read: nothing is deleted.
    pub fn prune(&self) -> Result<PruneReport> {
        self.prune_or_count(StalePolicy::Delete)
    }

    /// What [`ImageStore::prune`] would do now.
    ///
    /// # Errors
    /// As [`ImageStore::prune`].
    pub fn prune_preview(&self) -> Result<PruneReport> {
        self.prune_or_count(StalePolicy::Count)
    }

    fn prune_or_count(&self, policy: StalePolicy) -> Result<PruneReport> {
        let _lock = self.layout.lock()?;
        let Reachable { digests: reachable, orphans } = self.reachable()?;
        let living = remove_stale(&self.layout.staging_dir(), policy)?;
        let (partial, partial_bytes) = remove_partial(&self.layout, policy)?;
        let (stale_writers, stale_bytes) = (living.stale + partial, living.stale_bytes + partial_bytes);
        let mut report = PruneReport { stale_writers, stale_bytes, ..PruneReport::default() };
        // Before what they list is gone. While an image is copied, its artifacts may be here before it is.
        if policy == StalePolicy::Delete && !living.publishes_early {
            self.remove_lists(&orphans)?;
        }
        for (entry, digest) in self.blob_files()? {
            let failed = |e| Error::io("cannot delete", e).about(entry.path().display());
            let len = entry.metadata().map_err(failed)?.len();
            if living.publishes_early || reachable.contains(&digest) {
                report.kept_blobs += 1;
                report.kept_bytes += len;
                continue;
            }
            if policy == StalePolicy::Delete {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
            report.blobs += 1;
            report.bytes += len;
        }
        Ok(report)
    }

    fn blob_files(&self) -> Result<Vec<(DirEntry, Digest)>> {
        let failed = |e| self.layout.about(Error::io("cannot read its blobs", e));
        let entries = match fs::read_dir(self.layout.blobs_dir()) {
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

    /// Takes the lists of artifacts whose subjects are gone out of the index.
    fn remove_lists(&self, orphans: &[Tag]) -> Result<()> {
        if orphans.is_empty() {
            return Ok(());
        }
        let mut index = self.layout.index()?;
        for tag in orphans {
            index.remove(&Selector::Tag(tag.clone()));
        }
        self.layout.replace(&self.layout.index_path(), &index.to_bytes()?)
    }

    /// All that the index leads to.
    fn reachable(&self) -> Result<Reachable> {
        let index = self.layout.index()?;
        let mut search = Search { store: self, found: BTreeSet::new(), read: BTreeSet::new() };
        let mut lists = Vec::new();
        for entry in index.entries() {
            match entry.tag.and_then(referrers_subject) {
                Some(subject) => lists.push((subject, entry)),
                None => search.start(&entry)?,
            }
        }
        // Artifacts may have artifacts.
        loop {
            let (alive, waiting): (Vec<_>, Vec<_>) =
                lists.into_iter().partition(|(subject, _)| search.read.contains(subject));
            lists = waiting;
            if alive.is_empty() {
                break;
            }
            alive.iter().try_for_each(|(_, entry)| search.start(entry))?;
        }
        let orphans = lists.iter().filter_map(|(_, entry)| entry.tag?.parse().ok()).collect();
        Ok(Reachable { digests: search.found, orphans })
    }
}

/// What is to be kept, and what not of the index itself.
struct Reachable {
    digests: BTreeSet<Digest>,
    /// Tags of lists of artifacts whose subjects are not there.
    orphans: Vec<Tag>,
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
    /// Documents that something leads to, read already: each once, so that hostile graphs cost no more than their
    /// bytes.
    read: BTreeSet<Digest>,
}

impl Search<'_> {
    /// Follows an entry of the index.
    fn start(&mut self, entry: &Entry<'_>) -> Result<()> {
        let Some(digest) = entry.digest else { return Ok(()) };
        self.found.insert(digest);
        if entry.media_type.is_none_or(|media_type| LEADING.contains(&media_type)) {
            return self.follow(digest, MayMiss::No, 0);
        }
        self.read.insert(digest);
        Ok(())
    }

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
            self.store.layout.about_blob(error, &digest)
        })?;
        let mut leading = Vec::new();
        collect(&document, &mut self.found, &mut leading);
        if depth == MAX_DEPTH && !leading.is_empty() {
            return Err(self
                .store
                .layout
                .about_blob(Error::corrupt("is an index of indexes without end"), &digest));
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
