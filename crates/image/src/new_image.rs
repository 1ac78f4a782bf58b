//! Putting a new layer on top of an image's, or on nothing, and publishing the result.

use crate::digest::Digest;
use crate::manifest::{Config, Layer, MAX_LAYERS, NewImage};
use crate::new_layer::{LayerOutput, describe, stage_layer};
use crate::open_image::OpenImage;
use crate::reference::Reference;
use crate::store::{ImageStore, Staging};
use headstart_block::{Error, Result, SECTOR_SIZE};
use headstart_lsmt::{LayerMeta, LayerSummary};
use headstart_zfile::ZFileOptions;
use std::io;

/// What was made.
#[derive(Clone, Debug)]
pub struct NewImageReport {
    /// The new image's name.
    pub reference: Reference,
    /// Its manifest's digest.
    pub digest: Digest,
    /// Size of the disk in bytes.
    pub virtual_size: u64,
    /// The blob of the layer that was made.
    pub layer: Digest,
    /// Bytes of that blob.
    pub layer_size: u64,
    /// What that layer holds.
    pub summary: LayerSummary,
    /// Layers of the image, the new one included.
    pub layers: usize,
}

/// An image in the making. Nothing of it is visible before [`Builder::publish`].
pub(crate) struct Builder<'a> {
    target: &'a Reference,
    packing: &'a ZFileOptions,
    staging: Staging,
    layers: Vec<Layer>,
    config: Config,
    parent_uuid: uuid::Uuid,
}

impl<'a> Builder<'a> {
    /// Starts an image without layers that will be `target`.
    pub(crate) fn new(target: &'a Reference, packing: &'a ZFileOptions) -> Result<Self> {
        target.tag()?;
        let staging = ImageStore::create_or_open(&target.root)?.stage()?;
        let parent_uuid = uuid::Uuid::nil();
        Ok(Self { target, packing, staging, layers: Vec::new(), config: Config::default(), parent_uuid })
    }

    /// Puts it on top of `base`, whose blobs are copied where it lies in another store.
    pub(crate) fn on(mut self, base: &OpenImage) -> Result<Self> {
        if base.layers.len() >= MAX_LAYERS {
            return Err(Error::invalid(format!(
                "it has {MAX_LAYERS} layers, the most that an image can have"
            ))
            .about(&base.reference)
            .remedy("flatten it first"));
        }
        let store = ImageStore::open(&base.reference.root)?;
        if base.reference.root != self.target.root {
            for layer in base.manifest.disk_layers() {
                self.adopt(&store, &layer.blob.digest)?;
                layer.tree.iter().try_for_each(|tree| self.adopt(&store, &tree.digest))?;
            }
        }
        self.layers = base.manifest.disk_layers().cloned().collect();
        self.config = store.config(&base.manifest)?;
        self.parent_uuid = base.top_uuid();
        Ok(self)
    }

    /// A directory for scratch files, which goes away with the builder.
    pub(crate) fn scratch(&self) -> &std::path::Path {
        self.staging.path()
    }

    fn adopt(&self, store: &ImageStore, digest: &Digest) -> Result<()> {
        let source = store.open_blob(digest)?;
        let mut writer = self.staging.blob_writer()?;
        io::copy(&mut source.file(), &mut writer)
            .map_err(|e| Error::from(e).about(format!("blob {digest} of {}", store.root().display())))?;
        let staged = writer.finish()?;
        if staged.digest != *digest {
            return Err(Error::corrupt(format!("its content has the digest {}", staged.digest))
                .about(format!("blob {digest} of {}", store.root().display())));
        }
        Ok(())
    }

    /// Puts the layer that `write` writes on top and publishes the image.
    pub(crate) fn publish(
        mut self,
        virtual_size: u64,
        write: impl FnOnce(LayerOutput, LayerMeta) -> Result<(LayerOutput, LayerSummary)>,
    ) -> Result<NewImageReport> {
        let meta = LayerMeta {
            virtual_size: virtual_size.next_multiple_of(SECTOR_SIZE),
            parent_uuid: self.parent_uuid,
            ..LayerMeta::default()
        };
        let (layer, summary) = stage_layer(&self.staging, self.packing, |output| write(output, meta))?;
        let (digest, size) = (layer.blob.digest, layer.blob.size);
        self.layers.push(layer);
        let layers = self.layers.len();
        let image = NewImage {
            layers: self.layers,
            virtual_size,
            options: describe(self.packing),
            config: self.config,
        };
        let published = self.staging.publish(&image, self.target.tag()?)?;
        Ok(NewImageReport {
            reference: self.target.clone(),
            digest: published.digest,
            virtual_size,
            layer: digest,
            layer_size: size,
            summary,
            layers,
        })
    }
}
