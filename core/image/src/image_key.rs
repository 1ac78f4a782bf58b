//! The key under which the reads of an image's disks are gathered by trackers.
//!
//! The key is a hash of the digests and the hash tree roots of the image's disk layers. The roots are in the image's
//! manifest and are never sent. So a host that can compute the key has the manifest, and may read the image. An image
//! of which no layer has a hash tree has no key: none of it goes through a swarm.

use crate::manifest::{Manifest, Tree};
use headstart_block::Digest;
use headstart_block::exchange::ImageKey;

/// Computes from an image's manifest the key under which a tracker gathers the reads of the image's disks.
/// `None` if no layer has a hash tree: such an image takes no part in a swarm.
#[must_use]
pub fn key_of_manifest(manifest: &Manifest) -> Option<ImageKey> {
    let mut blobs: Vec<(Digest, Option<Tree>)> = Vec::new();
    for layer in manifest.disk_layers() {
        if blobs.iter().all(|(known, _)| *known != layer.blob.digest) {
            blobs.push((layer.blob.digest, layer.tree));
        }
    }
    key_of_blobs(blobs.into_iter())
}

/// Computes the same key as [`key_of_manifest`] from the blobs of the image's disk layers, each with its hash tree.
/// The caller must give each blob once, the lowest layer first. `None` if no blob has a hash tree.
#[must_use]
pub fn key_of_blobs(blobs: impl Iterator<Item = (Digest, Option<Tree>)>) -> Option<ImageKey> {
    let mut hasher = blake3::Hasher::new_derive_key("headstart swarm 1 image that hints are about");
    let mut is_secret = false;
    for (digest, tree) in blobs {
        hasher.update(digest.as_bytes());
        let root = tree.map(|tree| *tree.root.as_bytes());
        is_secret |= root.is_some();
        hasher.update(&root.unwrap_or_default());
    }
    let mut key = [0; 8];
    hasher.finalize_xof().fill(&mut key);
    is_secret.then(|| ImageKey(u64::from_le_bytes(key)))
}
