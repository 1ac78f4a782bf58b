//! The layer of each part of an image's disk, by which images that share layers learn from each other.

use crate::store_args::StoreArgs;
use headstart_block::{BlockDevice, ByteRange, Result, SECTOR_SIZE};
use headstart_command_line::images::on_remote;
use headstart_image::manifest::Manifest;
use headstart_image::open_image::OpenImage;
use headstart_lsmt::{Segment, Stack};
use headstart_plan::knowledge::ImageKey;
use headstart_plan::layers::LayerMap;
use headstart_plan::overlaybd_trace::Extent;
use headstart_store::Reference;

/// The key of recordings of the image's disks, and its layers.
///
/// # Errors
/// Errors of opening the image.
pub(crate) fn of_image(image: &Reference, stores: &StoreArgs) -> Result<(ImageKey, LayerMap)> {
    if image.location.is_remote() {
        on_remote(image, stores, |remote| of_open(&OpenImage::open_remote(remote)?))
    } else {
        of_open(&OpenImage::open(image)?)
    }
}

/// The same for an open image.
///
/// # Errors
/// If it has too many layers.
pub(crate) fn of_open(image: &OpenImage) -> Result<(ImageKey, LayerMap)> {
    let size = image.disk().size();
    let key = ImageKey { image: image.digest.to_string(), size };
    Ok((key, of_disk(image.disk(), &image.manifest)?))
}

/// The layers of a disk, which consists of `manifest`'s layers.
///
/// # Errors
/// Those of [`LayerMap::new`].
pub(crate) fn of_disk(disk: &Stack, manifest: &Manifest) -> Result<LayerMap> {
    let size = disk.size();
    let digests = manifest.disk_layers().map(|layer| layer.blob.digest).collect();
    // Zeros are read without the store.
    let data = disk.index().segments().iter().filter(|segment| !segment.is_zeroed());
    let parts = data.map(|segment| {
        let part = ByteRange::between(segment.offset() * SECTOR_SIZE, segment.end() * SECTOR_SIZE);
        (part.intersect(ByteRange::between(0, size)), usize::from(segment.layer()))
    });
    LayerMap::new(digests, parts.filter(|(part, _)| !part.is_empty()))
}

/// The places of a disk's data in its layers.
pub(crate) fn extents(disk: &Stack) -> Vec<Extent> {
    let extent = |segment: &Segment| Extent {
        disk: segment.offset() * SECTOR_SIZE,
        len: segment.len() * SECTOR_SIZE,
        layer: segment.layer().into(),
        offset: segment.moffset() * SECTOR_SIZE,
    };
    disk.index().segments().iter().filter(|segment| !segment.is_zeroed()).map(extent).collect()
}
