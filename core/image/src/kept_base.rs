//! The copy of its base that a writable directory may have: a disk that needs no store any more.
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

/// The tag of the only image in such a copy.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the name of the copy's directory were no tag; it is one.
pub fn tag() -> Result<Tag> {
    BASE_DIR.parse()
}

/// The store in which the copy of a writable directory is, or is to be.
///
/// # Errors
/// Errors of finding the current directory.
pub fn location(dir: &Path) -> Result<Location> {
    let dir =
        std::path::absolute(dir).map_err(|e| Error::io("has no absolute path", e).about(dir.display()))?;
    Ok(Location::Directory(dir.join(BASE_DIR)))
}

/// The image that a writable directory is based on, in its own copy; `None` if it has no whole one.
#[must_use]
pub fn find(dir: &Path) -> Option<Reference> {
    let parent: Digest = WritableDisk::inspect(dir).ok()?.parent.parse().ok()?;
    in_copy(dir, parent)
}

/// The image with this manifest in the copy of a writable directory; `None` if it has no whole one.
#[must_use]
pub fn in_copy(dir: &Path, image: Digest) -> Option<Reference> {
    let location = location(dir).ok()?;
    let store = ImageStore::open(PathBuf::from(location.directory().ok()?)).ok()?;
    let selector = Selector::Digest(image);
    store.resolve(&selector).ok()?;
    Some(Reference { location, selector })
}
