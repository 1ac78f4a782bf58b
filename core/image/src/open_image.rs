//! An image, open for reading: its layers' blobs unwrapped, stacked and merged into one disk.

use crate::blob::{LayerSource, open_layer_source};
use crate::disk_size::check_size;
use crate::image_blobs::ImageBlobs;
use crate::manifest::{self, Manifest};
pub use crate::opening::{HEAD, opening_ranges, opening_ranges_of};
use crate::reference::Reference;
use crate::remote::RemoteImage;
use crate::store::{Image, ImageStore};
use crate::turbo::{StoredTarget, TurboLayers};
use headstart_block::{BlockDevice, Digest, Error, ReadAt, Result, SECTOR_SIZE};
use headstart_lsmt::{Layer, LayerInfo, LayerTarget, Stack};
use std::sync::Arc;

/// An image, open for reading: its manifest, its layers, and the disk that they make up.
pub struct OpenImage {
    /// The reference by which the image was found.
    pub reference: Reference,
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The image's manifest.
    pub manifest: Manifest,
    /// The layers that make up the disk, lowest first.
    pub layers: Vec<OpenLayer>,
    disk: Stack,
}

/// One open layer of an image.
#[derive(Clone)]
pub struct OpenLayer {
    /// The layer as the manifest describes it: its blob, hash tree and annotations.
    pub blob: manifest::ImageLayer,
    /// The layer's uncompressed bytes, and a description of the wrappers around them; of a TurboOCI layer, those of its
    /// metadata.
    pub source: LayerSource,
    /// The blob that has the data of a TurboOCI layer; `None` for layers that have their own.
    pub target: Option<StoredTarget>,
    /// The layer's header and trailer, as read from the layer and not from the manifest.
    pub info: LayerInfo,
    /// The number of segments (mapped ranges of the disk) in the layer's index.
    pub segments: usize,
    /// The number of bytes of the disk for which the layer holds data, without zeroed segments.
    pub data_bytes: u64,
}

impl OpenImage {
    /// Opens the image that `reference` names, which must be in a local directory.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::NotFound`] if the image or a blob of it is missing, and
    /// [`headstart_block::ErrorKind::Corrupt`] if one is damaged.
    pub fn open(reference: &Reference) -> Result<Self> {
        let (store, image) = ImageStore::open_image(reference)?;
        Self::of(&store, reference, image)
    }

    /// Opens the image whose manifest is already known, in the store that `reference` names, which must be a local
    /// directory. `digest` and `manifest` are the digest and the bytes of the manifest. The tag in `reference` is not
    /// looked up, so it may name another image by now. `lowest` is the number of layers that the disk is made of, from
    /// the lowest on; `None` for all.
    ///
    /// # Errors
    /// As [`OpenImage::open`]; [`headstart_block::ErrorKind::Corrupt`] if `manifest` is not a valid manifest; the
    /// errors of [`Manifest::lowest`].
    pub fn open_known(
        reference: &Reference,
        digest: Digest,
        manifest: &[u8],
        lowest: Option<usize>,
    ) -> Result<Self> {
        let store = ImageStore::open(reference.directory()?)?;
        let manifest = Manifest::parse(manifest).and_then(|manifest| manifest.lowest(lowest));
        let manifest = manifest.map_err(|e| e.about(reference))?;
        Self::of(&store, reference, Image { digest, manifest })
    }

    /// Opens an image in a remote store, for inspection. Reading its whole disk should be avoided, because
    /// data that small reads fetch stays in memory.
    ///
    /// # Errors
    /// As [`OpenImage::open`], and errors of the store.
    pub fn open_remote(remote: &RemoteImage) -> Result<Self> {
        remote.warm()?;
        Self::of(remote, &remote.reference, remote.image.clone())
    }

    fn of(blobs: &dyn ImageBlobs, reference: &Reference, image: Image) -> Result<Self> {
        let Image { digest, manifest } = image;
        let (mut layers, mut stacked) = (Vec::<OpenLayer>::new(), Vec::<Layer>::new());
        let mut turbo = TurboLayers::default();
        for blob in manifest.disk_layers() {
            let open = match layers.iter().zip(&stacked).find(|(open, _)| open.blob.blob == blob.blob) {
                // A layer that occurs twice is opened once, and takes no more memory.
                Some((same, layer)) => Ok((same.clone(), layer.clone())),
                None => open_layer(blobs, blob, &mut turbo),
            };
            let (open, layer) =
                open.map_err(|e| e.about(format!("{reference}, layer {}", blob.blob.digest)))?;
            layers.push(open);
            stacked.push(layer);
        }
        let disk = stack_layers(&manifest, stacked).map_err(|e| e.about(reference))?;
        Ok(Self { reference: reference.clone(), digest, manifest, layers, disk })
    }

    /// Returns the disk that the layers make up.
    #[must_use]
    pub fn disk(&self) -> &Stack {
        &self.disk
    }

    /// Returns the disk that the layers make up, and drops the rest.
    #[must_use]
    pub fn into_disk(self) -> Stack {
        self.disk
    }

    /// Returns the UUID in the header of the topmost layer. The nil UUID if the layer has none or the image
    /// has no layers.
    #[must_use]
    pub fn top_uuid(&self) -> uuid::Uuid {
        self.layers.last().map(|layer| layer.info.uuid).unwrap_or_default()
    }

    /// Returns the number of bytes of the disk that are data, not counting holes and zeroed ranges.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let sectors: u64 =
            self.disk.index().segments().iter().filter(|s| !s.is_zeroed()).map(|s| s.len()).sum();
        (sectors * SECTOR_SIZE).min(self.disk.size())
    }
}

impl OpenLayer {
    /// Returns the means by which damage is detected when only parts of the layer are read.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        coverage(&self.blob, &self.source)
    }
}

/// Combines layers into one disk. `layers` are the open disk layers of `manifest`, lowest first. The disk gets
/// the size that the manifest states; if it states none, the size that the layers give.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if there are too many layers or the disk is too large.
pub fn stack_layers(manifest: &Manifest, layers: Vec<Layer>) -> Result<Stack> {
    let mut disk = Stack::new(layers)?;
    if let Some(size) = manifest.virtual_size {
        disk = disk.with_size(size);
    }
    check_size(disk.size())?;
    Ok(disk)
}

/// Opens the layer that `source` holds. Returns the layer's uncompressed bytes with a description of their wrappers,
/// and the opened layer. `source` gives the bytes of the blob `blob` and may read from anywhere, such as a file or a
/// network.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the layer is damaged; [`headstart_block::ErrorKind::Unsupported`] if it
/// is a TurboOCI layer ([`TurboLayer`](crate::turbo::TurboLayer) opens these) or its form is not known; errors of
/// `source`.
pub fn open_layer_blob(blob: &manifest::ImageLayer, source: Arc<dyn ReadAt>) -> Result<(LayerSource, Layer)> {
    if blob.is_turbo() {
        return Err(Error::unsupported("its data lies in another image's layer (TurboOCI)"));
    }
    let source = open_layer_source(source)?;
    let layer = Layer::open(Arc::clone(&source.source))?;
    Ok((source, layer))
}

pub(crate) fn coverage(blob: &manifest::ImageLayer, source: &LayerSource) -> Coverage {
    // Most data of a TurboOCI layer is in its target, for which there is nothing but a digest.
    match (blob.tree.filter(|_| !blob.is_turbo()), source.has_frame_checksums() && !blob.is_turbo()) {
        (Some(_), _) => Coverage::Tree,
        (None, true) => Coverage::FrameChecksums,
        (None, false) => Coverage::DigestOnly,
    }
}

/// The means by which damage is detected when only parts of a layer are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// The blob has a hash tree, by which every range can be checked against the manifest.
    Tree,
    /// Each compressed frame has a checksum, which detects accidental damage but not forgery.
    FrameChecksums,
    /// Only the digest of the whole blob is known, so ranges cannot be checked.
    DigestOnly,
}

fn open_layer(
    blobs: &dyn ImageBlobs,
    blob: &manifest::ImageLayer,
    turbo: &mut TurboLayers,
) -> Result<(OpenLayer, Layer)> {
    let package = blobs.guarded(blob)?;
    let (source, layer, target) = if blob.is_turbo() {
        let (source, layer, target) = turbo.open(blob, &*package, &|target| blobs.target(target))?;
        (source, layer, Some(target))
    } else {
        let (source, layer) = open_layer_blob(blob, package)?;
        (source, layer, None)
    };
    let elsewhere = layer.target().map_or(&[][..], LayerTarget::segments);
    let segments = || layer.segments().iter().chain(elsewhere);
    let data = segments().filter(|segment| !segment.is_zeroed());
    let open = OpenLayer {
        blob: blob.clone(),
        info: layer.info().clone(),
        segments: segments().count(),
        data_bytes: data.map(|segment| segment.len() * SECTOR_SIZE).sum(),
        source,
        target,
    };
    Ok((open, layer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_ends_come_first() {
        let ranges = |len, index_offset| -> Vec<(u64, u64)> {
            let ranges = opening_ranges(len, index_offset);
            ranges.iter().map(|range| (range.offset(), range.end())).collect()
        };
        assert_eq!(ranges(0, None), [(0, 0)]);
        assert_eq!(ranges(50_000, None), [(0, 50_000)]);
        assert_eq!(ranges(1 << 30, None), [(0, 32 << 10), ((1 << 30) - (1 << 20), 1 << 30)]);
        assert_eq!(ranges(1 << 20, Some(1_000_000)), [(0, 32 << 10), (1_000_000, 1 << 20)]);
        // The value of an annotation is a hint.
        assert_eq!(ranges(1 << 20, Some(u64::MAX)), [(0, 32 << 10), ((1 << 20) - (64 << 10), 1 << 20)]);
        assert_eq!(ranges(1 << 30, Some(0)).len(), 2);
    }
}
