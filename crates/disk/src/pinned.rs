//! The manifests of images that the hosts of a swarm keep together, so that such an image attaches while its store is
//! away.
//!
//! One file an image, in the cache's directory: the manifest, named by its digest and checked against it when it is
//! read. So whoever wrote it has no say in what an image is: only who names it by its digest, or has seen its tag
//! in the store before, attaches by it.

use crate::known_files::KnownFiles;
use headstart_block::{Digest, Error, Result};
use headstart_image::manifest::MAX_MANIFEST_SIZE;
use std::io::ErrorKind;
use std::path::Path;

/// The directory of such images.
pub struct PinnedImages(KnownFiles);

impl PinnedImages {
    /// Those of the cache in `cache`.
    #[must_use]
    pub fn of(cache: &Path) -> Self {
        Self(KnownFiles {
            dir: cache.join("pinned"),
            about: "the manifest",
            length_max: MAX_MANIFEST_SIZE + 1,
        })
    }

    /// An image with this manifest is kept from now on.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn insert(&self, manifest: &[u8]) -> Result<()> {
        let digest = Digest::of(manifest);
        if self.get(&digest).is_some() {
            return Ok(());
        }
        self.0.write(&digest.to_string(), manifest)
    }

    /// It is not any more.
    ///
    /// # Errors
    /// Where the file cannot be removed.
    pub fn remove(&self, digest: &Digest) -> Result<()> {
        let path = self.0.path(&digest.to_string());
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::io("cannot remove", e).about(path.display()))
            }
            _ => Ok(()),
        }
    }

    /// The manifest of that digest.
    pub(crate) fn get(&self, digest: &Digest) -> Option<Vec<u8>> {
        self.0.read(&digest.to_string()).filter(|manifest| Digest::of(manifest) == *digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_and_nothing_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let pinned = PinnedImages::of(dir.path());
        let (manifest, digest) = (b"{}".as_slice(), Digest::of(b"{}"));
        assert_eq!(pinned.get(&digest), None);
        pinned.remove(&digest).unwrap();
        pinned.insert(manifest).unwrap();
        assert_eq!(pinned.get(&digest).as_deref(), Some(manifest));
        std::fs::write(pinned.0.path(&digest.to_string()), b"{} ").unwrap();
        assert_eq!(pinned.get(&digest), None);
        pinned.insert(manifest).unwrap();
        assert_eq!(pinned.get(&digest).as_deref(), Some(manifest));
        pinned.remove(&digest).unwrap();
        assert_eq!(pinned.get(&digest), None);
    }
}
