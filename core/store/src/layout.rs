//! The OCI image layout, which directories, web servers and object stores share.
//!
//! ```text
//! oci-layout               marks an OCI image layout
//! index.json               the images: manifests with their tags
//! blobs/sha256/<hex>       blobs by digest: manifests, configs, layers, hash trees
//! ```

mod converted;
mod directory;
mod graph;
mod index;
mod lease;
mod prune_plan;
mod staging;
mod trash;
mod unfinished;
mod untagged;

pub use directory::{ATTACH_LOCK_LIMIT, LayoutDir, LayoutLock, PRIVATE_DIR, Prepared};
pub use graph::{collect_digests, image_document, leads_further};
pub use index::{LayoutEntry, LayoutIndex};
pub(crate) use lease::too_long;
pub use lease::{
    ATTACH, DirectorySeen, FoundLease, HeldLease, HostId, JudgedLease, LEASE_MAX, Lease, LeaseFacts,
    LeaseHolder, RecordSeen, Root, Standing, in_use, undecided,
};
pub use prune_plan::{
    DocumentNeed, PruneDecision, PruneInput, PrunePlan, PruneRules, StoredBlob, UntaggedImage, Walk, Wanted,
    holders_of,
};
pub use staging::{Living, StagingDir, StalePolicy, remove_stale};
pub use unfinished::{Unfinished, remove_partial};
pub use untagged::Mark;
pub(crate) use untagged::{gained_images, lost_images};

use bytes::Bytes;
use headstart_block::guarded::shell_word;
use headstart_block::{Digest, Error, ErrorKind, Result};
use serde_json::Value;
use std::fmt::Display;
use std::future::Future;

pub use crate::reference::referrers_subject;
use crate::reference::{Selector, Tag};

/// The name of the file that marks a directory as an OCI image layout.
pub const LAYOUT_FILE: &str = "oci-layout";
/// The content of [`LAYOUT_FILE`] in a new store.
pub const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
/// The name of the file that lists the images of a store with their tags.
pub const INDEX_FILE: &str = "index.json";
/// The largest index (`index.json`) that is read, in bytes: 64 MiB, enough for some hundred thousand entries. A
/// longer one is an error.
pub const MAX_INDEX_SIZE: u64 = 64 << 20;

/// The maximum nesting depth of indexes that are followed. A deeper one is reported as damaged, because it
/// may be an endless loop.
pub const MAX_DEPTH: usize = 4;

/// Returns the path of a blob, relative to the top directory of the layout.
#[must_use]
pub fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Checks that `text`, the content of an `oci-layout` file, is of version 1 of the OCI image layout.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it is not valid JSON; [`ErrorKind::Unsupported`] if it states another version or
/// none.
pub fn check_layout(text: &[u8]) -> Result<()> {
    let layout: Value = serde_json::from_slice(text)
        .map_err(|e| Error::corrupt("its oci-layout file is not JSON").caused_by(e))?;
    match layout.get("imageLayoutVersion").and_then(Value::as_str) {
        Some(version) if version.starts_with("1.") => Ok(()),
        version => Err(Error::unsupported(format!(
            "is an OCI image layout of version `{}`, not 1",
            version.unwrap_or("unknown").escape_debug()
        ))),
    }
}

/// Returns the tag under which the list of artifacts that belong to the manifest `subject` is stored. It is
/// used in stores without the referrers API of OCI registries.
#[must_use]
pub fn referrers_tag(subject: &Digest) -> String {
    format!("sha256-{}", subject.hex())
}

/// `true` if `tag` has the form of a [`referrers_tag`]. Such a tag names a list of artifacts, not an image.
#[must_use]
pub fn is_referrers_tag(tag: &str) -> bool {
    referrers_subject(tag).is_some()
}

/// The same tag, parsed.
pub(crate) fn referrers_of(subject: &Digest) -> Result<Tag> {
    referrers_tag(subject).parse()
}

/// The digest of the list of a manifest's artifacts, if the index has one.
pub(crate) fn referrers_list(index: &LayoutIndex, subject: &Digest) -> Result<Option<Digest>> {
    let entry = index.find(&referrers_of(subject)?);
    entry
        .map(|entry| entry.digest.ok_or_else(|| Error::unsupported("its digest is not a sha256")))
        .transpose()
}

/// The error for a tag that is not there, in the store at `location`.
pub(crate) fn no_such_image(location: &impl Display) -> Error {
    let location = shell_word(&location.to_string());
    Error::new(ErrorKind::NotFound, "there is no image of this tag")
        .remedy(format!("`headstart image list {location}` shows those that there are"))
}

/// The digest that a selector names in the index of the layout at `location`.
///
/// # Errors
/// [`ErrorKind::NotFound`] where there is no such tag.
pub(crate) fn select(index: &LayoutIndex, tag: &Tag, location: &impl Display) -> Result<Digest> {
    let entry = index.find(tag).ok_or_else(|| no_such_image(location))?;
    entry.digest.ok_or_else(|| Error::unsupported("its digest is not a sha256"))
}

/// Checks a document against its digest.
pub(crate) fn check_document(digest: &Digest, bytes: &[u8]) -> Result<()> {
    if Digest::of(bytes) == *digest {
        return Ok(());
    }
    Err(Error::corrupt("does not match its digest").remedy("copy or import it again"))
}

/// The manifest of the image that a document is or leads to: for an index of several platforms, the one for Linux on
/// amd64. `fetch` gets a document by its digest, checked.
///
/// # Errors
/// Errors of `fetch`; [`ErrorKind::Unsupported`] where there is no image for this platform.
pub(crate) async fn follow<F, Fut>(mut digest: Digest, mut bytes: Bytes, fetch: F) -> Result<(Digest, Bytes)>
where
    F: Fn(Digest) -> Fut,
    Fut: Future<Output = Result<Bytes>>,
{
    for _ in 0..=MAX_DEPTH {
        let Some(index) = LayoutIndex::parse(&bytes).ok().filter(LayoutIndex::is_index) else {
            return Ok((digest, bytes));
        };
        let ours = index.for_this_platform().and_then(|entry| entry.digest);
        digest = ours.ok_or_else(|| Error::unsupported("is an index without an image for Linux on amd64"))?;
        bytes = fetch(digest).await?;
    }
    Err(Error::corrupt("is an index of indexes without end"))
}

/// The digests of the blobs that a manifest has as its config and layers; none for an index.
///
/// # Errors
/// [`ErrorKind::Corrupt`] where it is no JSON object or a digest is none.
pub(crate) fn named_blobs(manifest: &[u8]) -> Result<Vec<Digest>> {
    let value: Value =
        serde_json::from_slice(manifest).map_err(|e| Error::corrupt("is not a manifest").caused_by(e))?;
    let layers = value.get("layers").and_then(Value::as_array).into_iter().flatten();
    let digest = |descriptor: &Value| {
        let text = descriptor.get("digest").and_then(Value::as_str).unwrap_or_default();
        text.parse::<Digest>()
    };
    value.get("config").into_iter().chain(layers).map(digest).collect()
}

/// A selector as messages about a layout show it.
pub(crate) fn name(location: &str, selector: &Selector) -> String {
    format!("image {location}{selector}")
}
