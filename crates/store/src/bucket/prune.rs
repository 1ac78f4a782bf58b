//! Taking names and blobs out of an object store.
//!
//! The rules are those of directories (`headstart-image`), with two differences. Nothing younger than [`LEAST_AGE`] is
//! deleted, whoever wrote it and whatever leads to it: a copy writes blobs before their image, and one of version 0.1.0
//! says so to nobody. And what else goes on is told by objects and their times instead of locks, as `leases` describes
//! it: a prune gives way to copies, and attaches wait for it.
//!
//! A prune that dies leaves a store in which some blobs that nothing needs are gone.

use super::leases::{LEAST_AGE, PRUNING, PRUNING_LASTS, PUSH_LASTS, PUSHES};
use super::{BucketStore, MOST_RACES, Versioned};
use crate::MAX_MANIFEST_SIZE;
use crate::layout::{
    HostId, Index, JudgedLease, Lease, Mark, Seen, Standing, blob_name, collect_digests, gained_images,
    image_document, is_referrers_tag, leads_further, lost_images, referrers_subject,
};
use crate::reference::{Selector, Tag};
use bytes::Bytes;
use headstart_block::{Digest, Error, ErrorKind, Result};
use object_store::{ObjectMeta, PutMode, UpdateVersion};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The time after which a prune says again that it goes on.
const RENEWED: Duration = Duration::from_secs(120);

const UNTAGGED: &str = ".headstart/untagged";

/// The bounds of a prune of an object store.
#[derive(Clone, Copy, Debug)]
pub struct BucketPruneOptions {
    /// The time for which images without a name are kept; [`LEAST_AGE`] at least.
    pub older_than: Duration,
    /// `true` if leases are not heeded.
    pub force: bool,
    /// `true` if nothing is changed; the time is then `now`.
    pub dry_run: bool,
    /// The present, by the clock of this host.
    pub now: SystemTime,
}

/// The result of a prune of an object store.
#[derive(Clone, Debug, Default)]
pub struct BucketPruneReport {
    /// Blobs deleted.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs that nothing needs, and that are too young to be deleted.
    pub young_blobs: u64,
    /// Images deleted.
    pub images: Vec<NamelessImage>,
    /// Images without a name that are kept.
    pub untagged: Vec<NamelessImage>,
    /// Leases that were over, and were taken out.
    pub ended_leases: u64,
}

/// An image of an object store without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamelessImage {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The tags that it had last, as far as that is known.
    pub tags: Vec<String>,
    /// The moment from which on it is known to have none.
    pub since: SystemTime,
    /// The moment from which on a prune deletes it.
    pub until: Option<SystemTime>,
    /// The names of its holders.
    pub holders: Vec<String>,
    is_due: bool,
}

/// The effect of taking an image out of the index of an object store.
#[derive(Clone, Debug, Default)]
pub struct BucketRemoval {
    /// The tags that are gone.
    pub tags: Vec<String>,
    /// The images that have no name any more.
    pub nameless: Vec<Digest>,
    /// The names of their holders.
    pub holders: Vec<String>,
}

/// Looks at a lease from this host.
pub type Look<'a> = &'a (dyn Fn(&Lease) -> Seen + Send + Sync);

/// The names of those who hold one of `images`.
fn holders_of(leases: &[Lease], images: &BTreeSet<Digest>) -> Vec<String> {
    let names: BTreeSet<_> =
        leases.iter().filter(|lease| images.contains(&lease.image)).map(ToString::to_string).collect();
    names.into_iter().collect()
}

impl BucketStore {
    /// Marks images that lose their last name, before the index that has it no more is written.
    pub(super) async fn mark_lost(&self, before: &Index, after: &Index) -> Result<()> {
        for (digest, tags) in lost_images(before, after) {
            self.mark(&digest, &tags).await?;
        }
        Ok(())
    }

    /// Forgets that images once lost their last name which have one again. Best effort: not all who write may delete,
    /// and the next prune does it otherwise.
    pub(super) async fn unmark_gained(&self, before: &Index, after: &Index) {
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
        for (hex, meta) in self.objects_below(UNTAGGED).await? {
            let Some(digest) = Digest::from_hex(&hex) else { continue };
            let text = self.object(&format!("{UNTAGGED}/{hex}"), MAX_MANIFEST_SIZE).await;
            // The tags are only said; the time counts.
            let value = text.ok().and_then(|(text, _)| serde_json::from_slice::<Value>(&text).ok());
            let tags = value.as_ref().and_then(|value| value.get("tags")?.as_array());
            let tags = tags.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
            marks.insert(digest, Mark { tags, since: meta.last_modified.into() });
        }
        Ok(marks)
    }

    /// The leases that count at `now`; ends the others, but in a dry run.
    async fn counting_leases(
        &self,
        now: SystemTime,
        dry_run: bool,
        look: Look<'_>,
    ) -> Result<(Vec<Lease>, u64)> {
        let (mut counting, mut ended) = (Vec::new(), 0);
        for judged in self.judged_leases(now, look).await? {
            if judged.standing == Standing::Over {
                ended += 1;
                if !dry_run {
                    self.end_lease(&judged).await?;
                }
                continue;
            }
            counting.push(judged.found.lease.map_err(|e| {
                let release = format!("`headstart lease release STORE --id {}`", judged.found.id);
                e.remedy(format!("nothing was deleted: use the release that wrote it, or {release}"))
            })?);
        }
        Ok((counting, ended))
    }

    /// Takes a lease out. The image is kept as if it had lost its last name now, where it has none.
    pub(super) async fn end_lease(&self, judged: &JudgedLease) -> Result<()> {
        if let Ok(lease) = &judged.found.lease {
            let index = self.index().await?.index;
            if index.entries().all(|entry| entry.digest != Some(lease.image)) {
                let tags = self.marks().await?.remove(&lease.image).map(|mark| mark.tags);
                self.mark(&lease.image, &tags.unwrap_or_default()).await?;
            }
        }
        self.delete(&format!("{}/{}", super::leases::LEASES, judged.found.id)).await
    }

    /// The documents of images that an index leads to, as far as they can be read: what is damaged is to be removed,
    /// too.
    async fn manifests(&self, index: &Index) -> BTreeSet<Digest> {
        let mut search = Search::new(self);
        // Artifacts lead to their subjects, and go with them.
        for entry in index.entries().filter(|entry| !entry.tag.is_some_and(is_referrers_tag)) {
            if let Some(digest) = entry.digest.filter(|_| leads_further(entry.media_type)) {
                let _ = search.follow(digest, true).await;
            }
        }
        search.read
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
            let Versioned { index: before, version } = self.index().await?;
            let mut after = before.clone();
            if !after.remove(selector) {
                return Err(about(crate::layout::no_such_image()));
            }
            let lost = lost_images(&before, &after);
            let (leases, _) = self.counting_leases(now, true, look).await?;
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
                return Err(about(in_use(&removal.holders)));
            }
            if dry_run {
                return Ok(removal);
            }
            self.mark_lost(&before, &after).await?;
            if self.replace_index(Versioned { index: after, version }).await? {
                return Ok(removal);
            }
        }
        Err(about(Error::new(ErrorKind::Conflict, "somebody else changed the index at the same time"))
            .remedy("run it again"))
    }

    /// Deletes blobs that no image with a name and no lease needs.
    pub(super) async fn prune(
        &self,
        options: &BucketPruneOptions,
        look: Look<'_>,
    ) -> Result<BucketPruneReport> {
        if options.older_than < LEAST_AGE {
            return Err(Error::invalid(
                "nothing younger than a week is deleted from an object store: a copy may need it",
            )
            .about(&self.location)
            .remedy("leave --older-than out, or give 7d or more"));
        }
        if options.dry_run {
            return self.prune_at(options.now, options, look, None).await;
        }
        self.require_conditions().await?;
        let now = self.store_time().await?;
        let mark = self.begin_prune(now).await?;
        let pruned = match self.refuse_copies(now).await {
            Ok(()) => self.prune_at(now, options, look, Some(&mark)).await,
            Err(e) => Err(e),
        };
        // Left behind, it would keep others out for some minutes.
        let ended = mark.end(self).await;
        pruned.and_then(|report| ended.map(|()| report))
    }

    /// Says that a prune is going on.
    pub(super) async fn begin_prune(&self, now: SystemTime) -> Result<PruneMark> {
        let died = match self.object(PRUNING, MAX_MANIFEST_SIZE).await {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            there => Some(there?.1),
        };
        if let Some(other) = self.written(PRUNING).await?
            && now.duration_since(other).map_or(true, |age| age < PRUNING_LASTS)
        {
            return Err(self.other_prunes());
        }
        let mode = match died {
            // It may have been renewed since, or be another's by now: only this version is replaced.
            Some(version) if version.e_tag.is_some() => PutMode::Update(version),
            // One without a version was written by no prune.
            Some(_) => {
                self.delete(PRUNING).await?;
                PutMode::Create
            }
            None => PutMode::Create,
        };
        let bytes = mark_bytes(now, 0);
        let version = self.put_version(PRUNING, bytes.clone(), mode).await.map_err(|e| match e.kind() {
            ErrorKind::Conflict => self.other_prunes().caused_by(e),
            _ => e,
        })?;
        let state = MarkState { bytes, version, renewals: 0, renewed: Instant::now() };
        Ok(PruneMark { begun: now, state: Mutex::new(state) })
    }

    fn other_prunes(&self) -> Error {
        Error::new(ErrorKind::Conflict, "somebody else prunes it")
            .about(&self.location)
            .remedy("run it again in some minutes")
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

    pub(super) async fn prune_at(
        &self,
        now: SystemTime,
        options: &BucketPruneOptions,
        look: Look<'_>,
        mark: Option<&PruneMark>,
    ) -> Result<BucketPruneReport> {
        let Versioned { index, version } = self.index().await?;
        let mut search = Search { mark, ..Search::new(self) };
        search.start_index(&index).await?;
        let (mut leases, ended_leases) = self.counting_leases(now, options.dry_run, look).await?;
        if options.force {
            leases.clear();
        }
        let objects = self.objects_below("blobs/sha256").await?;
        let blobs: Vec<_> =
            objects.into_iter().filter_map(|(hex, meta)| Some((Digest::from_hex(&hex)?, meta))).collect();
        let nameless = self.nameless(&search, &blobs, &leases, now, options).await?;
        search.keep(&leases, &nameless).await?;
        let orphans = search.follow_lists().await?;
        let is_young = |meta: &ObjectMeta| {
            now.duration_since(meta.last_modified.into()).map_or(true, |age| age < options.older_than)
        };
        let mut report = BucketPruneReport { ended_leases, ..BucketPruneReport::default() };
        let unneeded = blobs.into_iter().filter(|(digest, _)| !search.found.contains(digest));
        let (young, mut old): (Vec<_>, Vec<_>) = unneeded.partition(|(_, meta)| is_young(meta));
        report.young_blobs = young.len() as u64;
        let deleted: BTreeSet<_> = old.iter().map(|(digest, _)| *digest).collect();
        (report.images, report.untagged) =
            nameless.into_iter().partition(|image| deleted.contains(&image.digest));
        report.blobs = old.len() as u64;
        report.bytes = old.iter().fold(0, |sum, (_, meta)| sum.saturating_add(meta.size));
        let Some(mark) = mark else { return Ok(report) };
        self.remove_lists(&index, version, orphans).await?;
        // Manifests first: an image that was deleted in part is no image.
        old.sort_by_key(|(digest, _)| !report.images.iter().any(|image| image.digest == *digest));
        for (digest, _) in old {
            mark.renew(self).await?;
            self.delete(&blob_name(&digest)).await?;
        }
        self.update_marks(&report).await?;
        Ok(report)
    }

    /// Takes the lists of artifacts whose subjects are gone out of the index; fails where the index was changed since
    /// it was read.
    async fn remove_lists(
        &self,
        index: &Index,
        version: Option<UpdateVersion>,
        orphans: Vec<Tag>,
    ) -> Result<()> {
        let changed = || {
            Error::new(ErrorKind::Conflict, "somebody else changed the index at the same time")
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

    /// The images to which no name leads.
    async fn nameless(
        &self,
        named: &Search<'_>,
        blobs: &[(Digest, ObjectMeta)],
        leases: &[Lease],
        now: SystemTime,
        options: &BucketPruneOptions,
    ) -> Result<Vec<NamelessImage>> {
        let mut marks = self.marks().await?;
        let mut images = Vec::new();
        let nameless = blobs.iter().filter(|(digest, _)| !named.found.contains(digest));
        for (digest, _) in nameless.filter(|(_, meta)| meta.size <= MAX_MANIFEST_SIZE) {
            named.renew().await?;
            let bytes = match self.document(*digest).await {
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => continue,
                bytes => bytes?,
            };
            let Some(document) = image_document(&bytes) else { continue };
            // It is noticed now.
            let Mark { tags, since } = marks.remove(digest).unwrap_or(Mark { tags: Vec::new(), since: now });
            let mut manifests = Vec::from([*digest]);
            collect_digests(&document, &mut BTreeSet::new(), &mut manifests);
            let holders = holders_of(leases, &manifests.into_iter().collect());
            let until = since.checked_add(options.older_than);
            let is_due = until.is_some_and(|until| until <= now);
            images.push(NamelessImage { digest: *digest, tags, since, until, holders, is_due });
        }
        Ok(images)
    }

    /// Marks what was seen to be without a name, and forgets marks that mean nothing any more.
    async fn update_marks(&self, report: &BucketPruneReport) -> Result<()> {
        let marks = self.marks().await?;
        let untagged: BTreeSet<_> = report.untagged.iter().map(|image| image.digest).collect();
        for digest in marks.keys().filter(|digest| !untagged.contains(digest)) {
            self.delete(&format!("{UNTAGGED}/{}", digest.hex())).await?;
        }
        for digest in untagged.iter().filter(|digest| !marks.contains_key(digest)) {
            self.mark(digest, &[]).await?;
        }
        Ok(())
    }
}

/// The object that says that a prune goes on.
pub(super) struct PruneMark {
    begun: SystemTime,
    state: Mutex<MarkState>,
}

/// The mark as this prune wrote it last.
struct MarkState {
    bytes: Bytes,
    version: UpdateVersion,
    renewals: u64,
    renewed: Instant,
}

/// The content of a mark of a prune that began at `begun`: other bytes each time, since the versions of many stores are
/// hashes of the content.
fn mark_bytes(begun: SystemTime, renewals: u64) -> Bytes {
    let host = HostId::here().map(|host| host.name).unwrap_or_default();
    let begun = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
    let mark = json!({"host": host, "pid": std::process::id(), "begun": begun, "renewals": renewals});
    Bytes::from(mark.to_string())
}

impl PruneMark {
    /// Says so again in time; fails where it was said too late, so that others may believe the prune dead, and where
    /// another prune took its place.
    pub(super) async fn renew(&self, store: &BucketStore) -> Result<()> {
        let mut state = self.state.lock().await;
        let took = state.renewed.elapsed();
        if took < RENEWED {
            return Ok(());
        }
        let renewals = state.renewals + 1;
        let (bytes, mode) = (mark_bytes(self.begun, renewals), PutMode::Update(state.version.clone()));
        let version = store.put_version(PRUNING, bytes.clone(), mode).await.map_err(|e| match e.kind() {
            ErrorKind::Conflict | ErrorKind::NotFound => store.other_prunes().caused_by(e),
            _ => e,
        })?;
        let took = took.max(state.renewed.elapsed());
        *state = MarkState { bytes, version, renewals, renewed: Instant::now() };
        if took < PRUNING_LASTS / 2 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the object store is too slow to be pruned safely")
            .about(&store.location)
            .remedy("run it again: what was deleted was needed by nobody"))
    }

    /// Says that it has ended, unless another prune took its place.
    pub(super) async fn end(&self, store: &BucketStore) -> Result<()> {
        let state = self.state.lock().await;
        match store.object(PRUNING, MAX_MANIFEST_SIZE).await {
            Ok((bytes, _)) if bytes == state.bytes => store.delete(PRUNING).await,
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

/// The error about an image that disks need.
fn in_use(holders: &[String]) -> Error {
    Error::new(ErrorKind::Conflict, format!("is in use by {}", holders.join(", ")))
        .remedy("detach it first, or `headstart lease list` shows who has it; --force takes the tag away all the same")
}

/// A walk along all that is to be kept.
struct Search<'a> {
    store: &'a BucketStore,
    found: BTreeSet<Digest>,
    read: BTreeSet<Digest>,
    /// Lists of artifacts whose subjects were not met yet: their subjects, and their places.
    lists: Vec<(Digest, Option<Digest>, String)>,
    /// Renewed meanwhile, where something is to be deleted.
    mark: Option<&'a PruneMark>,
}

impl<'a> Search<'a> {
    fn new(store: &'a BucketStore) -> Self {
        Self { store, found: BTreeSet::new(), read: BTreeSet::new(), lists: Vec::new(), mark: None }
    }

    /// Says that the prune goes on.
    async fn renew(&self) -> Result<()> {
        match self.mark {
            Some(mark) => mark.renew(self.store).await,
            None => Ok(()),
        }
    }

    async fn start_index(&mut self, index: &Index) -> Result<()> {
        for entry in index.entries() {
            if let Some(tag) = entry.tag.filter(|tag| is_referrers_tag(tag))
                && let Some(subject) = referrers_subject(tag)
            {
                self.lists.push((subject, entry.digest, tag.to_owned()));
                continue;
            }
            let Some(digest) = entry.digest else { continue };
            self.found.insert(digest);
            if leads_further(entry.media_type) {
                self.follow(digest, true).await?;
            } else {
                self.read.insert(digest);
            }
        }
        self.follow_lists().await.map(drop)
    }

    /// Follows the lists whose subjects were met; the tags of the others are orphans, so far.
    async fn follow_lists(&mut self) -> Result<Vec<Tag>> {
        loop {
            let lists = std::mem::take(&mut self.lists);
            let (alive, waiting): (Vec<_>, Vec<_>) =
                lists.into_iter().partition(|(subject, _, _)| self.read.contains(subject));
            self.lists = waiting;
            if alive.is_empty() {
                return Ok(self.lists.iter().filter_map(|(_, _, tag)| tag.parse().ok()).collect());
            }
            for digest in alive.into_iter().filter_map(|(_, list, _)| list) {
                self.found.insert(digest);
                self.follow(digest, true).await?;
            }
        }
    }

    /// Follows what leases name, and images whose time has not come.
    async fn keep(&mut self, leases: &[Lease], nameless: &[NamelessImage]) -> Result<()> {
        for lease in leases {
            self.found.extend(lease.blobs.iter().chain([&lease.image]));
            self.follow(lease.image, false).await?;
        }
        for image in nameless.iter().filter(|image| !image.is_due) {
            self.found.insert(image.digest);
            self.follow(image.digest, false).await?;
        }
        Ok(())
    }

    /// Follows a document; only one that something else than an index of platforms names has to be there.
    async fn follow(&mut self, digest: Digest, has_to_be_there: bool) -> Result<()> {
        let mut waiting = vec![(digest, has_to_be_there)];
        while let Some((digest, has_to_be_there)) = waiting.pop() {
            if !self.read.insert(digest) {
                continue;
            }
            self.renew().await?;
            let bytes = match self.store.document(digest).await {
                Err(e) if e.kind() == ErrorKind::NotFound && !has_to_be_there => continue,
                bytes => {
                    bytes.map_err(|e| e.remedy("nothing was deleted: repair or remove that image first"))?
                }
            };
            let document: Value = serde_json::from_slice(&bytes).map_err(|e| {
                let error = Error::corrupt("is not JSON; nothing was deleted").caused_by(e);
                error.about(self.store.thing(&blob_name(&digest)))
            })?;
            let mut leading = Vec::new();
            collect_digests(&document, &mut self.found, &mut leading);
            waiting.extend(leading.into_iter().map(|digest| (digest, false)));
        }
        Ok(())
    }
}
