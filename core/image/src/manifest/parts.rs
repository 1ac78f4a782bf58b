//! The parts of an image: its layers and its other blobs, as the manifest names them.

use super::{ImageLayer, Manifest};
use headstart_block::{Digest, Error, Result};

impl Manifest {
    /// Returns the layers that make up the disk, lowest first: all layers except acceleration layers.
    pub fn disk_layers(&self) -> impl DoubleEndedIterator<Item = &ImageLayer> {
        self.layers.iter().filter(|layer| !layer.is_acceleration())
    }

    /// Returns the same manifest with the lowest `count` layers of the disk only: for a container's image, the tree of
    /// files as the layer with that number leaves it. `None`: with all.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the disk has no layer of that number, counted from 1.
    pub fn lowest(&self, count: Option<usize>) -> Result<Self> {
        let Some(count) = count else { return Ok(self.clone()) };
        let layers: Vec<_> = self.disk_layers().take(count).cloned().collect();
        if layers.is_empty() || layers.len() < count {
            let most = self.disk_layers().count();
            return Err(Error::invalid(format!("has no lowest {count} layers"))
                .remedy(format!("name 1 to {most} layers")));
        }
        Ok(Self { layers, ..self.clone() })
    }

    /// Returns the digest and the expected length in bytes of every blob that the manifest refers to: the
    /// config, the layers and their hash trees. A blob may occur more than once.
    pub fn blobs(&self) -> impl Iterator<Item = (Digest, u64)> {
        let layers = self.layers.iter().flat_map(|layer| {
            let tree = layer.tree.map(|tree| (tree.digest, tree.size));
            [Some((layer.blob.digest, layer.blob.size)), tree].into_iter().flatten()
        });
        std::iter::once((self.config.digest, self.config.size)).chain(layers)
    }

    /// Returns the sum of the lengths of all blobs that the manifest refers to, in bytes. Blobs shared with
    /// other images count in full, and one that occurs twice counts twice.
    #[must_use]
    pub fn stored_size(&self) -> u64 {
        self.blobs().fold(0, |sum, (_, size)| sum.saturating_add(size))
    }
}
