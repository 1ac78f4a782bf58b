//! Single layer files, outside of any store. A file may have the wrappers of a layer's blob (a tar archive, a ZFile, or
//! both) or none.

use crate::blob::{LayerSource, open_layer_source};
use crate::progress::Progress;
use headstart_block::{Error, FileSource, Result};
use headstart_lsmt::{Layer, open_pair};
use std::path::Path;
use std::sync::Arc;

/// A single layer file, open for reading, outside of any image.
pub struct LayerFile {
    /// The LSMT layer in the file: its header, trailer and index of segments.
    pub layer: Layer,
    /// The layer's uncompressed bytes, and a description of the wrappers around them.
    pub source: LayerSource,
}

impl LayerFile {
    /// Opens the layer file at `path`. The layer may be inside a tar archive or compressed as a ZFile; it may
    /// be sealed, or unsealed with holes (sparse).
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the file is not a layer or is damaged; `Unsupported` if it is
    /// compressed by gzip or zstd, or is an unsealed layer of another form; errors of opening the file.
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

    /// Reads and decompresses every frame of a compressed layer, and checks the frames' checksums if there are
    /// any. Returns `true` if the frames have checksums, and `false` if they have none: damage may then not have been
    /// detected. An uncompressed layer is not read, and gives `false`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a frame is damaged; `Cancelled` if the user wants to stop; errors of
    /// reading the file.
    pub fn verify(&self, progress: &dyn Progress) -> Result<bool> {
        progress.begin("verify", self.source.source.len());
        self.source.verify(progress)?;
        Ok(self.source.has_frame_checksums())
    }
}

/// Opens an unsealed writable layer from its data file and its index file, which any tool for the format may
/// have written.
///
/// # Errors
/// As [`headstart_lsmt::open_pair`]; errors of opening the files.
pub fn open_pair_files(data: &Path, index: &Path) -> Result<Layer> {
    let pair = open_pair(Arc::new(FileSource::open(data)?), &FileSource::open(index)?);
    // The error speaks of "the data file", so the file's path must be added.
    pair.map_err(|e| {
        Error::new(e.kind(), e.to_string()).about(format!("{},{}", data.display(), index.display()))
    })
}
