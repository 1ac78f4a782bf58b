//! The image that a writable directory is based on, where another one or none is found.

use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_image::store::by_digest;
use headstart_lsmt::writable::{DiskInfo, WritableDisk};
use headstart_store::{Reference, Selector};
use std::path::Path;

/// The error of a store that does not have an image of a tag. If the writable directory `dir` is based on an image,
/// whose tag was removed for example, the error names the command that attaches it.
pub(crate) fn name_base(error: Error, reference: &Reference, dir: Option<&Path>) -> Error {
    let is_of_tag = matches!(reference.selector, Selector::Tag(_));
    let dir = dir.filter(|_| is_of_tag && error.kind() == ErrorKind::NotFound);
    let info = dir.and_then(|dir| WritableDisk::inspect(dir).ok());
    let Some((dir, info)) = dir.zip(info) else { return error };
    let Ok(parent) = info.parent.parse::<Digest>() else { return error };
    Error::new(error.kind(), format!("the writable layer is based on {parent}, and {reference} is not there"))
        .caused_by(error)
        .about(dir.display())
        .remedy(attach_own(&info, parent, reference))
}

/// Refuses a directory that is based on another image, and names the command that attaches it.
pub(crate) fn check_parent(info: &DiskInfo, digest: Digest, reference: &Reference) -> Result<()> {
    let Some(parent) = info.parent.parse::<Digest>().ok().filter(|parent| *parent != digest) else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Conflict, format!("the writable layer is based on {parent}, not on {digest}"))
        .remedy(attach_own(info, parent, reference)))
}

/// The advice to attach a writable directory with the image that it belongs to.
fn attach_own(info: &DiskInfo, parent: Digest, reference: &Reference) -> String {
    let noted = info.reference.as_deref().and_then(|noted| noted.parse::<Reference>().ok());
    let own = by_digest(noted.as_ref().unwrap_or(reference), parent);
    format!("attach the image it belongs to: `headstart attach {own}`, or give a new directory")
}
