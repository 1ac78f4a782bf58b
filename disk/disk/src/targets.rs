//! The blobs that have the data of an image's TurboOCI layers.
//!
//! A manifest names these *targets* without their lengths, which the cache has to know. If the package of a layer is in
//! the cache, its index says how long the target is; otherwise the store is asked while the package is fetched, and
//! says also whether the target is there at all. A target is then a blob without a hash tree like any other: the pull
//! engine fetches the ranges of it that reads and plans need, and its digest is checked when all of it is local.
//!
//! Uncompressed data is kept in memory, in one cache for the image. It is cleared when a target was found wrong.

use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_cache::{BlobSpec, Cache, CachedBlob, EntryKind};
use headstart_image::manifest::ImageLayer;
use headstart_image::open_image::open_layer_blob;
use headstart_image::turbo::{FileSystemKind, InflatedCache, PackageBudget, TARGET_MISSING, TurboLayer};
use headstart_lsmt::Layer;
use headstart_store::{RetrySettings, Store};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// The knowledge of the target of a layer.
#[derive(Clone)]
pub(crate) enum Target {
    /// The layer has none.
    None,
    /// Its length has to be asked for.
    Unknown,
    Known(Arc<CachedBlob>),
}

/// A layer that was opened.
pub(crate) struct OpenedLayer {
    pub(crate) layer: Layer,
    /// The blob that has its data, and the file system, of a TurboOCI layer.
    pub(crate) target: Option<(Arc<CachedBlob>, FileSystemKind)>,
}

/// The targets of one image.
pub(crate) struct Targets {
    cache: Arc<Cache>,
    origin: String,
    /// Made for the first layer that needs it.
    inflated: OnceLock<Arc<InflatedCache>>,
    /// The space for the packages of the layers that are opened.
    budget: Mutex<PackageBudget>,
}

impl Targets {
    /// The targets of an image in the store at `origin`.
    pub(crate) fn new(cache: &Arc<Cache>, origin: &str) -> Self {
        Self {
            cache: Arc::clone(cache),
            origin: origin.to_owned(),
            inflated: OnceLock::new(),
            budget: Mutex::default(),
        }
    }

    /// The uncompressed data that was read lately; `None` if no layer has a target.
    pub(crate) fn into_inflated(self) -> Option<Arc<InflatedCache>> {
        self.inflated.into_inner()
    }

    /// Returns the knowledge that the cache alone has of the target of a layer. May read all of the layer's package.
    pub(crate) fn look_up(&self, layer: &ImageLayer, package: &CachedBlob) -> Target {
        if !layer.is_turbo() {
            return Target::None;
        }
        self.known(layer, package).map_or(Target::Unknown, Target::Known)
    }

    fn known(&self, layer: &ImageLayer, package: &CachedBlob) -> Option<Arc<CachedBlob>> {
        if !package.is_local(ByteRange::between(0, package.spec().len)) {
            return None;
        }
        // A damaged package is reported when it is opened.
        let turbo = TurboLayer::read(layer, package, &mut PackageBudget::default()).ok()?;
        let len = turbo.target_len().or_else(|| self.cached_len(&turbo.target()))?;
        self.blob(turbo.target(), len).ok()
    }

    /// The length of a blob of which the cache has some bytes.
    fn cached_len(&self, digest: &Digest) -> Option<u64> {
        let entries = self.cache.list().ok()?;
        let is_it = |kind| matches!(kind, EntryKind::Whole | EntryKind::Unverified);
        entries.iter().find(|entry| entry.digest == *digest && is_it(entry.kind)).map(|entry| entry.len)
    }

    fn blob(&self, digest: Digest, len: u64) -> Result<Arc<CachedBlob>> {
        self.cache.blob(&BlobSpec { digest, len, tree: None, origin: Some(self.origin.clone()) })
    }

    /// Finds the target of a layer, whose length the store is asked for unless it is known.
    pub(crate) async fn find(
        &self,
        layer: &ImageLayer,
        known: &Target,
        store: &dyn Store,
        retry: &RetrySettings,
    ) -> Result<Option<Arc<CachedBlob>>> {
        let digest = match known {
            Target::None => return Ok(None),
            Target::Known(blob) => return Ok(Some(Arc::clone(blob))),
            Target::Unknown => layer.turbo_target()?.ok_or_else(|| Error::invalid("has no target"))?,
        };
        let found = retry.run(|| store.blob_len(&digest), |_| ()).await.map_err(|e| e.about(digest))?;
        let len = found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "is not there").about(digest).remedy(TARGET_MISSING)
        })?;
        tokio::task::block_in_place(|| self.blob(digest, len)).map(Some)
    }

    /// Opens a layer, whose blob is `source` and whose target was found.
    pub(crate) fn open(
        &self,
        layer: &ImageLayer,
        source: Arc<dyn headstart_block::ReadAt>,
        target: Option<&Arc<CachedBlob>>,
    ) -> Result<OpenedLayer> {
        let Some(target) = target else {
            return Ok(OpenedLayer { layer: open_layer_blob(layer, source)?.1, target: None });
        };
        let turbo = TurboLayer::read(layer, &*source, &mut self.budget.lock())?;
        let kind = turbo.kind();
        let inflated = self.inflated.get_or_init(|| InflatedCache::new(InflatedCache::DEFAULT_BYTES));
        let (_, layer) = turbo.open(Arc::clone(target) as Arc<dyn headstart_block::ReadAt>, inflated)?;
        Ok(OpenedLayer { layer, target: Some((Arc::clone(target), kind)) })
    }
}
