//! Images in stores of any kind, for code that may block.

use crate::manifest::Manifest;
use crate::open_image::OpenImage;
use crate::reference::{Location, Reference};
use crate::remote::RemoteImage;
use headstart_block::{Digest, Result};
use headstart_store::{Store, StoreSettings};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The settings and the runtime with which stores are accessed.
#[derive(Clone, Copy)]
pub struct StoreAccess<'a> {
    /// Credentials, limits and retries for the stores.
    pub settings: &'a StoreSettings,
    /// The runtime that runs the requests. The caller must not be on one of its threads, because the
    /// methods block.
    pub runtime: &'a Handle,
}

/// An image in its store.
pub struct StoredImage {
    /// The store, for reading and writing.
    pub store: Arc<dyn Store>,
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The manifest.
    pub manifest: Manifest,
}

impl StoreAccess<'_> {
    /// Opens an image: of one that is not in a directory, heads and ends of the layers are fetched.
    ///
    /// # Errors
    /// As [`OpenImage::open`], and errors of the store.
    pub fn open(self, image: &Reference) -> Result<OpenImage> {
        match image.location.is_remote() {
            true => OpenImage::open_remote(&self.remote(image)?),
            false => OpenImage::open(image),
        }
    }

    /// Opens an image in a remote store. The store is checked first, so a mistyped host or a missing login
    /// fails at once.
    ///
    /// # Errors
    /// If the store cannot be opened; as [`RemoteImage::open`].
    pub fn remote(self, image: &Reference) -> Result<RemoteImage> {
        let store = headstart_store::open(&image.location, self.settings)?;
        // A mistyped host or a missing login is reported at once, not after the long deadline of a slow store.
        self.runtime.block_on(store.check())?;
        RemoteImage::open(store, image, self.settings.retry, self.runtime.clone())
    }

    /// The store of a location, without its mirrors: a blob of theirs need not be in the store itself, which is written
    /// to, and they may lack its artifacts.
    ///
    /// # Errors
    /// If the store does not answer, or refuses.
    pub fn store(self, location: &Location) -> Result<Arc<dyn Store>> {
        let store = headstart_store::open(location, &self.settings.without_mirrors())?;
        self.runtime.block_on(store.check())?;
        Ok(store)
    }

    /// The manifest of an image, and its store as [`StoreAccess::store`] opens it.
    ///
    /// # Errors
    /// Errors of the store; [`headstart_block::ErrorKind::Corrupt`] if the manifest is damaged.
    pub fn stored(self, image: &Reference) -> Result<StoredImage> {
        let store = self.store(&image.location)?;
        let (digest, bytes) = self.runtime.block_on(store.manifest(&image.selector))?;
        let manifest = Manifest::parse(&bytes).map_err(|e| e.about(image))?;
        Ok(StoredImage { store, digest, manifest })
    }
}
