//! One disk of a session: from the request for it until it is served, given up or released.

use crate::environment::Environment;
use crate::keep_base::{self, Kept};
use crate::settings::{DiskRequest, PriorImage, SessionSettings};
use headstart_block::{ByteSize, Digest, Error, Result};
use headstart_disk::attach::{attach_local, attach_remote};
use headstart_disk::{
    AttachedDisk, Disk, DiskHost, DiskOptions, Expected, Hold, KnownImage, MadeDirectory, WritableOptions,
};
use headstart_image::manifest::Manifest;
use headstart_store::{Reference, Selector, Store};
use headstart_trace::Recorder;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory around several disks' writable directories, if it was not there before. It is removed again if they
/// all are.
pub(crate) struct CreatedParent(Mutex<Option<MadeDirectory>>);

impl CreatedParent {
    /// Notes which directories making `dir` would make.
    pub(crate) fn before(dir: Option<&Path>) -> Self {
        Self(Mutex::new(dir.map(MadeDirectory::before)))
    }

    fn keep(&self) {
        self.0.lock().take();
    }
}

impl Drop for CreatedParent {
    fn drop(&mut self) {
        let made = self.0.get_mut().take();
        made.iter().for_each(MadeDirectory::remove_empty);
    }
}

/// An attached disk with the name of its export and the image that it was made from.
pub struct NamedDisk {
    /// The name by which clients request the disk; empty for a single unnamed disk.
    pub name: String,
    /// The image that the user requested, as a reference.
    pub asked: String,
    /// The image that is read, as a reference. It differs from the requested one if the writable directory
    /// keeps a copy.
    pub image: String,
    /// The path of the image's copy in the writable directory; `None` if the image is not read from such a
    /// copy.
    pub kept_in: Option<PathBuf>,
    /// Its writable directory; `None` if the disk is read-only.
    pub writable: Option<PathBuf>,
    /// The block device to serve.
    pub disk: Arc<Disk>,
    /// The recorder of the disk's reads and writes; `None` if they are not recorded.
    pub recorder: Option<Arc<Recorder>>,
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The image's manifest.
    pub manifest: Manifest,
    /// The bytes of the image's manifest.
    pub manifest_bytes: Vec<u8>,
    /// Its writable directory, if it was made just now and the disk was not announced yet.
    made: Mutex<Option<MadeDirectory>>,
    /// Dropped after the disk.
    parent: Arc<CreatedParent>,
    /// The hold that keeps others from deleting the image.
    hold: Hold,
}

impl Drop for NamedDisk {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl NamedDisk {
    /// Records that the disk is served: directories that were made for it stay.
    pub(crate) fn is_served(&self) {
        self.take_made();
        self.parent.keep();
    }

    /// Releases the image of a disk that could not be served, and removes its directory if that was made for it.
    pub(crate) fn give_up(&self) {
        self.hold.give_up();
        self.take_back();
    }

    /// Releases the image of a disk that ends for good.
    pub(crate) fn release(&self) {
        self.hold.release();
    }

    /// Removes its directory again, with the directory's lease, if the disk was never announced and nothing was written
    /// to it.
    fn take_back(&self) {
        if let Some(made) = self.take_made()
            && self.disk.stats().writes.snapshot().count() == 0
        {
            // While the image is held, leases are written again.
            self.hold.give_up();
            made.remove();
        }
    }

    fn take_made(&self) -> Option<MadeDirectory> {
        self.made.lock().take()
    }

    /// Returns two numbers of bytes of the image's blobs: those that are on this host, and all. Both are 0
    /// for an image in a local directory.
    #[must_use]
    pub fn local_bytes(&self) -> (u64, u64) {
        self.disk.puller().map_or((0, 0), |puller| puller.blobs().local_bytes())
    }
}

/// Opens one disk, with the warnings for the user: its writable directory is checked, the image is found, copied if it
/// is to be kept, and attached.
pub(crate) async fn open_disk(
    settings: &SessionSettings,
    environment: &Environment<'_>,
    request: &DiskRequest,
    place: Option<(Arc<dyn Store>, DiskHost)>,
    (recorder, parent): (Option<Arc<Recorder>>, Arc<CreatedParent>),
) -> Result<(NamedDisk, Vec<String>)> {
    let DiskRequest { image, prior } = request;
    let writable = settings.writable_of(&image.name);
    let expected = prior.expected();
    if let Some(dir) = &writable {
        // This comes before anything is made there, or requested from a store.
        expected.check(dir)?;
    }
    let (reference, known) = prior.image(&image.reference, writable.as_deref());
    let kept = match &writable {
        Some(dir) => keep(settings, environment, dir, &reference, known.as_ref()).await?,
        None => None,
    };
    let options = options(settings, (writable.clone(), expected), kept.as_ref(), known, recorder.clone());
    // A copy is read instead of the store.
    let (reference, place) = match &kept {
        Some(kept) => (kept.copy.clone(), None),
        None => (reference, place),
    };
    let is_tag = matches!(reference.selector, Selector::Tag(_));
    let is_resolved_again = is_tag && matches!(prior, PriorImage::Unrecorded);
    let (name, asked) = (image.name.clone(), image.reference.to_string());
    let unnamed = Unnamed { name, asked, writable, kept, is_resolved_again, recorder, parent };
    let Some((store, host)) = place else {
        // The thread goes on if another image fails meanwhile, and then cleans up.
        let open = move || attach_local(&reference, &options).map(|attached| unnamed.named(attached));
        let opened = tokio::task::spawn_blocking(open).await;
        return opened.map_err(|e| Error::invalid("opening the image broke off").caused_by(e))?;
    };
    Ok(unnamed.named(attach_remote(&host, store, &reference, &options).await?))
}

/// The copy of the image in the writable directory, if there is one or there is to be one.
async fn keep(
    settings: &SessionSettings,
    environment: &Environment<'_>,
    dir: &Path,
    reference: &Reference,
    known: Option<&KnownImage>,
) -> Result<Option<Kept>> {
    keep_base::check(dir)?;
    let kept = keep_base::kept(dir, reference, known)?;
    if kept.is_some() || !settings.keep_base {
        return Ok(kept);
    }
    keep_base::keep(environment, reference, dir, settings.deadline).await
}

/// The options of attaching a disk.
fn options(
    settings: &SessionSettings,
    (writable, expected): (Option<PathBuf>, Expected),
    kept: Option<&Kept>,
    known: Option<KnownImage>,
    recorder: Option<Arc<Recorder>>,
) -> DiskOptions {
    DiskOptions {
        pull: settings.pull(),
        plan: settings.policy.plan(),
        plans: settings.plan_source(),
        lowest: settings.lowest,
        uppers: settings.uppers.clone(),
        whole_blocks: settings.whole_blocks,
        fill_rate: settings.fill.map(|rate| rate.0),
        writable: writable.map(|dir| WritableOptions {
            dir,
            size: settings.size.map(|ByteSize(bytes)| bytes),
            max: settings.writable_max.map(|ByteSize(bytes)| bytes),
            origin: kept.and_then(|kept| kept.origin.clone()),
            expected,
        }),
        recorder,
        require_tree: settings.require_tree,
        cached_although_denied: settings.cached_although_denied,
        offline_limit: settings.offline_limit,
        known,
        record: settings.images_record.clone(),
    }
}

/// The state of a disk before it is open.
struct Unnamed {
    name: String,
    asked: String,
    writable: Option<PathBuf>,
    /// Its copy in the writable directory.
    kept: Option<Kept>,
    /// `true` if an earlier version served it, so that its image is the one that its tag stands for now.
    is_resolved_again: bool,
    recorder: Option<Arc<Recorder>>,
    parent: Arc<CreatedParent>,
}

impl Unnamed {
    fn named(self, attached: AttachedDisk) -> (NamedDisk, Vec<String>) {
        let Self { name, asked, writable, kept, is_resolved_again, recorder, parent } = self;
        let AttachedDisk { disk, digest, manifest, manifest_bytes, made, hold, mut warnings } = attached;
        let made = Mutex::new(made);
        let image = kept.as_ref().map_or_else(|| asked.clone(), Kept::image);
        let kept_in = kept.as_ref().and_then(|kept| Some(kept.copy.directory().ok()?.to_owned()));
        warnings.extend(kept.and_then(|kept| kept.warning));
        if writable.is_some() && manifest.is_only_read() {
            warnings.push(format!(
                "{asked}: its file system is EROFS, on which no file can be changed, whatever is written to the disk; \
                 for one that can be written to, convert its original with --fs ext4"
            ));
        }
        if is_resolved_again {
            warnings.push(format!(
                "an earlier version served the disk and did not note its image; {asked} is {digest} now: if the tag \
                 was moved meanwhile, restart its guest"
            ));
        }
        let disk = NamedDisk {
            name,
            asked,
            image,
            kept_in,
            writable,
            disk,
            recorder,
            digest,
            manifest,
            manifest_bytes,
            made,
            parent,
            hold,
        };
        (disk, warnings)
    }
}
