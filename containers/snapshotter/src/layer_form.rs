//! The rule by which a container's changes become a layer of blocks or a tar, and by which a blob is taken for either.
//!
//! A layer of blocks is right in an image only on top of the blocks that it was made on, so every layer below it in
//! that image's manifest must be a disk's. A snapshot whose files are a disk's is not enough: under the name of an
//! original, containerd's manifest lists tars, and the disk is a form of it that stands beside it. A tar is always
//! right.
//!
//! Callers that name a media type get exactly that: a layer of blocks is neither a gzip nor a tar. No media type is
//! registered for it, so one is made only for callers that leave the choice: nerdctl and Docker do, and `ctr` with an
//! empty `--media-type`. BuildKit names a type; it makes layers of blocks by itself, of the file that a label names.

use crate::record::{SnapshotContent, SnapshotLabels, SnapshotRecord, SnapshotState};
use crate::remote::ListedBlob;
use headstart_block::Digest;

/// The label, and the layer's annotation, with the digest of a blob with a layer of blocks, as OverlayBD has it.
pub(crate) const BLOB_DIGEST: &str = "containerd.io/snapshot/overlaybd/blob-digest";
/// The beginnings of annotations of TurboOCI's layers, and of those of its older name.
const TURBO: [&str; 2] =
    ["containerd.io/snapshot/overlaybd/turbo-oci/", "containerd.io/snapshot/overlaybd/fastoci/"];
/// The label of a layer whose data is in a layer of another image.
pub(crate) const TURBO_LABEL: &str = "containerd.io/snapshot/headstart.turbo";
/// The label with the chain id of the layer that a snapshot was prepared for.
const TARGET_LABEL: &str = crate::remote::TARGET_LABEL;

/// A layer below, as far as the rule is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowerLayer {
    /// Files in a directory.
    Directory,
    /// A layer of an image that containerd knows by the digest of its blocks: the manifest lists these.
    KnownDisk,
    /// A layer that is a disk's here, and another blob in the manifest that containerd has.
    OtherDisk,
    /// A layer of blocks that a snapshot has become.
    Sealed,
}

/// The form of a new layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffForm {
    /// The blocks that were changed.
    Blocks,
    /// A tar, which another differ makes.
    Tar,
}

/// The content of a blob that is to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobContent {
    /// Something else than the others: a tar, compressed or not.
    Other,
    /// A layer of blocks.
    Blocks,
    /// A layer in TurboOCI's format: metadata, with data in a layer of another image.
    Turbo,
}

/// The way in which a blob becomes a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobFate {
    /// Another differ unpacks it.
    Unpacked,
    /// Kept as it is: a layer of blocks on the disk below.
    Kept,
    /// Not applied, for this reason.
    Refused(&'static str),
}

/// `true` if layers, the top one first, are those of a disk in the manifest that lists them.
pub(crate) fn is_disk_in_manifest(below: &[LowerLayer]) -> bool {
    let is_fit = |layer: &LowerLayer| matches!(layer, LowerLayer::KnownDisk | LowerLayer::Sealed);
    // A sealed layer at the bottom is one on an empty disk, which no manifest lists.
    below.last() == Some(&LowerLayer::KnownDisk) && below.iter().all(is_fit)
}

/// `true` if a caller that asks for `media_type` leaves the form of the layer to the differ.
pub(crate) fn is_left_to_us(media_type: &str) -> bool {
    media_type.is_empty()
}

/// The form of a layer on top of `below`, the top one first, for a caller that asks for `media_type`.
#[must_use]
pub fn form_of_diff(below: &[LowerLayer], media_type: &str) -> DiffForm {
    if is_left_to_us(media_type) && is_disk_in_manifest(below) { DiffForm::Blocks } else { DiffForm::Tar }
}

/// The way in which a blob is applied on top of `below`, the top one first.
#[must_use]
pub fn fate_of_blob(below: &[LowerLayer], content: BlobContent) -> BlobFate {
    match content {
        BlobContent::Other => BlobFate::Unpacked,
        BlobContent::Blocks if is_disk_in_manifest(below) => BlobFate::Kept,
        BlobContent::Blocks => BlobFate::Refused(
            "it is a layer of a disk, and the layers below it are not those of the disk: pull the image from its \
             registry, with snapshot annotations turned on",
        ),
        BlobContent::Turbo => BlobFate::Refused(
            "it is a layer in TurboOCI's format (`image convert --mode turbo`), whose data is in another image: pull \
             the image from its registry, with snapshot annotations turned on; for builds on it, convert the original \
             with --mode native",
        ),
    }
}

/// The content of a blob by its annotations and its first bytes; `is_blocks` tells the beginnings of layers of blocks.
pub(crate) fn content_of<'a>(
    mut annotations: impl Iterator<Item = &'a String>,
    is_blocks: impl FnOnce() -> bool,
) -> BlobContent {
    let mut is_named = false;
    let is_turbo = annotations.any(|name| {
        is_named |= name == BLOB_DIGEST;
        TURBO.iter().any(|turbo| name.starts_with(turbo))
    });
    match (is_turbo, is_named) {
        (true, _) => BlobContent::Turbo,
        (false, true) => BlobContent::Blocks,
        (false, false) if is_blocks() => BlobContent::Blocks,
        (false, false) => BlobContent::Other,
    }
}

/// A remote layer's labels, with its blob if containerd's manifest lists that. Not all clients give the annotation as a
/// label, and what they give is only a word of the image's maker.
pub(crate) fn with_blob(mut labels: SnapshotLabels, blob: Option<ListedBlob>) -> SnapshotLabels {
    labels.remove(BLOB_DIGEST);
    labels.remove(TURBO_LABEL);
    if let Some(blob) = blob {
        labels.insert(BLOB_DIGEST.to_owned(), blob.digest.to_string());
        labels.extend(blob.is_turbo.then(|| (TURBO_LABEL.to_owned(), "yes".to_owned())));
    }
    labels
}

/// `true` if one of the layers of an image has its data in a layer of another image.
pub(crate) fn is_turbo(layers: &[&SnapshotRecord]) -> bool {
    layers.iter().any(|layer| layer.labels.contains_key(TURBO_LABEL))
}

/// The chain id of a layer with the diff id `digest` on layers with the chain id `below`.
fn chain_of(below: Option<&str>, digest: &str) -> String {
    below.map_or_else(
        || digest.to_owned(),
        |below| Digest::of(format!("{below} {digest}").as_bytes()).to_string(),
    )
}

/// The chain id that containerd has given with the labels of a layer.
fn chain_in(labels: &SnapshotLabels) -> Option<&str> {
    labels.get(TARGET_LABEL).map(String::as_str)
}

/// Committed snapshots, the lowest one first, as layers, the top one first.
pub(crate) fn lower_layers(records: &[&SnapshotRecord]) -> Vec<LowerLayer> {
    let mut below = None;
    let mut layers = Vec::new();
    for record in records {
        let SnapshotState::Committed { content, .. } = &record.state else { continue };
        let own = chain_in(&record.labels);
        layers.push(match content {
            SnapshotContent::Directory => LowerLayer::Directory,
            SnapshotContent::Sealed(_) => LowerLayer::Sealed,
            SnapshotContent::Remote(_) => {
                // By its chain id, containerd knows the layer, and with it all below.
                let is_known =
                    record.labels.get(BLOB_DIGEST).is_some_and(|blob| own == Some(&*chain_of(below, blob)));
                if is_known { LowerLayer::KnownDisk } else { LowerLayer::OtherDisk }
            }
        });
        below = own;
    }
    layers.reverse();
    layers
}

#[cfg(test)]
mod tests;
