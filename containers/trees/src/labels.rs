//! containerd's labels of a layer that it wants, as the name of an image.
//!
//! | label | value | from |
//! |---|---|---|
//! | `containerd.io/snapshot.ref` | chain id of the layer | every unpacker that can do without layers |
//! | `containerd.io/snapshot/cri.image-ref` | name of the image | CRI, nerdctl, `ctr images pull` of containerd 2 |
//! | `containerd.io/snapshot/cri.manifest-digest` | digest of its manifest | the same |
//! | `containerd.io/snapshot/image-ref` | name of the image | tools of OverlayBD |
//! | `containerd.io/snapshot/overlaybd/blob-digest` | blob of a disk's layer, no tar | the layer's annotation |
//!
//! Names are as in Docker's world: `docker.io/library/nginx:1`, `host:5000/app@sha256:...`, or both a tag and a digest.

use headstart_block::{Digest, Error, Result};
use headstart_image::manifest::BLOB_DIGEST;
use headstart_snapshotter::record::SnapshotLabels;
use headstart_snapshotter::remote::{IMAGE_LABELS, TARGET_LABEL};
use headstart_store::{Location, Selector, Tag};

/// The label with the digest of the image's manifest.
const MANIFEST_LABEL: &str = "containerd.io/snapshot/cri.manifest-digest";

/// A layer that containerd wants: an image, and a layer in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedLayer {
    /// The repository of the image.
    pub location: Location,
    /// The tag or digest in the image's name.
    pub selector: Selector,
    /// The digest of the manifest of the image for this host. `None` if the labels have none.
    pub manifest: Option<Digest>,
    /// The chain id of the layer.
    pub chain: Digest,
    /// `true` if the layer is a disk's, which containerd cannot unpack.
    pub is_disk: bool,
}

impl WantedLayer {
    /// Reads the labels. `None` if they name no image or no layer.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if a label has a value that makes no sense.
    pub fn of(labels: &SnapshotLabels) -> Result<Option<Self>> {
        let name = IMAGE_LABELS.iter().find_map(|label| labels.get(*label));
        let (Some(chain), Some(name)) = (labels.get(TARGET_LABEL), name) else { return Ok(None) };
        let digest = |text: &String| {
            text.parse::<Digest>().map_err(|error| error.about(format_args!("label {}", text.escape_debug())))
        };
        let (location, selector) = image_named(name)?;
        let manifest = labels.get(MANIFEST_LABEL).map(digest).transpose()?;
        let is_disk = labels.contains_key(BLOB_DIGEST);
        Ok(Some(Self { location, selector, manifest, chain: digest(chain)?, is_disk }))
    }
}

/// The place of the image with a name of Docker's world.
fn image_named(name: &str) -> Result<(Location, Selector)> {
    let about = |error: Error| error.about(format_args!("image {}", name.escape_debug()));
    let (name, digest) = match name.split_once('@') {
        Some((name, digest)) => (name, Some(digest.parse::<Digest>().map_err(about)?)),
        None => (name, None),
    };
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let (repository, tag) = match name[last..].split_once(':') {
        Some((_, tag)) => (&name[..name.len() - tag.len() - 1], Some(tag)),
        None => (name, None),
    };
    let location = format!("oci://{repository}").parse::<Location>().map_err(about)?;
    let selector = match (digest, tag) {
        (Some(digest), _) => Selector::Digest(digest),
        (None, Some(tag)) => Selector::Tag(tag.parse::<Tag>().map_err(about)?),
        (None, None) => Selector::Tag(Tag::default()),
    };
    Ok((location, selector))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> SnapshotLabels {
        pairs.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn names_of_images_are_those_of_their_repositories() {
        let digest = Digest::of(b"x");
        for (name, location, selector) in [
            ("docker.io/library/nginx:1.27", "oci://docker.io/library/nginx", ":1.27".to_owned()),
            ("127.0.0.1:5000/app", "oci://127.0.0.1:5000/app", ":latest".to_owned()),
            (&format!("h:5000/a/b@{digest}"), "oci://h:5000/a/b", format!("@{digest}")),
            (&format!("h.lan/a/b:7@{digest}"), "oci://h.lan/a/b", format!("@{digest}")),
        ] {
            let (found, selected) = image_named(name).unwrap();
            assert_eq!((found.to_string(), selected.to_string()), (location.to_owned(), selector), "{name}");
        }
        for wrong in ["", ":", "h.lan/A:1", "h.lan/a:!", "h.lan/a@sha256:1", "h.lan/../a:1"] {
            assert!(image_named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_layer_is_wanted_where_image_and_chain_are_named() {
        let chain = Digest::of(b"chain").to_string();
        let manifest = Digest::of(b"manifest").to_string();
        let cri = [
            ("containerd.io/snapshot.ref", chain.as_str()),
            ("containerd.io/snapshot/cri.image-ref", "h.lan/app:1"),
            ("containerd.io/snapshot/cri.manifest-digest", manifest.as_str()),
        ];
        let wanted = WantedLayer::of(&labels(&cri)).unwrap().unwrap();
        assert_eq!(
            (wanted.chain.to_string(), wanted.manifest.unwrap().to_string()),
            (chain.clone(), manifest.clone())
        );
        assert_eq!(WantedLayer::of(&labels(&cri[..1])).unwrap(), None);
        assert_eq!(WantedLayer::of(&labels(&cri[1..])).unwrap(), None);
        let other = [cri[0], ("containerd.io/snapshot/image-ref", "h.lan/app:1")];
        assert_eq!(WantedLayer::of(&labels(&other)).unwrap().unwrap().manifest, None);
        let wrong = [("containerd.io/snapshot.ref", "sha256:7"), cri[1]];
        assert!(WantedLayer::of(&labels(&wrong)).is_err());
    }
}
