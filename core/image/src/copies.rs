//! Copies of images between stores, and repairs from a copy.

use crate::progress::Progress;
use crate::reference::{Location, Reference, Selector, Tag};
use crate::store::ImageStore;
use crate::store_access::StoreAccess;
use crate::transfer::{TransferReport, repair, transfer};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::Store;

/// The description of a copy of an image from one store to another.
#[derive(Clone, Copy, Debug)]
pub struct CopyRequest<'a> {
    /// The image to copy.
    pub source: &'a Reference,
    /// The store into which the image is copied. A directory that does not exist is created.
    pub target: &'a Location,
    /// The tag of the copy in the target. Another image that had the tag loses it.
    pub tag: &'a Tag,
    /// `true` to read every byte of the blobs that the target already has, and to copy the damaged ones again.
    pub check: bool,
}

impl CopyRequest<'_> {
    /// Makes the copy, by [`transfer`] or, if [`CopyRequest::check`] is set, by [`repair`]. Blocks until the copy is
    /// complete.
    ///
    /// # Errors
    /// As [`transfer`] and [`repair`]; errors of opening a store, and of a store that does not answer or refuses.
    pub fn make(self, stores: StoreAccess<'_>, progress: &dyn Progress) -> Result<TransferReport> {
        let Self { source, target, tag, check } = self;
        let (settings, retry) = (stores.settings, stores.settings.retry);
        let copy = || {
            let from = headstart_store::open(&source.location, settings)?;
            // A mistyped host or a missing login is reported at once, not after the long deadline of a copy.
            stores.runtime.block_on(from.check())?;
            let to = stores.target(target)?;
            stores.runtime.block_on(async {
                if check {
                    repair(&from, &source.selector, &to, Some(tag), retry, progress).await
                } else {
                    transfer(&from, &source.selector, &to, tag, retry, progress).await
                }
            })
        };
        copy().map_err(|e| match e.kind() {
            ErrorKind::Unavailable => {
                e.remedy("run it again: blobs that are copied already are not copied twice")
            }
            _ => e,
        })
    }
}

/// Repairs `image`, which must be in a directory: fetches its missing and damaged blobs, and its manifest if that is
/// missing or damaged, from `from`, another copy of the same image. Returns the number of blobs fetched, in which the
/// manifest counts. Blocks until the image is repaired.
///
/// # Errors
/// [`ErrorKind::NotFound`] if `from` is not a whole copy of the image; [`ErrorKind::Unsupported`] if `image` is not in
/// a directory; errors of the stores.
pub fn repair_from(
    image: &Reference,
    from: &Reference,
    stores: StoreAccess<'_>,
    progress: &dyn Progress,
) -> Result<u64> {
    let settings = stores.settings;
    // Its manifest may be the damaged part.
    let store = ImageStore::open(image.directory()?)?;
    let digest = store.digest(&image.selector)?;
    let has_manifest = store.read_document(&digest).is_ok();
    let source = headstart_store::open(&from.location, settings)?;
    let target = headstart_store::open(&image.location, settings)?;
    let work = async {
        source.check().await?;
        let selector = Selector::Digest(digest);
        match repair(&source, &selector, &target, None, settings.retry, progress).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Err(no_copy(&*source, from, digest, &e).await.about(image))
            }
            done => done,
        }
    };
    let done = stores.runtime.block_on(work)?;
    Ok(done.copied + u64::from(!has_manifest))
}

/// The error if `from` lacks a part and is not a copy of the image `digest`.
async fn no_copy(source: &dyn Store, from: &Reference, digest: Digest, missing: &Error) -> Error {
    let not_found = |cause| Error::new(ErrorKind::NotFound, cause);
    match source.manifest(&from.selector).await {
        Ok((other, _)) if other != digest => {
            not_found(format!("{from} is not a copy of this image: it is {other}, and the image is {digest}"))
                .remedy("name an image of the same digest, which `headstart image inspect` shows")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            not_found(format!("{from} is not a copy of this image: {error}"))
                .remedy("`headstart image list` shows what is in that store")
        }
        _ => not_found(format!("{from} is not a whole copy of this image: {missing}"))
            .remedy("name another copy, or import the image again"),
    }
}
