//! Making a layer's blob: LSMT through ZFile through the hashes into a staged file, in one pass.

use crate::manifest;
use crate::store::{BlobWriter, Staging};
use headstart_block::Result;
use headstart_lsmt::LayerSummary;
use headstart_zfile::{ZFileOptions, ZFileWriter};

/// What a layer is written to.
pub(crate) type LayerOutput = ZFileWriter<BlobWriter>;

/// Stages the blob and the hash tree of the layer that `write` writes.
///
/// # Errors
/// What `write` or writing reports; the staged files are then left to the staging area to remove.
pub(crate) fn stage_layer(
    staging: &Staging,
    packing: &ZFileOptions,
    write: impl FnOnce(LayerOutput) -> Result<(LayerOutput, LayerSummary)>,
) -> Result<(manifest::Layer, LayerSummary)> {
    let (output, summary) = write(ZFileWriter::new(staging.blob_writer()?, packing)?)?;
    let (blob, _, index_offset) = output.finish_locating(summary.index_offset())?;
    Ok((blob.finish()?.layer().with_index_offset(index_offset), summary))
}

/// The packing options as the manifest records them.
pub(crate) fn describe(packing: &ZFileOptions) -> String {
    let ZFileOptions { codec, frame_size, crc, level, threads: _ } = packing;
    let level = level.map(|level| format!(",level={level}")).unwrap_or_default();
    let crc = if *crc { ",crc" } else { "" };
    format!("{codec},frame={frame_size}{level}{crc}")
}
