//! `headstart image layers`: each layer of a container's image becomes a disk by itself.

use super::convert::parse_source;
use crate::zfile::LayerPacking;
use clap::Args;
use headstart_block::{ByteSize, Digest, Error, ErrorKind, Result};
use headstart_command_line::report::{Outcome, Report};
use headstart_command_line::store_args::StoreArgs;
use headstart_container_source::{ImagePlatform, SourceName};
use headstart_convert::{ConvertOptions, ConvertReport, FileSystemKind, SingleLayers};
use headstart_image::progress::Progress;
use headstart_image::reference::{Location, Reference, Selector, Tag};
use headstart_image::store_access::StoreAccess;
use serde::Serialize;
use std::fmt;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart image layers oci://registry.lan/app:1 oci://registry.lan/layers
  headstart image layers oci-archive:app.tar file:///srv/layers --platform linux/arm64

Containerd's own EROFS snapshotter takes layers from directories (layer_content_caches) in place of pulling and \
unpacking them. This command makes an image of a disk of each layer, once for a registry; attached under the names \
that it prints, the disks are such a directory, and are read as containers need them. Each disk has an EROFS with the \
files of its layer alone, and marks for overlayfs where the layer removes files of those below. The tag of each image \
is the digest of the layer's content: images that share a layer share its disk.";

/// Makes disks of the layers of a container's image.
#[derive(Args)]
pub(crate) struct Layers {
    /// The container's image: oci://HOST/REPO:TAG or the like, oci-archive:FILE[:NAME] or docker-archive:FILE[:NAME]
    #[arg(value_parser = parse_source)]
    source: SourceName,
    /// The store in which the disks become images, one for each layer: file:///DIR, oci://HOST/REPOSITORY
    store: Location,
    /// The platform, such as linux/arm64 [default: Linux on the processor of this host]
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<ImagePlatform>,
    /// Size of each disk: free space takes none in the image
    #[arg(long, default_value = "64G", value_name = "SIZE")]
    size: ByteSize,
    #[command(flatten)]
    packing: LayerPacking,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Layers {
    pub(super) fn check(&self) -> Result<()> {
        self.packing.check()?;
        self.options().check()
    }

    fn options(&self) -> ConvertOptions {
        let (packing, threads) = (self.packing.options(), self.packing.threads());
        let (size, file_system) = (self.size.0, FileSystemKind::Erofs);
        ConvertOptions { size, file_system, alone: true, packing, threads, ..ConvertOptions::default() }
    }

    pub(super) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        Ok(Box::new(self.stores.with_stores(|stores| self.make(stores, progress))?))
    }

    fn make(&self, stores: StoreAccess<'_>, progress: &dyn Progress) -> Result<LayerDisks> {
        let options = self.options();
        let layers = SingleLayers::open(&self.source, self.platform.as_ref(), &self.store, stores)?;
        let diff_ids = layers.diff_ids();
        let mut done =
            LayerDisks { source: self.source.to_string(), layers: Vec::new(), refused: Vec::new() };
        for diff_id in &diff_ids {
            // A tag has no colon, and a digest alone would be the tag of a list of artifacts.
            let tag: Tag = format!("layer-{}", diff_id.to_string().replace(':', "-")).parse()?;
            let target = Reference { location: self.store.clone(), selector: Selector::Tag(tag.clone()) };
            match layers.make(diff_id, tag, &options, progress) {
                Ok(made) => done.layers.push(LayerDisk::new(diff_id, &target, &made)),
                // The other layers may serve.
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                    tracing::warn!("{error}; there is no disk of this layer, which containerd has to unpack");
                    done.refused
                        .push(RefusedLayer { diff_id: diff_id.to_string(), error: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        if diff_ids.is_empty() {
            return Err(Error::unsupported("is an image without layers").about(&self.source));
        }
        Ok(done)
    }
}

/// Disks that were made of the layers of an image.
#[derive(Serialize)]
struct LayerDisks {
    /// The image, as it was named.
    source: String,
    /// Its layers that have a disk, lowest first, each once.
    layers: Vec<LayerDisk>,
    /// Its layers that cannot have one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RefusedLayer>,
}

/// A layer that cannot be a disk by itself.
#[derive(Serialize)]
struct RefusedLayer {
    /// The digest of the layer's content.
    diff_id: String,
    /// The reason.
    error: String,
}

/// A disk that was made of a layer.
#[derive(Serialize)]
struct LayerDisk {
    /// The digest of the layer's content.
    diff_id: String,
    /// The path of the disk in a directory of layers, as containerd looks for it.
    file: String,
    /// The image of the disk.
    image: String,
    /// The digest of its manifest.
    digest: String,
    /// Bytes of the image as stored, without hash trees.
    stored_bytes: u64,
    /// `true` if an earlier conversion made it.
    known: bool,
}

impl LayerDisk {
    fn new(diff_id: &Digest, image: &Reference, made: &ConvertReport) -> Self {
        let hex = diff_id.hex();
        Self {
            diff_id: diff_id.to_string(),
            file: format!("sha256/{}/{hex}.erofs", hex.get(..2).unwrap_or_default()),
            image: image.to_string(),
            digest: made.digest.to_string(),
            stored_bytes: made.layers.iter().map(|layer| layer.layer.blob.size).sum(),
            known: made.layers.iter().all(|layer| layer.converted.is_none()),
        }
    }
}

impl Outcome for LayerDisks {
    fn is_right(&self) -> bool {
        self.refused.is_empty()
    }
}

impl fmt::Display for LayerDisks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, layer) in self.layers.iter().enumerate() {
            let newline = if n == 0 { "" } else { "\n" };
            write!(f, "{newline}{} {}", layer.file, layer.image)?;
        }
        Ok(())
    }
}
