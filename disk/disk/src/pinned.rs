//! The manifests of pinned images, which the hosts of a swarm keep jointly. With its manifest here, such an image
//! attaches while its store cannot be reached.
//!
//! Each manifest is a file in the cache's directory, named by its digest and checked against it when it is read. A pin
//! also records the image that its tag means, as an answer of the store is recorded: the operator that pinned the image
//! had asked the store. A later answer of the store itself about the tag replaces that record.

use crate::known_files::KnownFiles;
use crate::known_images::{self, KnownImages};
use headstart_block::{Digest, Result};
use headstart_image::disk_form::FormWish;
use headstart_image::manifest::MAX_MANIFEST_SIZE;
use headstart_store::Selector;
use std::path::Path;

/// The manifests of a cache's pinned images, which the hosts of a swarm keep jointly, and the records of the images
/// that their tags mean.
pub struct PinnedImages {
    manifests: KnownFiles,
    tags: KnownImages,
}

impl PinnedImages {
    /// Returns the pinned images of the cache in the directory `cache`. Neither reads nor creates anything there yet.
    #[must_use]
    pub fn of(cache: &Path) -> Self {
        let manifests = KnownFiles {
            dir: cache.join("pinned"),
            about: "the manifest",
            length_max: MAX_MANIFEST_SIZE + 1,
        };
        Self { manifests, tags: KnownImages::of(cache) }
    }

    /// Stores the manifest of a pinned image, unless it is there already.
    ///
    /// # Errors
    /// The error of writing the file.
    pub fn insert(&self, manifest: &[u8]) -> Result<()> {
        let digest = Digest::of(manifest);
        if self.get(&digest).is_some() {
            return Ok(());
        }
        self.manifests.write(&digest.to_string(), manifest)
    }

    /// Records that `selector` (a tag, say) in `store` means the image with this manifest. `store` is the store's own
    /// location, as `Store::location` returns it.
    ///
    /// # Errors
    /// The error of writing the file.
    pub fn resolve(&self, store: &str, selector: &Selector, manifest: &[u8]) -> Result<()> {
        self.tags.remember_for(store, selector, FormWish::Newest, (&Digest::of(manifest), manifest))
    }

    /// Returns `true` if the image that `selector` in `store` means is recorded, from a pin or from an answer
    /// of the store.
    #[must_use]
    pub fn is_resolved(&self, store: &str, selector: &Selector) -> bool {
        self.tags.recall(&known_images::name(store, selector)).is_some()
    }

    /// Removes the manifest of an image that is no longer pinned. A missing manifest is no error.
    ///
    /// # Errors
    /// The error of removing the file.
    pub fn remove(&self, digest: &Digest) -> Result<()> {
        self.manifests.remove(&digest.to_string())
    }

    /// The manifest of that digest.
    pub(crate) fn get(&self, digest: &Digest) -> Option<Vec<u8>> {
        self.manifests.read(&digest.to_string()).filter(|manifest| Digest::of(manifest) == *digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_manifests_are_found_unless_they_are_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let pinned = PinnedImages::of(dir.path());
        let (manifest, digest) = (b"{}".as_slice(), Digest::of(b"{}"));
        assert_eq!(pinned.get(&digest), None);
        pinned.remove(&digest).unwrap();
        pinned.insert(manifest).unwrap();
        assert_eq!(pinned.get(&digest).as_deref(), Some(manifest));
        std::fs::write(pinned.manifests.path(&digest.to_string()), b"{} ").unwrap();
        assert_eq!(pinned.get(&digest), None);
        pinned.insert(manifest).unwrap();
        assert_eq!(pinned.get(&digest).as_deref(), Some(manifest));
        pinned.remove(&digest).unwrap();
        assert_eq!(pinned.get(&digest), None);
    }
}
