//! Layers that were converted before, in a store of any kind: a repository that serves as the memory of a registry.

use crate::known_layers::KnownLayers;
use futures::future::{BoxFuture, Either, select};
use futures::stream::{self, StreamExt, TryStreamExt};
use headstart_block::{Digest, ReadAt, Result};
use headstart_image::converted_layers;
use headstart_image::manifest::ImageLayer;
use headstart_image::remote::{RemoteLayers, open_layer};
use headstart_store::blob_source::BlobSource;
use headstart_store::{RetrySettings, Store};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
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
    /// The layers that were found first and are likely to be opened.
    fetched: Arc<OnceLock<RemoteLayers>>,
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
        Self { store, target, retry, runtime, fetched: Arc::default() }
    }

    async fn find_all(&self, keys: &[Digest]) -> Result<Vec<Option<ImageLayer>>> {
        let find = |key| async move { converted_layers::find_noted(&*self.store, key).await };
        let noted = stream::iter(keys).map(find).buffered(AT_ONCE).try_collect::<Vec<_>>().await?;
        let (whole, fetched) = self.check(&noted).await?;
        let _ = self.fetched.set(fetched);
        let mut found = Vec::new();
        for ((layer, is_whole), key) in noted.into_iter().zip(whole).zip(keys) {
            // There may be others of that key.
            let others = layer.is_some() && !is_whole;
            found.push(if others { converted_layers::find(&*self.store, key).await? } else { layer });
        }
        Ok(found)
    }

    /// Asks if the store has the blobs of layers, and fetches the parts meanwhile that opening reads of those that will
    /// be opened: the ones below a layer that is to be converted.
    async fn check(&self, noted: &[Option<ImageLayer>]) -> Result<(Vec<bool>, RemoteLayers)> {
        let below = noted.iter().rposition(Option::is_none).unwrap_or(0);
        let below = noted[..below].iter().flatten().cloned().collect();
        let fetched = RemoteLayers::new(Arc::clone(&self.store), below, self.retry, self.runtime.clone());
        let is_whole = |layer: &Option<ImageLayer>| {
            let layer = layer.clone();
            async move {
                match layer {
                    Some(layer) => converted_layers::is_whole(&*self.store, &layer).await,
                    None => Ok(false),
                }
            }
        };
        let check = stream::iter(noted.iter().map(is_whole)).buffered(AT_ONCE).try_collect::<Vec<_>>();
        let fetch = async {
            // A read that needs the part reports what is wrong.
            if let Err(error) = fetched.warm().await {
                tracing::debug!(%error, "a part of a converted layer is not fetched ahead");
            }
        };
        let whole = match select(pin!(check), pin!(fetch)).await {
            Either::Left((whole, fetch)) => {
                let whole = whole?;
                // An incomplete layer is not opened: its parts need not be waited for.
                if noted.iter().zip(&whole).all(|(layer, is_whole)| layer.is_none() || *is_whole) {
                    fetch.await;
                }
                whole
            }
            Either::Right(((), check)) => check.await?,
        };
        Ok((whole, fetched))
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
        self.runtime.block_on(self.find_all(keys))
    }

    fn open(&self, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        if let Some(fetched) = self.fetched.get().and_then(|fetched| fetched.open(layer)) {
            return fetched;
        }
        open_layer(Arc::clone(&self.store), layer, self.retry, self.runtime.clone())
    }

    fn holds(&self, blobs: &[(Digest, u64)]) -> Result<Vec<bool>> {
        let target = self.target.as_ref().unwrap_or(&self.store);
        let holds = |(digest, size): &(Digest, u64)| {
            let (digest, size) = (*digest, *size);
            async move { Ok(target.blob_len(&digest).await? == Some(size)) }
        };
        let all = stream::iter(blobs.iter().map(holds)).buffered(AT_ONCE).try_collect();
        self.runtime.block_on(all)
    }

    fn remember<'a>(&'a self, layers: &'a [(Digest, ImageLayer)]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let noted = self.note(layers).await;
            self.store.done_writing().await;
            if let Err(error) = noted {
                tracing::warn!(%error, "the next conversion on the same layers will not find those of this one");
            }
        })
    }
}
