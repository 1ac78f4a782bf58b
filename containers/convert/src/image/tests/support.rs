//! Images in memory, and stores that they are converted into.

use crate::ext4_tree::tests::support::rows;
use crate::image::{ContainerImage, ContainerLayer, ConvertReport, ConvertRequest, convert_image};
use crate::known_layers::{KnownLayers, StoredLayers};
use crate::model_tree::Row;
use crate::options::ConvertOptions;
use crate::parent_disk::disk_of;
use headstart_block::{Digest, Result};
use headstart_image::new_layer::Packing;
use headstart_image::open_image::OpenImage;
use headstart_image::progress::Silent;
use headstart_image::reference::Reference;
use headstart_image::store::ImageStore;
use headstart_zfile::{Codec, ZFileOptions};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Options for disks of 128 MiB.
pub(crate) fn options(threads: usize) -> ConvertOptions {
    let packing = Packing::ZFile(ZFileOptions { codec: Codec::Lz4, ..ZFileOptions::default() });
    ConvertOptions { size: 128 << 20, packing, threads, ..ConvertOptions::default() }
}

/// An image: compressed layers with the digests of their tars, and the number of layers that were opened.
#[derive(Clone)]
pub(crate) struct TestImage {
    pub(crate) layers: Vec<(Vec<u8>, Digest)>,
    pub(crate) media_type: String,
    pub(crate) config: Vec<u8>,
    pub(crate) opened: Arc<AtomicUsize>,
}

impl TestImage {
    /// The image of tars, each compressed by `compress`.
    pub(crate) fn new(tars: &[Vec<u8>], compress: impl Fn(&[u8]) -> Vec<u8>) -> Self {
        let layers: Vec<_> = tars.iter().map(|tar| (compress(tar), Digest::of(tar))).collect();
        let ids: Vec<_> = layers.iter().map(|(_, id)| id.to_string()).collect();
        let config = serde_json::json!({
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
            opened: Arc::default(),
        }
    }

    fn source(&self) -> ContainerImage<'static> {
        let layers = self.layers.iter().cloned().map(|(bytes, diff_id)| {
            let opened = Arc::clone(&self.opened);
            ContainerLayer {
                digest: Digest::of(&bytes),
                diff_id,
                media_type: self.media_type.clone(),
                size: bytes.len() as u64,
                open: Box::new(move || {
                    opened.fetch_add(1, Ordering::Relaxed);
                    Ok(Box::new(Cursor::new(bytes)))
                }),
            }
        });
        ContainerImage {
            manifest: Digest::of(b"manifest"),
            media_type: "application/vnd.oci.image.manifest.v1+json".to_owned(),
            config: self.config.clone(),
            layers: layers.collect(),
        }
    }

    /// Converts the image into the store `dir` under a tag.
    pub(crate) fn convert_with(
        &self,
        dir: &Path,
        tag: &str,
        options: &ConvertOptions,
        known: &dyn KnownLayers,
    ) -> Result<ConvertReport> {
        let target = reference(dir, tag);
        convert_image(ConvertRequest { image: self.source(), target: &target, options, known }, &Silent)
    }

    /// Converts the image, with the layers that the store knows.
    pub(crate) fn convert(&self, dir: &Path, tag: &str, options: &ConvertOptions) -> Result<ConvertReport> {
        let known = StoredLayers::new(ImageStore::create_or_open(dir)?);
        self.convert_with(dir, tag, options, &known)
    }
}

pub(crate) fn reference(dir: &Path, tag: &str) -> Reference {
    format!("file://{}:{tag}", dir.display()).parse().unwrap()
}

/// All paths of a converted image, opened as any image is.
pub(crate) fn rows_of(dir: &Path, tag: &str) -> BTreeMap<Vec<u8>, Row> {
    rows(&disk_of(OpenImage::open(&reference(dir, tag)).unwrap().into_disk()))
}
