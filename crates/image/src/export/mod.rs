//! Writing a disk out as a file of another format: sparse raw or qcow2.
//!
//! The output is made under a temporary name beside its place and renamed when it is whole, so a failed or
//! stopped export leaves nothing, and an older file stays until the new one is there. An output that is a
//! block device is written in place.

mod qcow2;
mod raw;

use crate::disk_file::DiskFormat;
use crate::progress::Progress;
use headstart_block::{BlockDevice, ByteRange, Error, Result};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportReport {
    /// Size of the disk in bytes.
    pub virtual_size: u64,
    /// Bytes of the disk that are not zeros.
    pub data_bytes: u64,
}

/// Writes `disk` to `path` as `format` with `threads` threads.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] for formats other than raw and qcow2; what reading, writing or
/// the user's wish to stop reports. Nothing is left at `path` then but what was there before.
pub fn export_disk(
    disk: &dyn BlockDevice,
    path: &Path,
    format: DiskFormat,
    threads: usize,
    progress: &dyn Progress,
) -> Result<ExportReport> {
    let write: WriteDisk = match format {
        DiskFormat::Raw => raw::write,
        DiskFormat::Qcow2 => qcow2::write,
        other => {
            return Err(Error::unsupported(format!("cannot export to {other}"))
                .remedy("export to raw or qcow2, and convert that with qemu-img"));
        }
    };
    if is_block_device(path) {
        return raw::write_device(disk, path, threads, progress);
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |e: std::io::Error| Error::io("cannot create", e).about(path.display());
    let partial = tempfile::Builder::new()
        .prefix(".headstart-export-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(dir)
        .map_err(failed)?;
    let report = write(disk, partial.path(), threads, progress).map_err(|e| e.about(path.display()))?;
    partial.persist(path).map_err(|e| failed(e.error))?;
    Ok(report)
}

type WriteDisk = fn(&dyn BlockDevice, &Path, usize, &dyn Progress) -> Result<ExportReport>;

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

/// The disk's extents that are not known to be zeros, in order, and their bytes in all.
fn data_extents(disk: &dyn BlockDevice) -> Result<(Vec<ByteRange>, u64)> {
    let (mut extents, mut bytes, mut offset) = (Vec::<ByteRange>::new(), 0, 0);
    while offset < disk.size() {
        let extent = disk.extent_at(offset)?;
        offset = extent.range.end();
        if extent.zero {
            continue;
        }
        bytes += extent.range.len();
        match extents.last_mut() {
            Some(last) if last.end() == extent.range.offset() => {
                *last = ByteRange::between(last.offset(), extent.range.end());
            }
            _ => extents.push(extent.range),
        }
    }
    Ok((extents, bytes))
}
