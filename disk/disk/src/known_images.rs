//! The manifests of images that were attached before, so that an image whose blobs are all in the cache attaches
//! while its store is away.
//!
//! There is one small file for each image, named by the SHA-256 of its reference:
//!
//! ```text
//! headstart image 1 sha256:<digest of the manifest>\n
//! <the manifest>
//! ```
//!
//! The digest is checked when it is read, so a torn or changed file is no worse than none. The meaning of a tag may
//! have changed since: a caller that uses a manifest from here for a tag reports that.

use crate::known_files::KnownFiles;
use headstart_block::{Digest, Result};
use headstart_image::manifest::MAX_MANIFEST_SIZE;
use headstart_store::Selector;
use std::path::Path;

/// The beginning of the first line; the number is the version of the form.
const MAGIC: &str = "headstart image 1 ";

/// The length of the longest file that is read.
const LENGTH_MAX: u64 = MAX_MANIFEST_SIZE + 1024;

/// The name by which an image is remembered: the location of its store, in the store's own words, and its tag or
/// digest.
pub(crate) fn name(store: &str, selector: &Selector) -> String {
    format!("{store}{selector}")
}

/// The directory of known images.
pub(crate) struct KnownImages(KnownFiles);

impl KnownImages {
    /// The known images of the cache in `cache`.
    pub(crate) fn of(cache: &Path) -> Self {
        Self(KnownFiles { dir: cache.join("images"), about: "the manifest", length_max: LENGTH_MAX })
    }

    /// Remembers that `reference` is the image with this manifest.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn remember(&self, reference: &str, digest: &Digest, manifest: &[u8]) -> Result<()> {
        if self.recall(reference).is_some_and(|(known, _)| known == *digest) {
            return Ok(());
        }
        self.0.write(reference, &[format!("{MAGIC}{digest}\n").as_bytes(), manifest].concat())
    }

    /// The manifest that `reference` had when it was last seen.
    pub(crate) fn recall(&self, reference: &str) -> Option<(Digest, Vec<u8>)> {
        let mut bytes = self.0.read(reference)?;
        let line = bytes.iter().position(|byte| *byte == b'\n')?;
        let digest: Digest = std::str::from_utf8(&bytes[..line]).ok()?.strip_prefix(MAGIC)?.parse().ok()?;
        let manifest = bytes.split_off(line + 1);
        (Digest::of(&manifest) == digest).then_some((digest, manifest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn remembers_the_latest_and_nothing_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownImages::of(dir.path());
        assert_eq!(known.recall("oci://host/a:1"), None);
        for manifest in [b"{\"a\": 1}".as_slice(), b"{}\n{}", b""] {
            let digest = Digest::of(manifest);
            known.remember("oci://host/a:1", &digest, manifest).unwrap();
            assert_eq!(known.recall("oci://host/a:1"), Some((digest, manifest.to_vec())));
        }
        assert_eq!(known.recall("oci://host/a:2"), None);
        let path = known.0.path("oci://host/a:1");
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(known.recall("oci://host/a:1"), None, "{len}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert_eq!(known.recall("oci://host/a:1"), None);
        assert_eq!(fs::read_dir(dir.path().join("images")).unwrap().count(), 1);
    }
}
