//! Manifests and indexes of OCI and of Docker, schema version 2.
//!
//! A document is one of the two by its media type or, without one, by its fields. A document that could be read as both
//! is refused: tools that take it for different things would see different images of the same digest. Entries of an
//! index are read leniently ([`LayoutIndex`]), since only the chosen one has to be right.

use crate::layer_type::LayerType;
use headstart_block::{Digest, Error, Result};
use headstart_store::MAX_MANIFEST_SIZE;
use headstart_store::layout::LayoutIndex;
use headstart_store::media_type::{
    CONFIG_DOCKER, CONFIG_OCI, INDEX_DOCKER, INDEX_OCI, MANIFEST_DOCKER, MANIFEST_OCI,
};
use oci_spec::image::{Descriptor, ImageManifest};
use serde_json::Value;
use std::collections::BTreeMap;

/// The most layers of an image: 500, as many as overlayfs stacks.
pub const MAX_LAYERS: usize = 500;

/// The annotation that all layers of OverlayBD have.
const OVERLAYBD: &str = "containerd.io/snapshot/overlaybd/blob-digest";

/// A reference to a blob, as a manifest has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobDescriptor {
    /// The media type that the manifest states for the blob.
    pub media_type: String,
    /// The digest of the blob.
    pub digest: Digest,
    /// The length of the blob in bytes.
    pub size: u64,
    /// The annotations of the reference.
    pub annotations: BTreeMap<String, String>,
}

/// The manifest of a container image, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerManifest {
    /// The media type of the manifest: the one that it states, otherwise that of OCI.
    pub media_type: String,
    /// The reference to the config.
    pub config: BlobDescriptor,
    /// The references to the layers, lowest first: at most [`MAX_LAYERS`], and none in an image without files.
    pub layers: Vec<BlobDescriptor>,
    /// The annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
}

/// A document that leads to an image.
#[derive(Clone, Debug)]
pub enum ImageDocument {
    /// The manifest of one image.
    Manifest(ContainerManifest),
    /// An index of images for several platforms.
    Index(LayoutIndex),
}

impl ImageDocument {
    /// Parses a manifest or an index.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if `bytes` is neither of the two, or both;
    /// [`headstart_block::ErrorKind::Unsupported`] if it is of another version or for something other than a container
    /// image, is larger than [`MAX_MANIFEST_SIZE`], or has too many layers.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > MAX_MANIFEST_SIZE {
            return Err(Error::unsupported(format!("is a manifest of more than {MAX_MANIFEST_SIZE} bytes"))
                .remedy("registries take none of that size: make the image again"));
        }
        let value: Value =
            serde_json::from_slice(bytes).map_err(|e| Error::corrupt("is not JSON").caused_by(e))?;
        if is_index(&value)? {
            return LayoutIndex::parse(bytes).map(Self::Index);
        }
        let media_type = value.get("mediaType").and_then(Value::as_str).unwrap_or(MANIFEST_OCI).to_owned();
        let manifest: ImageManifest = serde_json::from_value(value)
            .map_err(|e| Error::corrupt("is not an image manifest").caused_by(e))?;
        ContainerManifest::of(media_type, &manifest).map(Self::Manifest)
    }
}

/// `true` for an index, `false` for a manifest.
fn is_index(value: &Value) -> Result<bool> {
    let has = |key| value.get(key).is_some();
    let (lists_images, lists_layers) = (has("manifests"), has("layers") || has("config"));
    if has("fsLayers") || value.get("schemaVersion").and_then(Value::as_u64) == Some(1) {
        return Err(Error::unsupported("is a manifest of Docker's schema version 1")
            .remedy("push the image again with a tool of the last years"));
    }
    if lists_images && lists_layers {
        return Err(Error::corrupt("is a manifest and an index at the same time"));
    }
    let is_index = match value.get("mediaType").map(|media_type| media_type.as_str().unwrap_or_default()) {
        None => lists_images,
        Some(INDEX_OCI | INDEX_DOCKER) => true,
        Some(MANIFEST_OCI | MANIFEST_DOCKER) => false,
        Some(other) => {
            let shown: String = other.chars().take(100).collect();
            return Err(Error::unsupported(format!("is not an image but `{}`", shown.escape_debug())));
        }
    };
    if value.get("schemaVersion").and_then(Value::as_u64) != Some(2) {
        return Err(Error::unsupported("is not a manifest of schema version 2"));
    }
    match (is_index, lists_images, lists_layers) {
        (true, true, _) | (false, _, true) => Ok(is_index),
        (true, ..) => Err(Error::corrupt("is an index without a list of manifests")),
        (false, ..) => Err(Error::corrupt("is a manifest without config and layers")),
    }
}

impl ContainerManifest {
    fn of(media_type: String, manifest: &ImageManifest) -> Result<Self> {
        let config = BlobDescriptor::of(manifest.config()).map_err(|e| in_part("its config", &e))?;
        if ![CONFIG_OCI, CONFIG_DOCKER].contains(&config.media_type.as_str()) {
            let shown: String = config.media_type.chars().take(100).collect();
            return Err(Error::unsupported(format!(
                "is not a container image but an artifact: its config is `{}`",
                shown.escape_debug()
            )));
        }
        let count = manifest.layers().len();
        if count > MAX_LAYERS {
            return Err(Error::unsupported(format!("has {count} layers, more than {MAX_LAYERS}"))
                .remedy("squash some of them where the image is built"));
        }
        let layer = |(n, layer): (usize, &Descriptor)| {
            BlobDescriptor::of_layer(layer)
                .map_err(|e| in_part(&format!("its layer {} of {count}", n + 1), &e))
        };
        let layers = manifest.layers().iter().enumerate().map(layer).collect::<Result<_>>()?;
        let annotations = manifest.annotations().iter().flatten();
        let annotations = annotations.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(Self { media_type, config, layers, annotations })
    }
}

/// An error of a part of a document, which is left without a name: callers give it that of the image.
fn in_part(part: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("{part} {error}"))
}

impl BlobDescriptor {
    fn of(descriptor: &Descriptor) -> Result<Self> {
        let annotations = descriptor.annotations().iter().flatten();
        Ok(Self {
            media_type: descriptor.media_type().to_string(),
            digest: descriptor.digest().as_ref().parse()?,
            size: descriptor.size(),
            annotations: annotations.map(|(key, value)| (key.clone(), value.clone())).collect(),
        })
    }

    fn of_layer(descriptor: &Descriptor) -> Result<Self> {
        let layer = Self::of(descriptor)?;
        LayerType::parse(&layer.media_type)?;
        if layer.annotations.contains_key(OVERLAYBD) {
            return Err(Error::unsupported("is a layer of OverlayBD: the image is converted already")
                .remedy("use it as it is"));
        }
        Ok(layer)
    }
}

#[cfg(test)]
mod tests;
