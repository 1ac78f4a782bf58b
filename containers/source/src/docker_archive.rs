//! Archives of `docker save`, and of other tools that write its format.
//!
//! ```text
//! manifest.json     [{"Config": "FILE", "RepoTags": ["app:1"], "Layers": ["FILE", ...]}, ...]
//! the old form      HEX.json, HEX/layer.tar, HEX.tar; layers of several images are links to one file
//! since 25          blobs/sha256/HEX; index.json and oci-layout beside manifest.json make it an OCI layout, too
//! ```
//!
//! `HEX` of a config is its digest, and is checked. Docker stores layers uncompressed; then a layer's digest is its
//! diff id. Others (`crane`, `ko`, Bazel) store them compressed: such a layer is read once to find its digest.
//!
//! If the archive is an OCI layout with a manifest of the same config and layers, that manifest is the image's: it is
//! the one that a registry has, too. Otherwise one is made, of Docker's schema version 2.

use crate::archive::{ArchiveFile, RangeReader};
use crate::blob_place::{BlobPlace, missing};
use crate::choose::{FoundManifest, is_image};
use crate::config::ConfigFacts;
use crate::docker_name::is_same_name;
use crate::document::{ContainerManifest, ImageDocument, MAX_LAYERS};
use crate::layer_type::{LayerCompression, docker_layer};
use crate::name::ArchiveChoice;
use crate::oci_archive::{OciArchive, listed, no_name, no_number, several};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_store::MAX_MANIFEST_SIZE;
use headstart_store::layout::{LayoutIndex, MAX_DEPTH};
use headstart_store::media_type::{CONFIG_DOCKER, MANIFEST_DOCKER};
use oci_spec::image::{Descriptor, ImageManifestBuilder, MediaType};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::str::FromStr;
use std::sync::Arc;

/// The list of images.
const LIST: &str = "manifest.json";

/// The folder of blobs by digest.
const BLOBS: &str = "blobs/sha256/";

/// The most documents of the OCI layout that are looked at for the manifest of an image.
const MAX_DOCUMENTS: usize = 64;

/// Bytes that are read at once to find a digest.
const PART: usize = 256 << 10;

/// An image of the list.
#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "RepoTags")]
    names: Option<Vec<String>>,
    #[serde(rename = "Layers")]
    layers: Option<Vec<String>>,
}

/// An image whose blobs are members of an archive by any name.
struct DockerArchive {
    archive: Arc<OciArchive>,
    blobs: BTreeMap<Digest, ByteRange>,
}

impl BlobPlace for DockerArchive {
    fn document(&self, digest: &Digest) -> Result<Vec<u8>> {
        Err(missing(digest))
    }

    fn stream(&self, digest: &Digest, size: u64) -> Result<Box<dyn Read + Send>> {
        let content = self.blobs.get(digest).filter(|content| content.len() == size);
        let content = content.ok_or_else(|| missing(digest))?;
        Ok(Box::new(self.archive.archive().reader(*content)))
    }
}

/// Finds an image in an archive, with the place of its blobs.
///
/// # Errors
/// Corrupt if the archive is damaged; NotFound if it has no such image or lacks a part of it; Invalid if it has several
/// images, and none was named.
pub(crate) fn find(
    archive: Arc<OciArchive>,
    choice: &ArchiveChoice,
) -> Result<(FoundManifest, Arc<dyn BlobPlace>)> {
    let list = archive.archive().small_file(LIST, MAX_MANIFEST_SIZE).map_err(|e| match e.kind() {
        ErrorKind::NotFound if archive.is_layout() => e.remedy("name it as oci-archive:PATH"),
        ErrorKind::NotFound => {
            e.remedy("save it by Docker 1.10 or later; an OCI layout is named oci-archive:PATH")
        }
        _ => e,
    })?;
    let list: Vec<Listed> = serde_json::from_slice(&list)
        .map_err(|e| Error::corrupt("its manifest.json is not a list of images").caused_by(e))?;
    let image = chosen(&list, choice)?;
    let layers = image.layers.as_deref().unwrap_or_default();
    if layers.len() > MAX_LAYERS {
        let cause = format!("has {} layers, more than {}", layers.len(), MAX_LAYERS);
        return Err(Error::unsupported(cause));
    }
    if archive.is_layout()
        && let Some(found) = stored_manifest(&archive, image)?
    {
        let place: Arc<dyn BlobPlace> = archive;
        return Ok((found, place));
    }
    make_manifest(archive, &image.config, layers)
}

/// The image of the list that is selected.
fn chosen<'l>(list: &'l [Listed], choice: &ArchiveChoice) -> Result<&'l Listed> {
    let names = || listed(list.iter().flat_map(|image| image.names.iter().flatten()).cloned());
    match (choice, list) {
        (ArchiveChoice::Only, [only]) => Ok(only),
        (ArchiveChoice::Only, []) => Err(Error::new(ErrorKind::NotFound, "has no image")),
        (ArchiveChoice::Only, _) => Err(several(list.len(), &names())),
        (ArchiveChoice::Number(number), _) => list.get(*number).ok_or_else(|| no_number(*number, list.len())),
        (ArchiveChoice::Name(name), _) => {
            let is_named = |image: &&Listed| image.names.iter().flatten().any(|own| is_same_name(own, name));
            list.iter().find(is_named).ok_or_else(|| no_name(name, &names()))
        }
    }
}

/// The digest in the name of a file: `blobs/sha256/HEX`, or `HEX.json` of a config.
fn named_digest(name: &str) -> Option<Digest> {
    let hex = name.strip_prefix(BLOBS).or_else(|| name.strip_suffix(".json"))?;
    Digest::from_hex(hex.rsplit('/').next()?)
}

/// The manifest in the archive, if it is an OCI layout, that has the same config and layers as an image of the list.
fn stored_manifest(archive: &OciArchive, image: &Listed) -> Result<Option<FoundManifest>> {
    let in_blobs = |name: &String| name.starts_with(BLOBS).then(|| named_digest(name)).flatten();
    let layers: Option<Vec<_>> = image.layers.iter().flatten().map(in_blobs).collect();
    let (Some(config), Some(layers)) = (in_blobs(&image.config), layers) else { return Ok(None) };
    let is_same = |manifest: &ContainerManifest| {
        manifest.config.digest == config
            && manifest.layers.iter().map(|layer| layer.digest).eq(layers.iter().copied())
    };
    let entries = |index: &LayoutIndex, depth: usize| {
        let images = index.entries().filter(is_image).filter_map(|entry| entry.digest);
        images.map(|digest| (digest, depth)).collect::<Vec<_>>()
    };
    let mut open = entries(&archive.index()?, 0);
    for _ in 0..MAX_DOCUMENTS {
        let Some((digest, depth)) = open.pop() else { break };
        let bytes = match archive.document(&digest) {
            // An archive of one platform has the index of all.
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            bytes => bytes?,
        };
        match ImageDocument::parse(&bytes) {
            Ok(ImageDocument::Manifest(manifest)) if is_same(&manifest) => {
                return Ok(Some(FoundManifest { digest, bytes, manifest }));
            }
            Ok(ImageDocument::Index(index)) if depth < MAX_DEPTH => open.extend(entries(&index, depth + 1)),
            // Artifacts of any kind.
            _ => {}
        }
    }
    Ok(None)
}

/// Makes a manifest of the config and the layers, which are names of members.
fn make_manifest(
    archive: Arc<OciArchive>,
    config: &str,
    layers: &[String],
) -> Result<(FoundManifest, Arc<dyn BlobPlace>)> {
    let (file, mut blobs) = (archive.archive(), BTreeMap::new());
    let bytes = file.small_file(config, MAX_MANIFEST_SIZE)?;
    let config_digest = Digest::of(&bytes);
    if named_digest(config).is_some_and(|named| named != config_digest) {
        let name = config.escape_debug();
        return Err(Error::corrupt(format!("its config `{name}` does not match the digest in its name")));
    }
    let facts = ConfigFacts::parse(&bytes, layers.len()).map_err(|e| e.about("its config"))?;
    blobs.insert(config_digest, file.file(config)?);
    let mut known: BTreeMap<u64, (LayerCompression, Digest)> = BTreeMap::new();
    let mut descriptors = Vec::new();
    for (name, diff_id) in layers.iter().zip(facts.diff_ids) {
        let content = file.file(name)?;
        let (compression, digest) = match known.get(&content.offset()) {
            Some(seen) => *seen,
            None => layer_facts(file, content, diff_id)?,
        };
        if compression != LayerCompression::None {
            known.insert(content.offset(), (compression, digest));
        }
        blobs.insert(digest, content);
        descriptors.push(descriptor(&docker_layer(compression), &digest, content.len())?);
    }
    let manifest = ImageManifestBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::from(MANIFEST_DOCKER))
        .config(descriptor(CONFIG_DOCKER, &config_digest, bytes.len() as u64)?)
        .layers(descriptors)
        .build()
        .map_err(cannot_make)?;
    // The fields come in the order of the structure, and there are no maps.
    let bytes = serde_json::to_vec(&manifest).map_err(cannot_make)?;
    let ImageDocument::Manifest(manifest) = ImageDocument::parse(&bytes)? else {
        return Err(Error::corrupt("is no image"));
    };
    let found = FoundManifest { digest: Digest::of(&bytes), bytes, manifest };
    let place: Arc<dyn BlobPlace> = Arc::new(DockerArchive { archive, blobs });
    Ok((found, place))
}

/// The compression of a layer by its first bytes, and its digest.
fn layer_facts(
    file: &ArchiveFile,
    content: ByteRange,
    diff_id: Digest,
) -> Result<(LayerCompression, Digest)> {
    let mut first = Vec::new();
    file.reader(content).take(4).read_to_end(&mut first)?;
    let compression = LayerCompression::of_bytes(&first);
    match compression {
        LayerCompression::None => Ok((compression, diff_id)),
        _ => Ok((compression, digest_of(file.reader(content))?)),
    }
}

fn digest_of(mut content: RangeReader) -> Result<Digest> {
    let (mut sha256, mut buf) = (Sha256::new(), vec![0; PART]);
    loop {
        match content.read(&mut buf)? {
            0 => return Ok(Digest::from_bytes(sha256.finalize().into())),
            read => sha256.update(&buf[..read]),
        }
    }
}

fn descriptor(media_type: &str, digest: &Digest, size: u64) -> Result<Descriptor> {
    let digest = oci_spec::image::Digest::from_str(&digest.to_string()).map_err(cannot_make)?;
    Ok(Descriptor::new(MediaType::from(media_type), size, digest))
}

fn cannot_make(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid("cannot make a manifest").caused_by(error)
}

#[cfg(test)]
mod tests;
