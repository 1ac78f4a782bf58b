//! Copying an image from one store to another: `image push`, `pull` and `copy`.
//!
//! The order makes an image appear whole or not at all: all blobs (config, layers, hash trees; several at once), then
//! the manifest, then the tag. Requests that do not depend on each other are made at once. Each blob is checked against
//! its digest while it is copied. A blob that the target has already is not copied, so a copy that broke off continues
//! from its last point (within a blob if the target is a directory). Such a blob is taken to be right if its length is;
//! [`repair`] reads all of them, and replaces the wrong ones. The manifest is copied byte for byte, so the image keeps
//! its digest.
//!
//! The newest plan that is published with the image ([`crate::plan_artifact`]) is copied as well, once the image is
//! there.
//!
//! # Hash trees in registries
//!
//! A manifest names its layers' hash trees only in annotations. The garbage collection of a registry ignores these and
//! would delete the trees some day. So a copy adds an artifact whose `subject` is the image and whose layers are the
//! trees; the registry keeps the artifact as long as the image. (In a registry that does not list artifacts itself, an
//! index under a tag lists the artifact.) If a tree is lost nevertheless, it can be rebuilt from the whole blob, but
//! until then ranges cannot be checked. So a tree that the source lacks is reported and counted, but does not stop the
//! copy.

use crate::disk_form::{disk_form, newest};
use crate::manifest::{INDEX_OCI, MANIFEST_OCI, Manifest, media_type};
use crate::plan_artifact::{self, EMPTY_CONFIG};
use crate::progress::{Progress, step};
use crate::reference::{Selector, Tag};
use crate::store::{Image, ListEntry};
use bytes::Bytes;
use futures::future::{BoxFuture, join, ready, try_join};
use futures::stream::{self, StreamExt, TryStreamExt};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_hash_tree::sums::DigestWriter;
use headstart_store::blob_source::BlobSource;
use headstart_store::media_type::CONFIG_EMPTY;
use headstart_store::{RetrySettings, Store};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// The artifact type of the manifest that holds an image's hash trees.
pub const HASH_TREES: &str = "application/vnd.headstart.hash-trees.v1";
/// The media type of one hash tree: its outboard (inner nodes), in the format that [`headstart_hash_tree`]
/// describes.
pub const HASH_TREE: &str = "application/vnd.headstart.hash-tree.v1";
/// Key of an annotation on each hash tree in the artifact of type [`HASH_TREES`]: the digest of the blob that the tree
/// covers.
pub const TREE_OF: &str = "dev.headstart.tree-of";

/// The number of blobs that are copied at once: enough to use a link of some latency, few enough for their buffers
/// (some 40 MiB each).
const BLOBS_AT_ONCE: usize = 4;

/// The number of blobs whose lengths the target is asked for at once.
const LENGTHS_AT_ONCE: usize = 16;

/// The length of the longest blob that is written without asking first if the target has it, when the blob was made
/// for this copy: 64 KiB, which are sent in the time of a question.
const UNASKED_MAX: u64 = 64 << 10;

/// The number of bytes of a blob that are read at once to check it.
const CHECKED_PART: u64 = 8 << 20;

/// The number of manifests that are read at once to list a store.
const MANIFESTS_AT_ONCE: usize = 8;

/// The interval of checking for the user's wish to stop while nothing moves.
const ASK_TO_STOP: Duration = Duration::from_millis(100);

/// The longest time that a copy that ends early takes to report its end.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Describes what a copy of an image between stores did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferReport {
    /// The digest of the image's manifest, which is the same in both stores. Always set in the result of a
    /// copy.
    pub digest: Option<Digest>,
    /// The number of blobs copied, in full or from the point where an earlier copy broke off.
    pub copied: u64,
    /// The number of bytes of those blobs that this copy transferred.
    pub copied_bytes: u64,
    /// The number of bytes of the copied blobs that were in the target already, left by earlier copies that
    /// broke off.
    pub resumed_bytes: u64,
    /// The number of blobs that the target had already, and which were not copied.
    pub present: u64,
    /// The total length, in bytes, of the blobs that the target had already.
    pub present_bytes: u64,
    /// The number of blobs that the target took over from the source by itself, so that their bytes did not pass
    /// through this host: both are repositories of one registry.
    pub mounted: u64,
    /// The total length, in bytes, of the blobs that the target took over.
    pub mounted_bytes: u64,
    /// The number of damaged blobs in the target that were replaced. They also count as copied. Always 0 for
    /// [`transfer`], which does not check blobs that are there.
    pub repaired: u64,
    /// The number of hash trees that the source does not have, although the image's manifest names them.
    pub lost_trees: u64,
    /// The outcome for the preload plan that is published with the image.
    pub plan: PlanFate,
    /// The digest of the manifest that the tag named before. `None` if the tag is new, named the same manifest or could
    /// not be read, or if there is no tag.
    pub was: Option<Digest>,
}

/// The outcome, in a copy of an image, for the preload plan that is published with the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanFate {
    /// There is no plan, or the target has the same or a newer one.
    #[default]
    Unchanged,
    /// The plan was copied. The value is the digest of the manifest of its artifact.
    Copied(Digest),
    /// The plan could not be copied because of an error. The image was copied nevertheless.
    Lost,
}

/// The way in which an image is found in the store into which it is copied.
#[derive(Clone, Copy, Debug)]
pub enum PublishedAs<'a> {
    /// By this tag. If another image had the tag, it loses it.
    Tag(&'a Tag),
    /// By its digest, and by the tags that it has already.
    Digest,
    /// As an artifact that belongs to the manifest with this digest, and that takes the place of those of its type
    /// ([`Manifest::artifact_type`]) that belong to it already.
    Referrer(&'a Digest),
    /// By an index of several images, `index`, which names its digest. If another image had the tag, it loses it.
    Index {
        /// The tag of the index.
        tag: &'a Tag,
        /// The JSON text of the index.
        index: &'a Bytes,
    },
}

impl<'a> From<&'a Tag> for PublishedAs<'a> {
    fn from(tag: &'a Tag) -> Self {
        Self::Tag(tag)
    }
}

impl PublishedAs<'_> {
    /// The tag that is moved.
    fn tag(&self) -> Option<&Tag> {
        match self {
            Self::Tag(tag) | Self::Index { tag, .. } => Some(tag),
            Self::Digest | Self::Referrer(_) => None,
        }
    }
}

/// Copies the image that `selector` selects in `source` into `target`, where it is found as `publication` says: under a
/// tag, mostly. Failed reads are retried according to `retry`. `target` must be opened without mirrors, because
/// otherwise a blob that only a mirror has would count as being there.
///
/// # Errors
/// Errors of the stores; [`ErrorKind::Cancelled`] if the user wants to stop. After an error the tag is as it was
/// before, unless only the answer to the last request was lost. `target` may have some of the image's blobs, which a
/// later copy reuses. A copy cannot be stopped while the manifest is being written.
pub async fn transfer<'a>(
    source: &Arc<dyn Store>,
    selector: &Selector,
    target: &Arc<dyn Store>,
    publication: impl Into<PublishedAs<'a>>,
    retry: RetrySettings,
    progress: &dyn Progress,
) -> Result<TransferReport> {
    let publishing = AtomicBool::new(false);
    let (is_new, checks_present) = (&|_: &Digest| false, false);
    let work = Transfer { source, target, retry, progress, publishing, checks_present, is_new };
    work.run_or_stop(selector, publication.into(), noting_nothing()).await
}

/// Works as [`transfer`], for an image that was made here: `is_new` tells the blobs that were made with it, which the
/// target hardly has. `noted` is done beside the last requests, once all blobs are in the target.
///
/// # Errors
/// As [`transfer`]. `noted` may be done then.
pub(crate) async fn transfer_new(
    source: &Arc<dyn Store>,
    (selector, publication): (&Selector, PublishedAs<'_>),
    target: &Arc<dyn Store>,
    retry: RetrySettings,
    progress: &dyn Progress,
    is_new: &(dyn Fn(&Digest) -> bool + Sync),
    noted: BoxFuture<'_, ()>,
) -> Result<TransferReport> {
    let publishing = AtomicBool::new(false);
    let work = Transfer { source, target, retry, progress, publishing, checks_present: false, is_new };
    work.run_or_stop(selector, publication, noted).await
}

/// The work beside a copy that has none.
pub(crate) fn noting_nothing() -> BoxFuture<'static, ()> {
    Box::pin(ready(()))
}

/// Works as [`transfer`], but also reads every blob that `target` has already, and copies those again that do
/// not match their digests. If `tag` is `None`, the image keeps the tags that it has.
///
/// # Errors
/// As [`transfer`]; [`ErrorKind::Corrupt`] if a blob in `target` is still damaged afterwards.
pub async fn repair(
    source: &Arc<dyn Store>,
    selector: &Selector,
    target: &Arc<dyn Store>,
    tag: Option<&Tag>,
    retry: RetrySettings,
    progress: &dyn Progress,
) -> Result<TransferReport> {
    let publishing = AtomicBool::new(false);
    let (is_new, checks_present) = (&|_: &Digest| false, true);
    let work = Transfer { source, target, retry, progress, publishing, checks_present, is_new };
    let publication = tag.map_or(PublishedAs::Digest, PublishedAs::Tag);
    work.run_or_stop(selector, publication, noting_nothing()).await
}

struct Transfer<'a> {
    source: &'a Arc<dyn Store>,
    target: &'a Arc<dyn Store>,
    retry: RetrySettings,
    progress: &'a dyn Progress,
    /// `true` while the manifest is being written.
    publishing: AtomicBool,
    /// `true` if the blobs that are there are read and compared with their digests.
    checks_present: bool,
    /// Tells the blobs that were made for this copy.
    is_new: &'a (dyn Fn(&Digest) -> bool + Sync),
}

/// One blob to copy.
#[derive(Clone, Copy)]
struct Item {
    digest: Digest,
    size: u64,
    /// `true` for hash trees, which can be made again: an image without one is still an image.
    may_be_lost: bool,
}

/// The fate of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Copied; the value is the number of bytes that were there already.
    Copied(u64),
    Present,
    /// Taken over by the target from the source.
    Mounted,
    Repaired,
    Lost,
}

impl Transfer<'_> {
    async fn run_or_stop(
        &self,
        selector: &Selector,
        publication: PublishedAs<'_>,
        noted: BoxFuture<'_, ()>,
    ) -> Result<TransferReport> {
        let done = tokio::select! {
            done = self.run(selector, publication, noted) => done,
            stopped = self.until_stopped() => Err(stopped),
        };
        if done.is_err() {
            // Best effort: the store also finds out after a while that this copy has ended.
            let _ = tokio::time::timeout(LAST_WORD, self.target.done_writing()).await;
        }
        let location = self.target.name();
        let tag = publication.tag();
        let image = tag.map_or(format!("{location}{selector}"), |tag| format!("{location}:{tag}"));
        done.map_err(|e| match e.kind() {
            ErrorKind::Cancelled => {
                Error::new(ErrorKind::Cancelled, "stopped on request; the tag is as it was")
                    .about(image)
                    .remedy("run it again to go on: the copied blobs are there already")
            }
            _ => e,
        })
    }

    /// Ends when the user wants to stop, unless the image is appearing already.
    async fn until_stopped(&self) -> Error {
        loop {
            match step(self.progress, 0) {
                Err(stopped) if !self.publishing.load(Ordering::Relaxed) => return stopped,
                _ => tokio::time::sleep(ASK_TO_STOP).await,
            }
        }
    }

    async fn run(
        &self,
        selector: &Selector,
        publication: PublishedAs<'_>,
        noted: BoxFuture<'_, ()>,
    ) -> Result<TransferReport> {
        let name = format!("image {}{selector}", self.source.name());
        let (digest, bytes) = self.source.manifest(selector).await?;
        let manifest = Manifest::parse(&bytes).map_err(|e| e.about(&name))?;
        let items = self.with_turbo_targets(items(&manifest), &manifest).await?;
        self.target.prepare_to_write().await?;
        let done = self.copy_all(digest, bytes, items, publication, noted).await;
        self.target.done_writing().await;
        done
    }

    /// Adds the blobs that have the data of TurboOCI layers, which the manifest names only in annotations, without
    /// their lengths. One that the source does not have is left out: it may be in the target, or come with its own
    /// image.
    async fn with_turbo_targets(&self, mut items: Vec<Item>, manifest: &Manifest) -> Result<Vec<Item>> {
        let named: BTreeSet<_> = manifest.turbo_targets().collect();
        let missing = named.into_iter().filter(|digest| items.iter().all(|item| item.digest != *digest));
        let find = |digest: Digest| async move {
            let found = self.source.blob_len(&digest).await?;
            if found.is_none() && self.target.blob_len(&digest).await?.is_none() {
                tracing::warn!(blob = %digest, "the source lacks this layer, which has the image's data");
            }
            Ok::<_, Error>(found.map(|size| Item { digest, size, may_be_lost: false }))
        };
        let missing = missing.collect::<Vec<_>>();
        let found: Vec<_> =
            stream::iter(missing.into_iter().map(find)).buffered(LENGTHS_AT_ONCE).try_collect().await?;
        items.extend(found.into_iter().flatten());
        items.sort_by_key(|item| std::cmp::Reverse(item.size));
        Ok(items)
    }

    /// Copies the blobs of the manifest `bytes`, and then the manifest.
    async fn copy_all(
        &self,
        digest: Digest,
        bytes: Bytes,
        items: Vec<Item>,
        publication: PublishedAs<'_>,
        noted: BoxFuture<'_, ()>,
    ) -> Result<TransferReport> {
        let manifest = Manifest::parse(&bytes)?;
        self.progress.begin("copy", items.iter().fold(0, |sum, item| sum.saturating_add(item.size)));
        let fates = self.copy_blobs(items, needs_trees(self.target, &manifest)).await?;
        let mut report = TransferReport { digest: Some(digest), ..TransferReport::default() };
        for (item, fate) in &fates {
            match fate {
                Fate::Copied(_) | Fate::Repaired => {
                    let resumed = if let Fate::Copied(resumed) = fate { *resumed } else { 0 };
                    report.repaired += u64::from(*fate == Fate::Repaired);
                    report.copied += 1;
                    report.copied_bytes = report.copied_bytes.saturating_add(item.size - resumed);
                    report.resumed_bytes = report.resumed_bytes.saturating_add(resumed);
                }
                Fate::Present => {
                    report.present += 1;
                    report.present_bytes = report.present_bytes.saturating_add(item.size);
                }
                Fate::Mounted => {
                    report.mounted += 1;
                    report.mounted_bytes = report.mounted_bytes.saturating_add(item.size);
                }
                Fate::Lost => report.lost_trees += 1,
            }
        }
        // The last moment to stop: from here on the image appears.
        step(self.progress, 0)?;
        self.publishing.store(true, Ordering::Relaxed);
        let is_there =
            |digest: Digest| fates.iter().any(|(item, fate)| item.digest == digest && *fate != Fate::Lost);
        let (was, ()) = join(self.appear(&manifest, bytes, is_there, publication), noted).await;
        report.was = was?.filter(|was| *was != digest);
        report.plan = self.take_plan_along(&digest).await;
        Ok(report)
    }

    /// Copies blobs, and also the empty config of artifacts if `has_artifact`.
    async fn copy_blobs(&self, items: Vec<Item>, has_artifact: bool) -> Result<Vec<(Item, Fate)>> {
        let turns = Semaphore::new(BLOBS_AT_ONCE);
        let copy = |item: Item| {
            let turns = &turns;
            async move {
                let is_there = self.find(item).await?;
                let _turn = turns.acquire().await;
                Ok::<_, Error>((item, self.copy(item, is_there).await?))
            }
        };
        let copies = stream::iter(items).map(copy).buffer_unordered(LENGTHS_AT_ONCE).try_collect();
        let config =
            async { if has_artifact { plan_artifact::put_blobs(self.target, &[]).await } else { Ok(()) } };
        let (fates, ()) = try_join(copies, config).await?;
        Ok(fates)
    }

    /// Makes the image appear, whose blobs are there. Returns the digest of the manifest that its tag named before.
    async fn appear(
        &self,
        manifest: &Manifest,
        bytes: Bytes,
        is_there: impl Fn(Digest) -> bool,
        publication: PublishedAs<'_>,
    ) -> Result<Option<Digest>> {
        let before = async {
            let tag = publication.tag()?;
            // Only for the report: an error here stops nothing.
            self.target.manifest(&Selector::Tag(tag.clone())).await.ok().map(|(was, _)| was)
        };
        let trees = put_trees_artifact(self.target, manifest, &bytes, is_there);
        let (was, trees) = join(before, trees).await;
        trees?;
        let digest = Digest::of(&bytes);
        let stored = self.publish(bytes, manifest, publication).await?;
        if stored != digest {
            let cause = format!("stored the manifest under another digest, {stored}");
            return Err(Error::corrupt(cause).about(self.target.name()));
        }
        Ok(was)
    }

    /// Writes the manifest, and what leads to it. Returns its digest.
    async fn publish(
        &self,
        bytes: Bytes,
        manifest: &Manifest,
        publication: PublishedAs<'_>,
    ) -> Result<Digest> {
        let (target, media_type) = (self.target, media_type(&bytes));
        match publication {
            PublishedAs::Tag(tag) => target.put_manifest(&media_type, bytes, Some(tag)).await,
            PublishedAs::Digest => target.put_manifest(&media_type, bytes, None).await,
            PublishedAs::Referrer(subject) => {
                let (old, same) = self.replaced(subject, manifest, Digest::of(&bytes)).await?;
                // A registry deletes plans with the form that they belong to.
                let inherited = plan_artifact::inherited(&**target, same).await;
                let stored = target.put_referrer(subject, &media_type, bytes.clone(), &old).await?;
                plan_artifact::hand_down(target, inherited, &bytes).await;
                Ok(stored)
            }
            PublishedAs::Index { tag, index } => {
                let stored = target.put_manifest(&media_type, bytes, None).await?;
                target.put_manifest(INDEX_OCI, index.clone(), Some(tag)).await?;
                Ok(stored)
            }
        }
    }

    /// The artifacts of `subject` that the new one takes the place of. One whose file system can be written to takes no
    /// place of one that is only read, nor the other way round: hosts choose between the two. Returns also the newest
    /// of them that has the same disk.
    async fn replaced(
        &self,
        subject: &Digest,
        new: &Manifest,
        digest: Digest,
    ) -> Result<(Vec<Digest>, Option<Digest>)> {
        let listed = self.target.referrers(subject, new.artifact_type()).await?;
        // Hosts take the newest, which this one is also if it was published before.
        let (mut replaced, mut same) = (vec![digest], None);
        for old in newest(&listed).filter(|old| *old != digest) {
            let found = self.target.manifest(&Selector::Digest(old)).await;
            let manifest = match found {
                Ok((_, bytes)) => Manifest::parse(&bytes).ok(),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => None,
                Err(error) => return Err(error),
            };
            if manifest.as_ref().is_some_and(|old| old.is_only_read() != new.is_only_read()) {
                continue;
            }
            replaced.push(old);
            if manifest.is_some_and(|old| old.has_disk_of(new)) {
                same.get_or_insert(old);
            }
        }
        Ok((replaced, same))
    }

    /// Copies the plan; an error is not fatal, because an image is worth copying without its plan, too.
    async fn take_plan_along(&self, image: &Digest) -> PlanFate {
        match plan_artifact::take_along(self.source, self.target, image).await {
            Ok(copied) => copied.map_or(PlanFate::Unchanged, PlanFate::Copied),
            Err(error) => {
                tracing::warn!(%error, "the image was copied without the plan that is published with it");
                PlanFate::Lost
            }
        }
    }

    /// `true` if the target has a blob. One of another length is damaged: it is written again.
    async fn find(&self, Item { digest, size, .. }: Item) -> Result<bool> {
        if size <= UNASKED_MAX && (self.is_new)(&digest) {
            return Ok(false);
        }
        Ok(self.target.blob_len(&digest).await? == Some(size))
    }

    /// Copies a blob, which the target has if `is_there`.
    async fn copy(&self, item: Item, is_there: bool) -> Result<Fate> {
        let Item { digest, size, may_be_lost } = item;
        if is_there && (!self.checks_present || self.is_right(item).await?) {
            step(self.progress, size)?;
            return Ok(Fate::Present);
        }
        if !is_there && self.mount(item).await? {
            step(self.progress, size)?;
            return Ok(Fate::Mounted);
        }
        if may_be_lost && self.source.blob_len(&digest).await?.is_none() {
            tracing::warn!(blob = %digest, "the source lost this hash tree; it can be made again from the layer");
            step(self.progress, size)?;
            return Ok(Fate::Lost);
        }
        let source = BlobSource::new(Arc::clone(self.source), digest, size, self.retry, Handle::current());
        let source = Arc::new(source);
        let copied = |bytes| step(self.progress, bytes);
        let blob = Arc::clone(&source) as Arc<dyn ReadAt>;
        self.target.put_blob(&digest, blob, &copied).await.map_err(|e| match e.kind() {
            ErrorKind::Corrupt => e.about(format!("blob {digest} of {}", self.source.name())),
            _ => e,
        })?;
        if !is_there {
            return Ok(Fate::Copied(size.saturating_sub(source.read_bytes())));
        }
        // Registries may take a blob of that name for the one that they have.
        if !self.is_right(item).await? {
            return Err(Error::corrupt("is damaged in the store, which does not let it be replaced")
                .about(format!("blob {digest} of {}", self.target.name()))
                .remedy("delete it there, then run this again"));
        }
        Ok(Fate::Repaired)
    }

    /// Has the target take a blob over from the source, if it can.
    async fn mount(&self, Item { digest, .. }: Item) -> Result<bool> {
        if (self.is_new)(&digest) {
            return Ok(false);
        }
        match self.target.mount_blob(&digest, &self.source.location()).await {
            Err(error) if error.kind() != ErrorKind::Cancelled => {
                tracing::debug!(%error, blob = %digest, "a blob is copied, because it cannot be taken over");
                Ok(false)
            }
            mounted => mounted,
        }
    }

    /// Reads a blob of the target, and compares it with its digest.
    async fn is_right(&self, Item { digest, size, .. }: Item) -> Result<bool> {
        let blob = BlobSource::new(Arc::clone(self.target), digest, size, self.retry, Handle::current());
        let check = move || {
            let mut sum = DigestWriter::new(io::sink());
            let mut buf = Vec::new();
            for part in ByteRange::between(0, size).parts(CHECKED_PART) {
                buf.resize(to_usize(part.len()), 0);
                blob.read_at(&mut buf, part.offset())?;
                sum.write_all(&buf)?;
            }
            Ok(sum.finish().1 == digest)
        };
        tokio::task::spawn_blocking(check)
            .await
            .map_err(|e| Error::new(ErrorKind::Cancelled, "stopped").caused_by(e))?
    }
}

/// Each blob of an image once; the large ones first, so that none of them is left for the end alone.
fn items(manifest: &Manifest) -> Vec<Item> {
    let mut items = BTreeMap::new();
    let mut add = |digest, size, may_be_lost| {
        let item = items.entry(digest).or_insert(Item { digest, size, may_be_lost });
        item.may_be_lost &= may_be_lost;
    };
    add(manifest.config.digest, manifest.config.size, false);
    for layer in &manifest.layers {
        add(layer.blob.digest, layer.blob.size, false);
        if let Some(tree) = layer.tree {
            add(tree.digest, tree.size, true);
        }
    }
    let mut items: Vec<_> = items.into_values().collect();
    items.sort_by_key(|item| std::cmp::Reverse(item.size));
    items
}

/// Writes the artifact that keeps the hash trees of an image, if the store needs one, and before it the image without a
/// tag: an artifact without its subject might be refused, or collected.
pub(crate) async fn put_trees(
    store: &Arc<dyn Store>,
    manifest: &Manifest,
    bytes: &Bytes,
    is_there: impl Fn(Digest) -> bool,
) -> Result<()> {
    if needs_trees(store, manifest) {
        plan_artifact::put_blobs(store, &[]).await?;
    }
    put_trees_artifact(store, manifest, bytes, is_there).await
}

/// `true` if the store keeps the hash trees of an image only with an artifact that names them.
fn needs_trees(store: &Arc<dyn Store>, manifest: &Manifest) -> bool {
    store.drops_unnamed_blobs() && manifest.layers.iter().any(|layer| layer.tree.is_some())
}

/// Works as [`put_trees`], where the store has the empty config of artifacts.
async fn put_trees_artifact(
    store: &Arc<dyn Store>,
    manifest: &Manifest,
    bytes: &Bytes,
    is_there: impl Fn(Digest) -> bool,
) -> Result<()> {
    let (digest, media_type) = (Digest::of(bytes), media_type(bytes));
    let trees = trees_artifact(manifest, digest, &media_type, bytes.len(), is_there);
    let Some(trees) = trees.filter(|_| store.drops_unnamed_blobs()) else { return Ok(()) };
    let trees = Bytes::from(trees);
    let put = store.put_manifest(&media_type, bytes.clone(), None);
    // A registry takes artifacts of manifests that it does not have yet, as the specification demands.
    let (put, artifact) = join(put, store.put_referrer(&digest, MANIFEST_OCI, trees.clone(), &[])).await;
    put?;
    if artifact.is_err() {
        // Some registries do not: now it has the manifest.
        store.put_referrer(&digest, MANIFEST_OCI, trees, &[]).await?;
    }
    Ok(())
}

/// The manifest of the artifact that has the hash trees of an image as its layers; `None` if there are none.
/// The same image gives the same bytes.
fn trees_artifact(
    manifest: &Manifest,
    subject: Digest,
    subject_type: &str,
    subject_size: usize,
    is_there: impl Fn(Digest) -> bool,
) -> Option<Vec<u8>> {
    let trees = manifest.layers.iter().filter_map(|layer| Some((layer.blob.digest, layer.tree?)));
    let mut layers: Vec<Value> = Vec::new();
    for (blob, tree) in trees.filter(|(_, tree)| is_there(tree.digest)) {
        let layer = json!({
            "mediaType": HASH_TREE, "digest": tree.digest.to_string(), "size": tree.size,
            "annotations": { TREE_OF: blob.to_string() },
        });
        if !layers.contains(&layer) {
            layers.push(layer);
        }
    }
    if layers.is_empty() {
        return None;
    }
    let config = Digest::of(EMPTY_CONFIG).to_string();
    let artifact = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_OCI,
        "artifactType": HASH_TREES,
        "config": { "mediaType": CONFIG_EMPTY, "digest": config, "size": EMPTY_CONFIG.len() },
        "layers": layers,
        "subject": { "mediaType": subject_type, "digest": subject.to_string(), "size": subject_size },
    });
    serde_json::to_vec(&artifact).ok()
}

/// Lists the tags of a store with their images, in the order in which [`Store::tags`] returns the tags. Tags
/// that are removed meanwhile are left out.
///
/// # Errors
/// Errors of listing the tags and of reading a manifest. A document that is not a usable image is not an
/// error of this call; its entry holds the error.
pub async fn list_remote(store: &dyn Store) -> Result<Vec<ListEntry>> {
    let one = |tag: Tag| async move {
        let selector = Selector::Tag(tag.clone());
        let named = match store.manifest(&selector).await {
            // The tag was removed since the tags were listed.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            // Perhaps an image of another platform. It must not hide the others.
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Corrupt) => {
                let tag = Some(tag.to_string());
                return Ok(Some(ListEntry { tag, digest: None, image: Err(e), beside: None }));
            }
            found => found?,
        };
        // A store that lists tags but no artifacts hides no image.
        let disk = disk_form(store, &selector, &named).await.unwrap_or_default();
        let beside = disk.is_some().then_some(named.0);
        let (digest, bytes) = disk.unwrap_or(named);
        let name = || format!("image {}{selector}", store.name());
        let image = Manifest::parse(&bytes).map_err(|e| e.about(name()));
        let image = image.map(|manifest| Image { digest, manifest });
        Ok::<_, Error>(Some(ListEntry { tag: Some(tag.to_string()), digest: Some(digest), image, beside }))
    };
    let tags = store.tags().await?;
    let entries: Vec<_> = stream::iter(tags).map(one).buffered(MANIFESTS_AT_ONCE).try_collect().await?;
    Ok(entries.into_iter().flatten().collect())
}
