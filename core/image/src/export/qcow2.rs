//! qcow2 through the `imago` library: uncompressed clusters, none for zeros.

use super::{ExportReport, data_extents};
use crate::progress::{Progress, step};
use crate::zero::is_zero;
use headstart_block::{BlockDevice, Error, Result, SECTOR_SIZE, to_usize};
use imago::file::File;
use imago::format::builder::{FormatCreateBuilder, FormatDriverBuilder};
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, Storage, StorageOpenOptions};
use std::path::Path;

/// The cluster size, which is also the default of `qemu-img`. A cluster that holds a zero is still written whole.
const CLUSTER: u64 = 64 << 10;
/// The number of bytes read at once.
const PART: u64 = 1 << 20;

/// Writes the disk as qcow2 into the file at `path`. The library writes from one thread.
pub(super) fn write(
    disk: &dyn BlockDevice,
    path: &Path,
    _threads: usize,
    progress: &dyn Progress,
) -> Result<ExportReport> {
    let failed = |e| Error::io("cannot write it as qcow2", e);
    let file = File::open(StorageOpenOptions::new().filename(path).write(true)).map_err(failed)?;
    // The format counts in sectors; a disk of odd length gets its last sector whole.
    let image = Qcow2::<File>::create_builder(file)
        .size(disk.size().next_multiple_of(SECTOR_SIZE))
        .create_open(DenyImplicitOpenGate::default(), |file| Ok(Qcow2::builder(file).write(true)))
        .map_err(failed)?;
    let image = FormatAccess::new(image);
    let (extents, bytes) = data_extents(disk)?;
    progress.begin("export", bytes);
    let mut data_bytes = 0;
    let mut buf = vec![0; to_usize(PART)];
    for part in extents.into_iter().flat_map(|extent| extent.parts(PART)) {
        #[expect(clippy::cast_possible_truncation, reason = "at most PART")]
        let buf = &mut buf[..part.len() as usize];
        disk.read_at(buf, part.offset())?;
        for (i, cluster) in buf.chunks(to_usize(CLUSTER)).enumerate() {
            if !is_zero(cluster) {
                image.write(cluster, part.offset() + i as u64 * CLUSTER).map_err(failed)?;
                data_bytes += cluster.len() as u64;
            }
        }
        step(progress, part.len())?;
    }
    image.flush().map_err(failed)?;
    Ok(ExportReport { virtual_size: disk.size(), data_bytes })
}
