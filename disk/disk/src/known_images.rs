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
//! Of a container's image that has several disks, a disk that is written to may be another one than a disk that is only
//! read. The one for writing has a file of its own, named by the SHA-256 of the reference followed by `#writable`. That
//! file goes as soon as the tag is seen to mean an image that is taken for both.
//!
//! The digest is checked when it is read, so a torn or changed file is no worse than none. The meaning of a tag may
//! have changed since: a caller that uses a manifest from here for a tag reports that.

use crate::known_files::KnownFiles;
use headstart_block::{Digest, Result};
use headstart_image::disk_form::{FormWish, FoundForm};
use headstart_image::manifest::{MAX_MANIFEST_SIZE, Manifest};
use headstart_store::{Selector, Store};
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

/// The name for the form of a container's image that is written to: disks that are only read may have another one.
fn writable_name(store: &str, selector: &Selector) -> String {
    format!("{store}{selector}#writable")
}

/// The name by which the image with this manifest is to be remembered, which was found for that use.
pub(crate) fn name_of(store: &str, selector: &Selector, wish: FormWish, manifest: &[u8]) -> String {
    let is_chosen = wish == FormWish::Writable && matches!(selector, Selector::Tag(_));
    if is_chosen && is_form(manifest) { writable_name(store, selector) } else { name(store, selector) }
}

/// `true` if this is the manifest of a disk that was made of a container's image, which may have others.
fn is_form(manifest: &[u8]) -> bool {
    Manifest::parse(manifest).is_ok_and(|manifest| manifest.converted_from().is_some())
}

/// `true` if another form of the image may be taken in the place of this one for a disk that is written to.
fn is_for_reading(manifest: &[u8]) -> bool {
    is_form(manifest) && Manifest::parse(manifest).is_ok_and(|manifest| manifest.is_only_read())
}

/// The directory of known images.
pub(crate) struct KnownImages(KnownFiles);

impl KnownImages {
    /// The known images of the cache in `cache`.
    pub(crate) fn of(cache: &Path) -> Self {
        Self(KnownFiles { dir: cache.join("images"), about: "the manifest", length_max: LENGTH_MAX })
    }

    /// The name by which an image is known, if it is, for that use.
    pub(crate) fn name(&self, store: &str, selector: &Selector, wish: FormWish) -> String {
        let plain = name(store, selector);
        if wish == FormWish::Newest || matches!(selector, Selector::Digest(_)) {
            return plain;
        }
        let own = writable_name(store, selector);
        // An earlier version knew one name. That image will do, unless it is one for which another may be taken.
        let is_other = || self.recall(&plain).is_some_and(|(_, manifest)| is_for_reading(&manifest));
        if self.recall(&own).is_some() || is_other() { own } else { plain }
    }

    /// Remembers that `selector` leads to the image with this manifest, which was found for that use.
    ///
    /// # Errors
    /// A file cannot be written or removed.
    pub(crate) fn remember_for(
        &self,
        store: &str,
        selector: &Selector,
        wish: FormWish,
        (digest, manifest): (&Digest, &[u8]),
    ) -> Result<()> {
        let name = name_of(store, selector, wish, manifest);
        let own = writable_name(store, selector);
        // The tag has moved on from the disk that was written to, to one for both uses.
        if name != own && !is_for_reading(manifest) {
            self.0.remove(&own)?;
        }
        self.remember(&name, digest, manifest)
    }

    /// Remembers that `reference` is the image with this manifest.
    ///
    /// # Errors
    /// The file cannot be written.
    fn remember(&self, reference: &str, digest: &Digest, manifest: &[u8]) -> Result<()> {
        if self.recall(reference).is_some_and(|(known, _)| known == *digest) {
            return Ok(());
        }
        self.0.write(reference, &[format!("{MAGIC}{digest}\n").as_bytes(), manifest].concat())
    }

    /// Remembers an image that was found for that use; a failure does not fail the attach. A document that is not an
    /// image, such as a page that asks for a password, does not take the place of one.
    pub(crate) fn note(&self, store: &dyn Store, selector: &Selector, wish: FormWish, found: &FoundForm) {
        if Manifest::parse(&found.bytes).is_err() {
            return;
        }
        let image = (&found.digest, &found.bytes[..]);
        if let Err(error) = self.remember_for(&store.location(), selector, wish, image) {
            tracing::warn!(%error, "it will not attach while its store is away");
        }
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
    use serde_json::json;
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

    /// The manifest of a disk that was made of a container's image, with that file system, or of another disk.
    fn manifest(file_system: Option<&str>) -> Vec<u8> {
        let digest = Digest::of(b"").to_string();
        let layer =
            json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": 1 });
        let annotations = file_system.map(|kind| {
            json!({
                "dev.headstart.converted-from": digest,
                "dev.headstart.converted-from-type": "application/vnd.oci.image.manifest.v1+json",
                "dev.headstart.converter": format!("1,fs={kind}"),
            })
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": 0 },
            "layers": [layer],
            "annotations": annotations.unwrap_or_else(|| json!({})),
        });
        manifest.to_string().into_bytes()
    }

    #[test]
    fn a_disk_for_writing_is_forgotten_when_its_tag_moves_to_a_disk_for_both_uses() {
        use FormWish::{Newest, Writable};
        let (store, selector) = ("oci://host/a", Selector::Tag("1".parse().unwrap()));
        let (erofs, ext4, disk) = (manifest(Some("erofs")), manifest(Some("ext4")), manifest(None));
        let known = |seen: &[(FormWish, &[u8])]| {
            let dir = tempfile::tempdir().unwrap();
            let known = KnownImages::of(dir.path());
            for (wish, manifest) in seen {
                known.remember_for(store, &selector, *wish, (&Digest::of(manifest), manifest)).unwrap();
            }
            let recall = |wish| Some(known.recall(&known.name(store, &selector, wish))?.1);
            [recall(Newest), recall(Writable)]
        };
        let both = |manifest: &[u8]| [Some(manifest.to_vec()), Some(manifest.to_vec())];
        let forms = [Some(erofs.clone()), Some(ext4.clone())];
        assert_eq!(known(&[(Newest, &erofs), (Writable, &ext4)]), forms);
        assert_eq!(known(&[(Writable, &ext4), (Newest, &erofs)]), forms);
        assert_eq!(known(&[(Newest, &erofs)]), [Some(erofs.clone()), None]);
        for wish in [Newest, Writable] {
            assert_eq!(known(&[(Newest, &erofs), (Writable, &ext4), (wish, &disk)]), both(&disk), "{wish:?}");
        }
        assert_eq!(known(&[(Writable, &erofs), (Newest, &ext4)]), both(&ext4));
    }
}
