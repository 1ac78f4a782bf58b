//! [`ImageBlobs`]: the source of the blobs of an image: a directory of this host, or any other store.

use crate::manifest::{Config, ImageLayer, Manifest, Tree};
use crate::remote::RemoteImage;
use crate::store::ImageStore;
use crate::verified_blob::VerifiedBlob;
use headstart_block::{Digest, ErrorKind, ReadAt, Result};
use std::sync::Arc;

/// The blobs of an image, as the code that opens and checks it sees them.
pub(crate) trait ImageBlobs {
    /// A layer's blob, which has the length in its manifest. Its content is not checked.
    fn layer(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>>;

    /// A layer's blob, guarded by its hash tree if it has one.
    fn guarded(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>>;

    /// The blob that a TurboOCI layer has its data in, as stored. Its content is not checked.
    fn target(&self, digest: &Digest) -> Result<Arc<dyn ReadAt>>;

    /// The outboard of a hash tree, which has the length in its manifest.
    fn tree(&self, tree: &Tree) -> Result<Arc<dyn ReadAt>>;

    /// The config, checked against its digest.
    fn config(&self, manifest: &Manifest) -> Result<Config>;
}

impl ImageBlobs for ImageStore {
    fn layer(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(self.open_layer(layer)?))
    }

    fn guarded(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        let blob = self.open_layer(layer)?;
        let Some(tree) = &layer.tree else { return Ok(Arc::new(blob)) };
        let guarded = match self.open_tree(tree) {
            Ok(outboard) => VerifiedBlob::new(blob, tree.root, Box::new(outboard)),
            // Tools that copy images by their layers leave it behind.
            Err(e) if e.kind() == ErrorKind::NotFound => VerifiedBlob::rebuild(blob, tree.root, self.root()),
            Err(e) => Err(e),
        };
        Ok(Arc::new(guarded?))
    }

    fn target(&self, digest: &Digest) -> Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(self.open_blob(digest)?))
    }

    fn tree(&self, tree: &Tree) -> Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(self.open_tree(tree)?))
    }

    fn config(&self, manifest: &Manifest) -> Result<Config> {
        self.config(manifest)
    }
}

impl ImageBlobs for RemoteImage {
    fn layer(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        Ok(self.blobs().blob_of(layer)?)
    }

    fn guarded(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        self.blobs().guarded(layer)
    }

    fn target(&self, digest: &Digest) -> Result<Arc<dyn ReadAt>> {
        Ok(self.blobs().target_of(digest)?)
    }

    fn tree(&self, tree: &Tree) -> Result<Arc<dyn ReadAt>> {
        Ok(self.blobs().tree_of(tree)?)
    }

    fn config(&self, _: &Manifest) -> Result<Config> {
        self.read_config()
    }
}
