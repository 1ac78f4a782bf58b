//! Sparse raw files and block devices, written by several threads.

use super::{ExportReport, data_extents};
use crate::progress::{Progress, step};
use crate::zero::{BLOCK, is_zero};
use headstart_block::{BlockDevice, ByteRange, Error, Result, to_usize};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of bytes that a thread reads and writes at once: a multiple of every frame size, large enough that a
/// frame at the border of two parts, which both threads decompress, costs little.
const PART: u64 = 2 << 20;

/// Writes the disk into the empty file at `path`, leaving holes in the place of zeros.
pub(super) fn write(
    disk: &dyn BlockDevice,
    path: &Path,
    threads: usize,
    progress: &dyn Progress,
) -> Result<ExportReport> {
    let file = open(path)?;
    file.set_len(disk.size()).map_err(|e| Error::io("cannot set its size", e))?;
    copy(disk, &file, Zeros::Skip, threads, progress)
}

/// Writes the disk onto a block device that is at least as large, zeros included.
pub(super) fn write_device(
    disk: &dyn BlockDevice,
    path: &Path,
    threads: usize,
    progress: &dyn Progress,
) -> Result<ExportReport> {
    use std::io::{Seek, SeekFrom};
    let named = |e: std::io::Error| Error::io("cannot write the device", e).about(path.display());
    // Exclusive: the kernel refuses a device that is mounted.
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let mut file = OpenOptions::new().write(true).custom_flags(exclusive).open(path).map_err(named)?;
    let size = file.seek(SeekFrom::End(0)).map_err(named)?;
    if size < disk.size() {
        let need = disk.size();
        return Err(
            Error::invalid(format!("the device has {size} bytes, the disk {need}")).about(path.display())
        );
    }
    let report = copy(disk, &file, Zeros::Write, threads, progress).map_err(|e| e.about(path.display()))?;
    file.sync_all().map_err(named)?;
    Ok(report)
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).open(path).map_err(|e| Error::io("cannot open", e))
}

/// The treatment of zeros: a fresh file has them already, a device holds old bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    Skip,
    Write,
}

fn copy(
    disk: &dyn BlockDevice,
    file: &File,
    zeros: Zeros,
    threads: usize,
    progress: &dyn Progress,
) -> Result<ExportReport> {
    let whole = ByteRange::between(0, disk.size());
    let (extents, bytes) = match zeros {
        Zeros::Skip => data_extents(disk)?,
        Zeros::Write => (vec![whole], whole.len()),
    };
    progress.begin("export", bytes);
    let parts = Mutex::new(extents.into_iter().flat_map(|extent| extent.parts(PART)));
    let data_bytes = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let copy_parts = || -> Result<()> {
        let mut buf = vec![0; to_usize(PART)];
        loop {
            let next = parts.lock().next();
            let Some(part) = next.filter(|_| !failed.load(Ordering::Relaxed)) else { return Ok(()) };
            #[expect(clippy::cast_possible_truncation, reason = "at most PART")]
            let buf = &mut buf[..part.len() as usize];
            disk.read_at(buf, part.offset())?;
            data_bytes.fetch_add(write_part(file, buf, part.offset(), zeros)?, Ordering::Relaxed);
            step(progress, part.len())?;
        }
    };
    // After a failure in one thread, the others have nothing more to do.
    let work = || copy_parts().inspect_err(|_| failed.store(true, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others = workers.into_iter().map(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(Error::new(headstart_block::ErrorKind::Io, "a thread failed")))
        });
        // Every thread is waited for before an error is passed on.
        others.fold(own, Result::and)
    })?;
    Ok(ExportReport { virtual_size: disk.size(), data_bytes: data_bytes.into_inner() })
}

/// Writes the runs of `buf` that are not zero, or all of it; returns the number of bytes that were not zero.
fn write_part(file: &File, buf: &[u8], offset: u64, zeros: Zeros) -> Result<u64> {
    let failed = |e| Error::io("cannot write", e);
    let mut data_bytes = 0;
    let mut blocks = buf.chunks(BLOCK).enumerate().peekable();
    while let Some((first, block)) = blocks.next() {
        if is_zero(block) {
            continue;
        }
        let mut end = first * BLOCK + block.len();
        while let Some((_, block)) = blocks.next_if(|(_, block)| !is_zero(block)) {
            end += block.len();
        }
        let run = &buf[first * BLOCK..end];
        data_bytes += run.len() as u64;
        if zeros == Zeros::Skip {
            file.write_all_at(run, offset + (first * BLOCK) as u64).map_err(failed)?;
        }
    }
    if zeros == Zeros::Write {
        file.write_all_at(buf, offset).map_err(failed)?;
    }
    Ok(data_bytes)
}
