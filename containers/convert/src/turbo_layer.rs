//! A TurboOCI layer: the metadata of a file system, with the data left where it is, in the container's layer.
//!
//! ```text
//!   compressed bytes ─ sha256 ─ inflate ─ │ ─ sha256 ─ tar ─ applier ─ tree ─ LSMT ─ ZFile ─ ext4.fs.meta ┐
//!                              └ index ───│────────────────────────────────────────────── gzip.meta ──────┴ tar.gz
//! ```
//!
//! The layer is read once, as for a native one. Sectors of files that the tar has as they are become segments that name
//! their place in the tar; everything else is stored here: metadata, and data of sparse files that lies at another
//! place within a sector than in the tar.
//!
//! # The end of a file
//! A file takes whole blocks of 4 KiB and ends somewhere in a sector. The rest of that sector is the padding in the
//! tar, which is zeros; if it is not, the sector is stored here. Sectors of the block behind it have no bytes anywhere
//! and read as zeros, unless a layer below has data there, of a file that is gone by now: then they are recorded as
//! zeros. OverlayBD's convertor leaves them out, so that old data can show behind the end of a file that is mapped into
//! memory.

use crate::extent_count::ExtentCount;
use crate::layer_stream::LayerStream;
use crate::parent_disk::ParentDisk;
use crate::tar_conversion::{TarConversion, WrittenTree};
use headstart_block::{ByteRange, Digest, Error, FileSystemKind, ReadAt, Result};
use headstart_file_blocks::{BlockSink, FoundSectors};
use headstart_image::manifest::ImageLayer;
use headstart_image::new_layer::Packing;
use headstart_image::store::Staging;
use headstart_image::turbo::NewTarget;
use headstart_lsmt::{LayerSummary, LayerWriter};
use headstart_turbo::{NewPackage, Spool};
use headstart_zfile::ZFileWriter;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{Seek, Write};
use std::ops::Range;

/// The metadata of the layer, as the file system's output.
struct PackageBlocks<W: Write> {
    writer: LayerWriter<W>,
    below: Option<ParentDisk>,
    extents: ExtentCount,
}

impl<W: Write> BlockSink for PackageBlocks<W> {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.store(offset, bytes)
    }

    fn content(&mut self, offset: u64, bytes: &[u8], found: &[FoundSectors]) -> Result<()> {
        let mut done = 0;
        for FoundSectors { bytes: range, place } in found {
            self.own(offset, bytes, done..range.start)?;
            let (start, end) = (offset + range.start as u64, offset + range.end as u64);
            self.extents.of_target(start, end - start, *place)?;
            self.writer.target(ByteRange::between(start, end), *place)?;
            done = range.end;
        }
        self.own(offset, bytes, done..bytes.len())
    }

    fn cannot_compare(&self, offset: u64) -> bool {
        self.below.as_ref().is_some_and(|below| below.is_in_tar(offset))
    }
}

impl<W: Write> PackageBlocks<W> {
    /// Takes sectors of files that are not in the tar as they are.
    fn own(&mut self, offset: u64, bytes: &[u8], range: Range<usize>) -> Result<()> {
        let (start, own) = (offset + range.start as u64, &bytes[range]);
        if own.iter().any(|byte| *byte != 0) {
            return self.store(start, own);
        }
        let zeros = ByteRange::between(start, start + own.len() as u64);
        match &self.below {
            Some(below) if !own.is_empty() && below.has_data(zeros)? => {
                self.extents.zeros()?;
                self.writer.zeroes(zeros)
            }
            _ => Ok(()),
        }
    }

    /// Takes bytes that are stored here.
    fn store(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.extents.own(offset, bytes.len() as u64)?;
        self.writer.data(offset, bytes)
    }
}

/// Stages the package of a layer, whose bytes are the blob `target`.
pub(crate) fn stage_package(
    stream: LayerStream<'_>,
    conversion: &TarConversion<'_>,
    staging: &Staging,
    target: &NewTarget,
) -> Result<(ImageLayer, WrittenTree, LayerSummary)> {
    let threads = conversion.options.threads;
    let Packing::ZFile(packing) = conversion.options.threaded_packing() else {
        return Err(Error::invalid("the metadata of TurboOCI layers is always compressed"));
    };
    let failed = |e| Error::io("cannot make a scratch file", e).about(staging.path().display());
    let scratch = tempfile::tempfile_in(staging.path()).map_err(failed)?;
    let (metadata, index, tree, summary) = stream.with_tar(threads > 1, |tar| {
        let writer = LayerWriter::new(ZFileWriter::new(scratch, &packing)?, conversion.meta())?;
        let writer = writer.in_any_order().with_target();
        let blocks =
            PackageBlocks { writer, below: conversion.place.parent.clone(), extents: conversion.extents() };
        let (blocks, tree) = conversion.write(tar, blocks)?;
        let (output, summary) = blocks.writer.finish()?;
        Ok((output.finish()?.0, tar.take_index()?, tree, summary))
    })?;
    let kind = conversion.options.file_system;
    let layer = write_package(kind, metadata, index.as_ref(), staging, target)?;
    Ok((layer, tree, summary))
}

/// Puts the files of a package together.
fn write_package(
    kind: FileSystemKind,
    mut metadata: File,
    index: Option<&Spool>,
    staging: &Staging,
    target: &NewTarget,
) -> Result<ImageLayer> {
    let failed = |e| Error::io("cannot read a scratch file", e).about(staging.path().display());
    let metadata_len = metadata.stream_position().map_err(failed)?;
    metadata.rewind().map_err(failed)?;
    let gzip_index = index.map(|index| index as &dyn ReadAt);
    let package = NewPackage { kind, metadata: &mut metadata, metadata_len, gzip_index };
    let (mut blob, mut tar) = (staging.blob_writer()?, Sha256::new());
    package.write(&mut |part| tar.update(part), &mut blob)?;
    let tar = Digest::from_bytes(tar.finalize().into());
    Ok(ImageLayer::of_package(&blob.finish()?, &tar, target))
}

#[cfg(test)]
mod tests;
