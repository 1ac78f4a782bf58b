//! A container's image becomes an image of a disk, layer by layer.
//!
//! Layers are converted in their order, each on the disk of those below it, and each becomes one layer. A layer whose
//! key is known ([`KnownLayers`]) is not read at all. Blobs of known layers are opened only if a layer on them has to
//! be converted, and are read block by block then.
//!
//! Nothing is visible before the image is published, which is the last step. After an error the store is as it was.

use crate::known_layers::KnownLayers;
use crate::layer::{ConvertedLayer, LayerInput, LayerPlace, convert_layer};
use crate::options::{ConvertOptions, chain_id};
use crate::parent_disk::OpenLayers;
use headstart_block::{Digest, Error, ReadAt, Result};
use headstart_image::manifest::{Config, ContainerOrigin, ImageLayer, LayerOrigin, MAX_LAYERS, NewImage};
use headstart_image::new_layer::describe;
use headstart_image::progress::{Progress, step};
use headstart_image::reference::Reference;
use headstart_image::store::{ImageStore, Staging};
use std::io::Read;
use std::sync::Arc;

/// Opens the bytes of a layer, from the first on.
pub type LayerOpener<'a> = Box<dyn FnOnce() -> Result<Box<dyn Read + Send + 'a>> + Send + 'a>;

/// A layer of a container's image.
pub struct ContainerLayer<'a> {
    /// The digest of the layer as stored, mostly compressed.
    pub digest: Digest,
    /// The digest of its tar.
    pub diff_id: Digest,
    /// The media type that its manifest gives. The compression is found by the layer's bytes.
    pub media_type: String,
    /// Its length as stored, in bytes.
    pub size: u64,
    /// Opens its bytes. Called at most once, and not at all if the layer is known.
    pub open: LayerOpener<'a>,
}

/// A container's image.
pub struct ContainerImage<'a> {
    /// The digest of its manifest.
    pub manifest: Digest,
    /// The media type of its manifest.
    pub media_type: String,
    /// The bytes of its config.
    pub config: Vec<u8>,
    /// Its layers, lowest first.
    pub layers: Vec<ContainerLayer<'a>>,
}

/// A conversion that was asked for.
pub struct ConvertRequest<'r, 'i> {
    /// The image.
    pub image: ContainerImage<'i>,
    /// The place and the tag of the new image, in a local directory.
    pub target: &'r Reference,
    /// The options.
    pub options: &'r ConvertOptions,
    /// Layers that were converted before. Their blobs have to be in the target's store.
    pub known: &'r dyn KnownLayers,
}

/// A layer of a new image.
#[derive(Clone, Debug)]
pub struct LayerOutcome {
    /// The layer, as the new image's manifest describes it.
    pub layer: ImageLayer,
    /// The key of its conversion.
    pub key: Digest,
    /// The result of the conversion; `None` if the layer was known.
    pub converted: Option<ConvertedLayer>,
}

/// An image that is converted, and staged but not published.
#[derive(Clone, Debug)]
pub struct StagedConversion {
    /// The description from which config and manifest are made.
    pub image: NewImage,
    /// The layers, lowest first.
    pub layers: Vec<LayerOutcome>,
}

/// An image that was converted and published.
#[derive(Clone, Debug)]
pub struct ConvertReport {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The digest of the manifest that its tag named before; `None` if the tag is new or named the same manifest.
    pub was: Option<Digest>,
    /// The layers, lowest first.
    pub layers: Vec<LayerOutcome>,
}

/// Converts an image, and publishes it under its tag.
///
/// # Errors
/// As [`stage_image`]; [`headstart_block::ErrorKind::Unsupported`] if the target is not a local directory, `Invalid` if
/// it has no tag, `Conflict` if the blob of a known layer is not in the target's store; errors of writing to it.
/// Nothing is published then, unless only the last step failed, the syncing of the store's directory.
pub fn convert_image(request: ConvertRequest<'_, '_>, progress: &dyn Progress) -> Result<ConvertReport> {
    let ConvertRequest { image, target, options, known } = request;
    let tag = target.tag()?;
    let staging = ImageStore::create_or_open(target.directory()?)?.stage()?;
    let StagedConversion { image, layers } = stage_image(image, &staging, options, known, progress)?;
    let (published, was) = staging.publish_over(&image, tag)?;
    for outcome in layers.iter().filter(|outcome| outcome.converted.is_some()) {
        known.remember(&outcome.key, &outcome.layer);
    }
    Ok(ConvertReport { digest: published.digest, was, layers })
}

/// Converts an image, and stages its layers. They can be published in any way, with the blobs of known layers beside
/// them.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the config is damaged or has other diff ids than the layers;
/// `Unsupported` if the image has no layers, too many, or one that is not a file tree; as [`convert_layer`]; errors of
/// `known`.
pub fn stage_image(
    image: ContainerImage<'_>,
    staging: &Staging,
    options: &ConvertOptions,
    known: &dyn KnownLayers,
    progress: &dyn Progress,
) -> Result<StagedConversion> {
    options.check()?;
    let ContainerImage { manifest, media_type, config, layers } = image;
    let config = Config::parse(&config)?;
    check_layers(&config, &layers)?;
    progress.begin("convert", layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size)));
    let mut chain = None;
    let (mut outcomes, mut open) = (Vec::<LayerOutcome>::new(), OpenLayers::default());
    for layer in layers {
        let parent_chain = chain;
        let own = chain_id(parent_chain.as_ref(), &layer.diff_id);
        let key = options.key(&own);
        chain = Some(own);
        if let Some(found) = known.find(&key)? {
            step(progress, layer.size)?;
            // The same layer may have been compressed otherwise then.
            let layer = found.with_origin(&LayerOrigin { digest: layer.digest, chain: own, key });
            outcomes.push(LayerOutcome { layer, key, converted: None });
            continue;
        }
        while let Some(below) = outcomes.get(open.len()) {
            open_below(&mut open, &below.layer, staging, known)?;
        }
        let place = LayerPlace { chain: own, parent_chain, parent: open.disk()? };
        let ContainerLayer { digest, diff_id, size, open: opener, .. } = layer;
        let bytes = opener().map_err(|e| e.about(format!("layer {digest}")))?;
        let input = LayerInput { bytes, digest, size, diff_id };
        let converted = convert_layer(input, &place, staging, options, progress)?;
        outcomes.push(LayerOutcome { layer: converted.layer.clone(), key, converted: Some(converted) });
    }
    let image = NewImage {
        layers: outcomes.iter().map(|outcome| outcome.layer.clone()).collect(),
        virtual_size: options.size,
        options: describe(&options.packing),
        config,
        optimized_from: None,
        converted_from: Some(ContainerOrigin { manifest, media_type, converter: options.describe() }),
    };
    Ok(StagedConversion { image, layers: outcomes })
}

/// Opens a layer below the one that is to be converted.
fn open_below(
    open: &mut OpenLayers,
    layer: &ImageLayer,
    staging: &Staging,
    known: &dyn KnownLayers,
) -> Result<()> {
    let digest = layer.blob.digest;
    let blob: Arc<dyn ReadAt> = match staging.open(&digest)? {
        Some(file) => Arc::new(file),
        None => known.open(layer)?,
    };
    open.push(blob).map_err(|e| e.about(format!("converted layer {digest}")))
}

/// Checks that the layers are those of the config, and can be converted.
fn check_layers(config: &Config, layers: &[ContainerLayer<'_>]) -> Result<()> {
    if layers.is_empty() {
        return Err(Error::unsupported("is an image without layers, which has no disk"));
    }
    if layers.len() > MAX_LAYERS {
        return Err(Error::unsupported(format!("has {} layers, more than {MAX_LAYERS}", layers.len()))
            .remedy("flatten it where it was made"));
    }
    let ids = config.diff_ids();
    if ids.len() != layers.len() {
        return Err(Error::corrupt(format!(
            "has {} layers, but its config has {} diff ids",
            layers.len(),
            ids.len()
        )));
    }
    for (layer, id) in layers.iter().zip(&ids) {
        let named = |error: Error| error.about(format!("layer {}", layer.digest));
        if layer.diff_id != *id {
            let cause = format!("should have the diff id {}, but the config has {id}", layer.diff_id);
            return Err(named(Error::corrupt(cause)));
        }
        check_media_type(&layer.media_type).map_err(named)?;
    }
    Ok(())
}

/// Refuses layers that are not file trees, by their media types.
fn check_media_type(media_type: &str) -> Result<()> {
    const TREES: [&str; 4] = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
    ];
    let compression = TREES.iter().find_map(|tree| media_type.strip_prefix(tree));
    match compression {
        Some("" | "+gzip" | "+zstd" | ".gzip" | ".zstd") => Ok(()),
        Some(other) if other.contains("encrypted") => {
            Err(Error::unsupported("is encrypted").remedy("decrypt the image first"))
        }
        _ => Err(Error::unsupported(format!(
            "is `{}`, and not a container's layer that is known",
            media_type.escape_debug()
        ))),
    }
}

#[cfg(test)]
mod tests;
