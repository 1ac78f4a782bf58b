//! [`Source`]: the image that is laid out again, in a directory or in any other store.

use crate::image_blobs::ImageBlobs;
use crate::manifest::{Config, ImageLayer, Manifest};
use crate::open_image::OpenImage;
use crate::reference::Reference;
use crate::remote::RemoteImage;
use crate::store::ImageStore;
use crate::store_access::StoreAccess;
use headstart_block::{Digest, Result};
use headstart_store::Store;
use std::sync::Arc;

/// An image that is to be optimized: its data is to be stored again in the order in which boots read it.
pub struct Source {
    pub(super) open: OpenImage,
    pub(super) blobs: Blobs,
}

/// The place of the blobs of the source.
pub(super) enum Blobs {
    Directory(ImageStore),
    Remote(Box<RemoteImage>),
}

impl Source {
    /// Opens the image that `reference` names. For an image in a remote store, only the starts and ends of
    /// the layers' blobs are fetched now.
    ///
    /// # Errors
    /// As [`OpenImage::open`], and errors of the store.
    pub fn open(reference: &Reference, stores: StoreAccess<'_>) -> Result<Self> {
        if !reference.location.is_remote() {
            let open = OpenImage::open(reference)?;
            let store = ImageStore::open(reference.directory()?)?;
            return Ok(Self { open, blobs: Blobs::Directory(store) });
        }
        let remote = stores.remote(reference)?;
        let open = OpenImage::open_remote(&remote)?;
        Ok(Self { open, blobs: Blobs::Remote(Box::new(remote)) })
    }

    /// Returns the source image, open for reading.
    #[must_use]
    pub fn image(&self) -> &OpenImage {
        &self.open
    }

    /// Returns the source image, open for reading, and drops the rest.
    pub(crate) fn into_image(self) -> OpenImage {
        self.open
    }

    /// Returns the digest under which boots of the image are recorded: the digest of the image from which it
    /// was optimized, if there is one, otherwise its own.
    #[must_use]
    pub fn known_as(&self) -> Digest {
        self.open.manifest.known_as(self.open.digest)
    }

    /// The layers that are laid out again: those of the disk except for boot layers, which have nothing of their own.
    pub(super) fn layers(&self) -> Vec<ImageLayer> {
        own_layers(&self.open.manifest)
    }

    pub(super) fn blobs(&self) -> &dyn ImageBlobs {
        match &self.blobs {
            Blobs::Directory(store) => store,
            Blobs::Remote(remote) => &**remote,
        }
    }

    pub(crate) fn config(&self) -> Result<Config> {
        self.blobs().config(&self.open.manifest)
    }

    /// The store in which it is, for copies out of it.
    pub(super) fn store(&self, stores: StoreAccess<'_>) -> Result<Arc<dyn Store>> {
        headstart_store::open(&self.open.reference.location, stores.settings)
    }
}

/// The layers other than boot layers. A boot layer is on top of the layers from which it has its data; the lowest layer
/// is never one, even if it has the annotation.
fn own_layers(manifest: &Manifest) -> Vec<ImageLayer> {
    let layers = manifest.disk_layers().enumerate();
    layers
        .filter(|(n, layer)| *n == 0 || layer.boot_bytes().is_none())
        .map(|(_, layer)| layer.clone())
        .collect()
}
