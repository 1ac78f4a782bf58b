//! Making a layer's blob in one pass: the LSMT layer is compressed as a ZFile if wanted, hashed, and written to a
//! staged file.

use crate::manifest;
use crate::store::{BlobWriter, Staging};
use headstart_block::Result;
use headstart_lsmt::LayerSummary;
use headstart_zfile::{ZFileOptions, ZFileWriter};
use std::io::{self, Write};

/// The form in which a new layer's bytes are stored in its blob: compressed or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packing {
    /// The layer is compressed in frames of a fixed size, which can be read independently.
    ZFile(ZFileOptions),
    /// The layer is not compressed. Reading costs no more than reading a raw disk, but the blob is as long as
    /// the data.
    Plain,
}

impl Default for Packing {
    fn default() -> Self {
        Self::ZFile(ZFileOptions::default())
    }
}

/// The output of a layer in the making: the layer's bytes are written to it, and it compresses and hashes them and
/// writes them to the file of a blob, a staged one by default.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum LayerOutput<B = BlobWriter> {
    /// The bytes are compressed.
    ZFile(ZFileWriter<B>),
    /// The bytes are stored as they are.
    Plain(B),
}

impl<B: Write> Write for LayerOutput<B> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::ZFile(output) => output.write(buf),
            Self::Plain(output) => output.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::ZFile(output) => output.flush(),
            Self::Plain(output) => output.flush(),
        }
    }
}

impl<B: Write> LayerOutput<B> {
    /// An output whose blob is written to `blob`.
    pub(crate) fn new(blob: B, packing: &Packing) -> Result<Self> {
        Ok(match packing {
            Packing::ZFile(options) => Self::ZFile(ZFileWriter::new(blob, options)?),
            Packing::Plain => Self::Plain(blob),
        })
    }

    /// Ends the blob; also returns the place in it of the byte at `offset` of the layer, or of the frame that holds it.
    pub(crate) fn finish(self, offset: u64) -> Result<(B, u64)> {
        match self {
            Self::ZFile(output) => output.finish_locating(offset).map(|(blob, _, at)| (blob, at)),
            Self::Plain(blob) => Ok((blob, offset)),
        }
    }
}

/// Stages the blob and the hash tree of the layer that `write` writes, and describes them as a layer of an image.
///
/// # Errors
/// Errors of `write` or writing; the staged files are then left to the staging area to remove.
pub fn stage_layer(
    staging: &Staging,
    packing: &Packing,
    write: impl FnOnce(LayerOutput) -> Result<(LayerOutput, LayerSummary)>,
) -> Result<(manifest::ImageLayer, LayerSummary)> {
    let (output, summary) = write(LayerOutput::new(staging.blob_writer()?, packing)?)?;
    let (blob, index_offset) = output.finish(summary.index_offset())?;
    Ok((blob.finish()?.layer().with_index_offset(index_offset), summary))
}

/// Returns the packing options as manifests record them, such as `zstd,frame=32768,crc`. The number of threads is no
/// part of them: the layer does not depend on it.
#[must_use]
pub fn describe(packing: &Packing) -> String {
    let Packing::ZFile(options) = packing else { return "plain".to_owned() };
    let ZFileOptions { codec, frame_size, crc, level, threads: _ } = options;
    let level = level.map(|level| format!(",level={level}")).unwrap_or_default();
    let crc = if *crc { ",crc" } else { "" };
    format!("{codec},frame={frame_size}{level}{crc}")
}
