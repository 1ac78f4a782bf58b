//! Single layer files, with any wrappers.

use crate::blob::{LayerSource, open_layer_source};
use crate::progress::Progress;
use headstart_block::{Error, FileSource, Result};
use headstart_lsmt::{Layer, open_pair};
use std::path::Path;
use std::sync::Arc;

/// A layer file, open.
pub struct LayerFile {
    /// The layer in it.
    pub layer: Layer,
    /// Its content and the wrappers around it.
    pub source: LayerSource,
}

impl LayerFile {
    /// Opens the file at `path`: ZFile-wrapped, tar-wrapped or plain, sealed or sparse.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it is not a layer or a damaged one.
    pub fn open(path: &Path) -> Result<Self> {
        let named = |e: Error| e.about(path.display());
        let source = open_layer_source(Arc::new(FileSource::open(path)?)).map_err(named)?;
        // Only a plain file can have the holes that a sparse layer is made of.
        let layer = if source.wrappers().is_empty() {
            Layer::open_file(FileSource::open(path)?)
        } else {
            Layer::open(Arc::clone(&source.source))
        };
        Ok(Self { layer: layer.map_err(named)?, source })
    }

    /// Reads and checks every frame; returns `true` if there are checksums.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a frame is damaged.
    pub fn verify(&self, progress: &dyn Progress) -> Result<bool> {
        progress.begin("verify", self.source.source.len());
        self.source.verify(progress)?;
        Ok(self.source.has_frame_checksums())
    }
}

/// Opens an unsealed writable layer by its two files.
///
/// # Errors
/// As [`headstart_lsmt::open_pair`].
pub fn open_pair_files(data: &Path, index: &Path) -> Result<Layer> {
    let pair = open_pair(Arc::new(FileSource::open(data)?), &FileSource::open(index)?);
    // The error speaks of "the data file", so the file's path must be added.
    pair.map_err(|e| {
        Error::new(e.kind(), e.to_string()).about(format!("{},{}", data.display(), index.display()))
    })
}
