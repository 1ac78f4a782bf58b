//! The references of documents: digests of blobs, and of further documents.
//!
//! To be on the safe side with documents of later versions and other tools, *every* digest that stands anywhere in a
//! document counts.

use crate::media_type::{INDEX_DOCKER, INDEX_OCI, MANIFEST_DOCKER, MANIFEST_OCI};
use headstart_block::Digest;
use serde_json::Value;
use std::collections::BTreeSet;

/// The documents that lead further. The last is of a draft that some registries still hold.
const LEADING: [&str; 5] =
    [MANIFEST_OCI, MANIFEST_DOCKER, INDEX_OCI, INDEX_DOCKER, "application/vnd.oci.artifact.manifest.v1+json"];

/// `true` if documents of this media type refer to other documents or blobs, as manifests and indexes do. Also `true`
/// for `None`, because a document of unknown type may do so.
#[must_use]
pub fn leads_further(media_type: Option<&str>) -> bool {
    media_type.is_none_or(|media_type| LEADING.contains(&media_type))
}

/// Adds all digests that occur anywhere in the JSON document `value` to `found`. The field `digest` of each object
/// whose `mediaType` is that of a manifest or an index is also added to `leading`.
pub fn collect_digests(value: &Value, found: &mut BTreeSet<Digest>, leading: &mut Vec<Digest>) {
    match value {
        Value::String(text) => found.extend(text.parse::<Digest>().ok()),
        Value::Array(values) => values.iter().for_each(|value| collect_digests(value, found, leading)),
        Value::Object(fields) => {
            let field = |key| fields.get(key).and_then(Value::as_str);
            if field("mediaType").is_some_and(|media_type| LEADING.contains(&media_type)) {
                leading.extend(field("digest").and_then(|text| text.parse::<Digest>().ok()));
            }
            fields.values().for_each(|value| collect_digests(value, found, leading));
        }
        _ => {}
    }
}

/// Parses a document, and returns its JSON if it is the manifest of an image, or an index in which at least one
/// manifest is not an artifact. `None` for any other document, and for each document with a `subject`: that is an
/// artifact, which belongs to an image.
#[must_use]
pub fn image_document(bytes: &[u8]) -> Option<Value> {
    let document: Value = serde_json::from_slice(bytes).ok()?;
    let list = |key| document.get(key).and_then(Value::as_array);
    let is_two = document.get("schemaVersion").and_then(Value::as_u64) == Some(2);
    let is_manifest = document.get("config").is_some_and(Value::is_object) && list("layers").is_some();
    let is_artifact = |entry: &Value| entry.get("artifactType").is_some();
    let is_index = list("manifests").is_some_and(|list| list.iter().any(|entry| !is_artifact(entry)));
    let is_image = is_two && (is_manifest || is_index) && document.get("subject").is_none();
    is_image.then_some(document)
}
