//! Checking that an image matches its digest.
//!
//! The quick check reads the parts that opening the image reads, and the hash trees' outboards (0.4% of the blobs). It
//! checks the manifest, the config and each outboard against their digests, the presence and size of every blob, the
//! structure and index of each disk layer, and each blob's tail (with the compressed index) against its tree. The deep
//! check also reads every byte of the blobs: it checks each blob against its digest and its tree's root, and each frame
//! against its checksum, and decompresses each frame.

use crate::blob::open_layer_source;
use crate::disk_size::check_size;
use crate::image_blobs::ImageBlobs;
use crate::manifest::{self, Manifest, Tree};
use crate::open_image::{Coverage, coverage};
use crate::progress::{Progress, step};
use crate::reference::Reference;
use crate::remote::RemoteImage;
use crate::store::{Image, ImageStore};
use crate::turbo::TurboLayers;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result, copy_source};
use headstart_hash_tree::HashTree;
use headstart_hash_tree::sums::HashingWriter;
use headstart_lsmt::Layer;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The number of bytes at the end of a blob that the quick check reads: trailers and indices.
const TAIL: u64 = 1 << 20;

/// The remedy for a damaged blob.
const REPAIR: &str =
    "`headstart image verify --repair-from IMAGE` fetches it again, from a copy of this image";

/// The depth of a check: the amount of an image's data that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Checks the digests of the manifest, the config and the hash trees, and the structure and index of each
    /// layer, without reading all of the data.
    Quick,
    /// Reads every byte: checks each blob against its digest and hash tree, and decompresses each frame.
    Deep,
}

/// The result of checking one layer.
#[derive(Debug)]
pub struct LayerVerdict {
    /// The digest of the layer's blob.
    pub blob: Digest,
    /// The means by which the layer's bytes are protected, or the error that was found in the layer.
    pub verdict: Result<Coverage>,
}

/// The result of checking an image.
#[derive(Debug)]
pub struct Verdict {
    /// The digest of the image's manifest.
    pub digest: Digest,
    /// The results for all layers of the manifest, lowest first.
    pub layers: Vec<LayerVerdict>,
    /// The error found in the config or in the disk size that the manifest states; `Ok` if there is none.
    pub config: Result<()>,
}

impl Verdict {
    /// Returns all errors that were found; none if the image is in order.
    pub fn problems(&self) -> impl Iterator<Item = &Error> {
        let layers = self.layers.iter().filter_map(|layer| layer.verdict.as_ref().err());
        self.config.as_ref().err().into_iter().chain(layers)
    }
}

/// Checks the image that `reference` names, which must be in a local directory, to the given depth. All layers are
/// checked even if one is damaged.
///
/// # Errors
/// `Unsupported` if the image is in a remote store; errors if the image cannot be found, its manifest is damaged, or
/// the user wants to stop. Errors in its blobs are returned in the [`Verdict`].
pub fn verify(reference: &Reference, depth: Depth, progress: &dyn Progress) -> Result<Verdict> {
    let (store, image) = ImageStore::open_image(reference)?;
    let spool = (depth == Depth::Deep).then(|| store.root());
    check_image(&store, reference, &image, spool, progress)
}

/// Checks an image in a remote store to [`Depth::Quick`]. For a check of every byte, copy the image: a copy
/// checks each blob against its digest.
///
/// # Errors
/// As [`verify`], and errors if the store does not answer or refuses.
pub fn verify_remote(remote: &RemoteImage, progress: &dyn Progress) -> Result<Verdict> {
    remote.warm()?;
    check_image(remote, &remote.reference, &remote.image, None, progress)
}

/// Checks the image in `blobs`. The deep check spools large hash trees to `spool`.
fn check_image(
    blobs: &dyn ImageBlobs,
    reference: &Reference,
    image: &Image,
    spool: Option<&Path>,
    progress: &dyn Progress,
) -> Result<Verdict> {
    let Image { digest, manifest } = image;
    let size = check_size(manifest.virtual_size.unwrap_or(0)).map_err(|e| e.about(digest));
    let config = size.and_then(|()| check_config(blobs, manifest));
    let mut layers = Vec::with_capacity(manifest.layers.len());
    for layer in &manifest.layers {
        let verdict = check_layer(blobs, layer, spool, progress)
            .map_err(|e| e.about(format!("{reference}, layer {}", layer.blob.digest)))
            .map_err(|e| if e.kind() == ErrorKind::Corrupt { e.remedy(REPAIR) } else { e });
        step(progress, 0)?;
        layers.push(LayerVerdict { blob: layer.blob.digest, verdict });
    }
    Ok(Verdict { digest: *digest, layers, config })
}

/// Checks the config's digest and that it lists the layers.
fn check_config(blobs: &dyn ImageBlobs, manifest: &Manifest) -> Result<()> {
    let ids = blobs.config(manifest)?.diff_ids();
    // Other tools may list the digests of the content that the layers were converted from.
    let ours = manifest.version().is_some();
    if ours && !ids.iter().copied().eq(manifest.layers.iter().map(manifest::ImageLayer::diff_id)) {
        return Err(
            Error::corrupt("the config does not list the manifest's layers").about(manifest.config.digest)
        );
    }
    Ok(())
}

fn check_layer(
    blobs: &dyn ImageBlobs,
    layer: &manifest::ImageLayer,
    spool: Option<&Path>,
    progress: &dyn Progress,
) -> Result<Coverage> {
    let blob = blobs.layer(layer)?;
    if let Some(tree) = &layer.tree {
        check_tree(blobs, tree, &*blob, tail_of(&*blob))?;
    }
    if let Some(spool) = spool {
        check_bytes(&*blob, layer, progress, spool)?;
    }
    if layer.is_turbo() {
        return check_turbo(blobs, layer, spool.is_some(), progress);
    }
    if layer.is_acceleration() {
        return Ok(Coverage::DigestOnly);
    }
    let source = open_layer_source(blob)?;
    Layer::open(Arc::clone(&source.source))?;
    if spool.is_some() {
        progress.begin("decompress", source.source.len());
        source.verify(progress)?;
    }
    Ok(coverage(layer, &source))
}

/// Opens a TurboOCI layer with its target, and reads both if `is_deep`. The target counts as a part of the layer,
/// though it is a blob of another image.
fn check_turbo(
    blobs: &dyn ImageBlobs,
    layer: &manifest::ImageLayer,
    is_deep: bool,
    progress: &dyn Progress,
) -> Result<Coverage> {
    let find = |target: &Digest| blobs.target(target);
    let (source, ..) = TurboLayers::default().open(layer, &*blobs.guarded(layer)?, &find)?;
    if let Some(target) = layer.turbo_target()?.filter(|_| is_deep) {
        let stored = blobs.target(&target)?;
        progress.begin("verify", stored.len());
        let mut hash = headstart_hash_tree::sums::DigestWriter::new(io::sink());
        copy_source(&*stored, &mut hash, &mut |bytes| step(progress, bytes))?;
        let (_, digest, _) = hash.finish();
        if digest != target {
            return Err(Error::corrupt(format!("its content has the digest {digest}")).about(target));
        }
        progress.begin("decompress", source.source.len());
        source.verify(progress)?;
    }
    Ok(Coverage::DigestOnly)
}

/// The last part of a blob: trailers and indices.
fn tail_of(blob: &dyn ReadAt) -> ByteRange {
    ByteRange::between(blob.len().saturating_sub(TAIL), blob.len())
}

/// Checks a hash tree's outboard against its digest, and the range `tail` of the blob against the tree.
fn check_tree(blobs: &dyn ImageBlobs, tree: &Tree, blob: &dyn ReadAt, tail: ByteRange) -> Result<()> {
    let named = |e: Error| e.about(format!("its hash tree {}", tree.digest));
    let outboard = blobs.tree(tree).map_err(named)?;
    let mut hash = headstart_hash_tree::sums::DigestWriter::new(io::sink());
    copy_source(&*outboard, &mut hash, &mut |_| Ok(())).map_err(named)?;
    let (_, digest, _) = hash.finish();
    if digest != tree.digest {
        return Err(named(Error::corrupt(format!("its content has the digest {digest}"))));
    }
    HashTree::open(tree.root, outboard, blob.len()).map_err(named)?.verify(blob, tail)
}

/// Checks every byte of a blob against its digest and its tree's root.
fn check_bytes(
    blob: &dyn ReadAt,
    layer: &manifest::ImageLayer,
    progress: &dyn Progress,
    spool: &Path,
) -> Result<()> {
    progress.begin("verify", blob.len());
    let mut hashes = HashingWriter::new(io::sink(), spool);
    copy_source(blob, &mut hashes, &mut |bytes| step(progress, bytes))?;
    let (_, sums) = hashes.finish(io::sink())?;
    if sums.digest != layer.blob.digest {
        return Err(Error::corrupt(format!("its content has the digest {}", sums.digest)));
    }
    match &layer.tree {
        Some(tree) if tree.root != sums.root => {
            Err(Error::corrupt(format!("its hash tree's root is {}, not {}", sums.root, tree.root)))
        }
        _ => Ok(()),
    }
}
