//! The wrappers of a layer's blob: an optional tar archive, in it an optional ZFile, and in that the LSMT layer.
//!
//! Wrappers are detected by the content of the blob, as in OverlayBD: names and media types are ignored.

use crate::progress::{Progress, step};
use crate::tar_wrapper::{SourceRange, locate};
use headstart_block::{Error, ReadAt, Result, to_usize};
use headstart_zfile::{ZFileInfo, ZFileReader, is_zfile};
use std::sync::Arc;

/// The bytes of an LSMT layer (the disk format of OverlayBD), read through the tar archive and the ZFile
/// compression that may be around it.
#[derive(Clone)]
pub struct LayerSource {
    /// The layer's uncompressed bytes, without the tar archive or compression around them.
    pub source: Arc<dyn ReadAt>,
    /// `true` if the layer is inside a tar archive.
    pub in_tar: bool,
    zfile: Option<Arc<ZFileReader<Arc<dyn ReadAt>>>>,
}

/// Opens `blob` and removes its wrappers: an optional tar archive, then an optional ZFile. Does not check
/// that an LSMT layer is inside.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if a wrapper is damaged; `Unsupported` if the blob is compressed
/// by gzip or zstd, as layers of ordinary container images are; errors of reading `blob`.
pub fn open_layer_source(blob: Arc<dyn ReadAt>) -> Result<LayerSource> {
    let range = locate(&blob)?;
    let in_tar = range.is_some();
    let inner: Arc<dyn ReadAt> = match range {
        Some(range) => Arc::new(SourceRange::new(blob, range)?),
        None => blob,
    };
    let mut start = [0; 24];
    let len = start.len().min(to_usize(inner.len()));
    inner.read_at(&mut start[..len], 0)?;
    refuse_compressed(&start[..len])?;
    if !is_zfile(&start[..len]) {
        return Ok(LayerSource { source: inner, in_tar, zfile: None });
    }
    let zfile = Arc::new(ZFileReader::open(inner)?);
    Ok(LayerSource { source: Arc::clone(&zfile) as Arc<dyn ReadAt>, in_tar, zfile: Some(zfile) })
}

/// Refuses the compressed tar archives that the layers of ordinary container images and of turboOCI are: here, because
/// the LSMT reader takes them for noise.
fn refuse_compressed(start: &[u8]) -> Result<()> {
    let by = match start {
        [0x1f, 0x8b, ..] => "gzip",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        _ => return Ok(()),
    };
    Err(Error::unsupported(format!("is compressed by {by}: a container's layer, not a disk's")).remedy(
        "an ordinary container image becomes a disk by `headstart image convert`; `headstart image inspect \
             --forms` lists the disks that were made of it before",
    ))
}

impl LayerSource {
    /// Describes the ZFile (compressed container) around the layer; `None` if the layer is not compressed.
    #[must_use]
    pub fn zfile(&self) -> Option<&ZFileInfo> {
        self.zfile.as_ref().map(|zfile| zfile.info())
    }

    /// `true` if the layer is compressed and each compressed frame has a checksum. `false` for an
    /// uncompressed layer.
    #[must_use]
    pub fn has_frame_checksums(&self) -> bool {
        self.zfile().is_some_and(|info| info.crc)
    }

    /// Describes the wrappers in words, outermost first, such as `tar` or the codec and frame size. Empty for
    /// a layer that is neither compressed nor in a tar archive.
    #[must_use]
    pub fn wrappers(&self) -> Vec<String> {
        let tar = self.in_tar.then(|| "tar".to_owned());
        let zfile =
            self.zfile().map(|info| format!("{} in frames of {}k", info.codec, info.frame_size >> 10));
        tar.into_iter().chain(zfile).collect()
    }

    /// Reads and decompresses every frame of a compressed layer, and checks the frames' checksums if there are any.
    /// Does nothing for an uncompressed layer. `progress` gets the number of uncompressed bytes that were checked. The
    /// caller must have announced the task, whose total is the length of [`LayerSource::source`].
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a frame is damaged; `Cancelled` if the user wants to stop; errors of
    /// reading the blob.
    pub fn verify(&self, progress: &dyn Progress) -> Result<()> {
        self.zfile.as_ref().map_or(Ok(()), |zfile| zfile.verify_with(&mut |bytes| step(progress, bytes)))
    }
}
