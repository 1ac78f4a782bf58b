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
use headstart_container_source::{ContainerImage, ContainerLayer};
use headstart_image::manifest::{Config, ContainerOrigin, ImageLayer, LayerOrigin, MAX_LAYERS, NewImage};
use headstart_image::new_layer::describe;
use headstart_image::progress::{Progress, step};
use headstart_image::reference::Reference;
use headstart_image::store::{ImageStore, Staging};
use std::sync::Arc;

/// A conversion that was asked for.
#[derive(Clone, Copy)]
pub struct ConvertRequest<'r> {
    /// The image, from any source.
    pub image: &'r ContainerImage,
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
pub fn convert_image(request: ConvertRequest<'_>, progress: &dyn Progress) -> Result<ConvertReport> {
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
/// [`headstart_block::ErrorKind::Corrupt`] if the config is damaged; `Unsupported` if the image has no layers or too
/// many; as [`convert_layer`]; errors of the image's source and of `known`.
pub fn stage_image(
    image: &ContainerImage,
    staging: &Staging,
    options: &ConvertOptions,
    known: &dyn KnownLayers,
    progress: &dyn Progress,
) -> Result<StagedConversion> {
    options.check()?;
    let config = Config::parse(&image.config)
        .map_err(|e| e.about(format!("config {} of {}", image.config_digest, image.name)))?;
    check_count(image.layers.len()).map_err(|e| e.about(&image.name))?;
    progress.begin("convert", image.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size)));
    let mut chain = None;
    let (mut outcomes, mut open) = (Vec::<LayerOutcome>::new(), OpenLayers::default());
    for layer in &image.layers {
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
        let converted = convert_layer(input_of(layer)?, &place, staging, options, progress)?;
        outcomes.push(LayerOutcome { layer: converted.layer.clone(), key, converted: Some(converted) });
    }
    let origin = ContainerOrigin {
        manifest: image.manifest_digest,
        media_type: image.manifest_media_type.clone(),
        converter: options.describe(),
    };
    let image = NewImage {
        layers: outcomes.iter().map(|outcome| outcome.layer.clone()).collect(),
        virtual_size: options.size,
        options: describe(&options.packing),
        config,
        optimized_from: None,
        converted_from: Some(origin),
        belongs_to: None,
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

/// The bytes of a layer, which are checked as they are converted.
fn input_of(layer: &ContainerLayer) -> Result<LayerInput<'static>> {
    Ok(LayerInput {
        name: layer.name().to_owned(),
        bytes: layer.open_unchecked()?,
        digest: layer.digest,
        size: layer.size,
        diff_id: layer.diff_id,
    })
}

/// Refuses images that have no disk, or more layers than a disk.
fn check_count(layers: usize) -> Result<()> {
    match layers {
        0 => Err(Error::unsupported("is an image without layers, which has no disk")),
        1..=MAX_LAYERS => Ok(()),
        _ => Err(Error::unsupported(format!("has {layers} layers, more than {MAX_LAYERS}"))
            .remedy("flatten it where it was made")),
    }
}

#[cfg(test)]
mod tests;
