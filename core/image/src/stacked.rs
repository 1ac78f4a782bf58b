//! The end of a stack-and-commit: the image with a disk's committed layer becomes the base of the disk.

use crate::disk_form::FormWish;
use crate::open_image::OpenImage;
use crate::reference::Reference;
use crate::store::{HeldImage, HoldingDirectory, Image, ImageStore, by_digest, unprotected};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_lsmt::LayerSummary;
use headstart_lsmt::writable::WritableDisk;
use headstart_store::layout::HeldLease;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// The result of [`stack_on`].
#[derive(Debug)]
pub struct StackedBase {
    /// The lease that keeps the image as long as this process has the disk open; `None` if none could be written.
    pub lease: Option<HeldLease>,
    /// Warnings to show the user.
    pub warnings: Vec<String>,
}

/// The layer that a disk has committed, as far as its process knows it.
#[derive(Clone, Copy, Debug)]
pub enum CommittedLayer {
    /// The blob of this digest.
    Blob(Digest),
    /// A layer that was written so and packed by another program.
    Written(LayerSummary),
}

impl CommittedLayer {
    /// Refuses an image without this layer on top: the data of the pairs that it replaces would be lost.
    fn check_on_top(&self, image: &OpenImage) -> Result<()> {
        let is_on_top = image.layers.last().is_some_and(|top| match self {
            Self::Blob(digest) => top.blob.blob.digest == *digest,
            Self::Written(LayerSummary { file_size, segments, .. }) => {
                top.source.source.len() == *file_size && top.segments as u64 == *segments
            }
        });
        if is_on_top {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, "its topmost layer is not the one that was committed")
            .remedy("name the image that was made of this commit; or commit again"))
    }
}

/// Makes an image the base of `disk`, which is in the directory `dir`, in the place of the old base and of the pairs of
/// files that were committed: [`WritableDisk::replace_frozen`]. `image` is in a directory of this host, has the
/// committed layer on top, and has the manifest digest `digest`. From then on the disk can be attached only with it.
/// `unique` becomes a part of the name of the lease.
///
/// # Errors
/// [`ErrorKind::Conflict`] if its topmost layer is another one; errors of opening the image; those of
/// [`WritableDisk::replace_frozen`]. The disk is as it was then.
pub fn stack_on(
    disk: &WritableDisk,
    dir: &Path,
    image: &Reference,
    (digest, committed): (Digest, CommittedLayer),
    unique: Uuid,
) -> Result<StackedBase> {
    let store = ImageStore::open(image.directory()?)?;
    let held = store.hold((&by_digest(image, digest), FormWish::Newest), None, None, unique)?;
    let HeldImage { image: Image { digest, manifest }, bytes, lease, .. } = held;
    let base = OpenImage::open_known(image, digest, &bytes, None)?;
    committed.check_on_top(&base).map_err(|e| e.about(image))?;
    let base = base.into_disk();
    disk.replace_frozen(Arc::new(base), digest.to_string())?;
    // The disk has its new base, whatever becomes of the rest.
    let mut warnings = Vec::new();
    let lease = lease.map_err(|error| warnings.push(unprotected(image, &error))).ok();
    if let Err(error) = disk.note_reference(&image.to_string()) {
        warnings.push(format!("the name of its image could not be noted in {}: {error}", dir.display()));
    }
    let holding =
        HoldingDirectory { dir, uuid: disk.uuid(), image: digest, manifest: &manifest, reference: image };
    if let Err(error) = store.hold_for_directory(&holding) {
        let what = format!("the image is held only while it is attached, not for {}", dir.display());
        warnings.push(format!("{what}: {}", unprotected(image, &error)));
    }
    Ok(StackedBase { lease, warnings })
}
