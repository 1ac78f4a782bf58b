//! The image of a clone: it is kept for the clone's directory, as it is for that of the disk that was cloned.

use crate::kept_base;
use crate::manifest::Manifest;
use crate::reference::{Location, Reference};
use crate::store::{HoldingDirectory, ImageStore, by_digest};
use headstart_block::{Digest, Result};
use headstart_lsmt::writable::WritableDisk;
use std::path::Path;

/// Protects the image of the writable directory `dir`, which was just made as a clone, from deletion: by a lease, if
/// the image is in a directory of this host. Returns the store in which only an attach of the clone leaves a lease, if
/// the image is in an object store. Registries and web servers know no leases, and a copy of the image in `dir` needs
/// none.
///
/// # Errors
/// Errors of reading the image's manifest and of writing the lease.
pub fn protect_base(dir: &Path) -> Result<Option<Location>> {
    if kept_base::find(dir).is_some() {
        return Ok(None);
    }
    let info = WritableDisk::inspect(dir)?;
    let noted = info.reference.and_then(|noted| noted.parse::<Reference>().ok());
    let Some((noted, image)) = noted.zip(info.parent.parse::<Digest>().ok()) else { return Ok(None) };
    match &noted.location {
        Location::Directory(root) => {
            let store = ImageStore::open(root)?;
            let reference = by_digest(&noted, image);
            let manifest: Manifest = store.resolve(&reference.selector)?.manifest;
            let uuid = info.uuid;
            let holding = HoldingDirectory { uuid, dir, image, manifest: &manifest, reference: &noted };
            store.hold_for_directory(&holding).map(|()| None)
        }
        Location::Bucket { .. } => Ok(Some(noted.location)),
        Location::Http(_) | Location::Registry { .. } => Ok(None),
    }
}
