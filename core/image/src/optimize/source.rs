//! [`Source`]: the image that is laid out again, in a directory or in any other store.

use crate::image_blobs::ImageBlobs;
use crate::manifest::{Config, Layer, Manifest};
use crate::open_image::OpenImage;
use crate::reference::Reference;
use crate::remote::RemoteImage;
use crate::store::ImageStore;
use headstart_block::{Digest, Result};
use headstart_store::{Store, StoreSettings};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The means of reaching stores.
#[derive(Clone, Copy)]
pub struct Stores<'a> {
    /// Credentials, limits, retries.
    pub settings: &'a StoreSettings,
    /// The runtime of the requests. The caller's thread is none of its threads: all of this blocks.
    pub runtime: &'a Handle,
}

/// An image that is to be laid out again.
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
    /// Opens the image that `reference` names: of an image in another store, heads and ends of the layers are fetched.
    ///
    /// # Errors
    /// As [`OpenImage::open`], and errors of the store.
    pub fn open(reference: &Reference, stores: Stores<'_>) -> Result<Self> {
        if !reference.location.is_remote() {
            let open = OpenImage::open(reference)?;
            let store = ImageStore::open(reference.directory()?)?;
            return Ok(Self { open, blobs: Blobs::Directory(store) });
        }
        let store = headstart_store::open(&reference.location, stores.settings)?;
        // A mistyped host is reported at once, not after all the retries that a slow store deserves.
        stores.runtime.block_on(store.check())?;
        let remote = RemoteImage::open(store, reference, stores.settings.retry, stores.runtime.clone())?;
        let open = OpenImage::open_remote(&remote)?;
        Ok(Self { open, blobs: Blobs::Remote(Box::new(remote)) })
    }

    /// The image, open.
    #[must_use]
    pub fn image(&self) -> &OpenImage {
        &self.open
    }

    /// The digest under which boots of the image are recorded: its own, or that of the image from which it was laid
    /// out.
    #[must_use]
    pub fn known_as(&self) -> Digest {
        self.open.manifest.known_as(self.open.digest)
    }

    /// The layers that are laid out again: those of the disk except for boot layers, which have nothing of their own.
    pub(super) fn layers(&self) -> Vec<Layer> {
        own_layers(&self.open.manifest)
    }

    pub(super) fn blobs(&self) -> &dyn ImageBlobs {
        match &self.blobs {
            Blobs::Directory(store) => store,
            Blobs::Remote(remote) => &**remote,
        }
    }

    pub(super) fn config(&self) -> Result<Config> {
        self.blobs().config(&self.open.manifest)
    }

    /// The store in which it is, for copies out of it.
    pub(super) fn store(&self, stores: Stores<'_>) -> Result<Arc<dyn Store>> {
        headstart_store::open(&self.open.reference.location, stores.settings)
    }
}

/// The layers other than boot layers. A boot layer is on top of the layers from which it has its data; the lowest layer
/// is never one, even if it has the annotation.
fn own_layers(manifest: &Manifest) -> Vec<Layer> {
    let layers = manifest.disk_layers().enumerate();
    layers
        .filter(|(n, layer)| *n == 0 || layer.boot_bytes().is_none())
        .map(|(_, layer)| layer.clone())
        .collect()
}
