//! Layers that were converted before, in a store of any kind: a repository that serves as the memory of a registry.

use crate::known_layers::KnownLayers;
use futures::stream::{self, StreamExt, TryStreamExt};
use headstart_block::{Digest, ReadAt, Result};
use headstart_image::converted_layers;
use headstart_image::manifest::ImageLayer;
use headstart_image::remote::open_layer;
use headstart_store::blob_source::BlobSource;
use headstart_store::{RetrySettings, Store};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The number of keys that are looked for at once.
const AT_ONCE: usize = 16;

/// The layers that conversions left in a store as artifacts ([`converted_layers`]).
#[derive(Clone)]
pub struct RepositoryLayers {
    store: Arc<dyn Store>,
    /// The store that the image is published in, if it is another one.
    target: Option<Arc<dyn Store>>,
    retry: RetrySettings,
    runtime: Handle,
}

impl RepositoryLayers {
    /// The layers of `store`. New ones are copied to it from `target`, the store that images are published in; `None`
    /// if that is the same. Requests run on `runtime`, and block: the caller must not be on one of its threads.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        target: Option<Arc<dyn Store>>,
        retry: RetrySettings,
        runtime: Handle,
    ) -> Self {
        Self { store, target, retry, runtime }
    }

    async fn note(&self, layers: &[(Digest, ImageLayer)]) -> Result<()> {
        self.store.prepare_to_write().await?;
        if let Some(target) = &self.target {
            for (_, layer) in layers {
                let tree = layer.tree.map(|tree| (tree.digest, tree.size));
                for (digest, size) in [Some((layer.blob.digest, layer.blob.size)), tree].into_iter().flatten()
                {
                    self.copy(target, digest, size).await?;
                }
            }
        }
        converted_layers::publish(&self.store, layers).await
    }

    async fn copy(&self, target: &Arc<dyn Store>, digest: Digest, size: u64) -> Result<()> {
        if self.store.blob_len(&digest).await? == Some(size) {
            return Ok(());
        }
        let blob = BlobSource::new(Arc::clone(target), digest, size, self.retry, self.runtime.clone());
        self.store.put_blob(&digest, Arc::new(blob), &|_| Ok(())).await
    }
}

impl KnownLayers for RepositoryLayers {
    fn find(&self, keys: &[Digest]) -> Result<Vec<Option<ImageLayer>>> {
        let find = |key| async move { converted_layers::find(&*self.store, key).await };
        self.runtime.block_on(stream::iter(keys).map(find).buffered(AT_ONCE).try_collect())
    }

    fn open(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        open_layer(Arc::clone(&self.store), layer, self.retry, self.runtime.clone())
    }

    fn remember(&self, layers: &[(Digest, ImageLayer)]) {
        let noted = self.runtime.block_on(self.note(layers));
        self.runtime.block_on(self.store.done_writing());
        if let Err(error) = noted {
            tracing::warn!(%error, "the next conversion on the same layers will not find those of this one");
        }
    }
}
