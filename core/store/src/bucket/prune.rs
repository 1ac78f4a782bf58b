//! Taking names and blobs out of an object store.
//!
//! The rules are those of directories ([`PrunePlan`] decides for both), with two differences. Nothing younger than
//! [`LEAST_AGE`] is deleted, whichever writer wrote it and whatever leads to it: a copy writes blobs before their
//! image, and one of version 0.1.0 does not announce that. And objects and their times announce other work instead
//! of locks, as `leases` describes it: a prune gives way to copies, and attaches wait for it.
//!
//! A prune that dies leaves a store in which some blobs that nothing needs are gone.

use super::leases::{LEASES, LEAST_AGE, PUSH_LASTS, PUSHES};
use super::prune_mark::PruneMark;
use super::{BucketStore, MOST_RACES, Versioned};
use crate::MAX_MANIFEST_SIZE;
use crate::layout::{
    INDEX_FILE, JudgedLease, LayoutIndex, Lease, LeaseFacts, Mark, PruneDecision, PruneInput, PrunePlan,
    PruneRules, Standing, StoredBlob, UntaggedImage, Walk, Wanted, blob_name, gained_images, holders_of,
    in_use, is_referrers_tag, lost_images, undecided,
};
use crate::reference::{Selector, Tag};
use crate::stop::Stop;
use futures::StreamExt;
use headstart_block::{Digest, Error, ErrorKind, Result};
use object_store::{ObjectMeta, PutMode, UpdateVersion};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

const UNTAGGED: &str = ".headstart/untagged";

/// Options of [`Bucket::prune`](super::Bucket::prune).
#[derive(Clone, Copy, Debug)]
pub struct BucketPruneOptions {
    /// The duration for which an image is kept after it lost its last tag, and the minimum age of a blob that
    /// is deleted. At least [`LEAST_AGE`].
    pub older_than: Duration,
    /// `true` to delete images even if leases protect them.
    pub force: bool,
    /// `true` to change nothing and only report what a prune would delete. Ages are then measured from `now`,
    /// otherwise by the store's clock.
    pub dry_run: bool,
    /// The current time by this host's clock.
    pub now: SystemTime,
}

/// Describes what a prune of an object store deleted, or would delete in a dry run.
#[derive(Clone, Debug, Default)]
pub struct BucketPruneReport {
    /// The number of blobs deleted.
    pub blobs: u64,
    /// The total length of the deleted blobs, in bytes.
    pub bytes: u64,
    /// The number of blobs that nothing needs, but that are too young to be deleted.
    pub young_blobs: u64,
    /// The images that were deleted.
    pub images: Vec<UntaggedImage>,
    /// The images without a tag that were kept.
    pub untagged: Vec<UntaggedImage>,
    /// The number of leases removed because their holders are gone or did not renew them.
    pub ended_leases: u64,
}

/// Describes the tags and images that were removed from the index of an object store.
#[derive(Clone, Debug, Default)]
pub struct BucketRemoval {
    /// The tags that were removed.
    pub tags: Vec<String>,
    /// The digests of the images that have no entry in the index any more. Their blobs are still there.
    pub nameless: Vec<Digest>,
    /// The disks that still need the removed images. Each entry describes one disk for users, such as "the writable
    /// directory DIR on HOST". Empty if no valid lease is on the images.
    pub holders: Vec<String>,
}

/// The leases of a store that count, and the others.
#[derive(Default)]
struct CountingLeases {
    counting: Vec<Lease>,
    /// The leases that do not count.
    over: Vec<JudgedLease>,
}

/// A function that collects the facts that this host knows about a lease, such as the state of its process.
pub type Look<'a> = &'a (dyn Fn(&Lease) -> LeaseFacts + Send + Sync);

impl BucketStore {
    /// Marks images that lose their last name, before the index without it is written.
    pub(super) async fn mark_lost(&self, before: &LayoutIndex, after: &LayoutIndex) -> Result<()> {
        for (digest, tags) in lost_images(before, after) {
            self.mark(&digest, &tags).await?;
        }
        Ok(())
    }

    /// Removes the marks of images that have a name again. Best effort: not all writers may delete, and the next
    /// prune removes the marks otherwise.
    pub(super) async fn unmark_gained(&self, before: &LayoutIndex, after: &LayoutIndex) {
        for digest in gained_images(before, after) {
            if let Err(error) = self.delete(&format!("{UNTAGGED}/{}", digest.hex())).await {
                tracing::debug!(%error, "the mark of an image that has a name again stays");
                return;
            }
        }
    }

    async fn mark(&self, image: &Digest, tags: &[String]) -> Result<()> {
        let text = json!({ "tags": tags }).to_string();
        self.put(&format!("{UNTAGGED}/{}", image.hex()), text.into(), PutMode::Overwrite).await
    }

    async fn marks(&self) -> Result<BTreeMap<Digest, Mark>> {
        let mut marks = BTreeMap::new();
        let objects = self.objects_below(UNTAGGED).await?;
        let mut reading = self.read_all(UNTAGGED, objects, MAX_MANIFEST_SIZE);
        while let Some((hex, meta, text)) = reading.next().await {
            let Some(digest) = Digest::from_hex(&hex) else { continue };
            // The tags are only reported; the time counts.
            let value = text.ok().and_then(|(text, _)| serde_json::from_slice::<Value>(&text).ok());
            let tags = value.as_ref().and_then(|value| value.get("tags")?.as_array());
            let tags = tags.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
            marks.insert(digest, Mark { tags, since: meta.last_modified.into() });
        }
        Ok(marks)
    }

    /// The leases that count at `now`, and the others.
    async fn counting_leases(
        &self,
        now: SystemTime,
        look: Look<'_>,
        mark: Option<&PruneMark>,
    ) -> Result<CountingLeases> {
        let mut leases = CountingLeases::default();
        for judged in self.judged_leases(now, look, mark).await? {
            if judged.standing == Standing::Over {
                leases.over.push(judged);
                continue;
            }
            let id = judged.found.id;
            leases.counting.push(judged.found.lease.map_err(|e| {
                let remedy = undecided(&e, "STORE", &id);
                e.remedy(remedy)
            })?);
        }
        Ok(leases)
    }

    /// Takes a lease out. An image without a name is kept as if it had lost its last one now.
    pub(super) async fn end_lease(&self, judged: &JudgedLease) -> Result<()> {
        let (index, marks) = (self.index().await?.index, self.marks().await?);
        self.end_lease_with(judged, &index, &marks).await.map(drop)
    }

    /// Takes a lease out, given the index and the marks. Returns its image and the image's tags if it marked the image.
    async fn end_lease_with(
        &self,
        judged: &JudgedLease,
        index: &LayoutIndex,
        marks: &BTreeMap<Digest, Mark>,
    ) -> Result<Option<(Digest, Vec<String>)>> {
        let mut marked = None;
        if let Ok(lease) = &judged.found.lease
            && index.entries().all(|entry| entry.digest != Some(lease.image))
        {
            let tags = marks.get(&lease.image).map(|mark| mark.tags.clone()).unwrap_or_default();
            self.mark(&lease.image, &tags).await?;
            marked = Some((lease.image, tags));
        }
        self.delete(&format!("{LEASES}/{}", judged.found.id)).await?;
        Ok(marked)
    }

    /// The documents of images that an index leads to, as far as they can be read: damaged documents are to be removed,
    /// too.
    async fn manifests(&self, index: &LayoutIndex) -> BTreeSet<Digest> {
        let mut walk = Walk::default();
        // Artifacts lead to their subjects, and go with them.
        for entry in index.entries().filter(|entry| !entry.tag.is_some_and(is_referrers_tag)) {
            entry.digest.iter().for_each(|digest| walk.start(*digest, entry.media_type));
        }
        while let Some(wanted) = walk.wanted() {
            if let Ok(bytes) = self.read_document(wanted.digest).await {
                let _ = walk.give(wanted.digest, &bytes);
            }
        }
        walk.read
    }

    /// The index, for a list of what there is or a decision on what goes: a damaged entry is an error.
    pub(super) async fn whole_index(&self) -> Result<Versioned> {
        let found = self.index().await?;
        found.index.check_entries().map_err(|e| e.about(self.thing(INDEX_FILE)))?;
        Ok(found)
    }

    /// Takes an image out of the index: the entry of a tag, or all entries of a digest.
    pub(super) async fn remove_image(
        &self,
        selector: &Selector,
        force: bool,
        dry_run: bool,
        now: SystemTime,
        look: Look<'_>,
    ) -> Result<BucketRemoval> {
        let about = |e: Error| e.about(crate::layout::name(&self.location, selector));
        if !dry_run {
            self.require_conditions().await?;
        }
        for _ in 0..MOST_RACES {
            let Versioned { index: before, version } = self.whole_index().await?;
            let mut after = before.clone();
            if !after.remove(selector) {
                return Err(about(crate::layout::no_such_image(&self.location)));
            }
            let lost = lost_images(&before, &after);
            let leases = self.counting_leases(now, look, None).await?.counting;
            let mut removal = BucketRemoval::default();
            if !leases.is_empty() {
                let (kept, all) = (self.manifests(&after).await, self.manifests(&before).await);
                removal.holders = holders_of(&leases, &all.difference(&kept).copied().collect());
            }
            removal.nameless = lost.keys().copied().collect();
            removal.tags = match selector {
                Selector::Tag(tag) => vec![tag.to_string()],
                Selector::Digest(digest) => lost.get(digest).cloned().unwrap_or_default(),
            };
            if !removal.holders.is_empty() && !force {
                return Err(about(in_use(&removal.holders, &self.location)));
            }
            if dry_run {
                return Ok(removal);
            }
            self.mark_lost(&before, &after).await?;
            if self.replace_index(Versioned { index: after, version }).await? {
                return Ok(removal);
            }
        }
        Err(about(Error::new(ErrorKind::Conflict, "another writer changed the index at the same time"))
            .remedy("run it again"))
    }

    /// Deletes blobs that no image with a name and no lease needs.
    pub(super) async fn prune(
        &self,
        options: &BucketPruneOptions,
        look: Look<'_>,
        stop: Option<&Stop>,
    ) -> Result<BucketPruneReport> {
        if options.older_than < LEAST_AGE {
            return Err(Error::invalid(
                "nothing younger than a week is deleted from an object store: a copy may need it",
            )
            .about(&self.location)
            .remedy("leave --older-than out, or give 7d or more"));
        }
        if options.dry_run {
            return unless_stopped(stop, self.prune_at(options.now, options, look, None)).await;
        }
        let preparing = async {
            self.require_conditions().await?;
            self.store_time().await
        };
        let now = unless_stopped(stop, preparing).await?;
        // Never cut off: otherwise it would be unknown if the mark is there.
        let mark = self.begin_prune(now).await?;
        let pruning = async {
            self.refuse_copies(now).await?;
            self.prune_at(now, options, look, Some(&mark)).await
        };
        let pruned = unless_stopped(stop, pruning).await;
        // Left behind, it would keep others out for some minutes.
        let ended = mark.end(self).await;
        pruned.and_then(|report| ended.map(|()| report))
    }

    /// Gives way to copies.
    async fn refuse_copies(&self, now: SystemTime) -> Result<()> {
        for (id, meta) in self.objects_below(PUSHES).await? {
            let written = SystemTime::from(meta.last_modified);
            if now.duration_since(written).is_ok_and(|age| age > PUSH_LASTS) {
                self.delete(&format!("{PUSHES}/{id}")).await?;
                continue;
            }
            return Err(Error::new(ErrorKind::Conflict, "an image is being copied into it")
                .about(&self.location)
                .remedy("run it again when that has ended; a copy that died counts for an hour"));
        }
        Ok(())
    }

    /// `true` if there are blobs of a copy that broke off before it marked the store as a layout.
    pub(super) async fn has_beginnings(&self) -> Result<bool> {
        Ok(self.index().await?.version.is_none() && !self.objects_below("blobs/sha256").await?.is_empty())
    }

    pub(super) async fn prune_at(
        &self,
        now: SystemTime,
        options: &BucketPruneOptions,
        look: Look<'_>,
        mark: Option<&PruneMark>,
    ) -> Result<BucketPruneReport> {
        let Versioned { index, version } = self.whole_index().await?;
        let leases = self.counting_leases(now, look, mark).await?;
        // After the leases: a process that takes a lease out has marked its image before.
        let mut marks = self.marks().await?;
        if let Some(mark) = mark {
            for judged in &leases.over {
                mark.renew(self).await?;
                let marked = self.end_lease_with(judged, &index, &marks).await?;
                marks.extend(marked.map(|(image, tags)| (image, Mark { tags, since: now })));
            }
        }
        let marked: BTreeSet<_> = marks.keys().copied().collect();
        let ended = leases.over.iter().filter_map(|judged| judged.found.lease.as_ref().ok());
        let ended = ended.map(|lease| lease.image).collect();
        let objects = self.objects_below("blobs/sha256").await?.into_iter();
        let blob = |(hex, meta): (String, ObjectMeta)| {
            let (digest, written) = (Digest::from_hex(&hex)?, meta.last_modified.into());
            Some(StoredBlob { digest, len: meta.size, written })
        };
        let BucketPruneOptions { older_than, force: ignores_leases, .. } = *options;
        let rules = PruneRules { now, older_than, least_age: older_than, keeps_all: false, ignores_leases };
        let input = PruneInput {
            index: &index,
            blobs: objects.filter_map(blob).collect(),
            leases: leases.counting,
            ended,
            marks,
        };
        let decision = self.decide(PrunePlan::new(rules, input), mark).await?;
        let report = BucketPruneReport {
            blobs: decision.deleted.len() as u64,
            bytes: decision.deleted.iter().fold(0, |sum, blob| sum.saturating_add(blob.len)),
            young_blobs: decision.young.len() as u64,
            images: decision.images,
            untagged: decision.untagged,
            ended_leases: leases.over.len() as u64,
        };
        let Some(mark) = mark else { return Ok(report) };
        self.remove_lists(&index, version, decision.orphans).await?;
        for blob in decision.deleted {
            mark.renew(self).await?;
            self.delete(&blob_name(&blob.digest)).await?;
        }
        self.update_marks(&report, &marked, mark).await?;
        Ok(report)
    }

    /// Reads the documents that the plan wants. Announces meanwhile that the prune goes on, if something is to be
    /// deleted.
    async fn decide(&self, mut plan: PrunePlan, mark: Option<&PruneMark>) -> Result<PruneDecision> {
        const REMEDY: &str = "nothing was deleted: repair or remove that image first";
        while let Some(wanted) = plan.wanted() {
            if let Some(mark) = mark {
                mark.renew(self).await?;
            }
            let Wanted { digest, need } = wanted;
            let bytes = match (self.read_document(digest).await, need) {
                (Ok(bytes), _) => Some(bytes),
                (Err(e), need) if need.allows(e.kind()) => None,
                (Err(e), _) => return Err(e.remedy(REMEDY)),
            };
            let given = plan.give(wanted, bytes.as_deref());
            given.map_err(|e| e.about(self.thing(&blob_name(&digest))).remedy(REMEDY))?;
        }
        Ok(plan.decide())
    }

    /// Takes the lists of artifacts whose subjects are gone out of the index; fails if the index was changed since
    /// it was read.
    async fn remove_lists(
        &self,
        index: &LayoutIndex,
        version: Option<UpdateVersion>,
        orphans: Vec<Tag>,
    ) -> Result<()> {
        let changed = || {
            Error::new(ErrorKind::Conflict, "another writer changed the index at the same time")
                .about(&self.location)
                .remedy("run it again")
        };
        if orphans.is_empty() {
            let now = self.index().await?.version;
            let same = now.map(|now| now.e_tag) == version.map(|version| version.e_tag);
            return if same { Ok(()) } else { Err(changed()) };
        }
        let mut index = index.clone();
        for tag in orphans {
            index.remove(&Selector::Tag(tag));
        }
        if self.replace_index(Versioned { index, version }).await? { Ok(()) } else { Err(changed()) }
    }

    /// Marks images that were seen to be without a name, and removes marks that mean nothing any more.
    async fn update_marks(
        &self,
        report: &BucketPruneReport,
        marked: &BTreeSet<Digest>,
        mark: &PruneMark,
    ) -> Result<()> {
        let untagged: BTreeSet<_> = report.untagged.iter().map(|image| image.digest).collect();
        for digest in marked.difference(&untagged) {
            mark.renew(self).await?;
            self.delete(&format!("{UNTAGGED}/{}", digest.hex())).await?;
        }
        for digest in untagged.difference(marked) {
            mark.renew(self).await?;
            self.mark(digest, &[]).await?;
        }
        Ok(())
    }
}

/// The result of `work`; [`ErrorKind::Cancelled`] if it is asked to stop before the result is there.
pub(super) async fn unless_stopped<T>(
    stop: Option<&Stop>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(stop) = stop else { return work.await };
    let stopped = || Err(Error::new(ErrorKind::Cancelled, "stopped on request"));
    stop.before(work).await.unwrap_or_else(stopped)
}
