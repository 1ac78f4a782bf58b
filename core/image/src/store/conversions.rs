//! Layers that this store's writers converted from containers' layers, found by the keys of the conversions.
//!
//! A note is the descriptor of the layer, in JSON, as manifests have it.

use super::ImageStore;
use crate::manifest::ImageLayer;
use headstart_block::{Digest, Result};
use std::collections::BTreeSet;

impl ImageStore {
    /// Notes that the conversion with that key gave `layer`, which was published.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if another process holds the store's lock for too long; errors of
    /// writing.
    pub fn note_conversion(&self, key: &Digest, layer: &ImageLayer) -> Result<()> {
        let lock = self.layout.lock()?;
        self.layout.note_conversion(&lock, key, layer.to_json()?.to_string().as_bytes())
    }

    /// Returns the layer that the conversion with that key gave. `None` if this store's writers made no such
    /// conversion, or if a blob of the layer is gone since.
    ///
    /// # Errors
    /// Errors of reading the note.
    pub fn converted(&self, key: &Digest) -> Result<Option<ImageLayer>> {
        let layer = self.noted_layer(key)?;
        Ok(layer.filter(|layer| {
            let has_tree = layer.tree.is_some_and(|tree| self.open_tree(&tree).is_ok());
            let is_of_key = layer.origin().is_some_and(|origin| origin.key == *key);
            has_tree && is_of_key && self.open_layer(layer).is_ok()
        }))
    }

    /// The layer that a note describes, whether it is there or not; `None` if there is no note, or one that makes no
    /// sense.
    fn noted_layer(&self, key: &Digest) -> Result<Option<ImageLayer>> {
        let Some(text) = self.layout.noted_conversion(key)? else { return Ok(None) };
        Ok(serde_json::from_slice(&text).ok().and_then(|value| ImageLayer::from_json(&value).ok()))
    }

    /// The keys of noted conversions whose layers are not among the blobs `kept`.
    pub(super) fn dead_conversions(&self, kept: &BTreeSet<Digest>) -> Result<Vec<Digest>> {
        let mut dead = Vec::new();
        for key in self.layout.noted_conversions()? {
            if self.noted_layer(&key)?.is_none_or(|layer| !kept.contains(&layer.blob.digest)) {
                dead.push(key);
            }
        }
        Ok(dead)
    }
}
