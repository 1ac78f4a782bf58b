//! Attaching: an image becomes a disk.
//!
//! An image in a local directory is read in its place. Any other image is read through the cache: its manifest is
//! requested from the store, its layers are opened, and from then on the pull engine fetches the bytes that are read.
//! If the store does not answer, the last known manifest of the image is used, provided that every byte of the image is
//! in the cache, or that the hosts of the swarm keep the image. So a host that boots again while its registry cannot be
//! reached can start the images that it has. A store that refuses the credentials or has no such image does not count
//! as unreachable: a user that may no longer read the image does not get it from a cache that other users filled,
//! unless [`DiskOptions::cached_although_denied`] is set.

use crate::ahead::Ahead;
use crate::base::{Base, Health};
use crate::blobs::Blobs;
use crate::collecting::Collecting;
use crate::disk::{Disk, Top};
use crate::expected::Expected;
use crate::fetch::Fetcher;
use crate::grants::{self, Grant, Grants, Question, ask_for_image};
use crate::hints;
use crate::hold::{Hold, Leasing};
use crate::known_images::{self, KnownImages};
use crate::known_links::KnownLinks;
pub use crate::local::is_local;
use crate::lost_writes::make_ready;
use crate::open::Located;
use crate::own_base::{check_parent, name_base};
use crate::pinned::PinnedImages;
use crate::preloading::{self, Driving, Lookup, PlanSource, Preloader};
use crate::puller::Puller;
use crate::release::NewLease;
use crate::sharing::Sharing;
use crate::stats::DiskStats;
use crate::swarm::SwarmClient;
use crate::swarm_reports;
use crate::uppers::below;
use headstart_block::exchange::ImageKey;
use headstart_block::{BlockDevice, Digest, Error, ErrorKind, Result};
use headstart_cache::Cache;
use headstart_image::disk_form::{FormWish, FoundForm, took_writable, wanted_form_again};
use headstart_image::manifest::{ImageLayer, Manifest};
use headstart_image::open_image::OpenImage;
use headstart_image::store::{HeldImage, HoldingDirectory, Image, ImageStore, unprotected};
use headstart_lsmt::Stack;
use headstart_lsmt::writable::{Limits, NewDisk, WritableDisk};
use headstart_pull::Plan;
use headstart_store::{Reference, RetrySettings, Selector, Store, warn_if_nothing_comes};
use headstart_trace::Recorder;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use uuid::Uuid;

/// The resources that the disks of a process share.
#[derive(Clone)]
pub struct DiskHost {
    /// The runtime on which fetches run.
    pub runtime: Handle,
    /// The cache on this host that keeps fetched bytes.
    pub cache: Arc<Cache>,
    /// The settings for retrying the steps of opening an image.
    pub retry: RetrySettings,
    /// The other hosts that are asked for missing bytes before the store; `None`: only the store is asked.
    pub swarm: Option<Arc<dyn SwarmClient>>,
    /// The duration without an answer from a store after which a warning is given; `None`: no warning.
    pub warn_of_silence: Option<Duration>,
}

/// The options for attaching a disk.
#[derive(Clone, Default)]
pub struct DiskOptions {
    /// The settings of the pull engine, which fetches missing bytes.
    pub pull: headstart_pull::EngineSettings,
    /// The plan that is preloaded from the start; `Plan::Lazy` preloads nothing. A list is stopped if it does harm;
    /// `Plan::Sequential` is never stopped. Not used for an image in a local directory.
    pub plan: Plan,
    /// The source of plans, which is searched while the disk is attached, unless all bytes of the image are on this
    /// host already. A plan from this source is followed only if `plan` is `Plan::Lazy`, and is stopped if it does
    /// harm. `None`: only `plan` is preloaded.
    pub plans: Option<Arc<dyn PlanSource>>,
    /// `true` if a read whose bytes are not local waits for all bytes of its blocks (2 MiB), and plans
    /// preload whole blocks. This is for comparisons with systems that fetch whole blocks.
    pub whole_blocks: bool,
    /// The number of the image's layers that the disk is made of, from the lowest on; `None`: all.
    pub lowest: Option<usize>,
    /// The files of layers on top of the image's, lowest first: layers of this host, which no store has.
    pub uppers: Vec<PathBuf>,
    /// The rate, in bytes a second, at which the rest of the image is fetched in the background; `None`: it
    /// is not.
    pub fill_rate: Option<u64>,
    /// The options of the layer that takes writes; `None`: the disk is read-only.
    pub writable: Option<WritableOptions>,
    /// The recorder of the disk's reads and writes; `None`: they are not recorded.
    pub recorder: Option<Arc<Recorder>>,
    /// `true` to refuse an image in a store unless hash trees verify all its bytes as they are fetched.
    pub require_tree: bool,
    /// `true` to attach an image that is completely in the cache even if its store denies access.
    pub cached_although_denied: bool,
    /// The longest time since the store let this host read an image for which that is attached from the cache: if the
    /// store is away, and by its digest also if the store does not answer at once. `None`: a store is waited for, and
    /// one that is away does not limit the time.
    pub offline_limit: Option<Duration>,
    /// The image that the reference meant when the disk was first attached; it is attached again, even if the tag means
    /// another image by now. `None`: the store is asked which image the reference means.
    pub known: Option<KnownImage>,
    /// The path of a file that exists as long as the disk is to be attached again after its process dies. While the
    /// file exists, the image stays protected from deletion. `None`: the protection ends with the process.
    pub record: Option<PathBuf>,
}

/// An image that is attached by its manifest, without asking the store which image a reference means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownImage {
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The bytes of the manifest; `digest` is their digest.
    pub manifest: Vec<u8>,
}

/// The options of a disk's writable layer, a directory that takes the writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WritableOptions {
    /// The directory; it is created if it is missing and `expected` allows that.
    pub dir: PathBuf,
    /// The size of the disk in bytes; at least the image's size, and at least the size that the disk in the directory
    /// has. `None`: the size that the disk in the directory has or, for a new disk, the image's size.
    pub size: Option<u64>,
    /// The maximum size of the directory, in bytes. `None`: 128 MiB plus twice the bytes that the disk holds
    /// in addition to its image.
    pub max: Option<u64>,
    /// The image's name to record in the directory if the image is attached from a copy. `None`: the
    /// reference that is attached.
    pub origin: Option<Reference>,
    /// The disk that the directory must hold; otherwise attaching fails.
    pub expected: Expected,
}

impl DiskOptions {
    /// The form that is wanted of a container's image.
    fn wish(&self) -> FormWish {
        if self.writable.is_some() { FormWish::Writable } else { FormWish::Newest }
    }

    /// The writable directory, if the image that it is based on is to be found by the reference.
    fn own_base(&self) -> Option<&Path> {
        self.writable.as_ref().filter(|_| self.known.is_none()).map(|writable| &*writable.dir)
    }
}

/// A disk that was attached, with the image that it was made from.
pub struct AttachedDisk {
    /// The block device to serve.
    pub disk: Arc<Disk>,
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The image's manifest.
    pub manifest: Manifest,
    /// The bytes of the image's manifest.
    pub manifest_bytes: Vec<u8>,
    /// The writable directory, if this attach created it; `None` if it existed or the disk is read-only.
    pub made: Option<MadeDirectory>,
    /// The hold that protects the image from deletion while the disk is attached.
    pub hold: Hold,
    /// Warnings to show the user; empty if there are none.
    pub warnings: Vec<String>,
}

/// A writable directory that was created for a disk, with the facts that are needed to remove it again.
#[derive(Debug)]
pub struct MadeDirectory {
    dir: PathBuf,
    /// Directories that were not there before, innermost first.
    missing: Vec<PathBuf>,
    /// Its lease.
    lease: Option<MadeLease>,
}

/// The lease of a directory that was made for a disk.
#[derive(Debug)]
enum MadeLease {
    /// In a directory of this host, for the disk of this id.
    InDirectory(ImageStore, Uuid),
    /// In an object store.
    InStore(NewLease),
}

impl MadeDirectory {
    /// Removes the directory and its lease. The disk must never have been served, so that the directory holds only the
    /// disk's own files, and must still be open: otherwise another attach may have taken the directory over. Errors are
    /// ignored.
    pub fn remove(self) {
        match &self.lease {
            // Best effort: the lease of a directory that is gone is over.
            Some(MadeLease::InDirectory(store, uuid)) => _ = store.release_directory(*uuid, &self.dir),
            Some(MadeLease::InStore(lease)) => lease.release(),
            None => {}
        }
        WritableDisk::remove_new(&self.dir);
        self.remove_empty();
    }

    /// Removes only the directories that were created, innermost first, up to the first one that is not empty.
    pub fn remove_empty(&self) {
        let _ = self.missing.iter().try_for_each(std::fs::remove_dir);
    }

    /// Returns a record of `dir` without a lease: which directories, from `dir` upwards, do not exist yet and can be
    /// removed again later. Creates nothing. Must be called before `dir` is created.
    #[must_use]
    pub fn before(dir: &Path) -> Self {
        let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        Self { dir: dir.to_owned(), missing: missing.map(Path::to_owned).collect(), lease: None }
    }
}

/// A directory that was made for a disk whose lease is not written yet. It is removed if the lease fails, or if the
/// attach is given up because another disk of the same command fails.
struct Unheld {
    made: Option<MadeDirectory>,
    /// As long as the disk is open, no other attach takes the directory.
    _disk: Arc<Disk>,
}

impl Drop for Unheld {
    fn drop(&mut self) {
        if let Some(made) = self.made.take() {
            made.remove();
        }
    }
}

/// Attaches an image that is in a directory of this host, and protects it there from deletion. If the protection cannot
/// be recorded, the disk is attached with a warning.
///
/// # Errors
/// Errors of opening the image or the writable directory.
pub fn attach_local(reference: &Reference, options: &DiskOptions) -> Result<AttachedDisk> {
    let store = ImageStore::open(reference.directory()?)?;
    let known = options.known.clone().map(|known| (known.digest, known.manifest));
    let held = store.hold((reference, options.wish()), known, options.record.clone(), Uuid::new_v4());
    let held = held.map_err(|error| name_base(error, reference, options.own_base()))?;
    let HeldImage { image: Image { digest, manifest }, bytes: manifest_bytes, passed_over, lease } = held;
    let image = OpenImage::open_known(reference, digest, &manifest_bytes, options.lowest)?;
    let stack = Arc::new(image.into_disk());
    let (disk, mut made) = assemble(stack, Arc::default(), None, digest, reference, options)?;
    let mut warnings = Vec::new();
    let hold = match lease {
        Ok(lease) => Hold::in_directory(lease),
        Err(error) => {
            warnings.push(unprotected(reference, &error));
            Hold::default()
        }
    };
    // A lease that cannot be written at all was reported above.
    if let (Top::Writable(disk), Some(writable), true) = (&disk.top, &options.writable, warnings.is_empty()) {
        let (dir, uuid) = (&writable.dir, disk.uuid());
        let holding = HoldingDirectory { dir, uuid, image: digest, manifest: &manifest, reference };
        match (store.hold_for_directory(&holding), &mut made) {
            (Ok(()), Some(made)) => made.lease = Some(MadeLease::InDirectory(store.clone(), uuid)),
            (Ok(()), None) => {}
            // The hold of the process remains, at least.
            (Err(error), _) => warnings.push(format!(
                "the image is held only while it is attached, not for {}: {}",
                dir.display(),
                unprotected(reference, &error)
            )),
        }
    }
    warnings.extend(passed_over.map(|newer| took_writable(reference, &digest, &newer)));
    Ok(AttachedDisk { disk, digest, manifest, manifest_bytes, made, hold, warnings })
}

/// Attaches an image that is in `store`, the store that `reference` names. Must run on a runtime of several threads; on
/// a runtime of one thread it panics or blocks forever.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if the store does not answer or fails, unless the image is completely in the cache or
/// pinned in the swarm. [`ErrorKind::Denied`] if the store denies access, unless
/// [`DiskOptions::cached_although_denied`] is set and the image is completely in the cache; also if
/// `DiskOptions::require_tree` is set and a layer has no hash tree. [`ErrorKind::NotFound`] if the store has no such
/// image, or if the image was deleted there meanwhile and is not completely in the cache. Errors of opening the image
/// or the writable directory.
pub async fn attach_remote(
    host: &DiskHost,
    store: Arc<dyn Store>,
    reference: &Reference,
    options: &DiskOptions,
) -> Result<AttachedDisk> {
    let mut leasing = None;
    let attached = attach_leasing(host, store, reference, options, &mut leasing).await;
    let Some(mut leasing) = leasing else { return attached };
    let mut attached = match attached {
        Ok(attached) => attached,
        Err(error) => {
            leasing.cancel().await;
            return Err(error);
        }
    };
    if let (Top::Writable(disk), Some(writable)) = (&attached.disk.top, &options.writable) {
        leasing.add_directory(disk, &writable.dir, &attached.manifest, attached.made.is_some());
    }
    let new_lease = leasing.new_lease();
    let mut unheld = Unheld { made: attached.made.take(), _disk: Arc::clone(&attached.disk) };
    // A store that is away is not waited for.
    let (hold, warning) = leasing.finish(!attached.warnings.is_empty()).await?;
    attached.hold = hold;
    attached.made = unheld.made.take();
    if let Some(made) = &mut attached.made {
        made.lease = new_lease.map(MadeLease::InStore);
    }
    attached.warnings.extend(warning);
    Ok(attached)
}

/// The same without a hold, which is begun in `leasing`.
async fn attach_leasing(
    host: &DiskHost,
    store: Arc<dyn Store>,
    reference: &Reference,
    options: &DiskOptions,
    leasing: &mut Option<Leasing>,
) -> Result<AttachedDisk> {
    let about = |e: Error| e.about(reference);
    let named = name_with(host, &store, reference, options).await?;
    let manifest = Manifest::parse(&named.bytes).map_err(about)?;
    if options.require_tree {
        check_trees(&manifest).map_err(about)?;
    }
    let shown = manifest.lowest(options.lowest).map_err(about)?;
    let located = match named.located.filter(|_| options.lowest.is_none()) {
        Some(located) => located,
        None => locate(host, &*store, &shown).await.map_err(about)?,
    };
    let passed_over = named.passed_over.map(|newer| took_writable(reference, &named.digest, &newer));
    let mut warnings = Vec::from_iter(passed_over);
    if let Some(refusal) = named.refusal {
        let (is_whole, is_pinned) = (located.are_whole(), named.is_pinned);
        let from = instead_of_store(&refusal, is_whole, is_pinned, options.cached_although_denied);
        let from = from.filter(|_| named.is_granted || is_pinned || options.cached_although_denied);
        let Some(from) = from else {
            let refusal = name_base(refusal, reference, options.own_base());
            return Err(about(denied_though_here(refusal, is_whole, named.is_granted)));
        };
        warnings.push(format!("{reference}: {refusal}. {from} ({}): attached from there", named.digest));
    }
    let record = options.record.clone();
    let (image, is_whole) = ((named.digest, &manifest), located.are_whole());
    *leasing = Leasing::begin(&host.runtime, &store, reference, image, record, is_whole);
    // Beside all that follows; not for an image that is whole.
    // Plans are for the whole image.
    let has_plans = options.lowest.is_none() && options.uppers.is_empty() && !located.are_whole();
    let source = options.plans.as_deref().filter(|_| has_plans);
    let lookup = Lookup::start(source, &named.digest, &manifest, &store, &host.runtime);
    let origin = store.location();
    // A whole image needs no other host, but other hosts may need it.
    let origin_named = reference.location.to_string();
    let image_key = hints::image_key(&located.blobs);
    let share =
        |swarm: &Arc<dyn SwarmClient>| Sharing::join(Arc::clone(swarm), &located.blobs, &origin_named);
    let fetcher = Fetcher::new(store, host.swarm.as_ref().map(share));
    let opening = located.open(reference, &shown, &fetcher, &host.retry);
    let opened =
        warn_if_nothing_comes(fetcher.store(), host.warn_of_silence, opening).await.map_err(about)?;
    let stack = Arc::new(opened.stack);
    let blobs = Arc::new(Blobs::new(Arc::clone(&stack), opened.blobs, &opened.of_source, opened.inflated));
    let health = Arc::<Health>::default();
    let (runtime, settings) = (host.runtime.clone(), options.pull.clone());
    let puller = Puller::new(blobs, opened.openings, Arc::clone(&health), fetcher, runtime, settings);
    // The writable directory is recovered meanwhile; the fetches of other disks go on.
    let assembled = tokio::task::block_in_place(|| {
        assemble(stack, health, Some(Arc::clone(&puller)), named.digest, reference, options)
    });
    let (disk, made) = assembled.map_err(about)?;
    if let Some(preloader) = &disk.preloader {
        puller.set_plan(preloader.plan());
        lookup.opened(Arc::clone(disk.stack()), disk.size());
        let driving = Driving {
            puller: Arc::clone(&puller),
            links: KnownLinks::of(host.cache.dir()),
            store: origin,
            image: reference.to_string(),
            lookup,
        };
        host.runtime.spawn(preloading::drive(Arc::clone(preloader), driving));
        if let Some(swarm) = &host.swarm {
            // A disk that preloads nothing still tells others its reads.
            let takes = options.plans.is_some();
            notify_swarm(&host.runtime, swarm, image_key, (preloader, &puller), takes);
        }
    }
    if options.fill_rate.is_some() {
        puller.set_fill_rate(options.fill_rate);
    }
    let (digest, manifest_bytes) = (named.digest, named.bytes);
    Ok(AttachedDisk { disk, digest, manifest, manifest_bytes, made, hold: Hold::default(), warnings })
}

/// Exchanges with the swarm what disks of the image read while they boot, and reports what this disk reads; with
/// `takes`, the preloader follows what other disks read.
fn notify_swarm(
    runtime: &Handle,
    swarm: &Arc<dyn SwarmClient>,
    image_key: Option<ImageKey>,
    (preloader, puller): (&Arc<Preloader>, &Arc<Puller>),
    takes: bool,
) {
    let (preloader, puller) = (Arc::downgrade(preloader), Arc::downgrade(puller));
    if let Some(boot) = image_key.and_then(|image| swarm.boot(image)) {
        runtime.spawn(hints::follow(Weak::clone(&preloader), Weak::clone(&puller), boot, takes));
    }
    runtime.spawn(swarm_reports::report(preloader, puller, Arc::clone(swarm)));
}

/// The place that an image is attached from although its store gave this `refusal`; `None` if access is denied, unless
/// the operator allows it.
fn instead_of_store(
    refusal: &Error,
    is_whole: bool,
    is_pinned: bool,
    although_denied: bool,
) -> Option<&'static str> {
    let is_away = refusal.is_away();
    match (is_whole, is_pinned) {
        (true, _) if is_away || although_denied => Some("All of it is in the cache, as it was seen last"),
        (_, true) if is_away => Some("Hosts of the swarm keep it"),
        _ => None,
    }
}

/// `true` for the errors of a store that is away, or that does not give the image.
fn is_of_store(error: &Error) -> bool {
    let kinds = [ErrorKind::Unavailable, ErrorKind::Denied, ErrorKind::NotFound, ErrorKind::Corrupt];
    kinds.contains(&error.kind()) || error.has_answered()
}

/// The error of a store that does not give an image, if all of the image is in the cache.
fn denied_though_here(refusal: Error, is_whole: bool, is_granted: bool) -> Error {
    if is_whole && !is_granted && refusal.is_away() {
        let cause =
            "all of it is in the cache, but its store is away, and has not let this host read it lately";
        return Error::new(refusal.kind(), cause)
            .caused_by(refusal)
            .remedy("a longer --offline-limit attaches it");
    }
    if !is_whole || refusal.is_away() {
        return refusal;
    }
    let cause = match refusal.kind() {
        ErrorKind::Denied => "all of it is in the cache, but its store refuses it",
        // Stores hide images in this way from clients that may not read them.
        ErrorKind::NotFound => "all of it is in the cache, but its store refuses it or does not have it",
        _ => "all of it is in the cache, but its store answers something else",
    };
    Error::new(refusal.kind(), cause).caused_by(refusal).remedy("--cached-although-denied attaches it anyway")
}

/// Refuses an image that has a layer without a hash tree: its bytes are taken on its store's word until all of them are
/// local.
fn check_trees(manifest: &Manifest) -> Result<()> {
    // The data of a TurboOCI layer is in a blob for which a manifest can have no tree.
    let is_open = |layer: &&ImageLayer| layer.tree.is_none() || layer.is_turbo();
    let Some(layer) = manifest.disk_layers().find(is_open) else { return Ok(()) };
    let cause = format!("its layer {} has no hash tree, which --require-tree asks for", layer.blob.digest);
    Err(Error::new(ErrorKind::Denied, cause)
        .remedy("make hash trees with `headstart image flatten`, and attach the new image"))
}

/// Finds an image's blobs in the cache. That may wait for a process that changes the cache's directory, so it runs on a
/// thread that may block.
async fn locate(host: &DiskHost, store: &dyn Store, manifest: &Manifest) -> Result<Located> {
    let (cache, manifest, origin) = (Arc::clone(&host.cache), manifest.clone(), store.location());
    let located = tokio::task::spawn_blocking(move || Located::new(&cache, &manifest, &origin)).await;
    located.map_err(|e| Error::new(ErrorKind::Io, "looking into the cache broke off").caused_by(e))?
}

/// The image that a reference stands for.
struct Named {
    digest: Digest,
    bytes: Vec<u8>,
    /// The reason why the store did not name it itself.
    refusal: Option<Error>,
    /// Its blobs in the cache, if all of them were found whole there.
    located: Option<Located>,
    /// `true` if hosts of this one's swarm keep all of it.
    is_pinned: bool,
    /// `false` if it must not be attached while its store is away.
    is_granted: bool,
    /// A newer form of a container's image, on which no file can be changed.
    passed_over: Option<Digest>,
}

impl Named {
    /// An image that its store has named.
    fn found(FoundForm { digest, bytes, passed_over }: FoundForm) -> Self {
        let (bytes, refusal, located) = (bytes.to_vec(), None, None);
        Self { digest, bytes, refusal, located, is_pinned: false, is_granted: true, passed_over }
    }

    /// An image that is named without its store.
    async fn known(host: &DiskHost, store: &dyn Store, known: &KnownImage) -> Self {
        let KnownImage { digest, manifest: bytes } = known.clone();
        let located = locate_whole(host, store, &bytes).await;
        let (refusal, passed_over) = (None, None);
        Self { digest, bytes, refusal, located, is_pinned: false, is_granted: true, passed_over }
    }
}

async fn name_image(
    host: &DiskHost,
    store: &Arc<dyn Store>,
    reference: &Reference,
    (limit, wish): (Option<Duration>, FormWish),
) -> Result<Named> {
    let grants = Grants::of(host.cache.dir());
    let known_images = KnownImages::of(host.cache.dir());
    // For a bucket, the reference alone does not name the endpoint.
    let name = known_images.name(&store.location(), &reference.selector, wish);
    let pinned =
        |digest: &Digest| host.swarm.as_ref().and_then(|_| PinnedImages::of(host.cache.dir()).get(digest));
    let known = known_images.recall(&name).or_else(|| match &reference.selector {
        Selector::Digest(digest) => pinned(digest).map(|bytes| (*digest, bytes)),
        Selector::Tag(_) => None,
    });
    let Some((digest, bytes)) = known else {
        let found = ask_for_image(&**store, &reference.selector, wish, host.warn_of_silence).await?;
        known_images.note(&**store, &reference.selector, wish, &found);
        let told = known_images::name_of(&store.location(), &reference.selector, wish, &found.bytes);
        grants.renew(&told, &found.digest);
        return Ok(Named::found(found));
    };
    let is_granted = limit.is_none_or(|limit| match grants.get(&name, &digest) {
        Grant::Given(age) => age < limit,
        Grant::Refused => false,
        // An earlier version has attached it, or its grant was lost: its store may be away.
        Grant::Unknown => true,
    });
    let is_by_digest = matches!(reference.selector, Selector::Digest(_));
    let goes_on = limit.is_some() && is_by_digest && matches!(grants.get(&name, &digest), Grant::Given(_));
    let question = (goes_on && is_granted).then(|| {
        let (store, selector) = (Arc::clone(store), reference.selector.clone());
        Question::ask(&host.runtime, store, selector, digest, (grants.clone(), name.clone()))
    });
    let located = locate_whole(host, &**store, &bytes).await;
    let is_pinned = pinned(&digest).is_some();
    // The image of a digest cannot have changed, but the caller's right to read it can have: only the manifest itself
    // shows that, because a store may let in clients to which it shows nothing.
    let answer = if let Some(question) = question.filter(|_| located.is_some()) {
        question.soon().await.unwrap_or(Ok(None))
    } else if located.is_some() || is_pinned {
        let answer = wanted_form_again(&**store, &reference.selector, wish, &digest).await;
        let told = match &answer {
            Ok(Some(found)) => {
                known_images::name_of(&store.location(), &reference.selector, wish, &found.bytes)
            }
            _ => name,
        };
        grants::keep(&**store, &answer, &grants, &told, &digest).await;
        answer
    } else {
        // Without its store the image is of no use: the store gets the time that it needs.
        ask_for_image(&**store, &reference.selector, wish, host.warn_of_silence).await.map(Some)
    };
    let (refusal, passed_over) = match answer {
        Ok(None) => (None, None),
        Ok(Some(found)) => {
            known_images.note(&**store, &reference.selector, wish, &found);
            let located = located.filter(|_| found.digest == digest);
            return Ok(Named { located, is_granted, ..Named::found(found) });
        }
        Err(refusal) if is_of_store(&refusal) => (Some(refusal), None),
        Err(error) => return Err(error),
    };
    Ok(Named { digest, bytes, refusal, located, is_pinned, is_granted, passed_over })
}

/// The blobs of the image with this manifest, if every byte of them is in the cache.
async fn locate_whole(host: &DiskHost, store: &dyn Store, manifest: &[u8]) -> Option<Located> {
    let manifest = Manifest::parse(manifest).ok()?;
    locate(host, store, &manifest).await.ok().filter(Located::are_whole)
}

fn assemble(
    stack: Arc<Stack>,
    health: Arc<Health>,
    puller: Option<Arc<Puller>>,
    digest: Digest,
    reference: &Reference,
    options: &DiskOptions,
) -> Result<(Arc<Disk>, Option<MadeDirectory>)> {
    let base: Arc<dyn BlockDevice> = Arc::new(Base::new(Arc::clone(&stack), Arc::clone(&health)));
    let (base, name) = below(base, digest, options.lowest, &options.uppers)?;
    let (top, made) = match &options.writable {
        None => (Top::Base(base), None),
        Some(writable) => {
            let (disk, made) = open_writable(base, name, (digest, reference), writable)?;
            let noted = writable.origin.as_ref().unwrap_or(reference);
            if let Err(error) = disk.note_reference(&noted.to_string()) {
                tracing::warn!(%error, "the writable directory has no record of where the image is");
            }
            let base_timeout = options.pull.deadline;
            disk.set_limits(Limits { max: writable.max, base_timeout, ..Limits::default() })?;
            make_ready(&disk, &writable.dir);
            (Top::Writable(Arc::new(disk)), made)
        }
    };
    let size = match &top {
        Top::Base(base) => base.size(),
        Top::Writable(disk) => disk.size(),
    };
    let preloader = puller.is_some().then(|| Preloader::new(size, &options.plan, options.whole_blocks));
    let (recorder, whole_blocks) = (options.recorder.clone(), options.whole_blocks);
    let collecting = match &top {
        Top::Base(_) => None,
        Top::Writable(disk) => Some(Collecting::start(disk, puller.clone())?),
    };
    let (stats, ahead) = (DiskStats::default(), Ahead::new(health));
    let disk = Disk { collecting, top, stack, puller, preloader, whole_blocks, ahead, stats, recorder };
    Ok((Arc::new(disk), made))
}

/// Opens the writable directory on `base`, whose name is `parent`, or makes it.
fn open_writable(
    base: Arc<dyn BlockDevice>,
    parent: String,
    (digest, reference): (Digest, &Reference),
    options: &WritableOptions,
) -> Result<(WritableDisk, Option<MadeDirectory>)> {
    let opened = match WritableDisk::inspect(&options.dir) {
        Ok(info) => {
            options.expected.check_id(&options.dir, Some(info.uuid))?;
            check_parent(&info, digest, reference).map_err(|e| e.about(options.dir.display()))?;
            WritableDisk::open(&options.dir, Some(base), &parent)?
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            options.expected.check_id(&options.dir, None)?;
            let least = base.size().next_multiple_of(headstart_block::SECTOR_SIZE);
            let size = options.size.unwrap_or(least);
            if size < least {
                return Err(too_small(least, size));
            }
            let made = MadeDirectory::before(&options.dir);
            let new = NewDisk { size, parent, uuid: Uuid::new_v4() };
            return match WritableDisk::create(&options.dir, Some(base), &new) {
                Ok(disk) => Ok((disk, Some(made))),
                Err(error) => {
                    // Files that are there now belong to another attach, which was faster.
                    made.remove_empty();
                    Err(error)
                }
            };
        }
        Err(e) => return Err(e),
    };
    match options.size {
        Some(size) if size > opened.size() => opened.grow(size)?,
        Some(size) if size < opened.size() => {
            return Err(too_small(opened.size(), size).about(options.dir.display()));
        }
        _ => {}
    }
    Ok((opened, None))
}

/// Finds the image that a disk is to have.
async fn name_with(
    host: &DiskHost,
    store: &Arc<dyn Store>,
    reference: &Reference,
    options: &DiskOptions,
) -> Result<Named> {
    if let Some(known) = &options.known {
        return Ok(Named::known(host, &**store, known).await);
    }
    let named = name_image(host, store, reference, (options.offline_limit, options.wish())).await;
    named.map_err(|error| name_base(error, reference, options.own_base()).about(reference))
}

fn too_small(has: u64, wanted: u64) -> Error {
    Error::invalid(format!("the disk has {has} bytes and cannot become smaller ({wanted})"))
        .remedy("leave the size out, or give a larger one")
}
