//! Deleting what nothing refers to.
//!
//! A blob is kept where the index leads to it, a lease names it (`leases`), or an image leads to it that lost its last
//! name not long ago (the marks of [`headstart_store::layout`]). What an image needs is found through indexes and
//! manifests (other tools' as well): configs, layers, hash trees, and the subject of an artifact. To be on the safe
//! side with documents of later versions and other tools, *every* digest that stands anywhere in a reachable manifest
//! counts. A manifest that cannot be read might lead to anything, so prune then refuses; only one that an index of
//! several platforms names may be missing, since other tools copy a single platform's.
//!
//! While an image is being copied into the store its blobs are there before its manifest: nothing that might be
//! one of them is deleted then.
//!
//! Artifacts that are listed under a tag of their subject's digest (plans, say) live as long as that: the list is
//! followed only where something else leads to the subject, and its entry goes with the subject.
//!
//! Only files whose names are digests are deleted, in `blobs/sha256` alone: manifests first, so that an image that was
//! deleted in part is no image.

use super::leases::CountingLeases;
use super::{ImageStore, MAX_DEPTH};
use crate::digest::Digest;
use crate::reference::{Selector, Tag};
use headstart_block::{Error, ErrorKind, Result};
use headstart_store::MAX_MANIFEST_SIZE;
use headstart_store::layout::{
    Entry, Index, Living, Mark, StalePolicy, collect_digests, image_document, leads_further,
    referrers_subject, remove_partial, remove_stale,
};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The bounds of a prune.
#[derive(Clone, Copy, Debug)]
pub struct PruneOptions {
    /// The present.
    pub now: SystemTime,
    /// The time for which images without a name are kept.
    pub older_than: Duration,
    /// `true` if leases are not heeded.
    pub force: bool,
    /// `true` if nothing is changed.
    pub dry_run: bool,
}

/// What [`ImageStore::prune`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// Images deleted.
    pub images: Vec<UntaggedImage>,
    /// Images without a name that are kept.
    pub untagged: Vec<UntaggedImage>,
    /// Leases that were over, and were taken out.
    pub ended_leases: u64,
}

/// An image without a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UntaggedImage {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The tags that it had last, as far as that is known.
    pub tags: Vec<String>,
    /// The moment from which on it is known to have none.
    #[serde(skip)]
    pub since: SystemTime,
    /// The moment from which on a prune deletes it, unless it is held; none where that is too far away to be told.
    #[serde(skip)]
    pub until: Option<SystemTime>,
    /// The names of its holders.
    pub holders: Vec<String>,
}

/// An image without a name, before it is decided what becomes of it.
struct Nameless {
    image: UntaggedImage,
    /// `true` if it was kept for long enough.
    is_due: bool,
}

/// A file in the directory of blobs.
struct BlobFile {
    path: PathBuf,
    digest: Digest,
    len: u64,
}

impl ImageStore {
    /// Deletes blobs that no image with a name and no lease needs, and what dead writers left. Safe beside running
    /// writers.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] or [`ErrorKind::NotFound`] about a manifest or lease that cannot be read: nothing is
    /// deleted.
    pub fn prune(&self) -> Result<PruneReport> {
        self.prune_with(&PruneOptions::at_once(false))
    }

    /// What [`ImageStore::prune`] would do now.
    ///
    /// # Errors
    /// As [`ImageStore::prune`].
    pub fn prune_preview(&self) -> Result<PruneReport> {
        self.prune_with(&PruneOptions::at_once(true))
    }

    /// Deletes what `options` say.
    ///
    /// # Errors
    /// As [`ImageStore::prune`].
    pub fn prune_with(&self, options: &PruneOptions) -> Result<PruneReport> {
        let lock = self.layout.lock()?;
        let policy = if options.dry_run { StalePolicy::Count } else { StalePolicy::Delete };
        let index = self.layout.index()?;
        let mut search = Search::new(self);
        search.start_index(&index)?;
        let mut leases = self.counting_leases(&lock, !options.dry_run)?;
        let ended_leases = leases.over;
        if options.force {
            leases.leases.clear();
        }
        let files = self.blob_files()?;
        // Behind the leases, whose end is a mark.
        let nameless = self.nameless(&search, &files, &leases, options)?;
        search.keep(&leases, &nameless)?;
        let orphans = search.follow_lists()?;
        let living = remove_stale(&self.layout.staging_dir(), policy)?;
        let (partial, partial_bytes) = remove_partial(&self.layout, policy)?;
        let mut report = PruneReport {
            stale_writers: living.stale + partial,
            stale_bytes: living.stale_bytes + partial_bytes,
            ended_leases,
            ..PruneReport::default()
        };
        // Before what they list is gone. While an image is copied, its artifacts may be here before it is.
        if policy == StalePolicy::Delete && !living.publishes_early {
            self.remove_lists(&orphans)?;
        }
        report.list(nameless, &search, &living);
        self.delete_blobs(files, &search, &living, policy, &mut report)?;
        if policy == StalePolicy::Delete {
            self.update_marks(&report)?;
        }
        Ok(report)
    }

    /// Deletes what the search did not find.
    fn delete_blobs(
        &self,
        mut files: Vec<BlobFile>,
        search: &Search<'_>,
        living: &Living,
        policy: StalePolicy,
        report: &mut PruneReport,
    ) -> Result<()> {
        let images: BTreeSet<_> = report.images.iter().map(|image| image.digest).collect();
        files.sort_by_key(|file| !images.contains(&file.digest));
        for BlobFile { path, digest, len } in files {
            if living.publishes_early || search.found.contains(&digest) {
                report.kept_blobs += 1;
                report.kept_bytes += len;
                continue;
            }
            if policy == StalePolicy::Delete {
                fs::remove_file(&path).map_err(|e| Error::io("cannot delete", e).about(path.display()))?;
            }
            report.blobs += 1;
            report.bytes += len;
        }
        Ok(())
    }

    fn blob_files(&self) -> Result<Vec<BlobFile>> {
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
                let len = entry.metadata().map_err(failed)?.len();
                files.push(BlobFile { path: entry.path(), digest, len });
            }
        }
        Ok(files)
    }

    /// The images to which no name leads.
    fn nameless(
        &self,
        named: &Search<'_>,
        files: &[BlobFile],
        leases: &CountingLeases,
        options: &PruneOptions,
    ) -> Result<Vec<Nameless>> {
        let mut marks = self.layout.marks()?;
        let mut images = Vec::new();
        let nameless = files.iter().filter(|file| !named.found.contains(&file.digest));
        for file in nameless.filter(|file| file.len <= MAX_MANIFEST_SIZE) {
            // What is not what its name says, or no document, is no image.
            let Ok(bytes) = self.read_document(&file.digest) else { continue };
            let Some(document) = image_document(&bytes) else { continue };
            // Other tools took its name away, or a writer died before it gave it one: it is noticed now.
            let Mark { tags, since } =
                marks.remove(&file.digest).unwrap_or(Mark { tags: Vec::new(), since: options.now });
            let since = if leases.ended.contains(&file.digest) { since.max(options.now) } else { since };
            let mut manifests = BTreeSet::from([file.digest]);
            let mut leading = Vec::new();
            collect_digests(&document, &mut BTreeSet::new(), &mut leading);
            manifests.extend(leading);
            let holders = leases.holders_of(&manifests);
            let until = since.checked_add(options.older_than);
            let is_due = options.older_than.is_zero() || until.is_some_and(|until| until <= options.now);
            let image = UntaggedImage { digest: file.digest, tags, since, until, holders };
            images.push(Nameless { image, is_due });
        }
        Ok(images)
    }

    /// Marks what was seen to be without a name, and forgets marks that mean nothing any more.
    fn update_marks(&self, report: &PruneReport) -> Result<()> {
        let marks = self.layout.marks()?;
        let untagged: BTreeSet<_> = report.untagged.iter().map(|image| image.digest).collect();
        marks
            .keys()
            .filter(|digest| !untagged.contains(digest))
            .for_each(|digest| self.layout.unmark(digest));
        let mut unmarked = report.untagged.iter().filter(|image| !marks.contains_key(&image.digest));
        unmarked.try_for_each(|image| self.layout.mark(&image.digest, Vec::new()))
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
}

impl PruneOptions {
    /// Images go with their last name.
    fn at_once(dry_run: bool) -> Self {
        Self { now: SystemTime::UNIX_EPOCH, older_than: Duration::ZERO, force: false, dry_run }
    }
}

impl PruneReport {
    /// Enters which images without a name are kept, and which are not.
    fn list(&mut self, nameless: Vec<Nameless>, search: &Search<'_>, living: &Living) {
        let images = nameless.into_iter().map(|nameless| nameless.image);
        (self.untagged, self.images) =
            images.partition(|image| living.publishes_early || search.found.contains(&image.digest));
    }
}

/// Whether a document may be absent from a whole store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayMiss {
    Yes,
    No,
}

/// A walk along all that is to be kept.
pub(super) struct Search<'a> {
    store: &'a ImageStore,
    /// What is to be kept.
    pub(super) found: BTreeSet<Digest>,
    /// Documents that something leads to, read already: each once, so that hostile graphs cost no more than their
    /// bytes.
    pub(super) read: BTreeSet<Digest>,
    /// Lists of artifacts whose subjects were not met yet: subject, list, media type, tag.
    lists: Vec<List>,
}

#[derive(Clone)]
struct List {
    subject: Digest,
    list: Option<Digest>,
    media_type: Option<String>,
    tag: Option<String>,
}

impl<'a> Search<'a> {
    pub(super) fn new(store: &'a ImageStore) -> Self {
        Self { store, found: BTreeSet::new(), read: BTreeSet::new(), lists: Vec::new() }
    }

    /// Follows all that an index leads to.
    pub(super) fn start_index(&mut self, index: &Index) -> Result<()> {
        for entry in index.entries() {
            match entry.tag.and_then(referrers_subject) {
                Some(subject) => self.lists.push(List {
                    subject,
                    list: entry.digest,
                    media_type: entry.media_type.map(str::to_owned),
                    tag: entry.tag.map(str::to_owned),
                }),
                None => self.start(&entry)?,
            }
        }
        self.follow_lists().map(drop)
    }

    /// Follows the lists whose subjects were met; those of the others that are left are orphans, so far.
    fn follow_lists(&mut self) -> Result<Vec<Tag>> {
        // Artifacts may have artifacts.
        loop {
            let lists = std::mem::take(&mut self.lists);
            let (alive, waiting): (Vec<_>, Vec<_>) =
                lists.into_iter().partition(|list| self.read.contains(&list.subject));
            self.lists = waiting;
            if alive.is_empty() {
                break;
            }
            for list in alive {
                self.start_at(list.list, list.media_type.as_deref())?;
            }
        }
        Ok(self.lists.iter().filter_map(|list| list.tag.as_deref()?.parse().ok()).collect())
    }

    /// Follows what leases name, and images whose time has not come.
    fn keep(&mut self, leases: &CountingLeases, nameless: &[Nameless]) -> Result<()> {
        for lease in &leases.leases {
            self.found.extend(lease.blobs.iter().chain([&lease.image]));
            self.follow(lease.image, MayMiss::Yes, 0)?;
        }
        for Nameless { image, .. } in nameless.iter().filter(|nameless| !nameless.is_due) {
            self.found.insert(image.digest);
            self.follow(image.digest, MayMiss::Yes, 0)?;
        }
        Ok(())
    }

    /// Follows an entry of the index.
    pub(super) fn start(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.start_at(entry.digest, entry.media_type)
    }

    fn start_at(&mut self, digest: Option<Digest>, media_type: Option<&str>) -> Result<()> {
        let Some(digest) = digest else { return Ok(()) };
        self.found.insert(digest);
        if leads_further(media_type) {
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
        collect_digests(&document, &mut self.found, &mut leading);
        if depth == MAX_DEPTH && !leading.is_empty() {
            return Err(self
                .store
                .layout
                .about_blob(Error::corrupt("is an index of indexes without end"), &digest));
        }
        leading.into_iter().try_for_each(|digest| self.follow(digest, MayMiss::Yes, depth + 1))
    }
}
