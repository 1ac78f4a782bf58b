//! One layer of a container's image becomes one layer of a disk, in one pass over its bytes.
//!
//! ```text
//!   compressed bytes ─ sha256 ─ inflate ─ sha256 ─ │ ─ tar ─ applier ─ ext4 ─ LSMT ─ │ ─ ZFile ─ sha256, BLAKE3 ─ file
//!         a thread that decompresses               │        the caller's thread      │    more threads
//! ```
//!
//! Nothing is stored on the way, and no stage holds more than a few parts of the layer: the content of a file goes to
//! the layer as it comes out of the tar, in its order, and the blocks of metadata that differ from the parent's follow
//! at the end. The parent is read block by block, as far as the layer touches it, so it may be anywhere.
//!
//! The digests of the compressed bytes and of the tar are known when everything has been read. If one of them is not
//! what the image says, then the layer is given up, as after any other error: the blob is never finished, and its
//! beginning goes with the staging area.

use crate::apply::{Applier, LayerCounts};
use crate::content::EntryContent;
use crate::estargz::{is_of_estargz, start_of};
use crate::ext4_tree::Ext4Tree;
use crate::layer_stream::{LayerStream, TarStream};
use crate::options::{ConvertOptions, FILE_SYSTEM_UUID, HASH_SEED, layer_uuid};
use headstart_block::{Digest, Error, ErrorKind, ReadAt, Result};
use headstart_ext4::{BlockSink, FileSystem, FileSystemSummary, InodeAttributes, InodeTime, NewFileSystem};
use headstart_image::manifest::{ImageLayer, LayerOrigin};
use headstart_image::new_layer::{LayerOutput, stage_layer};
use headstart_image::progress::Progress;
use headstart_image::store::Staging;
use headstart_lsmt::{LayerMeta, LayerSummary, LayerWriter};
use headstart_tar::TarReader;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

/// The bytes of a container's layer, and what its image says of them.
pub struct LayerInput<'a> {
    /// The name of the layer, for messages.
    pub name: String,
    /// The layer as stored, mostly compressed, from its first byte on.
    pub bytes: Box<dyn Read + Send + 'a>,
    /// The digest that these bytes must have.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
    /// The digest that the tar must have.
    pub diff_id: Digest,
}

/// The place of a layer in its image.
#[derive(Clone)]
pub struct LayerPlace {
    /// The chain id of the layer.
    pub chain: Digest,
    /// The chain id of the layer below; `None` for the first layer.
    pub parent_chain: Option<Digest>,
    /// The disk of all layers below; `None` for the first layer.
    pub parent: Option<Arc<dyn ReadAt>>,
}

/// A layer that was converted, and staged.
#[derive(Clone, Debug)]
pub struct ConvertedLayer {
    /// The layer, as manifests describe it.
    pub layer: ImageLayer,
    /// The counts of its entries.
    pub entries: LayerCounts,
    /// The length of its tar in bytes.
    pub tar_bytes: u64,
    /// The state of the file system after it.
    pub file_system: FileSystemSummary,
    /// The counts of segments and bytes in the layer of the disk.
    pub summary: LayerSummary,
}

/// The layer of the disk, as the file system's output.
struct LayerBlocks(LayerWriter<LayerOutput>);

impl BlockSink for LayerBlocks {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.data(offset, bytes)
    }
}

/// Converts a layer, and stages its blob. The blob depends on the tar, the parent's content, the chain ids and the
/// options; not on the compression of the tar, the number of threads, or the place and form of the parent.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the stream is damaged, is not the one that the image says, or makes no sense on the
/// parent; [`ErrorKind::Unsupported`] if it is beyond a limit or has what a file system cannot hold;
/// [`ErrorKind::Invalid`] if the file system is full, and for options that are not possible; `Cancelled` if the user
/// wants to stop; errors of the stream, the parent and of writing. Errors about the layer name it.
pub fn convert_layer(
    input: LayerInput<'_>,
    place: &LayerPlace,
    staging: &Staging,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<ConvertedLayer> {
    let name = input.name.clone();
    convert(input, place, staging, options, progress).map_err(|error| match error.kind() {
        // These speak of an entry or a block of the layer.
        ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid => {
            Error::new(error.kind(), error.to_string()).about(name)
        }
        _ => error.about(name),
    })
}

fn convert(
    input: LayerInput<'_>,
    place: &LayerPlace,
    staging: &Staging,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<ConvertedLayer> {
    options.check()?;
    let LayerInput { bytes, digest, size, diff_id, .. } = input;
    let stream = LayerStream { bytes, size, limits: &options.limits, progress };
    let origin = LayerOrigin { digest, chain: place.chain, key: options.key(&place.chain) };
    let mut counted = None;
    let (layer, summary) = stage_layer(staging, &options.threaded_packing(), |output| {
        stream.with_tar(options.threads > 1, |tar| {
            let meta = LayerMeta {
                virtual_size: place.parent.as_ref().map_or(options.size, ReadAt::len),
                uuid: layer_uuid(Some(&place.chain)),
                parent_uuid: layer_uuid(place.parent_chain.as_ref()),
                ..LayerMeta::default()
            };
            let blocks = LayerBlocks(LayerWriter::new(output, meta)?.in_any_order());
            let fs = match &place.parent {
                Some(parent) => FileSystem::open(Arc::clone(parent), blocks)?,
                None => new_file_system(options.size).make(blocks)?,
            };
            let mut tree = Ext4Tree::new(fs);
            let entries = apply_tar(&mut tree, tar, options)?;
            let sums = tar.sums()?;
            check_digest("it", &digest, &sums.digest)?;
            check_digest("its tar", &diff_id, &sums.diff_id)?;
            let (blocks, file_system) = tree.into_inner().finish()?;
            counted = Some((entries, file_system, sums.tar_bytes));
            blocks.0.finish()
        })
    })?;
    let (entries, file_system, tar_bytes) =
        counted.ok_or_else(|| Error::invalid("the layer was staged without being read"))?;
    Ok(ConvertedLayer { layer: layer.with_origin(&origin), entries, tar_bytes, file_system, summary })
}

/// Applies all entries of a tar that are the image's, and reads it to its end.
fn apply_tar<S: BlockSink>(
    tree: &mut Ext4Tree<S>,
    tar: &mut dyn TarStream,
    options: &ConvertOptions,
) -> Result<LayerCounts> {
    let mut reader = TarReader::new(tar, options.limits.tar.clone());
    let mut applier = Applier::new(tree, options.limits.apply);
    while let Some(entry) = reader.next_entry()? {
        let start = start_of(&entry, &mut reader)?;
        if !is_of_estargz(&entry, &start) {
            applier.apply(&entry, &mut EntryContent::after(&start, &entry, &mut reader))?;
        }
    }
    reader.finish()?;
    Ok(applier.finish())
}

fn check_digest(thing: &str, expected: &Digest, found: &Digest) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let cause = format!("{thing} should have the digest {expected}, but has {found}");
    Err(Error::corrupt(cause).remedy("fetch it again; if that does not help, its image is damaged"))
}

/// An empty file system: a root directory as containers' images begin with it.
fn new_file_system(size: u64) -> NewFileSystem {
    let root =
        InodeAttributes { mode: 0o755, uid: 0, gid: 0, mtime: InodeTime::default(), xattrs: BTreeMap::new() };
    NewFileSystem { size, uuid: FILE_SYSTEM_UUID, hash_seed: HASH_SEED, root }
}

#[cfg(test)]
mod tests;
