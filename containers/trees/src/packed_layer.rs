//! Sealed layers as blobs for images.

use headstart_block::{Error, Result};
use headstart_hash_tree::sums::DigestWriter;
use headstart_image::layer_file::LayerFile;
use headstart_image::manifest::{BLOB_DIGEST, BLOB_SIZE, OVERLAYBD_VERSION, OVERLAYBD_VERSION_NATIVE};
use headstart_snapshotter::remote::PackedLayer;
use headstart_zfile::{ZFileOptions, ZFileWriter, is_zfile};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;

/// Compresses the sealed layer in a file into one without a name in `directory`.
///
/// # Errors
/// Errors of reading and writing.
pub(crate) fn pack(layer: &Path, directory: &Path) -> Result<PackedLayer> {
    let failed = |error| Error::io("cannot be packed for images", error).about(layer.display());
    // Also checks that it is one.
    LayerFile::open(layer)?;
    let mut sealed = BufReader::with_capacity(1 << 20, File::open(layer).map_err(failed)?);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file: File = openat(CWD, directory, flags, mode).map_err(|error| failed(error.into()))?.into();
    let mut writer = ZFileWriter::new(DigestWriter::new(file), &ZFileOptions::default())?;
    io::copy(&mut sealed, &mut writer).map_err(failed)?;
    let (writer, _) = writer.finish()?;
    let (file, digest, size) = writer.finish();
    // Without the hash tree, which would be another blob: containerd keeps and pushes those only that a manifest lists.
    let annotations = [
        (BLOB_DIGEST, digest.to_string()),
        (BLOB_SIZE, size.to_string()),
        (OVERLAYBD_VERSION, OVERLAYBD_VERSION_NATIVE.to_owned()),
    ];
    let annotations = annotations.map(|(name, value)| (name.to_owned(), value)).into();
    Ok(PackedLayer { file: Arc::new(file), digest, size, annotations })
}

/// `true` if a blob with this beginning is a layer that was packed.
pub(crate) fn is_layer(beginning: &[u8]) -> bool {
    is_zfile(beginning)
}
