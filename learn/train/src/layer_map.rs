//! The layer of each part of an image's disk, by which images that share layers learn from each other.

use headstart_block::{BlockDevice, ByteRange, Result, SECTOR_SIZE, exact};
use headstart_image::manifest::Manifest;
use headstart_image::open_image::OpenImage;
use headstart_lsmt::{Segment, Stack};
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::layers::LayerMap;
use headstart_plan::overlaybd_trace::LayerExtent;

/// Returns the key of the image's boots, and the map of the disk's ranges to layers. The key has the digest of the
/// image's own manifest and the size of the disk. It does not fit boots that were recorded under another name, such as
/// the digest of the image that an optimized image was made from.
///
/// # Errors
/// Those of [`of_disk`].
pub fn of_open(image: &OpenImage) -> Result<(RecordedImage, LayerMap)> {
    let size = image.disk().size();
    let key = RecordedImage { image: image.digest.to_string(), size };
    Ok((key, of_disk(image.disk(), &image.manifest)?))
}

/// Returns the map that names the layer of `manifest` from which each range of the disk is read. Ranges
/// that read as zeros have no layer.
///
/// # Errors
/// Those of [`LayerMap::new`], if the layers of `disk` are not those of `manifest`.
pub fn of_disk(disk: &Stack, manifest: &Manifest) -> Result<LayerMap> {
    let size = disk.size();
    let digests = manifest.disk_layers().map(|layer| layer.blob.digest).collect();
    // Zeros are read without the store.
    let data = disk.index().segments().iter().filter(|segment| !segment.is_zeroed());
    let parts = data.map(|segment| {
        let part = ByteRange::between(segment.offset() * SECTOR_SIZE, segment.end() * SECTOR_SIZE);
        (part.intersect(ByteRange::between(0, size)), disk.sources()[usize::from(segment.layer())].layer)
    });
    LayerMap::new(digests, parts.filter(|(part, _)| !part.is_empty()))
}

/// Returns the extents of the disk's data in the order of the disk. Each has its offset on the disk, its layer, its
/// offset in the layer's file (decompressed), and its length, all offsets and lengths in bytes. Ranges that read as
/// zeros have no extent, and neither has data in the target of a TurboOCI layer.
#[must_use]
pub fn extents(disk: &Stack) -> Vec<LayerExtent> {
    let extent = |segment: &Segment| {
        let source = disk.sources()[usize::from(segment.layer())];
        let extent = LayerExtent {
            disk: segment.offset() * SECTOR_SIZE,
            len: segment.len() * SECTOR_SIZE,
            layer: exact(source.layer, "a stack has at most 255 layers"),
            offset: segment.moffset() * SECTOR_SIZE,
        };
        (!source.is_target).then_some(extent)
    };
    disk.index().segments().iter().filter(|segment| !segment.is_zeroed()).filter_map(extent).collect()
}
