//! The copy of its base image that a writable directory may have. The disk then needs no store any more.
//!
//! ```text
//! <writable directory>/base/     an OCI image layout with the image that the directory is based on
//! ```
//!
//! The copy is an image store like any other: the manifest comes last, so a copy with the manifest is whole.

use crate::reference::{Location, Reference, Selector, Tag};
use crate::store::ImageStore;
use headstart_block::{Digest, Error, Result};
use headstart_lsmt::writable::{BASE_DIR, WritableDisk};
use std::path::{Path, PathBuf};

/// Returns the tag that the image has in a writable directory's own copy of its base image: always `base`, which is
/// also the name of the copy's directory. Nothing is read.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the fixed name of the copy's directory is not a valid tag,
/// which never happens.
pub fn tag() -> Result<Tag> {
    BASE_DIR.parse()
}

/// Returns the location of the image store, inside the writable directory `dir`, that holds the directory's
/// own copy of its base image. The store need not exist.
///
/// # Errors
/// Errors of finding the current directory, if `dir` is a relative path.
pub fn location(dir: &Path) -> Result<Location> {
    let dir =
        std::path::absolute(dir).map_err(|e| Error::io("has no absolute path", e).about(dir.display()))?;
    Ok(Location::Directory(dir.join(BASE_DIR)))
}

/// Finds the base image of the writable directory `dir` in the directory's own copy. `None` if there is no
/// complete copy or if the directory cannot be read.
#[must_use]
pub fn find(dir: &Path) -> Option<Reference> {
    let parent: Digest = WritableDisk::inspect(dir).ok()?.parent.parse().ok()?;
    in_copy(dir, parent)
}

/// Finds the image with the manifest digest `image` in the copy that the writable directory `dir` has. `None`
/// if there is no complete copy of that image.
#[must_use]
pub fn in_copy(dir: &Path, image: Digest) -> Option<Reference> {
    let location = location(dir).ok()?;
    let store = ImageStore::open(PathBuf::from(location.directory().ok()?)).ok()?;
    let selector = Selector::Digest(image);
    store.resolve(&selector).ok()?;
    Some(Reference { location, selector })
}
