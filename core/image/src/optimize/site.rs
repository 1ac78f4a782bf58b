//! [`Site`]: the place in which the new image is made, and the layers of the old one there.

use super::layout::Layout;
use super::source::{Blobs, Source};
use super::view::View;
use crate::image_blobs::ImageBlobs;
use crate::image_site::{ImageSite, MadeImage};
use crate::manifest::{ImageLayer, NewImage};
use crate::open_image::open_layer_blob;
use crate::progress::{Progress, step};
use crate::reference::Reference;
use crate::store::{Image, ImageStore, Staging};
use crate::store_access::StoreAccess;
use crate::transfer::PublishedAs;
use crate::turbo::TurboLayers;
use headstart_block::{
    BlockDevice, ByteRange, Digest, Error, ErrorKind, FileSource, ReadAt, Result, to_usize,
};
use headstart_lsmt::Stack;
use std::io::Write;
use std::sync::Arc;

/// A place for data that is not published yet.
pub(super) struct Site(ImageSite);

/// The layers of which a new one is made.
pub(super) struct Below {
    pub(super) layers: Vec<ImageLayer>,
    pub(super) open: Vec<headstart_lsmt::Layer>,
    /// The disk made of them.
    pub(super) disk: Stack,
}

impl Below {
    /// The id in the topmost layer, nil if it has none.
    pub(super) fn top_uuid(&self) -> uuid::Uuid {
        self.open.last().map(|layer| layer.info().uuid).unwrap_or_default()
    }
}

impl Site {
    pub(super) fn new(target: &Reference) -> Result<Self> {
        target.tag()?;
        Ok(Self(ImageSite::new(&target.location)?))
    }

    pub(super) fn staging(&self) -> &Staging {
        self.0.staging()
    }

    /// A blob that was staged.
    pub(super) fn staged(&self, digest: &Digest) -> Result<FileSource> {
        let staged = self.staging().open(digest)?;
        staged
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "was not written").about(format!("blob {digest}")))
    }

    /// Copies the layers of `source` that the target directory does not have.
    pub(super) fn adopt(
        &self,
        source: &Source,
        layers: &[ImageLayer],
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some(store) = self.0.directory() else { return Ok(()) };
        let mut missing = Vec::new();
        for layer in layers {
            if !has(store, layer) {
                missing.push((layer.blob.digest, layer.tree, source.blobs().layer(layer)?));
            }
            if let Some(target) = layer.turbo_target()?.filter(|target| store.open_blob(target).is_err()) {
                missing.push((target, None, source.blobs().target(&target)?));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        progress.begin("copy layers", missing.iter().map(|(_, _, blob)| blob.len()).sum());
        for (digest, tree, blob) in missing {
            let named = |e: Error| e.about(format!("layer {digest} of {}", source.open.reference));
            if self.staging().open(&digest)?.is_some() {
                continue;
            }
            let mut writer = self.staging().blob_writer()?;
            copy(&*blob, &mut writer, progress)?;
            // The hash tree is made again on the way.
            let staged = writer.finish()?;
            if staged.digest != digest {
                return Err(named(Error::corrupt(format!("its content has the digest {}", staged.digest))));
            }
            if tree.is_some_and(|tree| tree != staged.tree) {
                return Err(named(Error::corrupt("its hash tree is another one than its manifest says")));
            }
        }
        Ok(())
    }

    /// Opens the layers of which the new image is made: as they are here, or otherwise as they are in the source.
    pub(super) fn open_layers(&self, source: &Source) -> Result<Below> {
        let layers = source.layers();
        let mut turbo = TurboLayers::default();
        let open = |layer: &ImageLayer| -> Result<_> {
            let blob = self.blob(source, layer)?;
            if layer.is_turbo() {
                let (_, opened, _) = turbo.open(layer, &*blob, &|target| self.target(source, target))?;
                return Ok(opened);
            }
            Ok(open_layer_blob(layer, blob)?.1)
        };
        let open: Vec<_> = layers.iter().map(open).collect::<Result<_>>()?;
        let disk = Stack::new(open.clone())?.with_size(source.open.disk().size());
        Ok(Below { layers, open, disk })
    }

    fn blob(&self, source: &Source, layer: &ImageLayer) -> Result<Arc<dyn ReadAt>> {
        if let Some(staged) = self.staging().open(&layer.blob.digest)? {
            return Ok(Arc::new(staged));
        }
        match self.0.directory() {
            Some(store) if has(store, layer) => store.guarded(layer),
            _ => source.blobs().guarded(layer),
        }
    }

    fn target(&self, source: &Source, target: &Digest) -> Result<Arc<dyn ReadAt>> {
        if let Some(staged) = self.staging().open(target)? {
            return Ok(Arc::new(staged));
        }
        match self.0.directory().and_then(|store| store.open_blob(target).ok()) {
            Some(here) => Ok(Arc::new(here)),
            None => source.blobs().target(target),
        }
    }

    /// `true` if a blob is neither staged nor in the target directory.
    fn is_far(&self, blob: &Digest) -> Result<bool> {
        let here = self.0.directory().is_some_and(|store| store.open_blob(blob).is_ok());
        Ok(!here && self.staging().open(blob)?.is_none())
    }

    /// Fetches the data that the layout takes from a source that is not here, in many requests at once.
    pub(super) fn bring(
        &self,
        source: &Source,
        below: &Below,
        layout: &Layout,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Blobs::Remote(remote) = &source.blobs else { return Ok(()) };
        let view = View { disk: &below.disk, layers: &below.layers };
        let mut far = Vec::new();
        for source in 0..below.disk.sources().len() {
            let blob = view.blob(source);
            far.push(match blob {
                Some(blob) if self.is_far(&blob)? => Some(blob),
                _ => None,
            });
        }
        let mut wanted = Vec::new();
        for part in layout.parts() {
            below.disk.stored_ranges(part, &mut |source, range| {
                wanted.extend(far.get(source).copied().flatten().map(|blob| (blob, range)));
            });
        }
        remote.bring_all(&wanted, progress)
    }

    /// Makes the image appear in its target; also returns the manifest that its tag named before.
    pub(super) fn publish(
        self,
        source: &Source,
        image: &NewImage,
        target: &Reference,
        stores: StoreAccess<'_>,
        progress: &dyn Progress,
    ) -> Result<(Image, Option<Digest>)> {
        let made = MadeImage::new(image, PublishedAs::Tag(target.tag()?));
        let (to, rest) = (|| stores.target(&target.location), || source.store(stores));
        let published = self.0.publish(made, to, rest, stores, progress)?;
        Ok((published.image, published.was))
    }
}

/// The number of bytes copied at once: of a source in another store several requests.
const COPY_PART: u64 = 8 << 20;

fn copy(blob: &dyn ReadAt, out: &mut dyn Write, progress: &dyn Progress) -> Result<()> {
    let mut buf = Vec::new();
    for part in ByteRange::between(0, blob.len()).parts(COPY_PART) {
        buf.resize(to_usize(part.len()), 0);
        blob.read_at(&mut buf, part.offset())?;
        out.write_all(&buf)?;
        step(progress, part.len())?;
    }
    Ok(())
}

/// `true` if a store has a layer, with its hash tree.
fn has(store: &ImageStore, layer: &ImageLayer) -> bool {
    store.open_layer(layer).is_ok() && layer.tree.is_none_or(|tree| store.open_tree(&tree).is_ok())
}
