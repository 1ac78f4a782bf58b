//! Sealed layers as blobs for images.

use flate2::read::GzDecoder;
use headstart_block::{Error, Result};
use headstart_hash_tree::sums::DigestWriter;
use headstart_image::layer_file::LayerFile;
use headstart_image::manifest::{BLOB_DIGEST, BLOB_SIZE, OVERLAYBD_VERSION, OVERLAYBD_VERSION_NATIVE};
use headstart_image::tar_wrapper::wrapped_beginning;
use headstart_lsmt::format::has_magic;
use headstart_snapshotter::remote::PackedLayer;
use headstart_zfile::{ZFileOptions, ZFileWriter, is_zfile};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// The files of a layer in TurboOCI's format.
const TURBO_FILES: [&[u8]; 4] = [b"ext4.fs.meta", b"erofs.fs.meta", b".turbo.ociv1", b"gzip.meta"];
/// Bytes of a tar header, and of the name at its beginning.
const TAR_HEADER: usize = 512;
const TAR_NAME: usize = 100;

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

/// `true` if a blob with this beginning is a layer of blocks: packed here, or by OverlayBD's tools, which put a tar
/// around it. `BuildKit` keeps that tar, and loses the annotations by which it would be known.
pub(crate) fn is_layer(beginning: &[u8]) -> bool {
    let is_blocks = |bytes: &[u8]| is_zfile(bytes) || has_magic(bytes);
    is_zfile(beginning) || wrapped_beginning(beginning).is_some_and(is_blocks)
}

/// `true` if a blob with this beginning is a layer in TurboOCI's format: an archive, mostly compressed by gzip, whose
/// first file is one of such a layer.
pub(crate) fn is_turbo_layer(beginning: &[u8]) -> bool {
    let mut header = [0; TAR_HEADER];
    let read = match beginning {
        [0x1f, 0x8b, ..] => GzDecoder::new(beginning).read_exact(&mut header),
        mut plain => plain.read_exact(&mut header),
    };
    let name = header[..TAR_NAME].split(|byte| *byte == 0).next().unwrap_or_default();
    read.is_ok() && TURBO_FILES.contains(&name.strip_prefix(b"./").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use headstart_block::BlockDevice;
    use headstart_image::tar_wrapper::wrap;
    use headstart_lsmt::LayerMeta;
    use headstart_lsmt::writable::{NewDisk, WritableDisk};
    use headstart_testkit::disk::noise;
    use std::fs;
    use std::io::{Cursor, Write};

    /// The first bytes of a blob that the differ looks at.
    const BEGINNING: usize = 4 << 10;

    #[test]
    fn a_layer_is_known_with_a_tar_around_it_and_without() {
        let dir = tempfile::tempdir().unwrap();
        let new = NewDisk { size: 1 << 20, parent: String::new(), uuid: uuid::Uuid::new_v4() };
        let disk = WritableDisk::create(dir.path().join("written"), None, &new).unwrap();
        disk.write_at(&[7; 4096], 0).unwrap();
        let layer = dir.path().join("layer");
        drop(disk.commit(File::create(&layer).unwrap(), LayerMeta::default()).unwrap());
        let packed = pack(&layer, dir.path()).unwrap();
        let mut blob = vec![0; usize::try_from(packed.size).unwrap()];
        std::os::unix::fs::FileExt::read_exact_at(&*packed.file, &mut blob, 0).unwrap();
        let wrapped = |bytes: &[u8]| {
            let mut file = Cursor::new(Vec::new());
            wrap(&mut file, |file| Ok(file.write_all(bytes)?)).unwrap();
            file.into_inner()
        };
        let beginning = |bytes: &[u8]| bytes[..bytes.len().min(BEGINNING)].to_vec();
        for blocks in [blob.clone(), wrapped(&blob), wrapped(&fs::read(&layer).unwrap())] {
            assert!(is_layer(&beginning(&blocks)));
            // A layer that is kept as it came is opened by what is in it.
            let kept = dir.path().join("kept");
            fs::write(&kept, &blocks).unwrap();
            LayerFile::open(&kept).unwrap();
        }
        for other in [wrapped(b"a file of this name"), vec![0; BEGINNING], Vec::new()] {
            assert!(!is_layer(&beginning(&other)));
        }
    }

    #[test]
    fn a_layer_of_turbo_oci_is_known_by_its_first_file() {
        let archive = |name: &str| {
            let mut tar = vec![0; TAR_HEADER];
            tar[..name.len()].copy_from_slice(name.as_bytes());
            // What follows is packed already.
            tar.extend(noise(1, 64 << 10));
            tar
        };
        let gzip = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        for (name, is_turbo) in
            [("ext4.fs.meta", true), ("./erofs.fs.meta", true), (".turbo.ociv1", true), ("etc/passwd", false)]
        {
            let (plain, packed) = (archive(name), gzip(&archive(name)));
            assert_eq!(is_turbo_layer(&plain[..BEGINNING]), is_turbo, "{name}");
            assert_eq!(is_turbo_layer(&packed[..BEGINNING]), is_turbo, "{name}");
            assert!(!is_layer(&packed[..BEGINNING]), "{name}");
        }
        for other in
            [&[][..], b"\x1f\x8b", &[0x1f, 0x8b, 8, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7], b"ext4.fs.meta"]
        {
            assert!(!is_turbo_layer(other), "{other:?}");
        }
    }
}
