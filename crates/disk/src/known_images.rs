//! The manifests of images that were attached before, so that an image whose blobs are all in the cache attaches
//! while its store is away or its credentials are gone.
//!
//! One small file an image, named by the SHA-256 of its reference:
//!
//! ```text
//! headstart image 1 sha256:<digest of the manifest>\n
//! <the manifest>
//! ```
//!
//! The digest is checked when it is read, so a torn or changed file is no worse than none. What a tag means
//! may have changed since: who uses a manifest from here for a tag says so.

use headstart_block::{Digest, Error, Result};
use headstart_image::manifest::MAX_MANIFEST_SIZE;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What the first line starts with; the number is the version of the form.
const MAGIC: &str = "headstart image 1 ";

/// The directory of known images.
pub(crate) struct KnownImages {
    dir: PathBuf,
}

impl KnownImages {
    /// Those of the cache in `cache`.
    pub(crate) fn of(cache: &Path) -> Self {
        Self { dir: cache.join("images") }
    }

    fn path(&self, reference: &str) -> PathBuf {
        self.dir.join(Digest::of(reference.as_bytes()).hex())
    }

    /// Remembers that `reference` is the image with this manifest.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(crate) fn remember(&self, reference: &str, digest: &Digest, manifest: &[u8]) -> Result<()> {
        let path = self.path(reference);
        if self.recall(reference).is_some_and(|(known, _)| known == *digest) {
            return Ok(());
        }
        // Two processes may do this at once; the name of the process keeps their files apart.
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let written = fs::create_dir_all(&self.dir)
            .and_then(|()| fs::write(&part, [format!("{MAGIC}{digest}\n").as_bytes(), manifest].concat()))
            .and_then(|()| fs::rename(&part, &path));
        written.map_err(|e| {
            let _ = fs::remove_file(&part);
            Error::io("cannot remember the manifest", e).about(path.display())
        })
    }

    /// The manifest that `reference` had when it was last seen.
    pub(crate) fn recall(&self, reference: &str) -> Option<(Digest, Vec<u8>)> {
        let file = fs::File::open(self.path(reference)).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_MANIFEST_SIZE + 1024).read_to_end(&mut bytes).ok()?;
        let line = bytes.iter().position(|byte| *byte == b'\n')?;
        let digest: Digest = std::str::from_utf8(&bytes[..line]).ok()?.strip_prefix(MAGIC)?.parse().ok()?;
        let manifest = bytes.split_off(line + 1);
        (Digest::of(&manifest) == digest).then_some((digest, manifest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let path = known.path("oci://host/a:1");
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
