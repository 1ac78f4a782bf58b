//! Layers that this store's writers converted from containers' layers, found by the keys of the conversions.
//!
//! A note is JSON: `media_type`, `digest` and `size` of the layer's blob, `tree` with `root`, `digest` and `size`, and
//! the `annotations` of the layer.

use super::ImageStore;
use crate::manifest::{BlobRef, ImageLayer, Tree};
use headstart_block::{Digest, Result};
use serde_json::{Value, json};

impl ImageStore {
    /// Notes that the conversion with that key gave `layer`, which was published.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if another process holds the store's lock for too long; errors of
    /// writing.
    pub fn note_conversion(&self, key: &Digest, layer: &ImageLayer) -> Result<()> {
        let lock = self.layout.lock()?;
        self.layout.note_conversion(&lock, key, to_json(layer).to_string().as_bytes())
    }

    /// Returns the layer that the conversion with that key gave. `None` if this store's writers made no such
    /// conversion, or if a blob of the layer is gone since.
    ///
    /// # Errors
    /// Errors of reading the note.
    pub fn converted(&self, key: &Digest) -> Result<Option<ImageLayer>> {
        let Some(text) = self.layout.noted_conversion(key)? else { return Ok(None) };
        let layer = serde_json::from_slice(&text).ok().and_then(|value| from_json(&value));
        Ok(layer.filter(|layer| {
            let has_tree = layer.tree.is_some_and(|tree| self.open_tree(&tree).is_ok());
            let is_of_key = layer.origin().is_some_and(|origin| origin.key == *key);
            has_tree && is_of_key && self.open_layer(layer).is_ok()
        }))
    }
}

fn to_json(layer: &ImageLayer) -> Value {
    let tree = layer.tree.map(
        |tree| json!({"root": tree.root.to_string(), "digest": tree.digest.to_string(), "size": tree.size}),
    );
    json!({
        "media_type": layer.blob.media_type,
        "digest": layer.blob.digest.to_string(),
        "size": layer.blob.size,
        "tree": tree,
        "annotations": layer.annotations,
    })
}

fn from_json(value: &Value) -> Option<ImageLayer> {
    let digest = |value: &Value| value["digest"].as_str()?.parse().ok();
    let tree = &value["tree"];
    let tree = Tree {
        root: tree["root"].as_str()?.parse().ok()?,
        digest: digest(tree)?,
        size: tree["size"].as_u64()?,
    };
    let blob = BlobRef {
        media_type: value["media_type"].as_str()?.to_owned(),
        digest: digest(value)?,
        size: value["size"].as_u64()?,
    };
    let annotations = serde_json::from_value(value["annotations"].clone()).ok()?;
    Some(ImageLayer { blob, tree: Some(tree), annotations })
}
