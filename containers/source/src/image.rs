//! An image as other crates use it: its documents, and its layers as streams.

use crate::blob_place::{BlobPlace, small_blob};
use crate::choose::{FoundManifest, Wanted};
use crate::config::ConfigFacts;
use crate::document::BlobDescriptor;
use crate::layer_type::{LayerCompression, LayerType};
use crate::platform::ImagePlatform;
use crate::verified::{VerifiedReader, named};
use headstart_block::{Digest, Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::sync::Arc;

/// A container image: its manifest and its config, both checked, and its layers, which are opened one by one.
#[derive(Clone, Debug)]
pub struct ContainerImage {
    /// The name by which the image was found, for messages.
    pub name: String,
    /// The digest of the manifest: of the image for the chosen platform, not of an index.
    pub manifest_digest: Digest,
    /// The media type of the manifest.
    pub manifest_media_type: String,
    /// The manifest, byte for byte.
    pub manifest: Vec<u8>,
    /// The annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    /// The platform that the config states. `None` if it states none.
    pub platform: Option<ImagePlatform>,
    /// The digest of the config.
    pub config_digest: Digest,
    /// The media type of the config.
    pub config_media_type: String,
    /// The config, byte for byte.
    pub config: Vec<u8>,
    /// The layers, lowest first; empty for an image without files.
    pub layers: Vec<ContainerLayer>,
}

/// A layer of a container image.
#[derive(Clone)]
pub struct ContainerLayer {
    /// The digest of the layer as it is stored.
    pub digest: Digest,
    /// The digest of the layer's content, a tar archive, as the config states it.
    pub diff_id: Digest,
    /// The length of the layer in bytes, as it is stored.
    pub size: u64,
    /// The media type of the layer.
    pub media_type: String,
    /// The compression that the media type claims. The first bytes decide: see [`LayerCompression::of_bytes`].
    pub compression: LayerCompression,
    /// `true` if registries need not have the layer (Docker's *foreign* layers, OCI's *nondistributable* ones).
    pub is_foreign: bool,
    /// The annotations of the layer in the manifest.
    pub annotations: BTreeMap<String, String>,
    /// The name of the layer and of its image, for messages.
    name: String,
    place: Arc<dyn BlobPlace>,
}

impl ContainerLayer {
    /// The name of the layer for messages, with its place in the image and the name of the image.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the layer as it is stored: `size` bytes. Reads block, and fail if the bytes do not match the digest; the
    /// last ones are given only if all do. A store starts to send now and takes care of retries: a layer is best
    /// opened when it is about to be read, because open layers that are not read hold up others.
    ///
    /// # Errors
    /// Errors of the archive. Those of a store come when the layer is read; all name the layer.
    pub fn open(&self) -> Result<Box<dyn Read + Send>> {
        let stream = self.open_unchecked()?;
        Ok(Box::new(VerifiedReader::new(stream, self.digest, self.size, self.name.clone())))
    }

    /// Fails if the place of the image does not have the layer, without reading more than its start. Manifests may name
    /// layers of others: a repository that has a layer gives it to its readers anyway.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not there; errors of the store or the archive, with the layer's name.
    pub fn check_presence(&self) -> Result<()> {
        self.place.check_presence(&self.digest, self.size).map_err(|e| named(e, &self.name))
    }

    /// Works as [`open`](Self::open), but gives the bytes without checking them: for a reader that finds their digest
    /// itself, and compares it.
    ///
    /// # Errors
    /// As [`open`](Self::open), except that errors of reading need not name the layer.
    pub fn open_unchecked(&self) -> Result<Box<dyn Read + Send>> {
        let stream = self.place.stream(&self.digest, self.size).map_err(|e| named(e, &self.name))?;
        if self.is_foreign { Ok(Box::new(ForeignReader(stream))) } else { Ok(stream) }
    }
}

impl fmt::Debug for ContainerLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerLayer")
            .field("name", &self.name)
            .field("diff_id", &self.diff_id)
            .field("size", &self.size)
            .field("media_type", &self.media_type)
            .finish_non_exhaustive()
    }
}

/// A reader of a foreign layer, whose absence has a reason.
struct ForeignReader<R>(R);

impl<R: Read> Read for ForeignReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buf).map_err(|error| {
            let error = Error::from(error);
            let is_missing = error.kind() == ErrorKind::NotFound;
            let remedy =
                "its makers do not let it be stored with the image, and other hosts are not asked for it";
            if is_missing { error.remedy(remedy).into() } else { error.into() }
        })
    }
}

/// Reads the config of an image, and puts the image together; `name` is for messages.
pub(crate) fn assemble(
    place: &Arc<dyn BlobPlace>,
    name: &str,
    found: FoundManifest,
    wanted: &Wanted,
) -> Result<ContainerImage> {
    let FoundManifest { digest, bytes, manifest } = found;
    let thing = format!("config {} of {name}", manifest.config.digest);
    let config = small_blob(&**place, &manifest.config.digest, manifest.config.size, thing.clone())?;
    let facts = ConfigFacts::parse(&config, manifest.layers.len()).map_err(|e| e.about(thing))?;
    let platform = facts.platform;
    if let Some(other) = platform.as_ref().filter(|of| wanted.is_binding && !of.runs_on(&wanted.platform)) {
        let cause = format!("is for {other}, not for {}", wanted.platform);
        return Err(Error::new(ErrorKind::NotFound, cause));
    }
    let count = manifest.layers.len();
    let layers = manifest.layers.into_iter().zip(facts.diff_ids).enumerate();
    let layers = layers.map(|(n, (layer, diff_id))| {
        let name = format!("layer {} of {count} ({}) of {name}", n + 1, layer.digest);
        layer_of(layer, diff_id, name, Arc::clone(place))
    });
    Ok(ContainerImage {
        name: name.to_owned(),
        manifest_digest: digest,
        manifest_media_type: manifest.media_type,
        manifest: bytes,
        annotations: manifest.annotations,
        platform,
        config_digest: manifest.config.digest,
        config_media_type: manifest.config.media_type,
        config,
        layers: layers.collect::<Result<_>>()?,
    })
}

fn layer_of(
    layer: BlobDescriptor,
    diff_id: Digest,
    name: String,
    place: Arc<dyn BlobPlace>,
) -> Result<ContainerLayer> {
    let LayerType { compression, is_foreign } = LayerType::parse(&layer.media_type)?;
    let BlobDescriptor { media_type, digest, size, annotations } = layer;
    Ok(ContainerLayer {
        digest,
        diff_id,
        size,
        media_type,
        compression,
        is_foreign,
        annotations,
        name,
        place,
    })
}
