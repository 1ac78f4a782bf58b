//! From an index to the manifest of one platform.

use crate::blob_place::BlobPlace;
use crate::document::{ContainerManifest, ImageDocument};
use crate::platform::ImagePlatform;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::layout::{LayoutEntry, MAX_DEPTH};
use std::collections::BTreeSet;

/// The annotation of an entry that belongs to an image, such as an attestation of its build.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";

/// The most platforms that a message lists.
const LISTED: usize = 16;

/// The platform that is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) platform: ImagePlatform,
    /// `true` if the caller named it, so that no image for another one will do.
    pub(crate) is_binding: bool,
}

impl Wanted {
    /// The named platform, or that of this host.
    pub(crate) fn new(named: Option<&ImagePlatform>) -> Self {
        Self { platform: named.cloned().unwrap_or_else(ImagePlatform::host), is_binding: named.is_some() }
    }
}

/// A manifest with its digest and its bytes.
pub(crate) struct FoundManifest {
    pub(crate) digest: Digest,
    pub(crate) bytes: Vec<u8>,
    pub(crate) manifest: ContainerManifest,
}

/// `true` if an entry leads to an image, and not to an attestation or another artifact.
pub(crate) fn is_image(entry: &LayoutEntry<'_>) -> bool {
    entry.annotation(REFERENCE_TYPE).is_none() && !entry.is_artifact()
}

/// The manifest that a document is or leads to.
///
/// # Errors
/// Errors of the place; NotFound if there is no image for the platform; Corrupt if indexes lead to indexes without end.
pub(crate) fn follow(
    place: &dyn BlobPlace,
    digest: Digest,
    bytes: Vec<u8>,
    wanted: &Wanted,
) -> Result<FoundManifest> {
    let (mut digest, mut bytes) = (digest, bytes);
    for _ in 0..=MAX_DEPTH {
        let index = match ImageDocument::parse(&bytes)? {
            ImageDocument::Manifest(manifest) => return Ok(FoundManifest { digest, bytes, manifest }),
            ImageDocument::Index(index) => index,
        };
        digest = best(&index.entries().filter(is_image).collect::<Vec<_>>(), wanted)?;
        bytes = place.document(&digest)?;
    }
    Err(Error::corrupt("is an index of indexes without end"))
}

/// The digest of the best of `entries`, which are of images.
///
/// # Errors
/// NotFound if none is for the platform; Unsupported if the best has no digest that is known.
pub(crate) fn best(entries: &[LayoutEntry<'_>], wanted: &Wanted) -> Result<Digest> {
    let level = |entry: &LayoutEntry<'_>| platform_of(entry)?.level_on(&wanted.platform);
    let mut best: Option<((u32, u32), LayoutEntry<'_>)> = None;
    for entry in entries {
        let Some(level) = level(entry) else { continue };
        if best.is_none_or(|(before, _)| level > before) {
            best = Some((level, *entry));
        }
    }
    let only = match entries {
        // A platform that it states is not the one that was asked for.
        [only] if !wanted.is_binding || platform_of(only).is_none() => Some(*only),
        _ => None,
    };
    let entry = best.map(|(_, entry)| entry).or(only).ok_or_else(|| no_image_for(entries, wanted))?;
    entry.digest.ok_or_else(|| Error::unsupported("has an image without a sha256 digest"))
}

fn platform_of(entry: &LayoutEntry<'_>) -> Option<ImagePlatform> {
    let part = |key| entry.platform(key).filter(|part| !part.is_empty());
    Some(ImagePlatform::new(part("os")?, part("architecture")?, part("variant")))
}

fn no_image_for(entries: &[LayoutEntry<'_>], wanted: &Wanted) -> Error {
    let platforms: BTreeSet<_> = entries.iter().filter_map(platform_of).collect();
    let mut list: Vec<_> = platforms.iter().take(LISTED).map(ToString::to_string).collect();
    if platforms.len() > LISTED {
        list.push(format!("{} more", platforms.len() - LISTED));
    }
    let cause = match (entries.len(), list.len()) {
        (0, _) => "is an index without images".to_owned(),
        (_, 0) => {
            format!("has no image for {}, and does not state the platforms that it has", wanted.platform)
        }
        _ => format!("has no image for {}, only for {}", wanted.platform, list.join(", ")),
    };
    let error = Error::new(ErrorKind::NotFound, cause);
    if list.is_empty() { error } else { error.remedy("name one of these platforms") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_store::layout::LayoutIndex;
    use headstart_store::media_type::{INDEX_OCI, MANIFEST_OCI};
    use serde_json::{Value, json};

    /// An index of images for platforms, in the words `os/architecture/variant`.
    fn index(platforms: &[&str]) -> LayoutIndex {
        let entries: Vec<_> = platforms.iter().map(|platform| entry(platform)).collect();
        parse(&json!(entries))
    }

    fn entry(platform: &str) -> Value {
        let mut parts = platform.split('/');
        let mut part = || parts.next().unwrap_or_default();
        json!({
            "mediaType": MANIFEST_OCI, "size": 7, "digest": Digest::of(platform.as_bytes()),
            "platform": {"os": part(), "architecture": part(), "variant": part()},
        })
    }

    fn parse(entries: &Value) -> LayoutIndex {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_OCI, "manifests": entries});
        LayoutIndex::parse(index.to_string().as_bytes()).unwrap()
    }

    fn choose(index: &LayoutIndex, wanted: &str, is_binding: bool) -> Result<Digest> {
        let wanted = Wanted { platform: wanted.parse().unwrap(), is_binding };
        best(&index.entries().filter(is_image).collect::<Vec<_>>(), &wanted)
    }

    #[test]
    fn the_best_image_for_the_platform_is_chosen() {
        let many = index(&["linux/arm/v5", "windows/amd64", "linux/amd64", "linux/arm/v6", "linux/amd64/v3"]);
        for (wanted, chosen) in [
            ("linux/amd64", "linux/amd64"),
            ("linux/amd64/v4", "linux/amd64/v3"),
            ("linux/amd64/v2", "linux/amd64"),
            ("linux/arm/v7", "linux/arm/v6"),
            ("windows/amd64", "windows/amd64"),
        ] {
            assert_eq!(choose(&many, wanted, true).unwrap(), Digest::of(chosen.as_bytes()), "{wanted}");
        }
        let error = choose(&many, "linux/arm64", false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let says = "has no image for linux/arm64, only for linux/amd64, linux/amd64/v3, linux/arm/v5, linux/arm/v6, \
                    windows/amd64; name one of these platforms";
        assert_eq!(error.to_string(), says);
    }

    #[test]
    fn the_only_image_is_taken_unless_a_platform_was_named() {
        let one = index(&["linux/s390x"]);
        assert!(choose(&one, "linux/amd64", false).is_ok());
        assert!(choose(&one, "linux/amd64", true).is_err());
        let untold = parse(&json!([{"digest": Digest::of(b"x"), "size": 1}]));
        assert_eq!(choose(&untold, "linux/amd64", true).unwrap(), Digest::of(b"x"));
        let two = parse(&json!([{"digest": Digest::of(b"x")}, {"digest": Digest::of(b"y")}]));
        let error = choose(&two, "linux/amd64", false).unwrap_err();
        assert!(error.to_string().contains("does not state"), "{error}");
    }

    #[test]
    fn attestations_are_no_images() {
        let mut attestation = entry("unknown/unknown");
        attestation["annotations"] = json!({REFERENCE_TYPE: "attestation-manifest"});
        let mut artifact = entry("linux/amd64");
        artifact["artifactType"] = json!("application/x");
        let entries = parse(&json!([attestation, artifact, entry("linux/s390x")]));
        assert_eq!(choose(&entries, "linux/amd64", false).unwrap(), Digest::of(b"linux/s390x"));
        let nothing = parse(&json!([attestation]));
        let error = choose(&nothing, "linux/amd64", false).unwrap_err();
        assert_eq!(error.to_string(), "is an index without images");
    }

    #[test]
    fn a_long_list_of_platforms_is_shortened() {
        let names: Vec<String> = (0..100).map(|n| format!("linux/cpu{n}\n{}", "x".repeat(1000))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let error = choose(&index(&names), "linux/amd64", false).unwrap_err().to_string();
        assert!(error.contains("84 more") && error.len() < 2000 && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_digest_of_another_kind_is_refused() {
        let entries =
            parse(&json!([{"digest": "sha512:00", "platform": {"os": "linux", "architecture": "amd64"}}]));
        assert_eq!(choose(&entries, "linux/amd64", true).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
