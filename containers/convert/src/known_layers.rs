//! Layers that were converted before, found by their keys.
//!
//! A conversion that finds the layer of a key takes it as it is. A place whose answers others can make up can put any
//! content into the images that are converted, so keys in annotations of other people's images are not searched: a
//! store notes the conversions of its own writers, out of the reach of copies ([`ImageStore::converted`]).

use futures::future::{BoxFuture, ready};
use headstart_block::{Digest, Error, ErrorKind, ReadAt, Result};
use headstart_image::manifest::ImageLayer;
use headstart_image::store::ImageStore;
use std::sync::Arc;

/// A place where layers are found that were converted before.
pub trait KnownLayers {
    /// Returns the layer of each key; `None` if there is none.
    ///
    /// # Errors
    /// Errors of the place. A layer that is damaged or incomplete is none, and no error.
    fn find(&self, keys: &[Digest]) -> Result<Vec<Option<ImageLayer>>>;

    /// Opens the blob of a layer that [`find`](KnownLayers::find) returned. It is read as the parent of other layers,
    /// block by block.
    ///
    /// # Errors
    /// Errors of the place.
    fn open(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>>;

    /// Tells for each blob, by digest and length in bytes, if the store of the new image has it. TurboOCI layers leave
    /// their data in such blobs.
    ///
    /// # Errors
    /// Errors of the store.
    fn holds(&self, blobs: &[(Digest, u64)]) -> Result<Vec<bool>>;

    /// Notes layers that were converted, with their keys. Their blobs are in the store of the new image. A failure is
    /// no error: a note only saves work.
    fn remember<'a>(&'a self, layers: &'a [(Digest, ImageLayer)]) -> BoxFuture<'a, ()>;
}

/// No place: every layer is converted.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKnownLayers;

impl KnownLayers for NoKnownLayers {
    fn find(&self, keys: &[Digest]) -> Result<Vec<Option<ImageLayer>>> {
        Ok(vec![None; keys.len()])
    }

    fn open(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        Err(Error::invalid(format!("layer {} is not known", layer.blob.digest)))
    }

    fn holds(&self, blobs: &[(Digest, u64)]) -> Result<Vec<bool>> {
        Ok(vec![false; blobs.len()])
    }

    fn remember<'a>(&'a self, _layers: &'a [(Digest, ImageLayer)]) -> BoxFuture<'a, ()> {
        Box::pin(ready(()))
    }
}

/// The layers that were converted into a store in a local directory. Those of other stores:
/// [`RepositoryLayers`](crate::repository_layers::RepositoryLayers).
#[derive(Clone, Debug)]
pub struct StoredLayers(ImageStore);

impl StoredLayers {
    /// The layers of `store`.
    #[must_use]
    pub fn new(store: ImageStore) -> Self {
        Self(store)
    }
}

impl KnownLayers for StoredLayers {
    fn find(&self, keys: &[Digest]) -> Result<Vec<Option<ImageLayer>>> {
        keys.iter().map(|key| self.0.converted(key)).collect()
    }

    fn open(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(self.0.open_layer(layer)?))
    }

    fn holds(&self, blobs: &[(Digest, u64)]) -> Result<Vec<bool>> {
        let holds = |(digest, size): &(Digest, u64)| match self.0.open_blob(digest) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            opened => Ok(opened?.len() == *size),
        };
        blobs.iter().map(holds).collect()
    }

    fn remember<'a>(&'a self, layers: &'a [(Digest, ImageLayer)]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for (key, layer) in layers {
                let _ = self.0.note_conversion(key, layer);
            }
        })
    }
}
