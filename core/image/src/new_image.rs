//! Putting a new layer on top of the layers of an image, or on none, and publishing the result.

use crate::blob::open_layer_source;
pub use crate::disk_size::check_size;
use crate::image_site::{ImageSite, MadeImage};
use crate::manifest::{Config, ImageLayer, MAX_LAYERS, NewImage};
use crate::new_layer::{LayerOutput, Packing, describe, stage_layer};
use crate::open_image::OpenImage;
use crate::progress::{Progress, step};
use crate::reference::{Location, Reference};
use crate::served_disk::CommitMoment;
use crate::store::{ImageStore, Staging};
use crate::store_access::StoreAccess;
use crate::transfer::{PublishedAs, TransferReport};
use headstart_block::file_system::SUPERBLOCK_AT;
use headstart_block::{
    BlockDevice, ByteRange, Digest, Error, FileSystemKind, Result, SECTOR_SIZE, copy_source,
};
use headstart_lsmt::{Layer, LayerMeta, LayerSummary, LayerWriter, Stack};
use std::sync::Arc;

/// Describes a new image that was published.
#[derive(Clone, Debug)]
pub struct NewImageReport {
    /// The store and the tag under which the image was published.
    pub reference: Reference,
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The size of the disk in bytes.
    pub virtual_size: u64,
    /// The size in bytes of the disk of the image below the new layer. `None` if there is none.
    pub base_size: Option<u64>,
    /// The digest of the new layer's blob.
    pub layer: Digest,
    /// The length of the new layer's blob in bytes.
    pub layer_size: u64,
    /// The counts of segments and bytes in the new layer.
    pub summary: LayerSummary,
    /// The number of layers of the image, including the new one.
    pub layers: usize,
    /// The digest of the manifest that the tag named before. `None` if the tag is new or named the same
    /// manifest.
    pub was: Option<Digest>,
    /// The copy of the image into a store other than a directory; `None` if it was made in its place.
    pub transfer: Option<TransferReport>,
    /// `true` if the disk that was committed goes on with this image as its base.
    pub stacked: bool,
    /// The moment at which the changes of a disk that is attached were set aside; `None` if none is.
    pub moment: Option<CommitMoment>,
}

/// An image in the making. Nothing of it is visible before [`Builder::publish`].
pub(crate) struct Builder<'a> {
    target: &'a Reference,
    packing: &'a Packing,
    site: ImageSite,
    /// The store that has the blobs that are not at the site; the target's, if there is no base.
    rest: Location,
    layers: Vec<ImageLayer>,
    config: Config,
    parent_uuid: uuid::Uuid,
    base_size: Option<u64>,
    /// `true` if the disk of the base has an EROFS, as its manifest states it.
    on_erofs: bool,
}

impl<'a> Builder<'a> {
    /// The id of the layer below the new one, which the new one names.
    pub(crate) fn parent_uuid(&self) -> uuid::Uuid {
        self.parent_uuid
    }

    /// The image that it will be.
    pub(crate) fn target(&self) -> &'a Reference {
        self.target
    }

    /// The form in which its layers are stored.
    pub(crate) fn packing(&self) -> &'a Packing {
        self.packing
    }

    /// Starts an image without layers that will be `target`, which is in a directory.
    pub(crate) fn new(target: &'a Reference, packing: &'a Packing) -> Result<Self> {
        target.directory()?;
        Self::anywhere(target, packing)
    }

    /// Starts an image without layers that will be `target`, in a store of any kind.
    pub(crate) fn anywhere(target: &'a Reference, packing: &'a Packing) -> Result<Self> {
        target.tag()?;
        Ok(Self {
            target,
            packing,
            site: ImageSite::new(&target.location)?,
            rest: target.location.clone(),
            layers: Vec::new(),
            config: Config::default(),
            parent_uuid: uuid::Uuid::nil(),
            base_size: None,
            on_erofs: false,
        })
    }

    /// Puts it on top of `base`, if there is one, which is in a directory; the blobs are copied if the target is
    /// another directory.
    pub(crate) fn on(self, base: Option<&OpenImage>, progress: &dyn Progress) -> Result<Self> {
        let Some(base) = base else { return Ok(self) };
        let store = ImageStore::open(base.reference.directory()?)?;
        let config = store.config(&base.manifest)?;
        let new = self.on_layers(base, config)?;
        if new.site.directory().is_some() && base.reference.location != new.target.location {
            progress.begin("copy base", base.manifest.stored_size());
            for layer in base.manifest.disk_layers() {
                let tree = layer.tree.iter().map(|tree| tree.digest);
                let target = layer.turbo_target()?;
                for digest in std::iter::once(layer.blob.digest).chain(tree).chain(target) {
                    new.adopt(&store, &digest, progress)?;
                }
            }
        }
        Ok(new)
    }

    /// Puts it on the layers of `base`, whose config is `config`. The blobs stay in the store of `base`; they are
    /// copied from there when the image is published in another one.
    pub(crate) fn on_layers(mut self, base: &OpenImage, config: Config) -> Result<Self> {
        if base.layers.len() >= MAX_LAYERS {
            return Err(Error::invalid(format!(
                "it has {MAX_LAYERS} layers, the most that an image can have"
            ))
            .about(&base.reference)
            .remedy("flatten it first"));
        }
        self.layers = base.manifest.disk_layers().cloned().collect();
        self.config = config;
        self.rest = base.reference.location.clone();
        self.parent_uuid = base.top_uuid();
        self.base_size = Some(base.disk().size());
        self.on_erofs = base.manifest.is_only_read();
        Ok(self)
    }

    /// Makes a disk of `size` bytes on top of `base` read as zeros past the end of the base: the base's layers may hold
    /// more data than it shows, which would come back.
    pub(crate) fn hide_past_end(&mut self, base: &Stack, size: u64) -> Result<()> {
        let first = base.size().div_ceil(SECTOR_SIZE);
        if size <= base.size() || base.end() <= first * SECTOR_SIZE {
            return Ok(());
        }
        let meta = LayerMeta { virtual_size: first * SECTOR_SIZE, ..LayerMeta::default() };
        let (layer, _) = stage_layer(self.site.staging(), self.packing, |output| {
            let mut writer = LayerWriter::new(output, meta)?;
            for segment in
                base.index().lookup(first, base.end() / SECTOR_SIZE).filter(|segment| !segment.is_zeroed())
            {
                writer.zeroes(ByteRange::between(
                    segment.offset() * SECTOR_SIZE,
                    segment.end() * SECTOR_SIZE,
                ))?;
            }
            writer.finish()
        })?;
        self.layers.push(layer);
        Ok(())
    }

    /// `true` if the disk with the staged layer `top` has an EROFS: the base's, or one that was written over it.
    fn has_erofs(&self, top: &ImageLayer) -> Result<bool> {
        let Some(blob) = self.site.staging().open(&top.blob.digest)? else { return Ok(self.on_erofs) };
        let top = Stack::new(vec![Layer::open(open_layer_source(Arc::new(blob))?.source)?])?;
        erofs_with(&top, self.on_erofs)
    }

    /// A directory for scratch files, which is removed with the builder.
    pub(crate) fn scratch(&self) -> &std::path::Path {
        self.site.staging().path()
    }

    /// Copies a blob from another store.
    fn adopt(&self, store: &ImageStore, digest: &Digest, progress: &dyn Progress) -> Result<()> {
        let named = |e: Error| e.about(format!("blob {digest} of {}", store.root().display()));
        let source = store.open_blob(digest)?;
        let mut writer = self.site.staging().blob_writer()?;
        copy_source(&source, &mut writer, &mut |bytes| step(progress, bytes))?;
        let staged = writer.finish()?;
        if staged.digest != *digest {
            return Err(named(Error::corrupt(format!("its content has the digest {}", staged.digest))));
        }
        Ok(())
    }

    /// Puts the layer that `write` writes on top and publishes the image: in a directory, or, with `pushing`, in a
    /// store of any kind.
    pub(crate) fn publish(
        self,
        pushing: Option<(StoreAccess<'_>, &dyn Progress)>,
        virtual_size: u64,
        write: impl FnOnce(LayerOutput, LayerMeta) -> Result<(LayerOutput, LayerSummary)>,
    ) -> Result<NewImageReport> {
        self.publish_staged(pushing, virtual_size, |staging, packing, meta| {
            stage_layer(staging, packing, |output| write(output, meta))
        })
    }

    /// Puts the layer that `stage` stages on top and publishes the image as [`Builder::publish`] does.
    pub(crate) fn publish_staged(
        mut self,
        pushing: Option<(StoreAccess<'_>, &dyn Progress)>,
        virtual_size: u64,
        stage: impl FnOnce(&Staging, &Packing, LayerMeta) -> Result<(ImageLayer, LayerSummary)>,
    ) -> Result<NewImageReport> {
        check_size(virtual_size)?;
        let meta = LayerMeta {
            virtual_size: virtual_size.next_multiple_of(SECTOR_SIZE),
            parent_uuid: self.parent_uuid,
            ..LayerMeta::default()
        };
        let (mut layer, summary) = stage(self.site.staging(), self.packing, meta)?;
        if self.has_erofs(&layer)? {
            layer = layer.with_file_system(FileSystemKind::Erofs);
        }
        let (digest, size) = (layer.blob.digest, layer.blob.size);
        self.layers.push(layer);
        let layers = self.layers.len();
        let image = NewImage {
            layers: self.layers,
            virtual_size,
            options: describe(self.packing),
            config: self.config,
            optimized_from: None,
            converted_from: None,
            belongs_to: None,
        };
        let tag = self.target.tag()?;
        let published = match pushing {
            None => self.site.publish_here(&image, tag)?,
            Some((stores, progress)) => {
                let target = || stores.target(&self.target.location);
                let rest = || headstart_store::open(&self.rest, stores.settings);
                let made = MadeImage::new(&image, PublishedAs::Tag(tag));
                self.site.publish(made, target, rest, stores, progress)?
            }
        };
        Ok(NewImageReport {
            reference: self.target.clone(),
            digest: published.image.digest,
            virtual_size,
            base_size: self.base_size,
            layer: digest,
            layer_size: size,
            summary,
            layers,
            was: published.was,
            transfer: published.transfer,
            stacked: false,
            moment: None,
        })
    }
}

/// `true` if a disk has an EROFS with the layer `top`, which says nothing if the layer leaves the superblock as it is
/// below: `below` says that then.
fn erofs_with(top: &Stack, below: bool) -> Result<bool> {
    let sector = SUPERBLOCK_AT / SECTOR_SIZE;
    if top.index().lookup(sector, sector + 1).next().is_none() {
        return Ok(below);
    }
    let mut superblock = [0; 4];
    top.read_at(&mut superblock, SUPERBLOCK_AT)?;
    Ok(FileSystemKind::of_superblock(&superblock) == FileSystemKind::Erofs)
}
