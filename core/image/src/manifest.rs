//! Manifests and configs: the parts of an image.
//!
//! An image is an OCI manifest: a config and ordered layers, lowest first, each a blob of the store. Its layers carry
//! the annotations that OverlayBD's tools look for, so those tools can use these images, and both kinds can be in one
//! store:
//!
//! | on | annotation | value |
//! |---|---|---|
//! | layer | `containerd.io/snapshot/overlaybd/blob-digest` | the blob's digest, again |
//! | layer | `containerd.io/snapshot/overlaybd/blob-size` | the blob's size in bytes, again |
//! | layer | `containerd.io/snapshot/overlaybd/version` | `0.1.0` |
//! | layer | `containerd.io/snapshot/overlaybd/blob-fs-type` | `erofs` if the disk has that; otherwise none: ext4 |
//! | layer | `dev.headstart.tree-root` | root of the blob's hash tree: its BLAKE3 hash, in hexadecimal |
//! | layer | `dev.headstart.tree-digest` | digest of the tree's outboard, a blob of the same store |
//! | layer | `dev.headstart.tree-size` | the outboard's size in bytes |
//! | layer | `dev.headstart.index-offset` | the offset of the last part of the blob that opening the layer reads |
//! | layer | `dev.headstart.diff-id` | digest of the layer's content, as the config has it, if not the blob's |
//! | layer | `dev.headstart.boot-layer` | length of the blob's first part: what boots read, in the order of a plan |
//! | manifest | `dev.headstart.version` | the version of headstart that made the image |
//! | manifest | `dev.headstart.options` | the options: `zstd,frame=32768,crc` |
//! | manifest | `dev.headstart.virtual-size` | the disk's size in bytes |
//! | manifest | `dev.headstart.optimized-from` | digest of the original's manifest; see [`OPTIMIZED_FROM`] |
//!
//! Images that were converted from a container's image have those of [`ContainerOrigin`] and [`LayerOrigin`] besides.
//!
//! # Reading
//!
//! Only the fields that the OCI specification demands are required: other tools' images have no annotations of
//! headstart, Docker's have other media types. The fields that are there must be right, though: a manifest whose
//! annotations contradict its descriptors is refused. A layer's blob is recognized as a disk layer when it is opened,
//! by its content.
//!
//! # Writing
//!
//! The same image gives the same bytes: no dates, and all keys sorted.

mod origin;
mod parts;

pub use self::origin::{ContainerOrigin, LayerOrigin};
use headstart_block::{Digest, Error, Result};
pub use headstart_hash_tree::Tree;
use headstart_hash_tree::outboard_len;
pub use headstart_store::MAX_MANIFEST_SIZE;
pub use headstart_store::media_type::{
    CONFIG_DOCKER, CONFIG_OCI, INDEX_DOCKER, INDEX_OCI, MANIFEST_DOCKER, MANIFEST_OCI, OVERLAYBD_IMAGE,
    OVERLAYBD_TURBO_IMAGE,
};
use oci_spec::image::{
    Descriptor, DescriptorBuilder, ImageManifest, ImageManifestBuilder, MediaType, SCHEMA_VERSION,
};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;

/// The largest number of layers that an image may have, which is also the limit of the OverlayBD
/// implementation.
pub const MAX_LAYERS: usize = 255;

/// Key of a layer annotation: the digest of the layer's blob. Together with [`BLOB_SIZE`] and
/// [`OVERLAYBD_VERSION`], it marks the layer as one in OverlayBD's format.
pub const BLOB_DIGEST: &str = "containerd.io/snapshot/overlaybd/blob-digest";
/// Key of a layer annotation: the length of the layer's blob in bytes, in decimal.
pub const BLOB_SIZE: &str = "containerd.io/snapshot/overlaybd/blob-size";
/// Key of a layer annotation: the version of OverlayBD's layer format.
pub const OVERLAYBD_VERSION: &str = "containerd.io/snapshot/overlaybd/version";
/// The value of [`OVERLAYBD_VERSION`] for layers whose blob holds the disk's data itself, unlike turboOCI
/// layers.
pub const OVERLAYBD_VERSION_NATIVE: &str = "0.1.0";
/// Key of a layer annotation with the value `yes` on an acceleration layer, which holds a recorded boot trace
/// and is no part of the disk.
pub const ACCELERATION_LAYER: &str = "containerd.io/snapshot/overlaybd/acceleration-layer";
/// Keys of the annotations that mark a turboOCI layer, whose data is in a layer of another image. The second
/// key is the older name of the first.
pub const TURBO_TARGETS: [&str; 2] = [
    "containerd.io/snapshot/overlaybd/turbo-oci/target-digest",
    "containerd.io/snapshot/overlaybd/fastoci/target-digest",
];

/// Key of a layer annotation: the root of the blob's hash tree (a BLAKE3 hash, in hexadecimal).
pub const TREE_ROOT: &str = "dev.headstart.tree-root";
/// Key of a layer annotation: the digest of the blob that stores the hash tree's outboard (its inner nodes).
pub const TREE_DIGEST: &str = "dev.headstart.tree-digest";
/// Key of a layer annotation: the length of the hash tree's outboard (its inner nodes) in bytes.
pub const TREE_SIZE: &str = "dev.headstart.tree-size";
/// Key of a layer annotation: the offset in the blob, in bytes, of the layer's index of segments; for a
/// compressed layer, of the frame that holds the first byte of that index.
pub const INDEX_OFFSET: &str = "dev.headstart.index-offset";
/// Key of a layer annotation: the length in bytes of the first part of the blob, which holds the data that
/// boots read, in the order of a preload plan. Only the layer that an optimization wrote has it.
pub const BOOT_LAYER: &str = "dev.headstart.boot-layer";
/// Key of a manifest annotation: the digest of the manifest of the image from which this optimized image was made; if
/// that image was itself optimized, of the image from which that one was made. All have the same disk, with its data
/// stored in another order.
pub const OPTIMIZED_FROM: &str = "dev.headstart.optimized-from";
/// Key of a manifest annotation: the version of headstart that made the image.
pub const VERSION: &str = "dev.headstart.version";
/// Key of a manifest annotation: the packing options with which the image was made, such as
/// `zstd,frame=32768,crc`.
pub const OPTIONS: &str = "dev.headstart.options";
/// Key of a manifest annotation: the size of the disk in bytes, in decimal.
pub const VIRTUAL_SIZE: &str = "dev.headstart.virtual-size";

/// The media type that a manifest gives for itself.
pub(crate) fn media_type(manifest: &[u8]) -> String {
    let value: Option<Value> = serde_json::from_slice(manifest).ok();
    let media_type = value.as_ref().and_then(|value| value.get("mediaType")?.as_str());
    media_type.unwrap_or(MANIFEST_OCI).to_owned()
}

/// A reference to a blob (an OCI descriptor): the blob's media type, digest and length, as a manifest states
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// The media type that the manifest states for the blob.
    pub media_type: String,
    /// The sha256 digest of the blob, by which the store finds it.
    pub digest: Digest,
    /// The length of the blob in bytes.
    pub size: u64,
}

/// A layer of an image, as the image's manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLayer {
    /// The reference to the blob that holds the layer.
    pub blob: BlobRef,
    /// The hash tree by which ranges of the layer's blob can be checked. `None` for layers made by other
    /// tools.
    pub tree: Option<Tree>,
    /// All annotations of the layer, by their keys, including those that describe the hash tree.
    pub annotations: BTreeMap<String, String>,
}

impl ImageLayer {
    /// Describes a new layer in the blob `digest` of `size` bytes, with the annotations that headstart and
    /// OverlayBD's tools look for.
    #[must_use]
    pub fn new(digest: Digest, size: u64, tree: Tree) -> Self {
        let annotations = [
            (BLOB_DIGEST, digest.to_string()),
            (BLOB_SIZE, size.to_string()),
            (OVERLAYBD_VERSION, OVERLAYBD_VERSION_NATIVE.to_owned()),
            (TREE_ROOT, tree.root.to_string()),
            (TREE_DIGEST, tree.digest.to_string()),
            (TREE_SIZE, tree.size.to_string()),
        ];
        Self {
            blob: BlobRef { media_type: MediaType::ImageLayer.to_string(), digest, size },
            tree: Some(tree),
            annotations: annotations.map(|(key, value)| (key.to_owned(), value)).into(),
        }
    }

    /// Returns the same layer with `offset` as its [`index_offset`](ImageLayer::index_offset), in bytes.
    #[must_use]
    pub fn with_index_offset(mut self, offset: u64) -> Self {
        self.annotations.insert(INDEX_OFFSET.to_owned(), offset.to_string());
        self
    }

    /// Returns the offset in the blob, in bytes, of the last part that opening the layer reads: the index of
    /// segments (from the start of the compressed frame that holds its first byte) and the trailers of all
    /// wrappers. A single fetch from this offset to the end of the blob replaces several dependent ones.
    /// `None` if the manifest does not give a valid offset.
    #[must_use]
    pub fn index_offset(&self) -> Option<u64> {
        self.annotations.get(INDEX_OFFSET)?.parse().ok()
    }

    /// Returns the same layer with `bytes` as its [`boot_bytes`](ImageLayer::boot_bytes).
    #[must_use]
    pub fn with_boot_bytes(mut self, bytes: u64) -> Self {
        self.annotations.insert(BOOT_LAYER.to_owned(), bytes.to_string());
        self
    }

    /// Returns the length in bytes of the first part of the layer's blob, which holds the data that boots
    /// read, in the order of a preload plan. `None` if the layer was not written by an optimization.
    #[must_use]
    pub fn boot_bytes(&self) -> Option<u64> {
        self.annotations.get(BOOT_LAYER)?.parse().ok()
    }

    /// `true` if the layer is no part of the disk but an acceleration layer: a recorded boot trace for
    /// OverlayBD's prefetcher.
    #[must_use]
    pub fn is_acceleration(&self) -> bool {
        self.annotations.get(ACCELERATION_LAYER).is_some_and(|value| value == "yes")
    }

    /// `true` if the layer is in the turboOCI format, whose data is in a layer of another image; see
    /// [`crate::turbo`].
    #[must_use]
    pub fn is_turbo(&self) -> bool {
        TURBO_TARGETS.iter().any(|key| self.annotations.contains_key(*key))
    }

    fn parse(descriptor: &Descriptor) -> Result<Self> {
        let blob = BlobRef::parse(descriptor)?;
        let annotations: BTreeMap<_, _> =
            descriptor.annotations().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let contradicts = |key| Error::corrupt(format!("its annotation {key} contradicts its descriptor"));
        if annotations.get(BLOB_DIGEST).is_some_and(|digest| *digest != blob.digest.to_string()) {
            return Err(contradicts(BLOB_DIGEST));
        }
        if annotation::<u64>(&annotations, BLOB_SIZE)?.is_some_and(|size| size != blob.size) {
            return Err(contradicts(BLOB_SIZE));
        }
        for key in [INDEX_OFFSET, BOOT_LAYER] {
            if annotation::<u64>(&annotations, key)?.is_some_and(|offset| offset > blob.size) {
                return Err(contradicts(key));
            }
        }
        let root = annotation(&annotations, TREE_ROOT)?;
        let digest = annotation(&annotations, TREE_DIGEST)?;
        let size = annotation(&annotations, TREE_SIZE)?;
        let tree = match (root, digest, size) {
            (Some(root), Some(digest), Some(size)) => Some(Tree { root, digest, size }),
            (None, None, None) => None,
            _ => {
                return Err(Error::corrupt(format!("{TREE_ROOT}, {TREE_DIGEST}, {TREE_SIZE} come together")));
            }
        };
        if tree.is_some_and(|tree| tree.size != outboard_len(blob.size)) {
            return Err(contradicts(TREE_SIZE));
        }
        Ok(Self { blob, tree, annotations })
    }

    /// Reads the JSON value of a descriptor.
    pub(crate) fn from_json(descriptor: &Value) -> Result<Self> {
        let descriptor = serde_json::from_value(descriptor.clone());
        Self::parse(&descriptor.map_err(|e| Error::corrupt("is not a descriptor of a layer").caused_by(e))?)
    }

    /// The JSON value of the layer's descriptor.
    pub(crate) fn to_json(&self) -> Result<Value> {
        serde_json::to_value(self.descriptor()?).map_err(cannot_build)
    }

    fn descriptor(&self) -> Result<Descriptor> {
        let mut descriptor = self.blob.descriptor()?;
        if !self.annotations.is_empty() {
            descriptor.set_annotations(Some(as_hash_map(&self.annotations)));
        }
        Ok(descriptor)
    }
}

impl BlobRef {
    fn parse(descriptor: &Descriptor) -> Result<Self> {
        Ok(Self {
            media_type: descriptor.media_type().to_string(),
            digest: descriptor.digest().as_ref().parse()?,
            size: descriptor.size(),
        })
    }

    fn descriptor(&self) -> Result<Descriptor> {
        let digest = oci_spec::image::Digest::from_str(&self.digest.to_string()).map_err(cannot_build)?;
        DescriptorBuilder::default()
            .media_type(MediaType::from(self.media_type.as_str()))
            .digest(digest)
            .size(self.size)
            .build()
            .map_err(cannot_build)
    }
}

/// The manifest of an image, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The reference to the blob that holds the image's [`Config`].
    pub config: BlobRef,
    /// The layers, lowest first, including acceleration layers: 1 to [`MAX_LAYERS`].
    pub layers: Vec<ImageLayer>,
    /// The size of the disk in bytes. `None` if the manifest does not state it; the layers then determine the
    /// size.
    pub virtual_size: Option<u64>,
    /// All annotations of the manifest, by their keys.
    pub annotations: BTreeMap<String, String>,
}

impl Manifest {
    /// Parses and checks a manifest.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if `bytes` is not a manifest, or if its annotations contradict
    /// its descriptors; [`headstart_block::ErrorKind::Unsupported`] if it is the manifest of something other
    /// than an image, is larger than [`MAX_MANIFEST_SIZE`], or has no layers or more than [`MAX_LAYERS`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 > MAX_MANIFEST_SIZE {
            return Err(Error::unsupported(format!("a manifest of more than {MAX_MANIFEST_SIZE} bytes")));
        }
        let value: Value =
            serde_json::from_slice(bytes).map_err(|e| Error::corrupt("is not JSON").caused_by(e))?;
        check_kind(&value)?;
        let manifest: ImageManifest = serde_json::from_value(value)
            .map_err(|e| Error::corrupt("is not an image manifest").caused_by(e))?;
        let config = BlobRef::parse(manifest.config()).map_err(|e| e.about("its config"))?;
        if ![CONFIG_OCI, CONFIG_DOCKER].contains(&config.media_type.as_str()) {
            return Err(Error::unsupported(format!(
                "is not an image but an artifact: its config is `{}`",
                config.media_type.escape_debug()
            )));
        }
        let count = manifest.layers().len();
        if count > MAX_LAYERS {
            return Err(Error::unsupported(format!("has {count} layers, more than {MAX_LAYERS}"))
                .remedy("flatten it where it was made"));
        }
        if count == 0 {
            return Err(Error::unsupported("is an image without layers"));
        }
        let layers = manifest.layers().iter().enumerate();
        let layers =
            layers.map(|(n, layer)| ImageLayer::parse(layer).map_err(|e| e.about(format!("its layer {n}"))));
        let layers = layers.collect::<Result<_>>()?;
        let annotations: BTreeMap<_, _> =
            manifest.annotations().clone().unwrap_or_default().into_iter().collect();
        let virtual_size = annotation(&annotations, VIRTUAL_SIZE)?;
        Ok(Self { config, layers, virtual_size, annotations })
    }

    /// Returns the version of headstart that made the image; `None` if another tool made it.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.annotations.get(VERSION).map(String::as_str)
    }

    /// Returns the packing options with which the image was made; `None` if another tool made it.
    #[must_use]
    pub fn options(&self) -> Option<&str> {
        self.annotations.get(OPTIONS).map(String::as_str)
    }

    /// Returns the manifest digest of the image from which this image was made by an optimization. Both have
    /// the same disk. `None` if this image was not made that way.
    #[must_use]
    pub fn optimized_from(&self) -> Option<Digest> {
        self.annotations.get(OPTIMIZED_FROM)?.parse().ok()
    }

    /// Returns the digest under which boots of the image's disk are recorded: the digest of the image from
    /// which it was optimized, otherwise `own`, which is the digest of this manifest.
    #[must_use]
    pub fn known_as(&self, own: Digest) -> Digest {
        self.optimized_from().unwrap_or(own)
    }
}

/// Tells an image manifest from other documents, so that the message names the kind of document.
fn check_kind(value: &Value) -> Result<()> {
    if value.get("manifests").is_some() {
        return Err(Error::unsupported("is an index of several images, not an image"));
    }
    if value.get("fsLayers").is_some() || value.get("schemaVersion").and_then(Value::as_u64) != Some(2) {
        return Err(Error::unsupported("is not a manifest of schema version 2"));
    }
    match value.get("mediaType").map(|media_type| media_type.as_str().unwrap_or_default()) {
        None | Some(MANIFEST_OCI | MANIFEST_DOCKER) => Ok(()),
        Some(other) => Err(Error::unsupported(format!("is not an image but `{}`", other.escape_debug()))),
    }
}

/// The parsed value of an annotation, if it is there.
fn annotation<T: FromStr>(annotations: &BTreeMap<String, String>, key: &str) -> Result<Option<T>> {
    let parse = |text: &String| {
        let bad = |_| Error::corrupt(format!("its annotation {key} is `{}`", text.escape_debug()));
        text.parse().map_err(bad)
    };
    annotations.get(key).map(parse).transpose()
}

fn as_hash_map(map: &BTreeMap<String, String>) -> HashMap<String, String> {
    map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn cannot_build(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid("cannot make a manifest").caused_by(error)
}

/// The config document of an image: information for a container runtime. For a disk image it holds little
/// more than the layers' digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config(Map<String, Value>);

impl Default for Config {
    fn default() -> Self {
        let fields = [("architecture", json!("amd64")), ("os", json!("linux"))];
        Self(fields.map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
    }
}

impl Config {
    /// Parses a config. Fields that are not known here are kept, and copied into the configs of images that
    /// are made from this one.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it is not a JSON object.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes)
            .map(Self)
            .map_err(|e| Error::corrupt("is not an image config").caused_by(e))
    }

    /// Returns the digests of the layers' content (`rootfs.diff_ids`), lowest first. Entries that are missing
    /// or are not valid digests are left out.
    #[must_use]
    pub fn diff_ids(&self) -> Vec<Digest> {
        let ids = self.0.get("rootfs").and_then(|rootfs| rootfs.get("diff_ids")).and_then(Value::as_array);
        ids.into_iter().flatten().filter_map(|id| id.as_str()?.parse().ok()).collect()
    }

    /// The same config with one more layer, in the place of one that is no part of the disk. Unlike with a layer of the
    /// disk, its description of the image stays.
    pub(crate) fn on_top_of(mut self, image: &Manifest, top: Digest) -> Vec<u8> {
        let ids = self.0.get_mut("rootfs").and_then(|rootfs| rootfs.get_mut("diff_ids")?.as_array_mut());
        if let Some(ids) = ids {
            let mut layers = image.layers.iter();
            ids.retain(|_| layers.next().is_none_or(|layer| !layer.is_acceleration()));
            ids.push(json!(top.to_string()));
        }
        Value::Object(self.0).to_string().into_bytes()
    }

    /// The same config for other layers. Its description of the old ones (history, date) is removed, unless there is
    /// still one layer for each.
    fn with_layers(mut self, layers: &[ImageLayer], are_the_same: bool) -> Self {
        let ids: Vec<_> = layers.iter().map(|layer| layer.diff_id().to_string()).collect();
        if !are_the_same {
            self.0.remove("history");
            self.0.remove("created");
        }
        self.0.insert("rootfs".to_owned(), json!({"type": "layers", "diff_ids": ids}));
        self
    }
}

/// The description of an image to be published, from which its config and manifest are made.
#[derive(Clone, Debug)]
pub struct NewImage {
    /// The layers, lowest first.
    pub layers: Vec<ImageLayer>,
    /// The disk's size in bytes.
    pub virtual_size: u64,
    /// The packing options with which the new layer was made, such as `zstd,frame=32768,crc`. They are only
    /// recorded.
    pub options: String,
    /// The config of the image from which the new one is made; [`Config::default`] for an image without a
    /// base.
    pub config: Config,
    /// The manifest digest of the image from which this one was made by an optimization; `None` if it is not
    /// an optimized copy.
    pub optimized_from: Option<Digest>,
    /// The container's image from which the new one is converted, layer by layer; `None` for any other image. The
    /// config keeps its date and its history then.
    pub converted_from: Option<ContainerOrigin>,
    /// The manifest of the container's image beside which this one is published in the same store, so that programs
    /// find this one by that; the image gets an artifact type ([`NewImage::artifact_type`]). `None` for all others.
    pub belongs_to: Option<BlobRef>,
}

/// The two documents that describe a published image.
#[derive(Clone, Debug)]
pub struct Documents {
    /// The JSON text of the config.
    pub config: Vec<u8>,
    /// The JSON text of the manifest.
    pub manifest: Vec<u8>,
}

impl NewImage {
    /// Makes the config and the manifest. The same description always gives the same bytes.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there are no layers or too many.
    pub fn documents(&self) -> Result<Documents> {
        if self.layers.is_empty() || self.layers.len() > MAX_LAYERS {
            return Err(Error::invalid(format!(
                "an image has 1 to {MAX_LAYERS} layers, not {}",
                self.layers.len()
            ))
            .remedy("flatten the base first"));
        }
        let is_converted = self.converted_from.is_some();
        let config = to_json(&self.config.clone().with_layers(&self.layers, is_converted).0)?;
        let blob = BlobRef {
            media_type: CONFIG_OCI.to_owned(),
            digest: Digest::of(&config),
            size: config.len() as u64,
        };
        let annotations = [
            (VERSION, env!("CARGO_PKG_VERSION").to_owned()),
            (OPTIONS, self.options.clone()),
            (VIRTUAL_SIZE, self.virtual_size.to_string()),
        ];
        let optimized_from = self.optimized_from.map(|digest| (OPTIMIZED_FROM, digest.to_string()));
        let converted_from = self.converted_from.iter().flat_map(ContainerOrigin::annotations);
        let annotations = annotations.into_iter().chain(optimized_from).chain(converted_from);
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value));
        let mut manifest = ImageManifestBuilder::default();
        if let Some(subject) = &self.belongs_to {
            manifest = manifest
                .artifact_type(MediaType::Other(self.artifact_type().to_owned()))
                .subject(subject.descriptor()?);
        }
        let manifest = manifest
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageManifest)
            .config(blob.descriptor()?)
            .layers(self.layers.iter().map(ImageLayer::descriptor).collect::<Result<Vec<_>>>()?)
            .annotations(annotations.collect::<HashMap<_, _>>())
            .build()
            .map_err(cannot_build)?;
        Ok(Documents { config, manifest: to_json(&manifest)? })
    }
}

/// Serializes through `Value`, whose maps are sorted: the hash maps of `oci-spec` come in any order.
fn to_json(document: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_value(document).and_then(|value| serde_json::to_vec(&value)).map_err(cannot_build)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use headstart_hash_tree::TreeRoot;
    use proptest::prelude::*;

    fn layer(name: &str) -> ImageLayer {
        let tree = Tree {
            root: TreeRoot::of(name.as_bytes()),
            digest: Digest::of(b"tree"),
            size: outboard_len(100_000),
        };
        ImageLayer::new(Digest::of(name.as_bytes()), 100_000, tree)
    }

    fn image() -> NewImage {
        NewImage {
            layers: vec![layer("low"), layer("high").with_index_offset(90_000)],
            virtual_size: 4 << 30,
            options: "zstd,frame=32768,crc".to_owned(),
            config: Config::default(),
            optimized_from: None,
            converted_from: None,
            belongs_to: None,
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let documents = image().documents().unwrap();
        let manifest = Manifest::parse(&documents.manifest).unwrap();
        assert_eq!(manifest.layers, image().layers);
        assert_eq!(
            (manifest.virtual_size, manifest.options()),
            (Some(4 << 30), Some("zstd,frame=32768,crc"))
        );
        assert_eq!(manifest.version(), Some(env!("CARGO_PKG_VERSION")));
        assert_eq!(manifest.config.digest, Digest::of(&documents.config));
        assert_eq!(manifest.blobs().count(), 5);
        let offsets: Vec<_> = manifest.layers.iter().map(ImageLayer::index_offset).collect();
        assert_eq!(offsets, [None, Some(90_000)]);
        let config = Config::parse(&documents.config).unwrap();
        assert_eq!(config.diff_ids(), [Digest::of(b"low"), Digest::of(b"high")]);
        assert_eq!(
            String::from_utf8(documents.config).unwrap(),
            format!(
                r#"{{"architecture":"amd64","os":"linux","rootfs":{{"diff_ids":["{}","{}"],"type":"layers"}}}}"#,
                Digest::of(b"low"),
                Digest::of(b"high")
            )
        );
    }

    /// Goal: the documents are sorted. The maps of `oci-spec` get a new seed each time: without the sorting, some of
    /// these would differ.
    #[test]
    fn the_same_image_gives_the_same_bytes() {
        let first = image().documents().unwrap().manifest;
        for _ in 0..20 {
            assert_eq!(first, image().documents().unwrap().manifest);
        }
    }

    #[test]
    fn fields_of_a_base_config_survive() {
        let base = br#"{"architecture":"arm64","os":"linux","created":"2020-01-01T00:00:00Z","history":[{}],
            "config":{"Env":["A=1"]},"x-unknown":7,"rootfs":{"type":"layers","diff_ids":[]}}"#;
        let image = NewImage { config: Config::parse(base).unwrap(), ..image() };
        let config: Value = serde_json::from_slice(&image.documents().unwrap().config).unwrap();
        assert_eq!(config["config"]["Env"][0], "A=1");
        assert_eq!((&config["architecture"], &config["x-unknown"]), (&json!("arm64"), &json!(7)));
        assert!(config.get("history").is_none() && config.get("created").is_none());
    }

    fn edited(edit: impl FnOnce(&mut Value)) -> Result<Manifest> {
        let mut value = serde_json::from_slice(&image().documents().unwrap().manifest).unwrap();
        edit(&mut value);
        Manifest::parse(&serde_json::to_vec(&value).unwrap())
    }

    #[test]
    fn images_of_other_tools_are_read() {
        let manifest = edited(|m| {
            m["mediaType"] = MANIFEST_DOCKER.into();
            m["config"]["mediaType"] = CONFIG_DOCKER.into();
            m.as_object_mut().unwrap().remove("annotations");
            for layer in m["layers"].as_array_mut().unwrap() {
                layer["mediaType"] = "application/vnd.docker.image.rootfs.diff.tar".into();
                layer.as_object_mut().unwrap().remove("annotations");
            }
        });
        let manifest = manifest.unwrap();
        assert_eq!((manifest.virtual_size, manifest.version(), manifest.layers[0].tree), (None, None, None));
        assert!(manifest.layers[0].annotations.is_empty());
        let traced = edited(|m| m["layers"][1]["annotations"][ACCELERATION_LAYER] = "yes".into()).unwrap();
        assert_eq!(traced.disk_layers().count(), 1);
    }

    #[test]
    fn contradictions_and_other_documents_are_refused() {
        type Edit = fn(&mut Value);
        let cases: [(Edit, ErrorKind); 16] = [
            (|m| m["schemaVersion"] = 1.into(), ErrorKind::Unsupported),
            (|m| m["manifests"] = json!([]), ErrorKind::Unsupported),
            (|m| m["mediaType"] = "text/plain".into(), ErrorKind::Unsupported),
            (|m| m["mediaType"] = 5.into(), ErrorKind::Unsupported),
            (
                |m| m["config"]["mediaType"] = "application/vnd.oci.empty.v1+json".into(),
                ErrorKind::Unsupported,
            ),
            (|m| m["layers"] = json!([]), ErrorKind::Unsupported),
            (|m| m["layers"] = vec![m["layers"][0].clone(); 256].into(), ErrorKind::Unsupported),
            (|m| m["layers"][0]["size"] = (-1).into(), ErrorKind::Corrupt),
            (|m| m["layers"][0]["digest"] = "sha256:../../x".into(), ErrorKind::Corrupt),
            (|m| m["layers"][1]["size"] = 1.into(), ErrorKind::Corrupt),
            (|m| m["layers"][0]["digest"] = m["layers"][1]["digest"].clone(), ErrorKind::Corrupt),
            (|m| m["layers"][0]["annotations"][TREE_SIZE] = "9".into(), ErrorKind::Corrupt),
            (|m| m["layers"][0]["annotations"][TREE_ROOT] = "xyz".into(), ErrorKind::Corrupt),
            (|m| m["layers"][0]["annotations"][INDEX_OFFSET] = "100001".into(), ErrorKind::Corrupt),
            (|m| m["layers"][0]["annotations"][INDEX_OFFSET] = "-1".into(), ErrorKind::Corrupt),
            (|m| m["annotations"][VIRTUAL_SIZE] = "4G".into(), ErrorKind::Corrupt),
        ];
        for (n, (edit, kind)) in cases.into_iter().enumerate() {
            assert_eq!(edited(edit).unwrap_err().kind(), kind, "case {n}");
        }
        for text in ["", "{", "[]", "null", "{}", "{\"schemaVersion\":2}"] {
            assert!(Manifest::parse(text.as_bytes()).is_err(), "{text}");
        }
        let deep = "[".repeat(1 << 20);
        assert_eq!(Manifest::parse(deep.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt);
        let long = vec![b' '; 5 << 20];
        assert_eq!(Manifest::parse(&long).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn too_many_layers_are_not_written() {
        let many = NewImage { layers: vec![layer("x"); 256], ..image() };
        assert_eq!(many.documents().unwrap_err().kind(), ErrorKind::Invalid);
    }

    proptest! {
        #[test]
        fn damaged_manifests_never_panic(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        ) {
            let mut bytes = image().documents().unwrap().manifest;
            for (at, value) in flips {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let _ = Manifest::parse(&bytes);
            let _ = Config::parse(&bytes);
        }
    }
}
