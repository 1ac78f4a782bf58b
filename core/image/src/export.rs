//! Writing a disk out as a file of another format: sparse raw or qcow2.
//!
//! The output has no name until it is whole, so a failed, stopped or killed export leaves nothing, and an older file
//! stays until the new one is there. (On file systems that cannot make files without a name, a killed export leaves a
//! temporary file, which the next export into the same directory removes.) An output that is a block device is written
//! in place. A symbolic link is followed only if it belongs to root or to this user. An output takes the place of no
//! file that the command reads, and of none that the program keeps for itself.

mod kept_files;
mod output_file;
mod qcow2;
mod raw;

pub use output_file::OutputFile;

use crate::disk_file::DiskFormat;
use crate::progress::Progress;
use headstart_block::{BlockDevice, ByteRange, Error, Result};
use output_file::Place;
use std::path::Path;

/// The result of [`export_disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportReport {
    /// The size of the disk in bytes.
    pub virtual_size: u64,
    /// The number of bytes in those blocks of the disk that are not all zeros. A block has 4 KiB, for qcow2 64 KiB.
    pub data_bytes: u64,
}

/// Writes the disk's content to a file at `path` in the given format (raw or qcow2), or onto a block device (raw only).
/// `threads` is the number of threads that read and write: 0 counts as 1, and qcow2 is always written by one. `inputs`
/// are files that the disk is read from, beside those in image stores; none of them may be at `path`.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] for formats other than raw and qcow2, and for a format other than raw on
/// a block device; [`headstart_block::ErrorKind::Invalid`] if something other than a file or a block device is at the
/// path, if an input or a file of the program's own is there, or if the block device is smaller than the disk;
/// [`headstart_block::ErrorKind::Denied`] if the path leads through a symbolic link that belongs to neither root nor
/// this user; errors of reading or writing; [`headstart_block::ErrorKind::Cancelled`] if the user wants to stop. After
/// an error, a file that was at `path` before is unchanged, unless only the last step failed, the syncing of its
/// directory: the new file is then at `path`. A block device may be written in part.
pub fn export_disk(
    disk: &dyn BlockDevice,
    (path, inputs): (&Path, &[&Path]),
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
    let place = Place::find(path, inputs)?;
    if place.is_block_device() {
        return match format {
            DiskFormat::Raw => raw::write_device(disk, place.path(), threads, progress),
            other => Err(Error::unsupported(format!("cannot write {other} onto a block device"))
                .about(path.display())
                .remedy("write raw there, or name a file")),
        };
    }
    let partial = OutputFile::at(place)?;
    let written = write(disk, partial.temporary_path(), threads, progress);
    let report = written.map_err(|e| e.about(path.display()))?;
    partial.keep()?;
    Ok(report)
}

type WriteDisk = fn(&dyn BlockDevice, &Path, usize, &dyn Progress) -> Result<ExportReport>;

/// The disk's extents that are not known to be zeros, in order, and the number of their bytes.
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
