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
//!
//! The blob of a TurboOCI layer is made by `crate::turbo_layer`.

use crate::apply::LayerCounts;
use crate::extent_count::ExtentCount;
use crate::layer_stream::{LayerStream, peek};
use crate::options::{ConvertMode, ConvertOptions};
use crate::parent_disk::ParentDisk;
use crate::tar_conversion::{LayerPlace, TarConversion, WrittenFileSystem, WrittenTree};
use crate::turbo_layer::stage_package;
use headstart_block::{Digest, Error, ErrorKind, FileSystemKind, Result};
use headstart_container_source::{LayerCompression, layer_media_type};
use headstart_file_blocks::BlockSink;
use headstart_image::manifest::{ImageLayer, LayerOrigin};
use headstart_image::new_layer::{LayerOutput, stage_layer};
use headstart_image::progress::Progress;
use headstart_image::store::Staging;
use headstart_image::turbo::NewTarget;
use headstart_lsmt::{LayerSummary, LayerWriter};
use std::io::Read;

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
    /// The media type that its image states.
    pub media_type: String,
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
    pub file_system: WrittenFileSystem,
    /// The counts of segments and bytes in the layer of the disk.
    pub summary: LayerSummary,
}

/// Converts a layer, and stages its blob. The blob depends on the tar, the parent's content, the chain ids and the
/// options; not on the number of threads, or the place and form of the parent. That of a native layer does not depend
/// on the compression of the tar either. One exception is known: where metadata comes in the place of a removed file
/// that had the very same bytes, it is left out if that file can be read, and written if it lies in a tar.
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
    let LayerInput { bytes, digest, size, diff_id, media_type, .. } = input;
    let origin = LayerOrigin { digest, chain: place.chain, key: options.key(&place.chain, &digest) };
    let conversion = TarConversion { place, options, digest, diff_id };
    let stream =
        |bytes, is_indexed| LayerStream { bytes, size, limits: &options.limits, progress, is_indexed };
    let (layer, tree, summary) = match options.mode {
        ConvertMode::Native => stage_native(stream(bytes, false), &conversion, staging)?,
        ConvertMode::Turbo => match peek(bytes)? {
            // There is no index of it.
            (LayerCompression::Zstd, bytes) => stage_native(stream(bytes, false), &conversion, staging)?,
            (compression, bytes) => {
                let stream = stream(bytes, compression == LayerCompression::Gzip);
                let media_type = layer_media_type(&media_type, compression);
                stage_package(stream, &conversion, staging, &NewTarget { digest, media_type })?
            }
        },
    };
    let WrittenTree { entries, file_system, tar_bytes } = tree;
    let layer = match options.file_system {
        FileSystemKind::Ext4 => layer.with_origin(&origin),
        FileSystemKind::Erofs => layer.with_origin(&origin).with_file_system(FileSystemKind::Erofs),
    };
    Ok(ConvertedLayer { layer, entries, tar_bytes, file_system, summary })
}

/// The layer of the disk, as the file system's output.
struct LayerBlocks {
    writer: LayerWriter<LayerOutput>,
    /// The layers below, of which some may be of TurboOCI.
    below: Option<ParentDisk>,
    extents: ExtentCount,
}

impl BlockSink for LayerBlocks {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.extents.own(offset, bytes.len() as u64)?;
        self.writer.data(offset, bytes)
    }

    fn cannot_compare(&self, offset: u64) -> bool {
        self.below.as_ref().is_some_and(|below| below.is_in_tar(offset))
    }
}

/// Stages a layer with data of its own.
fn stage_native(
    stream: LayerStream<'_>,
    conversion: &TarConversion<'_>,
    staging: &Staging,
) -> Result<(ImageLayer, WrittenTree, LayerSummary)> {
    let mut written = None;
    let options = conversion.options;
    let (layer, summary) = stage_layer(staging, &options.threaded_packing(), |output| {
        stream.with_tar(options.threads > 1, |tar| {
            let writer = LayerWriter::new(output, conversion.meta())?.in_any_order();
            let below = conversion.place.parent.clone();
            let blocks = LayerBlocks { writer, below, extents: conversion.extents() };
            let (blocks, tree) = conversion.write(tar, blocks)?;
            written = Some(tree);
            blocks.writer.finish()
        })
    })?;
    let tree = written.ok_or_else(|| Error::invalid("the layer was staged without being read"))?;
    Ok((layer, tree, summary))
}

#[cfg(test)]
mod tests;
