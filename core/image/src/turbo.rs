//! TurboOCI layers: the metadata of a file system in a blob of its own, the data in a layer of an ordinary image.
//!
//! A TurboOCI image has two blobs for each layer. Its manifest lists the *package* ([`headstart_turbo::package`]), with
//! these annotations:
//!
//! | annotation | value |
//! |---|---|
//! | `containerd.io/snapshot/overlaybd/turbo-oci/target-digest` | digest of the *target*: another image's layer |
//! | `containerd.io/snapshot/overlaybd/turbo-oci/target-media-type` | media type of the target |
//! | `containerd.io/snapshot/overlaybd/version` | `0.1.0-turbo.ociv1` |
//!
//! The media type of the package is that of a container's layer in gzip, and its content, for the config of the image,
//! is the tar archive in it. Packages that are made here have a hash tree besides, as other layers.
//!
//! The target is a tar, mostly compressed by gzip. The manifest does not list it, so other tools that copy images leave
//! it behind; it has to be in the same store. Registries may delete it there, unless its own image is in the same
//! repository. Whether it is compressed is told by the package and not by the media type: a package has an index of the
//! target only if there is something to inflate.
//!
//! The package is read whole when the image is opened, and its files are kept, so its blob is not needed any more. Of
//! all packages of an image 16 MiB are in memory, the others in temporary files, 1 GiB at most ([`PackageBudget`]).
//! Reads of the disk need ranges of the target alone: of a compressed one, the compressed bytes between two restart
//! points.
//!
//! All layers of an image share one cache of uncompressed data. Layers of both kinds, native ones and these, may be in
//! one image, but all must be of the same file system.
//!
//! Targets are not checked as they are read: there is a digest of all their bytes, but none of parts.

use crate::blob::{LayerSource, open_layer_source};
use crate::manifest::{ImageLayer, Manifest, OVERLAYBD_VERSION, TURBO_TARGETS};
use crate::store::StagedBlob;
use headstart_block::{Digest, Error, ErrorKind, ReadAt, Result};
use headstart_lsmt::Layer;
use headstart_turbo::{GzipIndex, InflatedView, Spool, TurboPackage};
use std::sync::Arc;

pub use headstart_block::FileSystemKind;
pub use headstart_turbo::{InflatedCache, PackageBudget};

/// The remedy if a target is missing.
pub const TARGET_MISSING: &str =
    "copy the image there that the TurboOCI image was made of: its layers hold the data";

/// Key of a layer annotation: the media type of the blob that has the data of a TurboOCI layer. OverlayBD's snapshotter
/// tells by it if that blob is compressed.
const TURBO_MEDIA_TYPE: &str = "containerd.io/snapshot/overlaybd/turbo-oci/target-media-type";
/// The value of [`OVERLAYBD_VERSION`] for TurboOCI layers.
const OVERLAYBD_VERSION_TURBO: &str = "0.1.0-turbo.ociv1";
/// The media type of a package.
const PACKAGE_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The target of a new TurboOCI layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTarget {
    /// The digest of the blob.
    pub digest: Digest,
    /// The media type of the blob, which says how it is compressed.
    pub media_type: String,
}

impl ImageLayer {
    /// Describes a new TurboOCI layer, whose package is `package`; `tar` is the digest of the tar archive in it.
    #[must_use]
    pub fn of_package(package: &StagedBlob, tar: &Digest, target: &NewTarget) -> Self {
        let mut layer = package.layer().with_diff_id(tar);
        PACKAGE_TYPE.clone_into(&mut layer.blob.media_type);
        let annotations = [
            (OVERLAYBD_VERSION, OVERLAYBD_VERSION_TURBO.to_owned()),
            (TURBO_TARGETS[0], target.digest.to_string()),
            (TURBO_MEDIA_TYPE, target.media_type.clone()),
        ];
        layer.annotations.extend(annotations.map(|(key, value)| (key.to_owned(), value)));
        layer
    }

    /// Returns the digest of the blob that has the data of a TurboOCI layer; `None` if the layer is of another kind.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the annotation is not a digest.
    pub fn turbo_target(&self) -> Result<Option<Digest>> {
        let found = TURBO_TARGETS.iter().find_map(|key| Some((key, self.annotations.get(*key)?)));
        let parse = |(key, text): (&&str, &String)| {
            let wrong = |_| Error::corrupt(format!("its annotation {key} is `{}`", text.escape_debug()));
            text.parse().map_err(wrong)
        };
        found.map(parse).transpose()
    }
}

impl Manifest {
    /// Returns the digests of the blobs that have the data of the image's TurboOCI layers. They are not among those of
    /// [`Manifest::blobs`]: the manifest states no lengths for them. Annotations that are no digests are left out.
    pub fn turbo_targets(&self) -> impl Iterator<Item = Digest> {
        self.layers.iter().filter_map(|layer| layer.turbo_target().ok()?)
    }
}

/// A TurboOCI layer whose package was read. Its target is still to be found.
pub struct TurboLayer {
    target: Digest,
    kind: FileSystemKind,
    metadata: Spool,
    index: Option<GzipIndex>,
}

impl TurboLayer {
    /// Reads the package of `layer`, which is kept from then on, at the cost of the `budget` of its image.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the package or the layer's annotation is damaged, [`ErrorKind::Invalid`] if the layer
    /// is of another kind, [`ErrorKind::Unsupported`] if the budget is exceeded or the target compressed in a way
    /// that cannot be read; errors of `package`.
    pub fn read(layer: &ImageLayer, package: &dyn ReadAt, budget: &mut PackageBudget) -> Result<Self> {
        let target = layer.turbo_target()?.ok_or_else(|| Error::invalid("is no TurboOCI layer"))?;
        let mut package = TurboPackage::open(package, budget)?;
        let index = match package.gzip_index.take() {
            Some(index) => Some(GzipIndex::open(Arc::new(index)).map_err(|e| e.about("gzip.meta"))?),
            None => None,
        };
        let (kind, metadata) = package.into_metadata();
        Ok(Self { target, kind, metadata, index })
    }

    /// Returns the digest of the blob that has the layer's data.
    #[must_use]
    pub fn target(&self) -> Digest {
        self.target
    }

    /// Returns the length in bytes of the blob that has the layer's data; `None` if the target is not compressed, for
    /// then only its store knows.
    #[must_use]
    pub fn target_len(&self) -> Option<u64> {
        self.index.as_ref().map(|index| index.header().gzip_size)
    }

    /// Returns the file system that the layer is of.
    #[must_use]
    pub fn kind(&self) -> FileSystemKind {
        self.kind
    }

    /// Opens the layer. `target` is the blob that has its data, as stored, and is not read yet; `cache` is that of the
    /// image. The source that is returned is that of the metadata.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the metadata is damaged, or the target is not as long as the index or the metadata
    /// says.
    pub fn open(self, target: Arc<dyn ReadAt>, cache: &Arc<InflatedCache>) -> Result<(LayerSource, Layer)> {
        let tar: Arc<dyn ReadAt> = match self.index {
            Some(index) => {
                let view = InflatedView::new(target, Arc::new(index), Arc::clone(cache));
                Arc::new(view.map_err(|e| e.about(self.target))?)
            }
            None => target,
        };
        let source = open_layer_source(Arc::new(self.metadata))?;
        let opened = Layer::open_with_target(Arc::clone(&source.source), tar)?;
        Ok((source, opened))
    }
}

/// Checks that the TurboOCI layers of an image are of one file system; `kinds` are theirs.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if they are not.
pub fn check_kinds(kinds: impl IntoIterator<Item = FileSystemKind>) -> Result<()> {
    let mut kinds = kinds.into_iter();
    let first = kinds.next();
    match kinds.find(|kind| Some(*kind) != first) {
        Some(_) => Err(Error::unsupported("some of its layers are of ext4, others of EROFS")),
        None => Ok(()),
    }
}

/// The blob that has the data of a TurboOCI layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredTarget {
    /// The digest of the blob.
    pub digest: Digest,
    /// The length of the blob in bytes, as stored.
    pub len: u64,
}

/// Opens the TurboOCI layers of one image whose blobs are all at hand.
#[derive(Default)]
pub(crate) struct TurboLayers {
    /// Made for the first layer that needs it.
    cache: Option<Arc<InflatedCache>>,
    /// The file systems of the layers so far.
    kinds: Vec<FileSystemKind>,
    budget: PackageBudget,
}

impl TurboLayers {
    /// Opens a layer, whose blob is `package`; `find` finds its target by the digest. The source that is returned is
    /// that of the metadata, and after the layer comes its target as stored.
    pub(crate) fn open(
        &mut self,
        layer: &ImageLayer,
        package: &dyn ReadAt,
        find: &dyn Fn(&Digest) -> Result<Arc<dyn ReadAt>>,
    ) -> Result<(LayerSource, Layer, StoredTarget)> {
        let turbo = TurboLayer::read(layer, package, &mut self.budget)?;
        self.kinds.push(turbo.kind());
        check_kinds(self.kinds.iter().copied())?;
        let digest = turbo.target();
        let target = find(&digest).map_err(|e| match e.kind() {
            ErrorKind::NotFound => e.remedy(TARGET_MISSING),
            _ => e,
        })?;
        let stored = StoredTarget { digest, len: target.len() };
        let cache = self.cache.get_or_insert_with(|| InflatedCache::new(InflatedCache::DEFAULT_BYTES));
        let (source, opened) = turbo.open(target, cache)?;
        Ok((source, opened, stored))
    }
}
