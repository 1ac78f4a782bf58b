//! Deleting blobs that nothing refers to.
//!
//! A blob is kept if the index leads to it, a lease names it (`leases`), or an image leads to it that lost its last
//! name not long ago (the marks of [`headstart_store::layout`]). The blobs that an image needs are found through
//! indexes and manifests (other tools' as well): configs, layers, hash trees, and the subject of an artifact.
//! [`PrunePlan`] decides that, as for object stores. A manifest that cannot be read might lead to anything, so prune
//! then refuses.
//!
//! While an image is being copied into the store its blobs are there before its manifest: no blob that might be one of
//! them is deleted then.
//!
//! Artifacts that are listed under a tag of their subject's digest (plans, for example) live as long as that: the list
//! is followed only if something else leads to the subject, and its entry is removed with the subject.
//!
//! Notes of conversions go with the layers that they lead to: a note keeps no layer.
//!
//! Only files whose names are digests are deleted, in `blobs/sha256` alone: manifests first, so that an image that
//! was deleted in part is not an image. They are moved out of the directory under the lock, because an attach or an
//! import may need them as soon as it has the lock; their space is freed after that, which takes longer (`trash`).

use super::ImageStore;
use crate::reference::{Selector, Tag};
use headstart_block::{Digest, Error, Result};
use headstart_store::layout::{
    DocumentNeed, INDEX_FILE, LayoutLock, PruneDecision, PruneInput, PrunePlan, PruneRules, StalePolicy,
    StoredBlob, UntaggedImage, Wanted, remove_partial, remove_stale,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

/// Options of [`ImageStore::prune`].
#[derive(Clone, Copy, Debug)]
pub struct PruneOptions {
    /// The current time, from which the age of images without a tag is calculated.
    pub now: SystemTime,
    /// The duration for which an image is kept after it lost its last tag. Zero: images without a tag are
    /// deleted at once.
    pub older_than: Duration,
    /// `true` to delete images even if leases protect them.
    pub force: bool,
    /// `true` to change nothing and only report what a prune would delete.
    pub dry_run: bool,
}

/// Describes what [`ImageStore::prune`] deleted and kept. A dry run deletes nothing: each field then describes what a
/// prune would delete or keep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PruneReport {
    /// The number of blobs deleted.
    pub blobs: u64,
    /// The total length of the deleted blobs, in bytes.
    pub bytes: u64,
    /// The number of leftovers deleted: staging directories of writers that died, and parts of blobs from
    /// copies that broke off.
    pub stale_writers: u64,
    /// The total length of the deleted leftovers, in bytes.
    pub stale_bytes: u64,
    /// The number of blobs that were kept.
    pub kept_blobs: u64,
    /// The total length of the blobs that were kept, in bytes.
    pub kept_bytes: u64,
    /// The images that were deleted.
    pub images: Vec<UntaggedImage>,
    /// The images without a tag that were kept.
    pub untagged: Vec<UntaggedImage>,
    /// The number of leases removed because their holders are gone.
    pub ended_leases: u64,
    /// The number of notes removed of conversions whose layers are gone.
    pub conversions: u64,
}

impl ImageStore {
    /// Deletes the blobs that neither an image with a tag nor a lease needs, and the files of writers that
    /// died. Images that lost their last tag recently are kept, as `options` say. Other processes may write
    /// to the store at the same time.
    ///
    /// # Errors
    /// [`Corrupt`](headstart_block::ErrorKind::Corrupt) if an entry of the index is damaged, this or
    /// [`NotFound`](headstart_block::ErrorKind::NotFound) if a manifest or lease cannot be read, and
    /// [`Conflict`](headstart_block::ErrorKind::Conflict) if another process holds the store's lock for too long: no
    /// blob is deleted then, but leases that are over may be gone. Errors of deleting files.
    pub fn prune(&self, options: &PruneOptions) -> Result<PruneReport> {
        let (looking, lock) = if options.dry_run {
            (self.layout.lock_to_look()?, None)
        } else {
            (None, Some(self.layout.lock()?))
        };
        let policy = if lock.is_some() { StalePolicy::Delete } else { StalePolicy::Count };
        let index = self.layout.whole_index()?;
        let leases = self.counting_leases(lock.as_ref())?;
        // A writer that lives now takes its lease under the lock, and lives until this is decided, or dies.
        let keeps_all = remove_stale(&self.layout, StalePolicy::Count)?.publishes_early;
        let PruneOptions { now, older_than, force: ignores_leases, .. } = *options;
        let rules = PruneRules { now, older_than, least_age: Duration::ZERO, keeps_all, ignores_leases };
        let input = PruneInput {
            index: &index,
            blobs: self.blobs(now)?,
            leases: leases.leases,
            ended: leases.ended,
            // Read after the leases, whose end is a mark.
            marks: self.layout.marks()?,
        };
        let decision = self.decide(PrunePlan::new(rules, input))?;
        let stale = remove_stale(&self.layout, policy)?;
        let (partial, partial_bytes) = remove_partial(&self.layout, policy)?;
        let forgotten = self.dead_conversions(&decision.kept.iter().map(|blob| blob.digest).collect())?;
        let bytes = |blobs: &[StoredBlob]| blobs.iter().map(|blob| blob.len).sum();
        let report = PruneReport {
            blobs: decision.deleted.len() as u64,
            bytes: bytes(&decision.deleted),
            stale_writers: stale.stale + partial,
            stale_bytes: stale.stale_bytes + partial_bytes,
            kept_blobs: decision.kept.len() as u64,
            kept_bytes: bytes(&decision.kept),
            images: decision.images.clone(),
            untagged: decision.untagged.clone(),
            ended_leases: leases.over,
            conversions: forgotten.len() as u64,
        };
        drop(looking);
        if let Some(lock) = lock {
            self.carry_out(&lock, &decision)?;
            forgotten.iter().try_for_each(|key| self.layout.forget_conversion(&lock, key))?;
            drop(lock);
            self.layout.empty_trash()?;
        }
        Ok(report)
    }

    /// Reads the documents that the plan wants.
    fn decide(&self, mut plan: PrunePlan) -> Result<PruneDecision> {
        const REMEDY: &str = "nothing was pruned: repair or remove that image first";
        while let Some(wanted) = plan.wanted() {
            let Wanted { digest, need } = wanted;
            let bytes = match (self.read_document(&digest), need) {
                (Ok(bytes), _) => Some(bytes),
                // A file that this user may not read can be any blob.
                (Err(_), DocumentNeed::MayBeAnything) => None,
                (Err(e), need) if need.allows(e.kind()) => None,
                (Err(e), _) => return Err(e.remedy(REMEDY)),
            };
            let given = plan.give(wanted, bytes.as_deref());
            given.map_err(|e| self.layout.about_blob(e, &digest).remedy(REMEDY))?;
        }
        Ok(plan.decide())
    }

    /// Removes from the store all that the decision names.
    fn carry_out(&self, lock: &LayoutLock, decision: &PruneDecision) -> Result<()> {
        // Before the artifacts in the lists are gone.
        self.remove_lists(&decision.orphans)?;
        self.layout.discard_blobs(lock, decision.deleted.iter().map(|blob| &blob.digest))?;
        self.update_marks(&decision.untagged)?;
        self.layout.remove_unnamed(lock);
        Ok(())
    }

    /// All blobs, as if they were written at `now`: their age does not matter here.
    fn blobs(&self, now: SystemTime) -> Result<Vec<StoredBlob>> {
        let failed = |e| self.layout.about(Error::io("cannot read its blobs", e));
        let entries = match fs::read_dir(self.layout.blobs_dir()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut blobs = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let is_file = entry.file_type().map_err(failed)?.is_file();
            if let Some(digest) = entry.file_name().to_str().and_then(Digest::from_hex).filter(|_| is_file) {
                blobs.push(StoredBlob { digest, len: entry.metadata().map_err(failed)?.len(), written: now });
            }
        }
        Ok(blobs)
    }

    /// Marks the images that were found without a name, and deletes marks that mean nothing any more.
    fn update_marks(&self, kept: &[UntaggedImage]) -> Result<()> {
        let marks = self.layout.marks()?;
        let untagged: BTreeSet<_> = kept.iter().map(|image| image.digest).collect();
        marks
            .keys()
            .filter(|digest| !untagged.contains(digest))
            .for_each(|digest| self.layout.unmark(digest));
        let mut unmarked = untagged.iter().filter(|digest| !marks.contains_key(digest));
        unmarked.try_for_each(|digest| self.layout.mark(digest, Vec::new()))
    }

    /// Removes from the index the lists of artifacts whose subjects are gone.
    fn remove_lists(&self, orphans: &[Tag]) -> Result<()> {
        if orphans.is_empty() {
            return Ok(());
        }
        let mut index = self.layout.index()?;
        for tag in orphans {
            index.remove(&Selector::Tag(tag.clone()));
        }
        self.layout.replace(INDEX_FILE, &index.to_bytes()?)
    }
}
