//! [`StoreAccess`]: images in stores of any kind, for code that may block.

use crate::disk_form::disk_manifest;
use crate::manifest::Manifest;
use crate::open_image::OpenImage;
use crate::reference::{Location, Reference};
use crate::remote::RemoteImage;
use headstart_block::{Digest, ErrorKind, Result};
use headstart_store::{Store, StoreSettings};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The settings and the runtime with which stores are accessed. All methods block until the store has answered.
#[derive(Clone, Copy)]
pub struct StoreAccess<'a> {
    /// Credentials, limits and retries for the stores.
    pub settings: &'a StoreSettings,
    /// The runtime that runs the requests. The caller must not be on one of its threads: there, a method that
    /// sends a request panics.
    pub runtime: &'a Handle,
}

/// The manifest of an image, and the store that holds the image.
pub struct StoredImage {
    /// The store, for reading and writing.
    pub store: Arc<dyn Store>,
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The image's manifest, parsed.
    pub manifest: Manifest,
}

impl StoreAccess<'_> {
    /// Opens an image for reading. For an image in a remote store, the starts and ends of its layers' blobs are
    /// fetched now, and the store is checked as by [`StoreAccess::remote`].
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
    /// Errors of opening the store, and of a store that does not answer or refuses; as [`RemoteImage::open`].
    pub fn remote(self, image: &Reference) -> Result<RemoteImage> {
        let store = headstart_store::open(&image.location, self.settings)?;
        // A mistyped host or a missing login is reported at once, not after the long deadline of a slow store.
        self.runtime.block_on(store.check())?;
        RemoteImage::open(store, image, self.settings.retry, self.runtime.clone())
    }

    /// Opens the store at `location`, for reading and writing, and checks that it can be reached. Mirrors are not used:
    /// a blob that only a mirror has must not count as being in the store, and a mirror may lack the store's artifacts.
    ///
    /// # Errors
    /// Errors of opening the store, and of a store that does not answer or refuses.
    pub fn store(self, location: &Location) -> Result<Arc<dyn Store>> {
        let store = headstart_store::open(location, &self.settings.without_mirrors())?;
        self.runtime.block_on(store.check())?;
        Ok(store)
    }

    /// Opens the store at `location`, to write an image to it, as [`StoreAccess::store`] does. A store that is not
    /// there yet is no error: writing makes it.
    ///
    /// # Errors
    /// As [`StoreAccess::store`].
    pub fn target(self, location: &Location) -> Result<Arc<dyn Store>> {
        let store = headstart_store::open(location, &self.settings.without_mirrors())?;
        match self.runtime.block_on(store.check()) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            checked => checked?,
        }
        Ok(store)
    }

    /// Reads the manifest of an image, and returns it with the store of the image, opened as by
    /// [`StoreAccess::store`].
    ///
    /// # Errors
    /// Errors of the store; [`headstart_block::ErrorKind::Corrupt`] if the manifest is damaged.
    pub fn stored(self, image: &Reference) -> Result<StoredImage> {
        let store = self.store(&image.location)?;
        let (digest, bytes) = self.runtime.block_on(disk_manifest(&*store, &image.selector))?;
        let manifest = Manifest::parse(&bytes).map_err(|e| e.about(image))?;
        Ok(StoredImage { store, digest, manifest })
    }
}
