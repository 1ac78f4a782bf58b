//! An index that lists an image that was converted beside its original.
//!
//! Programs that know nothing of disks take the first entry for their platform, which is the original: it is listed
//! first. The entry of the converted image has the artifact type of such images, and the operating system's feature
//! [`FEATURE`], which other programs do not have. There is one converted image for a platform, in either mode.

use headstart_block::{Error, Result};
use headstart_container_source::ImagePlatform;
use headstart_image::manifest::{BlobRef, INDEX_OCI, OVERLAYBD_IMAGE, OVERLAYBD_TURBO_IMAGE};
use serde_json::{Value, json};

/// The feature that a host needs to run an image whose layers are those of a disk.
const FEATURE: &str = "overlaybd";

/// An image that is to be listed beside its original.
pub(crate) struct Sibling<'a> {
    /// Its manifest.
    pub(crate) manifest: &'a BlobRef,
    /// Its artifact type.
    pub(crate) artifact_type: &'a str,
}

/// Returns the JSON text of the index. `document` is what the original's name leads to: its manifest, or an index that
/// lists it. All other entries of that index stay as they are; an older converted image of the same platform goes.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if `document` is neither.
pub(crate) fn index_with(
    document: &[u8],
    original: &BlobRef,
    converted: &Sibling<'_>,
    platform: Option<&ImagePlatform>,
) -> Result<Vec<u8>> {
    let value: Value =
        serde_json::from_slice(document).map_err(|e| Error::corrupt("is not JSON").caused_by(e))?;
    let platform = platform.map(platform_json);
    let (mut index, mut entries) = match value.get("manifests") {
        Some(Value::Array(entries)) => (value.clone(), entries.clone()),
        Some(_) => return Err(Error::corrupt("is an index without a list of manifests")),
        None => (json!({ "schemaVersion": 2 }), vec![entry(original, platform.as_ref())]),
    };
    entries.retain(|entry| !is_converted(entry) || !is_for(entry, platform.as_ref()));
    let mut sibling = entry(converted.manifest, platform.as_ref());
    sibling["artifactType"] = json!(converted.artifact_type);
    if platform.is_some() {
        sibling["platform"]["os.features"] = json!([FEATURE]);
    }
    entries.push(sibling);
    index["manifests"] = Value::Array(entries);
    // Docker's lists of manifests know no artifact types.
    index["mediaType"] = json!(INDEX_OCI);
    Ok(index.to_string().into_bytes())
}

fn is_converted(entry: &Value) -> bool {
    [OVERLAYBD_IMAGE, OVERLAYBD_TURBO_IMAGE].iter().any(|kind| entry["artifactType"] == *kind)
}

fn is_for(entry: &Value, platform: Option<&Value>) -> bool {
    let same = |key| platform.is_none_or(|platform| entry["platform"][key] == platform[key]);
    ["os", "architecture", "variant"].into_iter().all(same)
}

fn entry(blob: &BlobRef, platform: Option<&Value>) -> Value {
    let BlobRef { media_type, digest, size } = blob;
    let mut entry = json!({ "mediaType": media_type, "digest": digest.to_string(), "size": size });
    if let Some(platform) = platform {
        entry["platform"] = platform.clone();
    }
    entry
}

fn platform_json(platform: &ImagePlatform) -> Value {
    let mut value = json!({ "os": platform.os(), "architecture": platform.architecture() });
    if let Some(variant) = platform.variant() {
        value["variant"] = json!(variant);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::Digest;

    fn blob(name: &str) -> BlobRef {
        let media_type = "application/vnd.oci.image.manifest.v1+json".to_owned();
        BlobRef { media_type, digest: Digest::of(name.as_bytes()), size: 7 }
    }

    fn amd64() -> ImagePlatform {
        "linux/amd64".parse().unwrap()
    }

    fn index_of(
        document: &[u8],
        converted: &str,
        kind: &str,
        platform: Option<&ImagePlatform>,
    ) -> Result<Vec<u8>> {
        let sibling = Sibling { manifest: &blob(converted), artifact_type: kind };
        index_with(document, &blob("a"), &sibling, platform)
    }

    #[test]
    fn the_original_is_listed_first_and_the_converted_image_beside_it() {
        let manifest = br#"{"config":{},"layers":[]}"#;
        let index = index_of(manifest, "b", OVERLAYBD_IMAGE, Some(&amd64())).unwrap();
        let value: Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(value["manifests"][0]["digest"], Digest::of(b"a").to_string());
        assert_eq!(value["manifests"][1]["digest"], Digest::of(b"b").to_string());
        assert_eq!(value["manifests"][1]["platform"]["os.features"], json!(["overlaybd"]));
        assert_eq!(value["mediaType"], INDEX_OCI);
    }

    #[test]
    fn a_new_conversion_takes_the_place_of_the_old_one_of_its_platform_only() {
        let arm = "linux/arm64".parse().unwrap();
        let index = index_of(b"{}", "old", OVERLAYBD_IMAGE, Some(&amd64())).unwrap();
        let index = index_of(&index, "arm", OVERLAYBD_IMAGE, Some(&arm)).unwrap();
        let index = index_of(&index, "new", OVERLAYBD_TURBO_IMAGE, Some(&amd64())).unwrap();
        let value: Value = serde_json::from_slice(&index).unwrap();
        let digests = value["manifests"].as_array().unwrap().iter().map(|entry| entry["digest"].clone());
        let expected = ["a", "arm", "new"].map(|name| json!(Digest::of(name.as_bytes()).to_string()));
        assert_eq!(digests.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn documents_that_are_no_index_and_no_json_are_refused() {
        for document in [&b"{"[..], br#"{"manifests":7}"#] {
            assert!(index_of(document, "b", OVERLAYBD_IMAGE, None).is_err());
        }
    }
}
