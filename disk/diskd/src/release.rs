//! The release of the images of a disk that has no process any more: the disk was detached while its process was down,
//! or its first process failed. The calling process must have been started with the arguments and the environment of
//! the disk's process, because they hold the options of the stores and the credentials.

use crate::keep_base;
use crate::settings::{DiskRequest, PriorImage, SessionSettings};
use futures::future::join_all;
use headstart_block::Result;
use headstart_disk::attach::is_local;
use headstart_disk::release::release_image;
use headstart_store::StoreSettings;
use std::path::Path;

/// Removes the leases that protect the images of `settings`' disks from deletion, for disks that have no
/// process any more. `record` is the file that names the disks' images; a disk without a recorded image is
/// skipped. Returns the number of images that were released.
///
/// # Errors
/// The error that may have left a lease behind. A failure for one image does not prevent the release of
/// others.
pub async fn release_images(
    settings: &SessionSettings,
    stores: &StoreSettings,
    record: &Path,
) -> Result<u64> {
    // No image waits for another.
    let releases = settings.disks.iter().map(|request| release_one(settings, stores, record, request));
    join_all(releases).await.into_iter().sum()
}

/// Releases the image of one disk; returns the number of images that were released.
async fn release_one(
    settings: &SessionSettings,
    stores: &StoreSettings,
    record: &Path,
    DiskRequest { image, prior }: &DiskRequest,
) -> Result<u64> {
    let PriorImage::Recorded { image: known, .. } = prior else { return Ok(0) };
    let mut reference = image.reference.clone();
    // A disk that reads a copy of its image holds the copy.
    let dir = settings.writable_of(&image.name);
    if let Some(kept) = dir.and_then(|dir| keep_base::kept(&dir, &reference, Some(known)).ok().flatten()) {
        reference = kept.copy;
    }
    let is_remote = !is_local(&reference.location);
    let store = is_remote.then(|| headstart_store::open(&reference.location, stores)).transpose()?;
    release_image(store.as_deref(), &reference, &known.digest, record).await.map(|()| 1)
}
