//! [`ImageSite`]: the place in which a new image is made: in its target directory, or here, to be copied into a store.

use crate::manifest::{Manifest, NewImage};
use crate::progress::Progress;
use crate::reference::{Location, Selector, Tag};
use crate::staged_image::StagedImage;
use crate::store::{Image, ImageStore, Staging};
use crate::store_access::StoreAccess;
use crate::transfer::{PublishedAs, TransferReport, noting_nothing, transfer_new};
use futures::future::BoxFuture;
use headstart_block::{Digest, Error, Result};
use headstart_store::Store;
use std::sync::Arc;
use tempfile::TempDir;

/// An image that is to be published, and the way.
pub struct MadeImage<'a> {
    /// The description from which config and manifest are made.
    pub image: &'a NewImage,
    /// The way in which the image is found.
    pub publication: PublishedAs<'a>,
    /// Work that takes the blobs in the target for granted, and not the image, such as notes for later images. It is
    /// done once, beside the last requests; but not if a blob cannot be written.
    pub noted: BoxFuture<'a, ()>,
}

impl<'a> MadeImage<'a> {
    /// An image of which nothing is noted.
    #[must_use]
    pub fn new(image: &'a NewImage, publication: PublishedAs<'a>) -> Self {
        Self { image, publication, noted: noting_nothing() }
    }
}

/// An image that was published.
pub struct PublishedImage {
    /// The image.
    pub image: Image,
    /// The digest of the manifest that the tag named before; `None` if the tag is new or named the same manifest, or if
    /// there is no tag.
    pub was: Option<Digest>,
    /// The copy into a store other than the directory in which the image was made; `None` if there was none.
    pub transfer: Option<TransferReport>,
}

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

    /// Publishes an image in its target, for which this place was made, and which `target` opens if it is needed.
    /// Blobs that are not here are those of the target, or are copied from the store that `rest` opens.
    ///
    /// # Errors
    /// As [`Staging::publish`] and [`transfer`](crate::transfer::transfer()); errors of `target` and `rest`. Nothing is
    /// published then, but a store that is not a directory may keep blobs that nothing refers to, and
    /// [`MadeImage::noted`] may have been done.
    pub fn publish(
        self,
        made: MadeImage<'_>,
        target: impl FnOnce() -> Result<Arc<dyn Store>>,
        rest: impl FnOnce() -> Result<Arc<dyn Store>>,
        stores: StoreAccess<'_>,
        progress: &dyn Progress,
    ) -> Result<PublishedImage> {
        let MadeImage { image, publication, noted } = made;
        if let (Some(_), PublishedAs::Tag(tag)) = (&self.directory, &publication) {
            let published = self.publish_here(image, tag)?;
            stores.runtime.block_on(noted);
            return Ok(published);
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
        let made = Arc::new(made);
        let is_new = |blob: &Digest| made.has_staged(blob);
        let (to, selector, retry) = (target()?, Selector::Digest(digest), stores.settings.retry);
        // Other stores have one index of all manifests, whose writers wait for each other.
        let is_registry = to.drops_unnamed_blobs();
        let (beside, after) = if is_registry { (noted, noting_nothing()) } else { (noting_nothing(), noted) };
        let source = Arc::clone(&made) as Arc<dyn Store>;
        let copy = transfer_new(&source, (&selector, publication), &to, retry, progress, &is_new, beside);
        let copied = stores.runtime.block_on(copy)?;
        // A directory is locked until its writer is gone.
        drop((source, made, to));
        stores.runtime.block_on(after);
        Ok(PublishedImage { image: Image { digest, manifest }, was: copied.was, transfer: Some(copied) })
    }

    /// Publishes an image in its target, which is the directory for which this place was made, under a tag.
    ///
    /// # Errors
    /// As [`Staging::publish`].
    pub fn publish_here(self, image: &NewImage, tag: &Tag) -> Result<PublishedImage> {
        let (image, was) = self.staging.publish_over(image, tag)?;
        Ok(PublishedImage { image, was, transfer: None })
    }
}
