//! The wrappers of a layer's blob: an optional tar, an optional ZFile, and then the LSMT layer.
//!
//! Each wrapper is found by looking at the content, as the reference does: names and media types say nothing.

use crate::progress::{Progress, step};
use crate::tar_wrapper::{SourceRange, locate};
use headstart_block::{Error, ReadAt, Result, to_usize};
use headstart_zfile::{ZFileInfo, ZFileReader, is_zfile};
use std::sync::Arc;

/// The bytes of an LSMT layer, with its wrappers off.
#[derive(Clone)]
pub struct LayerSource {
    /// The layer's own bytes.
    pub source: Arc<dyn ReadAt>,
    /// `true` if there is a tar around it.
    pub in_tar: bool,
    zfile: Option<Arc<ZFileReader<Arc<dyn ReadAt>>>>,
}

/// Takes the wrappers off `blob`. Does not check that a layer is inside.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if a wrapper is damaged.
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
    Err(Error::unsupported(format!("is compressed by {by}: a container's layer, not a disk's"))
        .remedy("convert the image with OverlayBD's converter first"))
}

impl LayerSource {
    /// The compressed file around it, if there is one.
    #[must_use]
    pub fn zfile(&self) -> Option<&ZFileInfo> {
        self.zfile.as_ref().map(|zfile| zfile.info())
    }

    /// `true` if each of its frames has a checksum.
    #[must_use]
    pub fn has_frame_checksums(&self) -> bool {
        self.zfile().is_some_and(|info| info.crc)
    }

    /// Its wrappers, outermost first, in words; none for a plain layer.
    #[must_use]
    pub fn wrappers(&self) -> Vec<String> {
        let tar = self.in_tar.then(|| "tar".to_owned());
        let zfile =
            self.zfile().map(|info| format!("{} in frames of {}k", info.codec, info.frame_size >> 10));
        tar.into_iter().chain(zfile).collect()
    }

    /// Reads every frame through its checksum and its codec; `progress` is told of the bytes of the layer.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if one is damaged.
    pub fn verify(&self, progress: &dyn Progress) -> Result<()> {
        self.zfile.as_ref().map_or(Ok(()), |zfile| zfile.verify_with(&mut |bytes| step(progress, bytes)))
    }
}
