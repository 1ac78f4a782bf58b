//! An image, open for reading: its layers' blobs unwrapped, stacked and merged into one disk.

use crate::blob::{LayerSource, open_layer_source};
use crate::disk_size::check_size;
use crate::image_blobs::ImageBlobs;
use crate::manifest::{self, Manifest};
pub use crate::opening::{HEAD, opening_ranges};
use crate::reference::Reference;
use crate::remote::RemoteImage;
use crate::store::{Image, ImageStore};
use headstart_block::{BlockDevice, Digest, Error, ReadAt, Result, SECTOR_SIZE};
use headstart_lsmt::{Layer, LayerInfo, Stack};
use std::sync::Arc;

/// An image whose layers are open.
pub struct OpenImage {
    /// The reference by which it was found.
    pub reference: Reference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Its manifest.
    pub manifest: Manifest,
    /// Its layers, lowest first.
    pub layers: Vec<OpenLayer>,
    disk: Stack,
}

/// The facts about one layer of an open image.
#[derive(Clone)]
pub struct OpenLayer {
    /// Its blob as the manifest names it.
    pub blob: manifest::Layer,
    /// Its content and the wrappers around it.
    pub source: LayerSource,
    /// The information in the layer itself.
    pub info: LayerInfo,
    /// The number of segments in its index.
    pub segments: usize,
    /// The number of bytes of the disk that it holds.
    pub data_bytes: u64,
}

impl OpenImage {
    /// Opens the image that `reference` names.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::NotFound`] if the image or a blob of it is missing, and
    /// [`headstart_block::ErrorKind::Corrupt`] if one is damaged.
    pub fn open(reference: &Reference) -> Result<Self> {
        let (store, image) = ImageStore::open_image(reference)?;
        Self::of(&store, reference, image)
    }

    /// Opens the image with this manifest in the store that `reference` names, also if the store has another image
    /// under that name.
    ///
    /// # Errors
    /// As [`OpenImage::open`]; [`headstart_block::ErrorKind::Corrupt`] if `manifest` is not a manifest.
    pub fn open_known(reference: &Reference, digest: Digest, manifest: &[u8]) -> Result<Self> {
        let store = ImageStore::open(reference.directory()?)?;
        let manifest = Manifest::parse(manifest).map_err(|e| e.about(reference))?;
        Self::of(&store, reference, Image { digest, manifest })
    }

    /// Opens an image in another store. Its disk should not be read: all of it would be fetched into memory.
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
        for blob in manifest.disk_layers() {
            let open = match layers.iter().zip(&stacked).find(|(open, _)| open.blob.blob == blob.blob) {
                // A layer that occurs twice is opened once, and takes no more memory.
                Some((same, layer)) => Ok((same.clone(), layer.clone())),
                None => open_layer(blobs, blob),
            };
            let (open, layer) =
                open.map_err(|e| e.about(format!("{reference}, layer {}", blob.blob.digest)))?;
            layers.push(open);
            stacked.push(layer);
        }
        let disk = stack_layers(&manifest, stacked).map_err(|e| e.about(reference))?;
        Ok(Self { reference: reference.clone(), digest, manifest, layers, disk })
    }

    /// The disk that it holds.
    #[must_use]
    pub fn disk(&self) -> &Stack {
        &self.disk
    }

    /// Drops all but the disk and returns that.
    #[must_use]
    pub fn into_disk(self) -> Stack {
        self.disk
    }

    /// The id in the topmost layer, nil if it has none.
    #[must_use]
    pub fn top_uuid(&self) -> uuid::Uuid {
        self.layers.last().map(|layer| layer.info.uuid).unwrap_or_default()
    }

    /// The number of bytes of the disk that are data: neither holes nor zeroed.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let sectors: u64 =
            self.disk.index().segments().iter().filter(|s| !s.is_zeroed()).map(|s| s.len()).sum();
        (sectors * SECTOR_SIZE).min(self.disk.size())
    }
}

impl OpenLayer {
    /// The protection of its bytes when parts of it are read.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        coverage(&self.blob, &self.source)
    }
}

/// The disk that `layers`, the manifest's disk layers, make up.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if there are too many or the disk is too large.
pub fn stack_layers(manifest: &Manifest, layers: Vec<Layer>) -> Result<Stack> {
    let mut disk = Stack::new(layers)?;
    if let Some(size) = manifest.virtual_size {
        disk = disk.with_size(size);
    }
    check_size(disk.size())?;
    Ok(disk)
}

/// Opens the layer in `source`, the bytes of the blob that the manifest names as `blob`, from any place.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if it is damaged, [`headstart_block::ErrorKind::Unsupported`] if its form is
/// not known, and errors of `source`.
pub fn open_layer_blob(blob: &manifest::Layer, source: Arc<dyn ReadAt>) -> Result<(LayerSource, Layer)> {
    if blob.is_turbo() {
        return Err(Error::unsupported("its data lies in another image's layer (turboOCI)")
            .remedy("convert it to a native OverlayBD image first"));
    }
    let source = open_layer_source(source)?;
    let layer = Layer::open(Arc::clone(&source.source))?;
    Ok((source, layer))
}

pub(crate) fn coverage(blob: &manifest::Layer, source: &LayerSource) -> Coverage {
    match (blob.tree, source.has_frame_checksums()) {
        (Some(_), _) => Coverage::Tree,
        (None, true) => Coverage::FrameChecksums,
        (None, false) => Coverage::DigestOnly,
    }
}

/// The protection of a layer's bytes when parts of it are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// A hash tree: every range can be checked against the manifest.
    Tree,
    /// The checksum of each frame, which detects accidents, not forgery.
    FrameChecksums,
    /// Only the digest of the whole blob.
    DigestOnly,
}

fn open_layer(blobs: &dyn ImageBlobs, blob: &manifest::Layer) -> Result<(OpenLayer, Layer)> {
    let (source, layer) = open_layer_blob(blob, blobs.guarded(blob)?)?;
    let data = layer.segments().iter().filter(|segment| !segment.is_zeroed());
    let open = OpenLayer {
        blob: blob.clone(),
        info: layer.info().clone(),
        segments: layer.segments().len(),
        data_bytes: data.map(|segment| segment.len() * SECTOR_SIZE).sum(),
        source,
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
