//! The parts of an image: its layers and its other blobs, as the manifest names them.

use super::{ImageLayer, Manifest, NewImage, OVERLAYBD_IMAGE, OVERLAYBD_TURBO_IMAGE};
use headstart_block::{Digest, Error, Result};

/// Key of a layer annotation: the digest of the layer's content as the config has it (its diff id). Layers without it
/// have OverlayBD's convention, by which the content is the blob as stored.
const DIFF_ID: &str = "dev.headstart.diff-id";

impl ImageLayer {
    /// Returns the digest of the layer's content, as the config of an image lists it.
    #[must_use]
    pub fn diff_id(&self) -> Digest {
        let stated = self.annotations.get(DIFF_ID).and_then(|text| text.parse().ok());
        stated.unwrap_or(self.blob.digest)
    }

    /// Returns the same layer with `digest` as its [`diff_id`](ImageLayer::diff_id).
    #[must_use]
    pub fn with_diff_id(mut self, digest: &Digest) -> Self {
        self.annotations.insert(DIFF_ID.to_owned(), digest.to_string());
        self
    }
}

/// The artifact type of an image with these layers, if it belongs to a container's image.
fn artifact_type(layers: &[ImageLayer]) -> &'static str {
    if layers.iter().any(ImageLayer::is_turbo) { OVERLAYBD_TURBO_IMAGE } else { OVERLAYBD_IMAGE }
}

impl NewImage {
    /// Returns the artifact type that the image has if it belongs to a container's image: that of OverlayBD's images,
    /// or of those with TurboOCI layers.
    #[must_use]
    pub fn artifact_type(&self) -> &'static str {
        artifact_type(&self.layers)
    }
}

impl Manifest {
    /// Returns the layers that make up the disk, lowest first: all layers except acceleration layers.
    pub fn disk_layers(&self) -> impl DoubleEndedIterator<Item = &ImageLayer> {
        self.layers.iter().filter(|layer| !layer.is_acceleration())
    }

    /// Returns the same manifest with the lowest `count` layers of the disk only: for a container's image, the tree of
    /// files as the layer with that number leaves it. `None`: with all.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the disk has no layer of that number, counted from 1.
    pub fn lowest(&self, count: Option<usize>) -> Result<Self> {
        let Some(count) = count else { return Ok(self.clone()) };
        let layers: Vec<_> = self.disk_layers().take(count).cloned().collect();
        if layers.is_empty() || layers.len() < count {
            let most = self.disk_layers().count();
            return Err(Error::invalid(format!("has no lowest {count} layers"))
                .remedy(format!("name 1 to {most} layers")));
        }
        Ok(Self { layers, ..self.clone() })
    }

    /// Returns the artifact type of the image, as [`NewImage::artifact_type`].
    #[must_use]
    pub fn artifact_type(&self) -> &'static str {
        artifact_type(&self.layers)
    }

    /// Returns the digest and the expected length in bytes of every blob that the manifest refers to: the
    /// config, the layers and their hash trees. A blob may occur more than once.
    pub fn blobs(&self) -> impl Iterator<Item = (Digest, u64)> {
        let layers = self.layers.iter().flat_map(|layer| {
            let tree = layer.tree.map(|tree| (tree.digest, tree.size));
            [Some((layer.blob.digest, layer.blob.size)), tree].into_iter().flatten()
        });
        std::iter::once((self.config.digest, self.config.size)).chain(layers)
    }

    /// Returns the sum of the lengths of all blobs that the manifest refers to, in bytes. Blobs shared with
    /// other images count in full, and one that occurs twice counts twice.
    #[must_use]
    pub fn stored_size(&self) -> u64 {
        self.blobs().fold(0, |sum, (_, size)| sum.saturating_add(size))
    }
}
