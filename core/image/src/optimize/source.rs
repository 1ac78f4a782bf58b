//! [`Source`]: the image that is laid out anew, in a directory or in any other store.

use crate::digest::Digest;
use crate::image_blobs::ImageBlobs;
use crate::manifest::{Config, Layer, Manifest};
use crate::open_image::OpenImage;
use crate::reference::Reference;
use crate::remote::RemoteImage;
use crate::store::ImageStore;
use headstart_block::Result;
use headstart_store::{Settings, Store};
use std::sync::Arc;
use tokio::runtime::Handle;

/// How stores are reached.
#[derive(Clone, Copy)]
pub struct Stores<'a> {
    /// Credentials, limits, retries.
    pub settings: &'a Settings,
    /// What requests run on. It is not one of its threads that calls here: all of this blocks.
    pub runtime: &'a Handle,
}

/// An image that is to be laid out anew.
pub struct Source {
    pub(super) open: OpenImage,
    pub(super) blobs: Blobs,
}

/// Where the blobs of the source are.
pub(super) enum Blobs {
    Directory(ImageStore),
    Remote(Box<RemoteImage>),
}

impl Source {
    /// Opens the image that `reference` names: of one in another store heads and ends of the layers are fetched.
    ///
    /// # Errors
    /// As [`OpenImage::open`], and what the store reports.
    pub fn open(reference: &Reference, stores: Stores<'_>) -> Result<Self> {
        if !reference.location.is_remote() {
            let open = OpenImage::open(reference)?;
            let store = ImageStore::open(reference.directory()?)?;
            return Ok(Self { open, blobs: Blobs::Directory(store) });
        }
        let store = headstart_store::open(&reference.location, stores.settings)?;
        // A mistyped host is told at once, not after all the patience that a slow store deserves.
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

    /// The digest that boots of the image are known by: its own, or that of the image that it was laid out from.
    #[must_use]
    pub fn known_as(&self) -> Digest {
        self.open.manifest.known_as(self.open.digest)
    }

    /// The layers that are laid out anew: those of the disk but for boot layers, which have nothing of their own.
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

    /// The store that it is in, for copies out of it.
    pub(super) fn store(&self, stores: Stores<'_>) -> Result<Arc<dyn Store>> {
        headstart_store::open(&self.open.reference.location, stores.settings)
    }
}

/// A boot layer lies on the layers that it has its data from; the lowest layer is none, whatever it says.
fn own_layers(manifest: &Manifest) -> Vec<Layer> {
    let layers = manifest.disk_layers().enumerate();
    layers
        .filter(|(n, layer)| *n == 0 || layer.boot_bytes().is_none())
        .map(|(_, layer)| layer.clone())
        .collect()
}
