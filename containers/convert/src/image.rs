//! A container's image becomes an image of a disk, layer by layer.
//!
//! Layers are converted in their order, each on the disk of those below it, and each becomes one layer. A layer whose
//! key is known ([`KnownLayers`]) is not read. Blobs of known layers are opened only if a layer on them has to be
//! converted, and are read block by block then.
//!
//! A config can claim any content for its layers. So a known layer is taken only if it was made of the very blob that
//! the manifest names, and if the source has that blob: to know a digest is not enough to get files out of a store.
//!
//! TurboOCI layers need the container's layers that they were made of in the store of the new image. Those that it
//! lacks are staged beside them: while they are converted, or for themselves if their conversion is known.
//!
//! Nothing is visible before the image is published ([`crate::request`]). After an error the store is as it was.

use crate::extent_count::check_extents;
use crate::kept_targets::KeptTargets;
use crate::known_layers::KnownLayers;
use crate::layer::{ConvertedLayer, convert_layer};
use crate::options::{ConvertMode, ConvertOptions, chain_id};
use crate::parent_disk::OpenLayers;
use crate::tar_conversion::LayerPlace;
use headstart_block::{Digest, Error, ErrorKind, ReadAt, Result};
use headstart_container_source::{ContainerImage, ContainerLayer};
use headstart_image::manifest::{Config, ContainerOrigin, ImageLayer, MAX_LAYERS, NewImage};
use headstart_image::new_layer::describe;
use headstart_image::progress::{Progress, step};
use headstart_image::store::Staging;
use std::sync::Arc;
use std::thread;

/// Known layers that the source is asked for at once.
const CHECKS: usize = 8;

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

/// Converts an image, and stages its layers. They can be published in any way, with the blobs of known layers beside
/// them.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the config is damaged; `Unsupported` if the image has no layers or too
/// many; `NotFound` if the source lacks a known layer; as [`convert_layer`]; errors of the image's source and of
/// `known`.
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
    check_count(image.layers.len(), options.mode).map_err(|e| e.about(&image.name))?;
    progress.begin("convert", image.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size)));
    let chains = chains(&image.layers);
    let key = |(chain, layer): (&Digest, &ContainerLayer)| options.key(chain, &layer.digest);
    let keys: Vec<Digest> = chains.iter().zip(&image.layers).map(key).collect();
    let found = known.find(&keys)?.into_iter().zip(&image.layers);
    let found: Vec<_> = found.map(|(found, layer)| found.filter(|found| is_made_of(found, layer))).collect();
    let taken = image.layers.iter().zip(&found).filter(|(_, found)| found.is_some());
    let taken: Vec<&ContainerLayer> = taken.map(|(layer, _)| layer).collect();
    let wanted = image.layers.iter().zip(chains).zip(keys).zip(found);
    let wanted = wanted.map(|(((layer, chain), key), known)| WantedLayer { layer, chain, key, known });
    let wanted: Vec<_> = wanted.collect();
    let outcomes = thread::scope(|scope| {
        let checks = scope.spawn(|| check_presence(&taken));
        let outcomes = stage_layers(image, wanted, staging, options, known, progress)?;
        checks.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "a check of a layer failed")))?;
        Ok::<_, Error>(outcomes)
    })?;
    let origin = ContainerOrigin {
        manifest: image.manifest_digest,
        media_type: image.manifest_media_type.clone(),
        converter: options.describe(),
    };
    let image = NewImage {
        layers: outcomes.iter().map(|outcome| outcome.layer.clone()).collect(),
        virtual_size: options.size,
        options: describe(&options.packing),
        // The disk of a layer by itself is the same in all images that have the layer.
        config: if options.alone { Config::default() } else { config },
        optimized_from: None,
        converted_from: (!options.alone).then_some(origin),
        belongs_to: None,
    };
    Ok(StagedConversion { image, layers: outcomes })
}

/// A layer that is to be staged: known, or to be converted.
struct WantedLayer<'a> {
    layer: &'a ContainerLayer,
    chain: Digest,
    key: Digest,
    known: Option<ImageLayer>,
}

/// Stages the layers of an image.
fn stage_layers(
    image: &ContainerImage,
    wanted: Vec<WantedLayer<'_>>,
    staging: &Staging,
    options: &ConvertOptions,
    known: &dyn KnownLayers,
    progress: &dyn Progress,
) -> Result<Vec<LayerOutcome>> {
    let mut targets = KeptTargets::new(image, staging, options, known, progress)?;
    let mut parent_chain = None;
    let (mut outcomes, mut open) = (Vec::<LayerOutcome>::new(), OpenLayers::default());
    for WantedLayer { layer, chain: own, key, known: found } in wanted {
        let parent_chain = parent_chain.replace(own);
        if let Some(found) = found {
            if found.is_turbo() {
                targets.stage(layer)?;
            }
            step(progress, layer.size)?;
            outcomes.push(LayerOutcome { layer: found, key, converted: None });
            continue;
        }
        while let Some(below) = outcomes.get(open.len()) {
            let source = &image.layers[open.len()];
            open_below(&mut open, &below.layer, source.size, staging, known)?;
            check_extents(open.extents(), options.limits.extents).map_err(|e| e.about(&image.name))?;
        }
        let place = LayerPlace { chain: own, parent_chain, parent: open.disk()? };
        let (input, copy) = targets.input_of(layer)?;
        let converted = convert_layer(input, &place, staging, options, progress)?;
        if converted.layer.is_turbo() {
            targets.finish(layer, copy)?;
        }
        outcomes.push(LayerOutcome { layer: converted.layer.clone(), key, converted: Some(converted) });
    }
    Ok(outcomes)
}

/// `true` if a known layer was made of the blob that the image has.
fn is_made_of(known: &ImageLayer, layer: &ContainerLayer) -> bool {
    known.origin().is_some_and(|origin| origin.digest == layer.digest)
}

/// Fails if the source lacks one of the layers.
fn check_presence(layers: &[&ContainerLayer]) -> Result<()> {
    let part = layers.len().div_ceil(CHECKS).max(1);
    thread::scope(|scope| {
        let check = |layers: &[&ContainerLayer]| layers.iter().try_for_each(|layer| layer.check_presence());
        let checks: Vec<_> = layers.chunks(part).map(|layers| scope.spawn(move || check(layers))).collect();
        let failed = |_| Err(Error::new(ErrorKind::Io, "a check of a layer failed"));
        checks.into_iter().try_for_each(|check| check.join().unwrap_or_else(failed))
    })
}

/// The chain ids of layers.
fn chains(layers: &[ContainerLayer]) -> Vec<Digest> {
    let mut below = None;
    let chain = |layer: &ContainerLayer| *below.insert(chain_id(below.as_ref(), &layer.diff_id));
    layers.iter().map(chain).collect()
}

/// Opens a layer below the one that is to be converted.
fn open_below(
    open: &mut OpenLayers,
    layer: &ImageLayer,
    source_size: u64,
    staging: &Staging,
    known: &dyn KnownLayers,
) -> Result<()> {
    let digest = layer.blob.digest;
    let blob: Arc<dyn ReadAt> = match staging.open(&digest)? {
        Some(file) => Arc::new(file),
        None => known.open(layer)?,
    };
    open.push(layer, blob, source_size).map_err(|e| e.about(format!("converted layer {digest}")))
}

/// Refuses images that have no disk, or more layers than a disk. A TurboOCI layer counts twice: it is read from two
/// blobs.
fn check_count(layers: usize, mode: ConvertMode) -> Result<()> {
    let most = match mode {
        ConvertMode::Native => MAX_LAYERS,
        ConvertMode::Turbo => MAX_LAYERS / 2,
    };
    match layers {
        0 => Err(Error::unsupported("is an image without layers, which has no disk")),
        _ if layers <= most => Ok(()),
        _ => Err(Error::unsupported(format!("has {layers} layers, more than {most}"))
            .remedy("flatten it where it was made")),
    }
}

#[cfg(test)]
mod tests;
