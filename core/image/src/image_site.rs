//! [`ImageSite`]: the place in which a new image is made: in its target directory, or here, to be copied into a store.

use crate::manifest::{Manifest, NewImage};
use crate::progress::Progress;
use crate::reference::{Location, Selector};
use crate::staged_image::StagedImage;
use crate::store::{Image, ImageStore, Staging};
use crate::store_access::StoreAccess;
use crate::transfer::{PublishedAs, transfer};
use headstart_block::{Digest, Error, Result};
use headstart_store::Store;
use std::sync::Arc;
use tempfile::TempDir;

/// A place for the blobs of a new image, out of sight until it is published. They are deleted when this is dropped.
pub struct ImageSite {
    staging: Staging,
    /// The target, if it is a directory.
    directory: Option<ImageStore>,
    /// The scratch directory for a target that is not a directory. Dropped after its content.
    _scratch: Option<TempDir>,
}

impl ImageSite {
    /// Makes a place for an image that is to be published in the store at `target`: there, if it is a local directory,
    /// otherwise in a scratch directory.
    ///
    /// # Errors
    /// Errors of making directories.
    pub fn new(target: &Location) -> Result<Self> {
        if let Location::Directory(path) = target {
            let store = ImageStore::create_or_open(path)?;
            return Ok(Self { staging: store.stage()?, directory: Some(store), _scratch: None });
        }
        let scratch = TempDir::with_prefix("headstart-").map_err(|e| {
            Error::io("cannot make a directory for scratch files", e)
                .remedy("set TMPDIR to one that is there")
        })?;
        let staging = ImageStore::create_or_open(scratch.path().join("store"))?.stage()?;
        Ok(Self { staging, directory: None, _scratch: Some(scratch) })
    }

    /// Returns the place of the new blobs.
    #[must_use]
    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    /// Returns the target, if it is a local directory.
    #[must_use]
    pub fn directory(&self) -> Option<&ImageStore> {
        self.directory.as_ref()
    }

    /// Publishes the image in its target, for which this place was made, and which `target` opens if it is needed.
    /// Blobs that are not here are those of the target, or are copied from the store that `rest` opens. Also returns
    /// the digest of the manifest that the tag named before; `None` if the tag is new or named the same manifest, or if
    /// there is no tag.
    ///
    /// # Errors
    /// As [`Staging::publish`] and [`transfer`]; errors of `target` and `rest`. Nothing is published then, but a store
    /// that is not a directory may keep blobs that nothing refers to.
    pub fn publish(
        self,
        image: &NewImage,
        publication: PublishedAs<'_>,
        target: impl FnOnce() -> Result<Arc<dyn Store>>,
        rest: impl FnOnce() -> Result<Arc<dyn Store>>,
        stores: StoreAccess<'_>,
        progress: &dyn Progress,
    ) -> Result<(Image, Option<Digest>)> {
        if let (Some(_), PublishedAs::Tag(tag)) = (&self.directory, &publication) {
            return self.staging.publish_over(image, tag);
        }
        let documents = image.documents()?;
        self.staging.put(&documents.config)?;
        let digest = Digest::of(&documents.manifest);
        let manifest = Manifest::parse(&documents.manifest)?;
        let made = StagedImage {
            staging: self.staging,
            rest: rest()?,
            manifest: (digest, documents.manifest.into()),
        };
        let made: Arc<dyn Store> = Arc::new(made);
        let (to, selector, retry) = (target()?, Selector::Digest(digest), stores.settings.retry);
        let copy = transfer(&made, &selector, &to, publication, retry, progress);
        let copied = stores.runtime.block_on(copy)?;
        Ok((Image { digest, manifest }, copied.was))
    }
}
