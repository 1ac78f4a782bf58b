//! Images in memory, and stores that they are converted into.

use crate::disk_trees::support::rows;
use crate::image::{LayerOutcome, StagedConversion, stage_image};
use crate::known_layers::{KnownLayers, StoredLayers};
use crate::model_tree::Row;
use crate::options::ConvertOptions;
use crate::parent_disk::disk_of;
use crate::test_layers::TarMaker;
use futures::FutureExt;
use headstart_block::{Digest, Result};
use headstart_container_source::{ArchiveChoice, ContainerImage, open_oci_archive};
use headstart_image::new_layer::Packing;
use headstart_image::open_image::OpenImage;
use headstart_image::progress::Silent;
use headstart_image::reference::Reference;
use headstart_image::store::ImageStore;
use headstart_zfile::{Codec, ZFileOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Options for disks of 128 MiB.
pub(crate) fn options(threads: usize) -> ConvertOptions {
    let packing = Packing::ZFile(ZFileOptions { codec: Codec::Lz4, ..ZFileOptions::default() });
    ConvertOptions { size: 128 << 20, packing, threads, ..ConvertOptions::default() }
}

/// A layer of a test's image.
#[derive(Clone)]
pub(crate) struct TestLayer {
    /// The bytes that the source has.
    pub(crate) bytes: Vec<u8>,
    /// The digest that the manifest has for them.
    pub(crate) digest: Digest,
    /// The digest of the tar.
    pub(crate) diff_id: Digest,
}

impl TestLayer {
    pub(crate) fn new(bytes: Vec<u8>, tar: &[u8]) -> Self {
        Self { digest: Digest::of(&bytes), diff_id: Digest::of(tar), bytes }
    }

    /// Changes a byte that the source has.
    pub(crate) fn damage(&mut self) {
        let middle = self.bytes.len() / 2;
        self.bytes[middle] ^= 1;
    }
}

/// An image.
#[derive(Clone)]
pub(crate) struct TestImage {
    pub(crate) layers: Vec<TestLayer>,
    pub(crate) media_type: String,
    pub(crate) config: Vec<u8>,
    /// `true` if the archive has the documents only.
    pub(crate) without_layers: bool,
}

impl TestImage {
    /// The image of tars, each compressed by `compress`.
    pub(crate) fn new(tars: &[Vec<u8>], compress: impl Fn(&[u8]) -> Vec<u8>) -> Self {
        let layers: Vec<_> = tars.iter().map(|tar| TestLayer::new(compress(tar), tar)).collect();
        let ids: Vec<_> = layers.iter().map(|layer| layer.diff_id).collect();
        let config = json!({
            "architecture": "arm64",
            "os": "linux",
            "created": "2026-01-02T03:04:05Z",
            "config": {"Cmd": ["/bin/sh"], "Env": ["A=b"]},
            "history": [{"created_by": "test"}, {"created_by": "nothing", "empty_layer": true}],
            "rootfs": {"type": "layers", "diff_ids": ids},
        });
        Self {
            layers,
            media_type: GZIP.to_owned(),
            config: config.to_string().into_bytes(),
            without_layers: false,
        }
    }

    /// The manifest of the image.
    pub(crate) fn manifest(&self) -> Vec<u8> {
        let layer = |layer: &TestLayer| {
            let size = layer.bytes.len();
            json!({"mediaType": self.media_type, "size": size, "digest": layer.digest})
        };
        let config = json!({
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "size": self.config.len(),
            "digest": Digest::of(&self.config),
        });
        let layers: Vec<Value> = self.layers.iter().map(layer).collect();
        json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string().into_bytes()
    }

    /// Opens the image, which is in an archive in memory.
    fn open(&self) -> Result<ContainerImage> {
        let manifest = self.manifest();
        let digest = Digest::of(&manifest);
        let entry = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "size": manifest.len(),
            "digest": digest,
        });
        let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
        let mut blobs: BTreeMap<_, _> =
            self.layers.iter().map(|layer| (layer.digest, layer.bytes.as_slice())).collect();
        if self.without_layers {
            blobs.clear();
        }
        blobs.extend([(digest, manifest.as_slice()), (Digest::of(&self.config), self.config.as_slice())]);
        let mut archive = TarMaker::new()
            .file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)
            .file("index.json", index.as_bytes());
        for (digest, bytes) in blobs {
            archive = archive.file(&format!("blobs/sha256/{}", digest.hex()), bytes);
        }
        open_oci_archive(Arc::new(archive.done()), "test", &ArchiveChoice::Only, None)
    }

    /// Converts the image into the store `dir` under a tag.
    pub(crate) fn convert_with(
        &self,
        dir: &Path,
        tag: &str,
        options: &ConvertOptions,
        known: &dyn KnownLayers,
    ) -> Result<InDirectory> {
        convert_into(&self.open()?, &reference(dir, tag), options, known)
    }

    /// Converts the image, with the layers that the store knows.
    pub(crate) fn convert(&self, dir: &Path, tag: &str, options: &ConvertOptions) -> Result<InDirectory> {
        let known = StoredLayers::new(ImageStore::create_or_open(dir)?);
        self.convert_with(dir, tag, options, &known)
    }
}

/// An image that was converted into a directory.
#[derive(Debug)]
pub(crate) struct InDirectory {
    pub(crate) digest: Digest,
    pub(crate) layers: Vec<LayerOutcome>,
}

/// Converts an image into a directory, from any source.
pub(crate) fn convert_into(
    image: &ContainerImage,
    target: &Reference,
    options: &ConvertOptions,
    known: &dyn KnownLayers,
) -> Result<InDirectory> {
    let staging = ImageStore::create_or_open(target.directory()?)?.stage()?;
    let StagedConversion { image, layers } = stage_image(image, &staging, options, known, &Silent)?;
    let published = staging.publish(&image, target.tag()?)?;
    let new = layers.iter().filter(|outcome| outcome.converted.is_some());
    let new: Vec<_> = new.map(|outcome| (outcome.key, outcome.layer.clone())).collect();
    known.remember(&new).now_or_never().unwrap();
    Ok(InDirectory { digest: published.digest, layers })
}

pub(crate) fn reference(dir: &Path, tag: &str) -> Reference {
    format!("file://{}:{tag}", dir.display()).parse().unwrap()
}

/// All paths of a converted image, opened as any image is.
pub(crate) fn rows_of(dir: &Path, tag: &str) -> BTreeMap<Vec<u8>, Row> {
    rows(&disk_of(OpenImage::open(&reference(dir, tag)).unwrap().into_disk()))
}
